// Layer 4 of the rank runtime, for stubs and the tracer: torch's watchdog threads and profiler in virtual time.
#pragma once
#include "rank/memory.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// ---- imports.c
// Takes over what torch's libraries import: NCCL's watchdogs, timeouts and the profiler go by virtual time from now on.
// Called once, after torch has been imported and before ranks are forked.
void ph_take_imports(void);

// ---- watchdog.c
void ph_sleep(int64_t ns);  // ph_advance(), and NCCL's watchdogs make the polls that fall into it
void ph_watchdog_work(void);  // a collective was issued, or a poll found one that is not done
bool ph_watchdog_undone(void);  // by what found something not done: a watchdog's poll? Then there will be another
void ph_watchdog_polls(void);  // lets NCCL's watchdogs poll if a poll is due
// torch calls NCCL under a lock of the communicator, and keeps it while it sleeps until the call is over. A watchdog
// takes the same lock in its poll. `locks`: the calling thread's last question was to NCCL, not about an event.
void ph_watchdog_locked(bool locks);
// Time since a poll of the watchdog kept what this thread frees now, in ns; -1: no poll kept it.
int64_t ph_watchdog_kept(void);
void ph_watchdog_pulse(int64_t ns);  // how often they poll in real time, where they find nothing done
bool ph_watchdog_early(const ph_event *event);  // asked in a poll: too soon after its end to find it done
bool ph_watchdog_blind(const ph_event *event);  // asked by a watchdog in real time: the event is not done

// ---- profile.c
void ph_profile(ph_listener *listener);  // NULL: none listens any longer
uint32_t ph_last_correlation(void);  // of this thread's last record
// Ended launches that the profiler knows: fills `out`, as many as fit; 0: no more.
size_t ph_activities(ph_activity *out, size_t room);
size_t ph_activity_name(int32_t name, char *out, size_t room);  // its length
// While true, this thread's calls of the clocks of torch's profiler tell virtual time.
void ph_profiler_clock(bool on);
int64_t ph_unix_ns(void);  // virtual time since 1970

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
