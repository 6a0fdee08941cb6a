// Work of a background thread of the program, such as the copy of a checkpoint to the host's memory.
//
// What the thread is charged from ph_apart_begin(true) on moves a time of its own; waits for the GPU are no part of it.
// The thread that moves the clock sleeps
// meanwhile, in real time, so that both are charged in one order. Then ph_apart_from() gives that work its place on the
// rank's clock, and the two compete:
//
// - The driver has one lock. A call that pins memory has it while the kernel makes and locks the pages, and launches,
//   copies and allocations of other threads wait for its end.
// - Between such calls the thread runs Python, and has the interpreter's lock: an operator that Python calls comes back
//   to its caller when the thread has gone on to its next call of the driver, or after Python's switch interval.
//   Nodes of the autograd graph that are written in C++ need no interpreter.
//
// Measured on an H200 (staging rows of host_stalls.jsonl of 2026-11-28): 72 tensors of 32 MiB are pinned in 1.03 s; a
// step of 27 operators forward, 28 nodes backward and a few of its optimizer next to it takes 0.27 to 0.33, 0.29 to
// 0.49 and 0.07 s, alone 0.001 to 0.003 each. That is the rest of one call for each operator or node.
#define _GNU_SOURCE
#include "rank/clock/clock.h"

#include <stdlib.h>

typedef struct stretch {
  int64_t begin, end;
} stretch;

static stretch *locked;  // stretches in the driver, in order
static size_t room, count;
static size_t placed;  // those of work that has its place on the clock
static size_t passed;  // those that the clock has passed
static int64_t from, until;  // of that work

void ph_apart_reset(void) {
  count = placed = passed = 0;
  from = until = 0;
}

void ph_apart_begin(bool charged) {
  if (!ph_live() || ph_this_thread()->moves_clock) return;
  ph_self.passes_waits = true;
  ph_self.apart_ns = 0;
  if (!charged || !ph_rt.modelled) return;
  ph_self.apart = true;
  count = placed;  // of work that has got no place
  ph_costs_apart(true);
}

int64_t ph_apart_end(void) {
  ph_self.passes_waits = false;
  if (!ph_self.apart) return 0;
  ph_self.apart = false;
  ph_costs_apart(false);
  return ph_self.apart_ns;
}

void ph_apart_from(int64_t at, int64_t length) {
  for (; placed < count; ++placed) {
    locked[placed].begin += at;
    locked[placed].end += at;
  }
  if (ph_now() >= until) from = at;
  until = at + length;
}

void ph_charge_locked(enum ph_api call, enum ph_api api, size_t bytes) {
  int64_t begin = ph_self.apart_ns;
  ph_charge_bytes(api, bytes);
  if (!ph_self.apart) return;
  if (count == room) {
    size_t larger = room ? 2 * room : 256;
    stretch *all = realloc(locked, larger * sizeof *all);
    if (!all) return;
    locked = all;
    room = larger;
  }
  locked[count++] = (stretch){begin, ph_self.apart_ns + ph_times_ns(call, 1)};
}

// The first stretch that has not ended; NULL: none.
static const stretch *next_locked(int64_t now) {
  while (passed < placed && locked[passed].end <= now) ++passed;
  if (passed < placed) return &locked[passed];
  if (placed == count) count = placed = passed = 0;
  return NULL;
}

static bool competes(int64_t now) {
  return until && now < until && ph_this_thread()->moves_clock && !ph_self.borrows_clock;
}

void ph_await_driver(void) {
  int64_t now = ph_now();
  if (!competes(now)) return;
  const stretch *next = next_locked(now);
  if (!next || now < next->begin) return;
  ph_note_clock('+', next->end - now);
  // It is woken: one of the two wake-ups that a backward pass takes.
  ph_move_clock(next->end - now + ph_rt.header->api_ns[PH_API_BACKWARD_WAKE] / 2);
}

void ph_await_interpreter(void) {
  int64_t now = ph_now();
  if (now < from || !competes(now)) return;
  const stretch *next = next_locked(now);
  int64_t free = next ? next->begin : until;
  if (free <= now) return;
  int64_t wait = free - now < PH_SWITCH_NS ? free - now : PH_SWITCH_NS;
  ph_note_clock('+', wait);
  ph_move_clock(wait);
}
