// Layer 2 of the rank runtime: what calls, operators and Python frames cost the host.
//   costs       the charges of the host profile, cold code, the brackets of stubs
//   apart       work of a background thread, and who waits for it
//   rivals      other threads that want Python's lock
//   loops       operators that Python calls
//   unmodelled  CPU time of the script that no cost covers
#pragma once
#include "rank/clock.h"
#include "rank/runtime/runtime.h"

#define PH_SWITCH_NS 5000000  // sys.getswitchinterval()

#pragma GCC visibility push(hidden)

// costs.c
void ph_costs_reset(void);          // at the connection
void ph_costs_apart(bool begins);   // a thread with a time of its own works
// apart.c
void ph_apart_reset(void);
// rivals.c
void ph_rivals_reset(void);
// unmodelled_cpu.c
void ph_unmodelled_reset(void);
void ph_unmodelled_enter(void);
void ph_unmodelled_leave(void);

#pragma GCC visibility pop
