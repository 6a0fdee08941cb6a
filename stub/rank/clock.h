// Layer 2 of the rank runtime, for stubs and the tracer: the host time of calls, operators and Python frames.
#pragma once
#include "rank/runtime.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// ---- costs.c
void ph_charge(enum ph_api api);  // advance by the modelled cost of a call (0 in other modes)
void ph_charge_times(enum ph_api api, size_t times);
// A Python frame of `units` of code, which ran `last`, begins: PY_FRAME, and PY_CODE per 1,000 cold units (costs.c).
// What ph_leave_frame gets at its end.
int ph_enter_frame(int64_t *last, size_t units, uint32_t function);
void ph_leave_frame(int called);
void ph_cover_frames(int more);  // frames of this thread are not charged while it is above 0
bool ph_frames_covered(void);
void ph_called_from_python(void);  // an operator: PY_LOOP if its frame has called several
void ph_enter_backward(void);  // this thread enters the autograd engine
void ph_charge_handover(
    void);  // a node is about to run: BACKWARD_CALL and BACKWARD_WAKE if it is the pass's first on another thread
void ph_charge_cold(enum ph_api api, int64_t *last,
                    size_t times);  // as much of each as the code that ran `last` is cold (costs.c)
const uint64_t *ph_charges(void);  // times that each cost was charged, by enum ph_api
uint64_t ph_charged(enum ph_api api);  // the same for one, from any thread
const uint64_t *ph_charge_levels(void);  // by cold level: operators, then units of code
void ph_charge_bytes(enum ph_api api, size_t bytes);  // api's cost is per GiB
int64_t ph_bytes_ns(enum ph_api api, size_t bytes);  // that cost; 0 in other modes
int64_t ph_times_ns(enum ph_api api, size_t times);  // the cost of `times` calls; 0 in other modes
// An operator of the host's CPU that moves `bytes`, of which `fresh` are new memory, on `threads` threads;
// 0: the vCPUs for each GPU
void ph_charge_memory(size_t moved, size_t fresh, int threads);
// From `from` on work of the host takes `first` times as long until `planned`, and `then` times until `until`. Factors
// are at least 1.
void ph_contend(int64_t from, int64_t planned, double first, int64_t until, double then);
// Every stub entry point is bracketed. CPU time between brackets is the program's: the measured mode counts it, the
// modelled one notes what it does not count.
void ph_enter(void);
void ph_leave(void);

// ---- apart.c
// What this thread is `charged` until ph_apart_end() moves a time of its own, which that returns: the thread that moves
// the clock sleeps meanwhile. Waits for the GPU return at once.
void ph_apart_begin(bool charged);
int64_t ph_apart_end(void);
void ph_apart_from(int64_t at, int64_t length);  // that work begins at this time of the clock and takes `length`
// ph_charge_bytes in a `call`, which is charged at its end: all of it has the driver's lock.
void ph_charge_locked(enum ph_api call, enum ph_api api, size_t bytes);
void ph_await_driver(void);  // the end of a call that has the driver's lock
void ph_await_interpreter(void);  // a moment at which no other thread runs Python

// ---- rivals.c
// From now on another thread has Python's lock when it can, and keeps it so long; it has work for these millionths of
// the time.
void ph_rivals(int64_t ns, int64_t millionths);
void ph_regain_interpreter(void);  // the thread that moves the clock had let go of the lock, and goes on in Python
void ph_run_interpreter(void);  // it is in Python, and must let go once in a while
// Sleeps, in real time. True if the `threads` with these `clocks` of CPU time have worked just before its end, the time
// of which (CLOCK_MONOTONIC) it gives, with ph_delayed() then.
bool ph_poll(int64_t ns, const int *clocks, const int *threads, size_t count, int64_t *ended, int64_t delayed[2]);
void ph_delayed(const int *threads, size_t count,
                int64_t delayed[2]);  // ns for which the caller, and these, have waited for a core

// ---- unmodelled_cpu.c
void ph_unmodelled_exclude(bool begins);  // what this thread does until it ends is counted elsewhere
void ph_unmodelled_drop_latest(void);  // the stretch that has just ended has a price
void ph_unmodelled_step(void);  // an optimizer's step has ended
void ph_unmodelled_launch(void);  // a kernel is launched
// For each step so far: ns of the script's CPU time that were not counted, the clock's advance, and all kernels before.
// Of a program without steps for each kernel behind such work; `kernels` are all then, and else 0.
size_t ph_unmodelled_steps(const int64_t **each, int64_t *kernels);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
