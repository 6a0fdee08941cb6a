#include "gpu/settled_power.h"

namespace phe {

void SettledPower::at_mark(const Rank &rank, Device &device) {
  auto it = ranks_.find(rank.index);
  if (it == ranks_.end()) return;
  Seen &seen = it->second;
  Power &power = device.power();
  if (!seen.stepped) {
    if (seen.given.clock > 0) power.start(seen.given);
    power.forget_lowest();
    seen.begin = power.moment();
  }
  seen.stepped = true;
  seen.last = power.repeated(seen.begin);
}

bool SettledPower::get(int rank, phe_power_state &out) const {
  auto it = ranks_.find(rank);
  if (it == ranks_.end() || !it->second.stepped) return false;
  out = it->second.last;
  return true;
}

}  // namespace phe
