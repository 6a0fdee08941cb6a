// CPU time of the script that the modelled host clock does not know: code in C between two calls (NumPy, SciPy, an
// environment's physics), loops within a function. It moves no clock, since it differs from run to
// run; phantora/rank/patches/unmodelled_cpu.py tells the user when a step has much of it.
//
// Only long stretches without a call of ours are measured. Reading a thread's CPU time takes up to a microsecond, so a
// thread reads it at the end of a call only when its last reading is old.
#define _GNU_SOURCE
#include "rank/clock/clock.h"

#include <time.h>
#include <x86intrin.h>

#define CYCLES_MS 2000000  // of the time-stamp counter at 2 GHz; it runs at 2 to 4
#define LONG_NS 500000  // CPU time of a stretch that counts
#define STEPS 65536

static _Atomic int64_t unmodelled;  // ns since the last step ended
struct lapses {
  int64_t last;
  size_t count;
  int64_t each[STEPS][3];  // CPU time that was not counted, the clock's advance, and the kernels so far
};
static struct lapses steps, launches;  // from step to step; without steps, to each kernel behind such work
static _Atomic int64_t kernels;

static int64_t cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void ph_unmodelled_reset(void) {
  atomic_store(&unmodelled, 0);
  steps.last = launches.last = 0;
  steps.count = launches.count = 0;
  kernels = 0;
}

void ph_unmodelled_enter(void) {
  ph_thread *self = &ph_self;
  self->unmodelled = 0;
  if (!self->left || __rdtsc() - self->left < CYCLES_MS || self->excluded || !ph_this_thread()->moves_clock) return;
  int64_t spent = cpu_ns() - self->cpu_mark - (ph_now() - self->clock_mark);
  if (spent <= LONG_NS) return;
  atomic_fetch_add(&unmodelled, spent);
  self->unmodelled = spent;
}

void ph_unmodelled_drop_latest(void) {
  atomic_fetch_sub(&unmodelled, ph_self.unmodelled);
  ph_self.unmodelled = 0;
}

void ph_unmodelled_leave(void) {
  ph_thread *self = &ph_self;
  uint64_t now = __rdtsc(), before = self->left;
  self->left = now;
  if (before && now - self->marked < CYCLES_MS / 4) return;
  self->marked = now;
  self->cpu_mark = cpu_ns();
  self->clock_mark = ph_now();
}

void ph_unmodelled_exclude(bool begins) {
  ph_self.excluded += begins ? 1 : -1;
  if (ph_self.excluded) return;
  ph_self.left = 0;
  ph_unmodelled_leave();
}

static void end(struct lapses *of) {
  int64_t now = ph_now(), spent = atomic_exchange(&unmodelled, 0);
  if (of->count < STEPS) {
    int64_t *lapse = of->each[of->count++];
    lapse[0] = spent, lapse[1] = now - of->last, lapse[2] = kernels;
  }
  of->last = now;
}

void ph_unmodelled_step(void) { end(&steps); }

void ph_unmodelled_launch(void) {
  atomic_fetch_add_explicit(&kernels, 1, memory_order_relaxed);
  if (!steps.count && atomic_load_explicit(&unmodelled, memory_order_relaxed) && ph_this_thread()->moves_clock)
    end(&launches);
}

size_t ph_unmodelled_steps(const int64_t **each, int64_t *all_kernels) {
  const struct lapses *of = steps.count ? &steps : &launches;
  *each = of->each[0];
  *all_kernels = steps.count ? 0 : kernels;
  return of->count;
}
