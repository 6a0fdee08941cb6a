#include "time_slices.h"

#include <algorithm>

namespace phe {

void TimeSlices::pass(const phe_timing &timing, int64_t now, int to) {
  begins_ = turn_ >= 0 && turn_ != to ? now + timing.context_switch_ns : now;
  begun_ = begins_ <= now;
  turn_ = to;
  ends_ = NEVER;
}

void TimeSlices::update(const phe_timing &timing, int64_t now, const std::vector<int> &wanting) {
  bool idle = contenders_ == 0;
  contenders_ = static_cast<int>(wanting.size());
  if (wanting.empty()) {
    ends_ = NEVER;
    return;
  }
  begun_ = begun_ || now >= begins_;
  auto own = std::find(wanting.begin(), wanting.end(), turn_);
  if (own == wanting.end()) {
    auto after = std::upper_bound(wanting.begin(), wanting.end(), turn_);
    pass(timing, now, after == wanting.end() ? wanting[0] : *after);
  } else if (wanting.size() > 1 && now >= ends_) {
    pass(timing, now, ++own == wanting.end() ? wanting[0] : *own);
  } else if (idle) {
    pass(timing, now, turn_);
  }
  if (wanting.size() == 1)
    ends_ = NEVER;
  else if (ends_ == NEVER)  // a process that is alone begins one slice after the other
    ends_ = begins_ + (std::max<int64_t>(now - begins_, 0) / timing.time_slice_ns + 1) * timing.time_slice_ns;
}

}  // namespace phe
