// Costs of a rank's host: those of the host profile, charged to its clock.
#define _GNU_SOURCE
#include "rank/clock/clock.h"

#include <time.h>

static int64_t thread_cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void ph_costs_reset(void) {
  ph_self.bracket_depth = 0;
  ph_self.cpu_mark = thread_cpu_ns();
  ph_self.left = 0;
  ph_self.excluded = 0;
  ph_unmodelled_reset();
}

// Number of charges of each cost, for benchmarks: host_time.py fits the host profile with it.
static uint64_t charges[PH_API_COSTS];
const uint64_t *ph_charges(void) { return charges; }
uint64_t ph_charged(enum ph_api api) { return __atomic_load_n(&charges[api], __ATOMIC_RELAXED); }

// Two clock-moving threads never run at once; others read the count meanwhile.
static void count(enum ph_api api, size_t times) {
  __atomic_store_n(&charges[api], charges[api] + times, __ATOMIC_RELAXED);
}

// The host's own time so far, without waits. A Python frame counts as FRAME_NS whatever it is charged,
// since its price depends on this.
#define FRAME_NS 500
static int64_t worked;

// Work of a thread on another core displaces nothing here.
static int64_t worked_here;
void ph_costs_apart(bool begins) {
  if (begins)
    worked_here = worked;
  else
    worked = worked_here;
}

// What leaves the caches depends on the work that is done, however long a slow host takes for it. A walk through a list
// of tensors displaces next to nothing: after one through 3,000 others, lists take as long as in a loop, after a
// training step they do not (validation/probes/host_lists.py).
static bool walks(enum ph_api api) {
  return api == PH_API_OP_LIST || api == PH_API_OP_LIST_OUT || api == PH_API_OPTIMIZER_PARAM || api == PH_API_LIST_COLD;
}
static void work(enum ph_api api, int64_t ns) {
  if (!walks(api)) worked += (int64_t)((double)ns / ph_rt.header->host_scale);
}

// A background thread of the program has Python's lock for a part of the time, first for one share and then for
// another.
static struct {
  int64_t until;
  double factor;
} contended[3];
void ph_contend(int64_t from, int64_t planned, double first, int64_t until, double then) {
  contended[0].until = from;
  contended[0].factor = 1;
  contended[1].until = planned;
  contended[1].factor = first;
  contended[2].until = until;
  contended[2].factor = then;
}

// Moves the clock by what the host does alone in `ns`.
static void spend(int64_t ns) {
  if (ns <= 0) return;
  for (size_t i = 0; i < 3 && !ph_self.apart; ++i) {
    int64_t left = contended[i].until ? contended[i].until - ph_now() : 0;
    if (left <= 0) continue;
    int64_t longer = (int64_t)((double)ns * contended[i].factor);
    if (longer <= left) return ph_move_clock(longer);
    ph_move_clock(left);
    ns -= (int64_t)((double)left / contended[i].factor);
  }
  ph_move_clock(ns);
}

#define COLD_LEVEL 14  // 1 ms
#define WARM_SHIFT 7   // below 128 ns

// Number of operators, and of units of code, charged at each level: for benchmarks too.
static uint64_t levels[2 * (COLD_LEVEL + 1)];
const uint64_t *ph_charge_levels(void) { return levels; }

// Coldness of code, in thousandths: it and its data leave the processor's caches while other code runs.
// 1000 when the host has worked for a millisecond since `last`, which becomes now; 400 after a quarter of
// one, 133 after 64 us, next to nothing in a tight loop. Waits are not work.
// The sixth power of the logarithm follows from the fit: FSDP2's steps, tensor-parallel ones and tight loops at one
// price of a unit of code (validation/fits/host.py).
static size_t cold_share(int64_t *last, size_t code) {
  static const uint16_t share[COLD_LEVEL + 1] = {0, 0, 0, 0, 0, 2, 6, 15, 34, 70, 132, 235, 396, 641, 1000};
  uint64_t distance = worked < *last ? 0 : (uint64_t)(worked - *last) >> WARM_SHIFT;
  size_t level = distance ? (size_t)(64 - __builtin_clzll(distance)) : 0;
  if (level > COLD_LEVEL) level = COLD_LEVEL;
  levels[code ? COLD_LEVEL + 1 + level : level] += code ? code : 1;
  *last = worked;
  return share[level];
}

void ph_charge(enum ph_api api) { ph_charge_times(api, 1); }

void ph_charge_times(enum ph_api api, size_t times) {
  if (!ph_rt.modelled || !ph_live() || !ph_charged_thread()) return;
  count(api, times);
  ph_note_charge(api);
  int64_t ns = ph_rt.header->api_ns[api] * (int64_t)times;
  work(api, ns);
  spend(ns);
}

void ph_charge_cold(enum ph_api api, int64_t *last, size_t times) {
  if (!ph_rt.modelled || !ph_live() || !ph_charged_thread()) return;
  size_t share = cold_share(last, 0) * times;
  count(api, share);
  ph_note_charge(api);
  int64_t ns = ph_rt.header->api_ns[api] * (int64_t)share / 1000;
  work(api, ns);
  spend(ns);
}

static void charge_frame(int64_t *last, size_t units, uint32_t function) {
  if (!ph_rt.modelled || !ph_live() || !ph_charged_thread()) return;
  size_t code = units * cold_share(last, units);
  count(PH_API_PY_FRAME, 1);
  count(PH_API_PY_CODE, code);
  if (function) ph_note_charge(function);
  worked += FRAME_NS;
  spend(ph_rt.header->api_ns[PH_API_PY_FRAME] + ph_rt.header->api_ns[PH_API_PY_CODE] * (int64_t)code / 1000000);
}

int ph_enter_frame(int64_t *last, size_t units, uint32_t function) {
  if (!ph_self.covered) {
    ph_run_interpreter();
    charge_frame(last, units, function);
  }
  int called = ph_self.called;
  ph_self.called = 0;
  return called;
}

void ph_leave_frame(int called) { ph_self.called = called; }
void ph_cover_frames(int more) { ph_self.covered += more; }
bool ph_frames_covered(void) { return ph_self.covered > 0; }

// A backward pass is handed to the autograd thread of its GPU and back: two threads are woken. On the CPU it runs in
// the thread that called it, as does a pass within a pass.
static _Atomic uint32_t passes;
static _Atomic uint8_t caller;
static _Thread_local uint32_t seen;

void ph_enter_backward(void) {
  atomic_store_explicit(&caller, ph_this_thread()->index, memory_order_relaxed);
  atomic_fetch_add_explicit(&passes, 1, memory_order_relaxed);
}

void ph_charge_handover(void) {
  uint32_t pass = atomic_load_explicit(&passes, memory_order_relaxed);
  if (seen == pass) return;
  seen = pass;
  if (ph_this_thread()->index == atomic_load_explicit(&caller, memory_order_relaxed)) return;
  ph_charge(PH_API_BACKWARD_CALL);
  ph_charge(PH_API_BACKWARD_WAKE);
}

int64_t ph_bytes_ns(enum ph_api api, size_t bytes) {
  return ph_rt.modelled && ph_live() ? (int64_t)((double)ph_rt.header->api_ns[api] * (double)bytes / 1073741824.0) : 0;
}

int64_t ph_times_ns(enum ph_api api, size_t times) {
  return ph_rt.modelled && ph_live() ? ph_rt.header->api_ns[api] * (int64_t)times : 0;
}

void ph_charge_bytes(enum ph_api api, size_t bytes) { ph_advance(ph_bytes_ns(api, bytes)); }

// A GiB takes `alone` on one thread, and on n threads `alone / n + (rivals - 1 / n) * limit`: a part that they share,
// and one that each takes from a limit of all threads, of this process and its rivals (memory_probe.py measures both).
static double shared_ns(enum ph_api alone, enum ph_api limit, size_t bytes, double threads, double rivals) {
  return (double)ph_bytes_ns(alone, bytes) / threads + (double)ph_bytes_ns(limit, bytes) * (rivals - 1 / threads);
}

// Of hosts with 1, 2 and 4 GPUs (validation/probes/host_ranks.py). Their memory is that of one socket; 8 GPUs have two.
#define RANK_THREADS 16.0  // where the program gives no number: the vCPUs for each GPU
#define SOCKET_RANKS 4.0

void ph_charge_memory(size_t moved, size_t fresh, int threads) {
  if (!ph_charged_thread()) return;
  double ranks = ph_rt.header ? ph_rt.header->ranks_per_host : 1;
  double mine = threads ? threads : RANK_THREADS, rivals = ranks < SOCKET_RANKS ? ranks : SOCKET_RANKS;
  double ns = shared_ns(PH_API_HOST_MOVE_GIB, PH_API_HOST_SATURATED_GIB, moved, mine, rivals);
  ns += shared_ns(PH_API_HOST_FAULT_GIB, PH_API_HOST_FAULT_SATURATED_GIB, fresh, mine,
                  1);  // a process has its own page table
  ph_advance((int64_t)ns);
  ph_unmodelled_drop_latest();
}

void ph_enter(void) {
  if (ph_rt.null_mode || ph_self.bracket_depth++ || !ph_live()) return;
  if (ph_rt.modelled) return ph_unmodelled_enter();
  if (!ph_rt.measured) return;
  if (ph_self.cpu_mark < 0 || !ph_this_thread()->moves_clock || ph_self.borrows_clock) return;
  int64_t spent = thread_cpu_ns() - ph_self.cpu_mark;
  if (spent > 0) ph_move_clock((int64_t)((double)spent * ph_rt.header->host_scale));
}

void ph_leave(void) {
  if (!ph_self.bracket_depth || --ph_self.bracket_depth) return;
  if (ph_rt.modelled) return ph_unmodelled_leave();
  if (ph_rt.measured) ph_self.cpu_mark = thread_cpu_ns();
}
