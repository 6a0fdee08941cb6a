// The power limiters of a run that is replayed to find its settled step: each goes on from where the last replay would
// end if its steps were repeated.
#pragma once
#include "gpu/device.h"

#include <unordered_map>

namespace phe {

class SettledPower {
 public:
  // The GPU of `rank` has this state at the end of its first step; null: that which it has then.
  void start(int rank, const phe_power_state *state) { ranks_[rank].given = state ? *state : phe_power_state{}; }
  bool has(const Rank &rank) const { return ranks_.count(rank.index) != 0; }
  // The GPU has done all up to the end of an optimizer.
  void at_mark(const Rank &rank, Device &device);
  bool get(int rank, phe_power_state &out) const;

 private:
  struct Seen {
    phe_power_state given{}, last{};
    Power::Moment begin{};
    bool stepped = false;
  };
  std::unordered_map<int, Seen> ranks_;
};

}  // namespace phe
