// Processes that share a GPU without MPS: the kernels of one run for a time slice, then those of the next that has
// some.
#pragma once
#include "basics.h"

#include <vector>

namespace phe {

class TimeSlices {
 public:
  struct Contender {
    int context;       // by its number on the GPU
    bool interrupted;  // has a kernel that has begun and not ended
  };

  // Contexts share the GPU by time slices from now on.
  void start() { on_ = true; }
  bool on() const { return on_; }
  // Brings the slices up to `now`; `contenders`: the contexts that have kernels to run, in the order of their numbers.
  void update(const phe_timing &timing, int64_t now, const std::vector<Contender> &contenders);
  // Do the kernels of `context` run?
  bool runs(int context) const { return !on_ || (current_ == context && begun_); }
  // When a slice begins or ends by itself; NEVER: not before something else happens.
  int64_t next() const { return !on_ ? NEVER : begun_ ? ends_ : begins_; }
  int contenders() const { return count_; }

 private:
  void pass(int64_t now, int64_t cost, int to);

  bool on_ = false;
  int current_ = -1;  // context
  int64_t begins_ = NEVER, ends_ = NEVER;
  bool begun_ = false;  // the GPU has changed over to it
  int count_ = 0;       // of contenders
};

}  // namespace phe
