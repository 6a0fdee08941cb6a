// Threads of the script that want Python's lock next to the thread that moves the clock.
//
// A thread of torch's bindings lets go of the lock while an operator runs, and asks for it again (stub/clock/lock.c).
// On an H200's host with idle cores another thread that wants the lock has it then, however short the operator is: an
// operator of 3 us takes 5.18 ms next to a loop in Python, two of them 10.4 ms. Then it keeps the lock until it lets go
// by itself or until Python's switch interval has passed. Where the clock's thread runs Python alone, the two take
// turns of one switch interval each.
#define _GNU_SOURCE
#include "rank/clock/clock.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

//
// A thread that has work for a share of the time takes no more than that: what it has is done, and it waits again.
static _Atomic int64_t lock_ns;  // mean time that another thread keeps the lock; 0: no other thread wants it
static _Atomic int64_t share;  // of the time for which it has work, in millionths
static int64_t regained;  // when the clock's thread had the lock again
static int64_t counted;  // when the other thread's work was done last

void ph_rivals_reset(void) {
  atomic_store(&lock_ns, 0);
  regained = counted = 0;
}

void ph_rivals(int64_t ns, int64_t millionths) {
  atomic_store(&share, millionths);
  atomic_store(&lock_ns, ns);
}

static int64_t contended(void) {
  int64_t ns = atomic_load_explicit(&lock_ns, memory_order_relaxed);
  bool mine = ns > 0 && ph_rt.modelled && ph_live() && ph_this_thread()->moves_clock;
  return mine && !ph_self.borrows_clock && !ph_self.covered ? ns : 0;
}

static void wait_for_lock(int64_t ns) {
  int64_t part = atomic_load(&share), now = ph_now();
  if (part < 1000000) {
    int64_t work = (int64_t)((double)(now - counted) * (double)part * 1e-6);
    if (work < ns) ns = work;
  }
  counted = now;
  ph_note_clock('+', ns);
  ph_move_clock(ns);
  regained = ph_now();
}

void ph_regain_interpreter(void) {
  int64_t ns = contended();
  // It is woken: one of the two wake-ups that a backward pass takes.
  if (ns) wait_for_lock(ns + ph_rt.header->api_ns[PH_API_BACKWARD_WAKE] / 2);
}

void ph_run_interpreter(void) {
  int64_t ns = contended();
  if (ns && ph_now() - regained >= PH_SWITCH_NS) wait_for_lock(ns);
}

// The time just before the end of a poll in which the work of threads is measured.
#define WATCHED_NS 100000

static int64_t read_ns(clockid_t clock) {
  struct timespec t;
  return clock_gettime(clock, &t) ? 0 : (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t cpu_of(const int *clocks, size_t count) {
  int64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += read_ns(clocks[i]);
  return sum;
}

static void sleep_for(int64_t ns) {
  struct timespec t = {ns / 1000000000, ns % 1000000000};
  nanosleep(&t, NULL);
}

void ph_delayed(const int *threads, size_t count, int64_t delayed[2]) {
  int64_t mine = 0, theirs = 0;
  for (size_t i = 0; i <= count; ++i) {
    char path[64], text[96] = "";
    long long ran = 0, waited = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", i < count ? threads[i] : (int)syscall(SYS_gettid));
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    if (read(file, text, sizeof text - 1) > 0 && sscanf(text, "%lld %lld", &ran, &waited) == 2)
      *(i < count ? &theirs : &mine) += waited;
    close(file);
  }
  delayed[0] = mine;
  delayed[1] = theirs;
}

bool ph_poll(int64_t ns, const int *clocks, const int *threads, size_t count, int64_t *ended, int64_t delayed[2]) {
  sleep_for(ns - WATCHED_NS);
  int64_t began = read_ns(CLOCK_MONOTONIC), worked = cpu_of(clocks, count);
  sleep_for(WATCHED_NS);
  worked = cpu_of(clocks, count) - worked;
  ph_delayed(threads, count, delayed);
  *ended = read_ns(CLOCK_MONOTONIC);
  return 2 * worked > *ended - began;
}
