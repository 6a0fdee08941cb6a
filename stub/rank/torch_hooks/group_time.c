// The clock by which torch's ProcessGroupNCCL counts the timeouts of its collectives.
//
// It notes std::chrono::steady_clock::now() when a collective is issued and compares later, in the watchdog or in a
// blocking wait. In real time a slow simulation would run into timeouts, and a script that sleeps in virtual time would
// have none left. So these two functions get the rank's host clock: the entry for now() in libtorch_cuda's own table of
// imports is taken over, and callers are distinguished (callers.c). All else there goes by real time.
//
// If no rank can go on, virtual time stands still. The simulator counts the real time of such stalls, and it is added:
// a collective that no other rank joins runs into its timeout as on a cluster, unless the run is found to hang first.
#define _GNU_SOURCE
#include "rank/torch_hooks/torch_hooks.h"

#include <time.h>

#define POLL_NS 1000000
#define PATIENT_SHARE 20  // a wait that polls: at least so long as this part of its time so far

static int64_t (*real_now)(void);
static int (*real_nanosleep)(const struct timespec *, struct timespec *);

static int64_t steady_now(void) {
  bool ended = atomic_load_explicit(&ph_rt.ended, memory_order_relaxed);
  if (!ph_recording() && !ended) return real_now();
  ph_caller caller = ph_caller_of((uintptr_t)__builtin_return_address(0));
  if (caller == PH_CALLER_WATCHES) return real_now() + ph_watchdog_skipped();
  if (caller == PH_CALLER_OTHER) return real_now();
  if (ended) return ph_now();  // it stands still: nothing becomes late while the process ends
  int64_t seen;
  return ph_watchdog_sees(&seen) ? seen : ph_group_clock();
}

// A blocking wait asks whether its collective is done and sleeps. What it waits for may be far away in virtual time.
// A wait for NCCL itself keeps the communicator's lock: no watchdog can poll.
static int pause_between_polls(const struct timespec *asked, struct timespec *left) {
  static int64_t since, last;
  if (!ph_recording() || !ph_this_thread()->moves_clock || ph_self.borrows_clock) return real_nanosleep(asked, left);
  int64_t ns = (int64_t)asked->tv_sec * 1000000000 + asked->tv_nsec, now = ph_now();
  if (now - last > POLL_NS) since = now;
  int64_t share = (now - since) / PATIENT_SHARE;
  ph_advance(ns > share ? ns : share);
  last = ph_now();
  ph_watchdog_polls_of_wait();
  struct timespec slice = {0, ns < POLL_NS ? ns : POLL_NS};
  return real_nanosleep(&slice, NULL);
}

const ph_import ph_group_imports[] = {
    {"_ZNSt6chrono3_V212steady_clock3nowEv", (void *)steady_now, (void **)&real_now},
    {"nanosleep", (void *)pause_between_polls, (void **)&real_nanosleep},
    {NULL, NULL, NULL},
};
