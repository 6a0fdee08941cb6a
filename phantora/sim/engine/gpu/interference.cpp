#include "gpu/interference.h"

#include <algorithm>

namespace phe {

double Interference::factor_of_blocks(const Item &item, int blocks, int sms) {
  const phe_kernel_profile &p = item.profile;
  if (p.tiles <= 0) return 1 + (p.interference - 1) * std::min(1.0, blocks / std::max(1.0, p.channels_sms));
  int usable = std::max(1, p.sms ? p.sms : sms), left = std::max(1, std::min(usable, sms - blocks));
  auto waves = [&](int on) { return (p.tiles + on - 1) / on; };
  return 1 + p.waves * (static_cast<double>(waves(left)) / waves(usable) - 1);
}

void Interference::slow(int64_t now, double share) {
  if (stretches_.empty()) return stretches_.push_back({now, 0, share});
  const Stretch &last = stretches_.back();
  if (last.share == share) return;
  stretches_.push_back({now, last.before + last.share * static_cast<double>(now - last.since), share});
}

void Interference::forget(int64_t first) {
  if (first == NEVER) return stretches_.clear();
  while (stretches_.size() > 1 && stretches_[1].since <= first) stretches_.pop_front();
}

double Interference::lost_until(int64_t time) const {
  auto after = std::upper_bound(stretches_.begin(), stretches_.end(), time,
                                [](int64_t t, const Stretch &stretch) { return t < stretch.since; });
  if (after == stretches_.begin()) return 0.0;
  const Stretch &stretch = *std::prev(after);
  return stretch.before + stretch.share * static_cast<double>(time - stretch.since);
}

double Interference::lost(int64_t from, int64_t until) const { return lost_until(until) - lost_until(from); }

}  // namespace phe
