// Time slices of threads of the engine.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

#include <stdint.h>

namespace phe {

// The calling thread runs soon after it is woken where all cores are busy, by short slices (Linux 6.12 and newer).
inline void prefer_short_slices() {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } now{};
  if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0)) return;
  now.runtime = 100'000;  // ns, the least that is taken
  syscall(SYS_sched_setattr, 0, &now, 0);
}

}  // namespace phe
