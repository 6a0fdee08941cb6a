#include "gpu/time_slices.h"

#include <algorithm>

namespace phe {

void TimeSlices::pass(int64_t now, int64_t cost, int to) {
  begins_ = now + cost;
  begun_ = !cost;
  current_ = to;
}

void TimeSlices::update(const phe_timing &timing, int64_t now, const std::vector<Contender> &contenders) {
  bool idle = count_ == 0;
  count_ = static_cast<int>(contenders.size());
  ends_ = NEVER;
  if (contenders.empty()) return;
  begun_ = begun_ || now >= begins_;
  auto own =
      std::find_if(contenders.begin(), contenders.end(), [this](const Contender &c) { return c.context == current_; });
  auto after =
      std::find_if(contenders.begin(), contenders.end(), [this](const Contender &c) { return c.context > current_; });
  const Contender &next = after == contenders.end() ? contenders[0] : *after;
  bool there = own != contenders.end();
  // A process that has been alone for longer than a slice has none left.
  if (!there || (count_ > 1 && begun_ && now >= begins_ + timing.time_slice_ns))
    pass(now, next.interrupted || (there && own->interrupted) ? timing.context_switch_ns : 0, next.context);
  else if (idle)
    pass(now, 0, current_);
  if (count_ > 1) ends_ = begins_ + timing.time_slice_ns;
}

}  // namespace phe
