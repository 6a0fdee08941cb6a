// The host clock of a rank, and the lock under which it is published.
#define _GNU_SOURCE
#include "rank/runtime/runtime.h"

#include <time.h>

#define PUBLISH_NS 20000  // the clock is published when it moved so far without a record

static _Atomic int64_t host_clock;
static _Atomic int64_t published;
static int64_t null_base;
static pthread_mutex_t emit_mutex = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;

static int64_t monotonic_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void ph_clock_reset(void) {
  emit_mutex = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
  ph_self.lock_depth = 0;
  atomic_store(&host_clock, 0);
  atomic_store(&published, 0);
  null_base = monotonic_ns();
}

void ph_clock_detach(void) {
  emit_mutex = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
  ph_self.lock_depth = 0;
}

void ph_emit_lock(void) {
  if (ph_self.lock_depth++ == 0) pthread_mutex_lock(&emit_mutex);
}

void ph_emit_unlock(void) {
  if (--ph_self.lock_depth == 0) pthread_mutex_unlock(&emit_mutex);
}

// The simulator may move a sleeping rank's clock forward by raising its floor.
static int64_t floored(int64_t clock) {
  if (!ph_live()) return clock;
  int64_t floor = __atomic_load_n(&ph_rt.control->floor, __ATOMIC_RELAXED);
  return floor > clock ? floor : clock;
}

int64_t ph_now(void) {
  if (ph_rt.null_mode && ph_live()) return monotonic_ns() - null_base;
  return floored(atomic_load_explicit(&host_clock, memory_order_relaxed));
}

void ph_publish_clock(void) {
  int64_t now = floored(atomic_load_explicit(&host_clock, memory_order_relaxed));
  atomic_store_explicit(&published, now, memory_order_relaxed);
  __atomic_store_n(&ph_rt.control->clock, now, __ATOMIC_RELEASE);
}

void ph_raise_clock(int64_t time) {
  ph_note_clock('=', time);
  int64_t old = atomic_load_explicit(&host_clock, memory_order_relaxed);
  while (old < time && !atomic_compare_exchange_weak(&host_clock, &old, time)) {}
  if (atomic_load_explicit(&ph_listens, memory_order_relaxed)) ph_upper.clock_moved(time);
}

void ph_move_clock(int64_t ns) {
  if (ph_self.apart) {
    ph_self.apart_ns += ns;
    return;
  }
  int64_t old = atomic_load_explicit(&host_clock, memory_order_relaxed);
  int64_t to;
  do to = floored(old) + ns;
  while (!atomic_compare_exchange_weak_explicit(&host_clock, &old, to, memory_order_relaxed, memory_order_relaxed));
  if (atomic_load_explicit(&ph_listens, memory_order_relaxed)) ph_upper.clock_moved(to);
  if (to - atomic_load_explicit(&published, memory_order_relaxed) >= PUBLISH_NS && ph_recording()) {
    // Under the emit lock: a record that another thread is writing must not lie before it.
    ph_emit_lock();
    ph_publish_clock();
    ph_emit_unlock();
  }
}

void ph_advance(int64_t ns) {
  if (ns <= 0 || ph_rt.null_mode || !ph_charged_thread()) return;
  ph_note_clock('+', ns);
  ph_move_clock(ns);
}

int64_t ph_stalled(void) { return ph_live() ? __atomic_load_n(&ph_rt.header->stalled_ns, __ATOMIC_RELAXED) : 0; }

int64_t ph_group_clock(void) { return ph_now() + ph_stalled(); }
