// NCCL's watchdog threads in virtual time.
//
// torch's ProcessGroupNCCL polls its collectives every 100 ms from a thread of its own and lets
// go of the tensors of those that are done. In real time that moment would fall anywhere in a
// simulated run, and with it the peak of the allocated memory. So the thread's wait is taken over
// (the entry for pthread_cond_timedwait in libtorch_cuda's own table of imports): it sleeps until
// a poll is due by the rank's host clock, then polls while the thread that moves the clock waits for it. What it
// asks about events is asked at that moment.
//
// When the polls fall in a step differs between real runs, and DDP's peak may depend on it: the buffer of the first
// step's gradients is freed after the first poll that finds its all-reduce done. If that comes later than the next
// step's peak, both are in memory. Here a poll comes 50 ms after the end of a collective, the mean of a real one, but
// never sooner than 100 ms after the poll before. So the polls of short steps drift through them, as real ones do.
//
// Nothing that a watchdog lets go of may depend on real time, or equal runs differ. So
// - a new watchdog is waited for until it waits itself, or it might miss a poll or take part before another; so is
//   one that was there before the process became a rank;
// - a poll is waited for however long the simulator takes to answer it;
// - the polls in real time, which show torch's heartbeat monitor that the thread lives, find nothing done.
// Only where no rank can go on (group_time.c) is a poll in real time as any other: nothing is left to depend on it.
//
// The watchdogs of torch 2.15's ProcessGroupNCCL2 are the same with a period of 1 s. They have no name of their own:
// the function that waits shows them, and they get the name.
//
// A poll asks whether a collective is late before it asks whether it is done. So the clock by which it is late shows
// the moment of the poll before: what was done then is no longer asked about.
#define _GNU_SOURCE
#include "rank/torch_hooks/torch_hooks.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WATCHDOG_NAME "pt_nccl_watchdg"
#define GROUP_THREADS "pt_nccl_"  // a process group's
#define MONITOR_NAME "pt_nccl_heartbt"  // which the watchdog starts
#define PERIOD_NS 100000000  // torch sleeps so long between polls (kWatchdogThreadSleepMillis of ProcessGroupNCCL.cpp)
#define PERIOD_2_NS 1000000000  // the same of ProcessGroupNCCL2 (timeoutWatchdog of nccl2/ProcessGroupNCCLUtils.cpp)
#define MARGIN_NS 1000000  // of a skipped wait: clocks are read one after the other
#define PULSE_NS 30000000000  // a blind poll in real time now and then: torch's heartbeat monitor wants a pulse
#define PATIENCE_NS 5000000000  // a watchdog that takes longer by itself is not waited for
#define SLICE_NS 1000000
#define STALL_POLL_NS 1000000000  // real time between checks whether any rank can go on

typedef struct watchdog {
  _Atomic uint32_t kicked;  // 1: asked to poll; cleared when it is back
  _Atomic uint32_t idle;  // 1: waits for its next poll
  atomic_bool asks;  // waits for the simulator's answer
  atomic_bool used;
  bool in_poll;
  bool blind;  // polls in real time
  bool ends;  // polled again without waiting: its group ends
  int64_t polled, before;  // clock of collectives' timeouts in its last poll that was not blind, and in the one before
  const ph_event *first;  // that it asked about in this poll
  bool finds;  // in this poll, what is done
  int64_t found;  // when it did so last, by the rank's clock
  pthread_cond_t *cond;
  pthread_mutex_t *mutex;
  struct watchdog *_Atomic next;
} watchdog;

static watchdog *_Atomic watchdogs;  // in the order in which their groups were made
static pthread_mutex_t watchdogs_lock = PTHREAD_MUTEX_INITIALIZER;
#define NEVER (INT64_MIN / 4)  // before everything: nothing is late
static _Atomic int64_t next_poll;
static _Atomic int64_t period = PERIOD_NS;
static __thread int64_t skipped;
static __thread bool second;  // of ProcessGroupNCCL2
static atomic_bool work;  // is there something that a poll could find done? Then the next poll is set

// A poll keeps what finished collectives held until the group's next collective is enqueued, and that call's thread
// then frees it.
static _Atomic int64_t last_found;  // the poll that found something done last, by the rank's clock; 0: none
static __thread bool enqueues;
static void (*real_enqueue)(void *group, const void *collective);
static void (*real_enqueue_2)(void *group, const void *collective, void *stream);

static _Atomic int64_t pulse = PULSE_NS;
static __thread watchdog *own;
static int (*real_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_clockwait)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
static void (*real_start_thread)(void *, void *, void *);
// Threads that the clock-moving threads had libtorch_cuda start, and those of them that have come to a timed wait.
static _Atomic uint32_t threads_started, threads_settled;
static __thread bool settled;
// Watchdogs that wait in real time, since the process was no rank yet when they began to.
static _Atomic uint32_t strangers;
static __thread bool stranger;

static bool is_called(const char *start) {
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  return !strncmp(name, start, strlen(start));
}

static pthread_key_t ends;  // has leave() called at the end of a watchdog's thread

static void no_stranger(void) {
  uint32_t count = atomic_load(&strangers);
  while (stranger && count && !atomic_compare_exchange_weak(&strangers, &count, count - 1)) {}
  stranger = false;
}

static void leave(void *each) {
  if (each != &strangers) atomic_store(&((watchdog *)each)->used, false);
  no_stranger();
}

// From a collective's end to the poll that finds it done, on average.
static int64_t delay(void) { return atomic_load_explicit(&period, memory_order_relaxed) / 2; }

int64_t ph_watchdog_skipped(void) { return skipped; }

static watchdog *adopt(void) {
  if (second) atomic_store(&period, PERIOD_2_NS);
  pthread_mutex_lock(&watchdogs_lock);
  watchdog *_Atomic *end = &watchdogs;
  for (watchdog *each; !own && (each = atomic_load(end)); end = &each->next)
    if (!atomic_load(&each->used)) own = each;
  bool fresh = !own;
  if (fresh) own = calloc(1, sizeof *own);
  if (own) {
    own->polled = own->before = NEVER;
    own->found = -atomic_load(&period);
    atomic_store(&own->used, true);
    pthread_setspecific(ends, own);
    if (fresh) atomic_store(end, own);
  }
  pthread_mutex_unlock(&watchdogs_lock);
  no_stranger();
  return own;
}

// The watchdog that calls, if its waits are to be taken over.
static watchdog *taken(uintptr_t caller) {
  if (!is_called(WATCHDOG_NAME)) {
    if (ph_caller_of(caller) != PH_CALLER_WATCHES) return NULL;
    second = true;
    prctl(PR_SET_NAME, WATCHDOG_NAME);
  }
  if (ph_recording()) return own ? own : adopt();
  if (!stranger && ph_attached()) {
    stranger = true;
    pthread_setspecific(ends, &strangers);
    atomic_fetch_add(&strangers, 1);
  }
  return NULL;
}

static void sleep_on(_Atomic uint32_t *word, uint32_t value) {
  struct timespec slice = {0, SLICE_NS};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &slice, NULL, 0);
}

// Their waits end after 100 ms; the next are taken over.
static void await_strangers(void) {
  for (int64_t waited = 0; waited < PATIENCE_NS; waited += SLICE_NS) {
    uint32_t there = atomic_load_explicit(&strangers, memory_order_relaxed);
    if (!there) return;
    sleep_on(&strangers, there);
  }
  atomic_store(&strangers, 0);  // of the process that this one was forked from
}

void ph_watchdog_work(void) {
  if (atomic_load_explicit(&work, memory_order_relaxed)) return;
  if (!ph_self.borrows_clock) await_strangers();
  atomic_store(&next_poll, ph_now() + delay());
  atomic_store(&work, true);
}

bool ph_watchdog_undone(void) {
  if (!ph_self.borrows_clock) return false;
  ph_watchdog_work();
  return true;
}

// A group that ends polls again without waiting: once an event is asked about again in a poll, all that is done is
// found.
bool ph_watchdog_early(const ph_event *event) {
  if (!ph_self.borrows_clock || !own || own->finds) return false;
  int64_t due = event->done_at + delay(), next = own->found + atomic_load(&period);
  if (due < next) due = next;
  if (due <= ph_now()) {
    own->finds = true;
    own->found = ph_now();
    atomic_store(&last_found, own->found);
    return false;
  }
  if (own->first == event) own->ends = true;
  if (own->ends) return false;
  if (!own->first) own->first = event;
  if (!atomic_exchange(&work, true) || due < atomic_load(&next_poll)) atomic_store(&next_poll, due);
  return true;
}

void ph_watchdog_pulse(int64_t ns) { atomic_store(&pulse, ns); }

static void set(_Atomic uint32_t *word, uint32_t value) {
  atomic_store(word, value);
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

// A blind poll ends with the wait after it, or when the same event is asked about again: a group that
// ends polls again without waiting.
bool ph_watchdog_blind(const ph_event *event) {
  if (!own || !own->blind) return false;
  if (own->first == event) own->blind = false;
  if (!own->first) own->first = event;
  return own->blind;
}

bool ph_watchdog_sees(int64_t *moment) {
  if (!own && !is_called(WATCHDOG_NAME)) return false;
  *moment = own && !own->blind ? own->before : NEVER;
  return true;
}

static void note_asking(bool asks) {
  if (own) atomic_store(&own->asks, asks);
}

static void begin_poll(watchdog *each) {
  each->before = each->polled;
  each->polled = ph_group_clock();
}

static void end_poll(watchdog *each) {
  if (!each->in_poll) return;
  each->in_poll = false;
  ph_self.moves_clock = ph_self.borrows_clock = false;
  set(&each->kicked, 0);
}

// One at a time: the thread that started it waits for it.
static void settle(void) {
  if (settled) return;
  settled = true;
  if (!is_called(GROUP_THREADS) || is_called(MONITOR_NAME)) return;
  set(&threads_settled, atomic_load(&threads_settled) + 1);
}

static int wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *deadline) {
  return real_clockwait ? real_clockwait(cond, mutex, clock, deadline) : real_timedwait(cond, mutex, deadline);
}

// torch waits until a moment of the system's clock, which may be set meanwhile: a day back, and the watchdog waits for
// a day. So the wait goes by the monotonic clock, which is never set, and what the C++ library then reads of the
// system's clock has come to that moment. The clock to wait by; `moment` becomes one of it.
static __thread int64_t come_to;  // 0: nothing special

int64_t ph_watchdog_moment(int64_t now) {
  int64_t moment = come_to;
  come_to = 0;
  return moment > now ? moment : now;
}

static clockid_t unsettable(clockid_t clock, struct timespec *moment) {
  if (!real_clockwait || clock == CLOCK_MONOTONIC) return clock;
  struct timespec now, steady;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_MONOTONIC, &steady);  // in this order: never before the moment that was asked for
  int64_t ns = moment->tv_nsec - now.tv_nsec + steady.tv_nsec + 1000000000;
  moment->tv_sec += steady.tv_sec - now.tv_sec + ns / 1000000000 - 1;
  moment->tv_nsec = ns % 1000000000;
  return CLOCK_MONOTONIC;
}

// Waits for a kick, a notice or the next pulse; 0: for none of them, but no rank could go on meanwhile.
static int wait_for_poll(watchdog *each, pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock) {
  int64_t stalled = ph_stalled();
  struct timespec deadline;
  clock_gettime(clock, &deadline);
  for (int64_t left = atomic_load(&pulse), step; left > 0 && !atomic_load(&each->kicked); left -= step) {
    step = left < STALL_POLL_NS ? left : STALL_POLL_NS;
    int64_t to = deadline.tv_nsec + step;
    deadline.tv_sec += to / 1000000000;
    deadline.tv_nsec = to % 1000000000;
    int result = wait_until(cond, mutex, clock, &deadline);
    if (result != ETIMEDOUT) return atomic_load(&each->kicked) ? ETIMEDOUT : -1;
    if (ph_stalled() != stalled) return 0;
  }
  return ETIMEDOUT;
}

// The watchdog's wait: 0 when it was notified (its group ends), ETIMEDOUT when a poll is due.
static int watchdog_wait(watchdog *each, pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                         const struct timespec *asked) {
  struct timespec until = *asked;
  bool system = clock == CLOCK_REALTIME;
  clock = unsettable(clock, &until);
  each->cond = cond;
  each->mutex = mutex;
  each->blind = each->ends = each->finds = false;
  each->first = NULL;
  set(&each->idle, 1);  // before the poll is over: the next may be due at once
  end_poll(each);
  settle();
  int result = wait_for_poll(each, cond, mutex, clock);
  if (system && result >= 0) come_to = (int64_t)asked->tv_sec * 1000000000 + asked->tv_nsec;
  atomic_store(&each->idle, 0);
  if (atomic_load(&each->kicked)) {
    // The C++ library reads its steady clock too: before the time that was asked for, a wait that
    // ends counts as a false alarm and no poll is made. That of ProcessGroupNCCL2 is put forward instead.
    struct timespec now;
    clock_gettime(clock, &now);
    if (second) skipped += (until.tv_sec - now.tv_sec) * 1000000000 + until.tv_nsec - now.tv_nsec + MARGIN_NS;
    while (!second && wait_until(cond, mutex, clock, &until) == 0) {}
    each->in_poll = true;
    begin_poll(each);
    ph_this_thread();
    ph_self.moves_clock = ph_self.borrows_clock = true;  // asks in the name of the thread that waits for it
    return ETIMEDOUT;
  }
  if (!result) begin_poll(each);
  each->blind = result == ETIMEDOUT;
  return result < 0 ? 0 : ETIMEDOUT;
}

static int timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *deadline) {
  watchdog *each = taken((uintptr_t)__builtin_return_address(0));
  if (each) return watchdog_wait(each, cond, mutex, CLOCK_REALTIME, deadline);
  settle();
  return real_timedwait(cond, mutex, deadline);
}

static int clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *deadline) {
  watchdog *each = taken((uintptr_t)__builtin_return_address(0));
  if (each) return watchdog_wait(each, cond, mutex, clock, deadline);
  settle();
  return real_clockwait(cond, mutex, clock, deadline);
}

// std::thread's way to start one. Watchdogs take part in the order in which their groups were made.
static void start_thread(void *thread, void *state, void *depend) {
  real_start_thread(thread, state, depend);
  if (!ph_recording() || !ph_moves_clock()) return;
  uint32_t all = atomic_fetch_add(&threads_started, 1) + 1;
  for (int64_t waited = 0; waited < PATIENCE_NS; waited += SLICE_NS) {
    uint32_t there = atomic_load(&threads_settled);
    if ((int32_t)(there - all) >= 0) return;
    sleep_on(&threads_settled, there);
  }
  atomic_store(&threads_settled, all);  // it never waits with a limit: not to be waited for again
}

// Has it poll, if it waits for that. The caller may hold a communicator's lock, which a watchdog that polls takes under
// its own: to wait for that one here could be for ever.
static bool kick(watchdog *each) {
  if (!atomic_load(&each->idle) || pthread_mutex_trylock(each->mutex)) return false;
  bool idle = atomic_load(&each->idle);
  if (idle) {
    atomic_store(&each->kicked, 1);
    pthread_cond_broadcast(each->cond);
  }
  pthread_mutex_unlock(each->mutex);
  return idle;
}

// All waiting is in short slices: a thread that wakes is not taken for one that sleeps outside CUDA.
static void poll_by(watchdog *each) {
  int64_t waited = 0;
  for (; !kick(each); waited += SLICE_NS) {  // it polls blindly
    if (!atomic_load(&each->used) || waited >= PATIENCE_NS) return;
    sleep_on(&each->idle, atomic_load(&each->idle));
  }
  while (atomic_load(&each->kicked) && waited < PATIENCE_NS) {
    sleep_on(&each->kicked, 1);
    if (!atomic_load(&each->asks)) waited += SLICE_NS;
  }
}

static __thread bool locked;

void ph_watchdog_locked(bool locks) { locked = locks; }

void ph_watchdog_polls_of_wait(void) {
  if (!locked) ph_watchdog_polls();
}

void ph_watchdog_polls(void) {
  if (!atomic_load_explicit(&work, memory_order_relaxed) || !atomic_load(&watchdogs)) return;
  if (ph_now() < atomic_load(&next_poll) || !ph_this_thread()->moves_clock || ph_self.borrows_clock) return;
  if (!atomic_exchange(&work, false)) return;
  for (watchdog *each = atomic_load(&watchdogs); each; each = atomic_load(&each->next)) poll_by(each);
}

// Rounds come a quarter further apart each time while not all is done: few for a sleep of an hour, and what becomes
// late in the first half of a sleep is noticed in it.
void ph_sleep(int64_t ns) {
  if (ns <= 0 || ph_rt.null_mode || !ph_this_thread()->moves_clock || ph_self.borrows_clock) return;
  const int64_t end = ph_now() + ns;
  for (int64_t step = delay(); atomic_load(&work) && atomic_load(&watchdogs); step += step / 4) {
    int64_t next = atomic_load(&next_poll) - delay() + step;
    if (next > end) break;
    ph_advance(next - ph_now());
    ph_watchdog_polls();
  }
  ph_advance(end - ph_now());
}

static void enqueue(void *group, const void *collective) {
  enqueues = true;
  real_enqueue(group, collective);
  enqueues = false;
}

static void enqueue_2(void *group, const void *collective, void *stream) {
  enqueues = true;
  real_enqueue_2(group, collective, stream);
  enqueues = false;
}

int64_t ph_watchdog_kept(void) {
  int64_t found = enqueues ? atomic_load(&last_found) : 0;
  return found ? ph_now() - found : -1;
}

void ph_watchdogs_prepare(void) { pthread_key_create(&ends, leave); }

const ph_import ph_watchdog_imports[] = {
    {"pthread_cond_timedwait", (void *)timedwait, (void **)&real_timedwait},
    {"pthread_cond_clockwait", (void *)clockwait, (void **)&real_clockwait},
    // std::thread::_M_start_thread
    {"_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE", (void *)start_thread,
     (void **)&real_start_thread},
    // c10d::ProcessGroupNCCL::workEnqueue
    {"_ZN4c10d16ProcessGroupNCCL11workEnqueueERKN3c1013intrusive_ptrINS0_8WorkNCCLENS1_6detail34intrusive_target_"
     "default_null_typeIS3_EEEE",
     (void *)enqueue, (void **)&real_enqueue},
    // c10d::nccl2::ProcessGroupNCCL::enqueueWork
    {"_ZN4c10d5nccl216ProcessGroupNCCL11enqueueWorkERKN3c1013intrusive_ptrINS0_8WorkNCCLENS2_6detail34intrusive_target_"
     "default_null_typeIS4_EEEEP11CUstream_st",
     (void *)enqueue_2, (void **)&real_enqueue_2},
    {NULL, NULL, NULL},
};

void ph_watchdogs_reset(void) {
  atomic_store(&watchdogs, NULL);
  atomic_store(&work, false);
  atomic_store(&last_found, 0);
  atomic_store(&period, PERIOD_NS);
  atomic_store(&threads_started, 0);
  atomic_store(&threads_settled, 0);
  own = NULL;
  ph_upper.watchdog_asks = note_asking;
  ph_upper.watchdog_work = ph_watchdog_work;
  ph_upper.sleep = ph_sleep;
}
