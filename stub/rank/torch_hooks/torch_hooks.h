// Layer 4 of the rank runtime: what stands in place of functions of torch's own threads and clocks.
//   imports     functions that torch's libraries import
//   callers     which function of torch calls
//   watchdog    NCCL's watchdog threads in virtual time
//   group_time  the clock of collectives' timeouts
//   profile     the clocks of torch's profiler
#pragma once
#include "rank/torch_hooks.h"
#include "rank/memory/memory.h"

#pragma GCC visibility push(hidden)

// watchdog.c
void ph_watchdogs_prepare(void);  // once, before ranks are forked
void ph_watchdogs_reset(void);    // at the connection
void ph_watchdog_polls_of_wait(void);  // ph_watchdog_polls() in a wait of torch's that sleeps between polls
// The moment by which a calling watchdog may hold collectives to be late; 0 for other callers.
bool ph_watchdog_sees(int64_t *moment);
// The system clock of the calling thread: `now`, or the moment until which a watchdog has just waited.
int64_t ph_watchdog_moment(int64_t now);
// Time that the calling watchdog did not wait, since its polls came before the end of its waits.
int64_t ph_watchdog_skipped(void);
// callers.c
typedef enum ph_caller {
  PH_CALLER_OTHER,
  PH_CALLER_COUNTS,   // counts a collective's time
  PH_CALLER_WATCHES,  // the watchdog of ProcessGroupNCCL2
} ph_caller;
ph_caller ph_caller_of(uintptr_t address);  // what the function of torch that `address` returns to does
// imports.c
typedef struct ph_import {
  const char *name;
  void *function;
  void **real;  // becomes what the function replaces, unless NULL
} ph_import;
extern const ph_import ph_group_imports[], ph_watchdog_imports[];  // of libtorch_cuda, taken over; the last has no name
extern const ph_import ph_clock_imports[];  // of all of torch's libraries

#pragma GCC visibility pop
