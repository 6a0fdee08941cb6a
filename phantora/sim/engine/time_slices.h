// Processes that share a GPU without MPS: the kernels of one run for a time slice, then those of the next that has some.
#pragma once
#include "basics.h"

#include <vector>

namespace phe {

class TimeSlices {
 public:
  // Contexts, known by their numbers on the GPU, take turns from now on.
  void start() { on_ = true; }
  bool on() const { return on_; }
  // Brings the turn up to `now`; `wanting`: the contexts that have kernels to run, in ascending order.
  void update(const phe_timing &timing, int64_t now, const std::vector<int> &wanting);
  // Do the kernels of `context` run?
  bool runs(int context) const { return !on_ || (turn_ == context && begun_); }
  // When the turn begins or passes on by itself; NEVER: not before something else happens.
  int64_t next() const { return !on_ ? NEVER : begun_ ? ends_ : begins_; }
  // Contexts that want the GPU.
  int contenders() const { return contenders_; }

 private:
  void pass(const phe_timing &timing, int64_t now, int to);

  bool on_ = false;
  int turn_ = -1;
  int64_t begins_ = NEVER, ends_ = NEVER;
  bool begun_ = false;  // the GPU has changed over to it
  int contenders_ = 0;
};

}  // namespace phe
