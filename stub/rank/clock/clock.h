// Layer 2 of the rank runtime: what calls, operators and Python frames cost the host.
//   costs       the charges of the host profile, cold code, the brackets of stubs
//   unmodelled  CPU time of the script that no cost covers
#pragma once
#include "rank/clock.h"
#include "rank/runtime/runtime.h"

#pragma GCC visibility push(hidden)

// costs.c
void ph_costs_reset(void);          // at the connection
// unmodelled_cpu.c
void ph_unmodelled_reset(void);
void ph_unmodelled_enter(void);
void ph_unmodelled_leave(void);

#pragma GCC visibility pop
