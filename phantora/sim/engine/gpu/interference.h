// Slowdown between kernels and communication on one GPU.
//
// Interference is what a kernel loses to concurrent communication: a factor on its duration. Communication slowdown is
// what communication loses to concurrent kernels: a share of its pace, since they fill memory and caches that it passes
// through.
#pragma once
#include "gpu/work.h"

#include <vector>

namespace phe {

class Interference {
 public:
  // Slowdown of `item` with concurrent NCCL; `behind`: with one that was on the GPU first.
  static double factor(const Item &item, bool behind) {
    return behind ? item.profile.interference_behind : item.profile.interference;
  }
  // With kernels that have `blocks` of the GPU's `sms` SMs for themselves.
  static double factor_of_blocks(const Item &item, int blocks, int sms);
  // From `now` on communication loses `share` of its pace here.
  void slow(int64_t now, double share);
  // Nothing asks any longer for what was before `first`; NEVER: for anything.
  void forget(int64_t first);
  // ns that communication lost here between two moments of which the GPU has reached the later one.
  double lost(int64_t from, int64_t until) const;

 private:
  struct Stretch {
    int64_t since;
    double before;  // ns lost until then
    double share;  // of the time, from then on
  };
  double lost_until(int64_t time) const;

  std::deque<Stretch> stretches_;  // since the first communication kernel that still runs arrived
};

}  // namespace phe
