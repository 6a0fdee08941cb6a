// The rank runtime: connection to the simulator, host clock, operator frames, loud failure.
#define _GNU_SOURCE
#include "rank/internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXIT_SIMULATOR_GONE 70  // EX_SOFTWARE
#define EXIT_UNSUPPORTED 78     // EX_CONFIG
#define AUTOGRAD_NAME "pt_autograd"
#define FIRST_OTHER_THREAD 64   // indices below: main thread and autograd threads by their number
#define PUBLISH_NS 20000        // the clock is published when it moved so far without a record

ph_runtime ph_rt;
_Thread_local ph_thread ph_self __attribute__((tls_model("initial-exec"))) = {.cpu_mark = -1};

static _Atomic int64_t host_clock;
static _Atomic int64_t published;
static _Atomic uint32_t last_instance;
static atomic_int last_thread;
static int64_t null_base;

// ---------------------------------------------------------------- threads
static int autograd_index(const char *name) {
  const char *digits = name + strlen(AUTOGRAD_NAME);
  while (*digits && (*digits < '0' || *digits > '9')) digits++;
  int index = 1 + atoi(digits);
  return index < FIRST_OTHER_THREAD ? index : FIRST_OTHER_THREAD - 1;
}

static void identify(ph_thread *self) {
  self->generation = ph_rt.generation;
  self->own_streams = NULL;
  if (syscall(SYS_gettid) == getpid()) {
    self->moves_clock = true;
    self->index = 0;
    return;
  }
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  self->moves_clock = !strncmp(name, AUTOGRAD_NAME, strlen(AUTOGRAD_NAME));
  if (self->moves_clock) {
    self->index = (uint8_t)autograd_index(name);
  } else {
    int index = FIRST_OTHER_THREAD + atomic_fetch_add(&last_thread, 1);
    self->index = (uint8_t)(index < 255 ? index : 255);
  }
}

ph_thread *ph_this_thread(void) {
  if (ph_self.generation != ph_rt.generation) identify(&ph_self);
  return &ph_self;
}

bool ph_moves_clock(void) { return ph_this_thread()->moves_clock; }
int ph_current_device(void) { return ph_self.device; }
void ph_set_current_device(int device) { ph_self.device = device; }

// ---------------------------------------------------------------- connection
bool ph_connected(void) { return ph_live(); }
bool ph_null_mode(void) { return ph_rt.null_mode; }
const ph_header *ph_shared(void) { return ph_rt.header; }
const ph_device *ph_gpu(void) { return ph_rt.header ? &ph_rt.header->device : NULL; }
int ph_rank(void) { return ph_rt.rank; }
int ph_devices(void) { return ph_live() ? ph_rt.devices : 0; }

static int assumed_devices;
void ph_assume_devices(int devices) { assumed_devices = devices; }
int ph_assumed_devices(void) { return assumed_devices; }

// A forked child (a DataLoader worker) must not speak on its parent's ring. It keeps the parent's
// memory, copy on write, and sees no device.
static void detach(void) {
  if (!ph_live()) return;
  atomic_store(&ph_rt.connected, false);
  ph_rt.generation++;
  munmap(ph_rt.header, ph_rt.map_size);
  ph_rt.header = NULL;
  ph_rt.control = NULL;
  ph_rt.ring = NULL;
  ph_rt.replies = NULL;
  ph_self.lock_depth = 0;
  ph_ring_reset();
  ph_payload_reset();
  ph_known_reset();
}

static int refuse(int error) {
  errno = error;
  return -1;
}

static int64_t monotonic_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t thread_cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int ph_connect(int fd, int rank, int local_rank, int devices) {
  static bool forks_watched;
  if (ph_live()) return refuse(EISCONN);
  if (devices < 0 || devices > PH_MAX_DEVICES) return refuse(EINVAL);
  struct stat file;
  if (fstat(fd, &file)) return -1;
  if ((size_t)file.st_size < sizeof(ph_header)) return refuse(EPROTO);
  size_t size = (size_t)file.st_size;
  ph_header *header = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (header == MAP_FAILED) return -1;
  int error = 0;
  bool ours = header->magic == PH_MAGIC && header->version == PH_WIRE_VERSION && header->layout == PH_LAYOUT;
  if (!ours || header->size > size) error = EPROTO;
  else if (rank < 0 || (uint32_t)rank >= header->world_size) error = EINVAL;
  else if (!forks_watched && pthread_atfork(NULL, NULL, detach)) error = ENOMEM;
  if (error) {
    munmap(header, size);
    return refuse(error);
  }
  forks_watched = true;
  char *base = (char *)header;
  ph_rt.map_size = size;
  ph_rt.header = header;
  ph_rt.control = (ph_control *)(base + header->control_offset) + rank;
  ph_rt.ring = (ph_record *)(base + header->ring_offset) + (size_t)rank * PH_RING_RECORDS;
  ph_rt.replies = (ph_reply *)(base + header->reply_offset) + (size_t)rank * PH_REPLY_SLOTS;
  ph_rt.rank = rank;
  ph_rt.devices = devices;
  ph_rt.null_mode = header->null_mode != 0;
  ph_rt.modelled = !ph_rt.null_mode && header->host_mode == PH_HOST_MODELLED;
  ph_rt.measured = !ph_rt.null_mode && header->host_mode == PH_HOST_MEASURED;
  ph_rt.generation++;
  ph_self.lock_depth = ph_self.bracket_depth = 0;
  ph_self.cpu_mark = thread_cpu_ns();
  atomic_store(&host_clock, 0);
  atomic_store(&published, 0);
  null_base = monotonic_ns();
  ph_ring_reset();
  ph_handles_reset(devices);
  ph_payload_reset();
  ph_watchdogs_reset();
  ph_rt.control->pid = getpid();
  atomic_store(&ph_rt.connected, true);
  ph_record record = {
      .kind = PH_RANK_START,
      .start = {.pid = (uint64_t)getpid(), .local_rank = (uint64_t)local_rank, .devices = (uint64_t)devices}};
  ph_emit(&record);
  ph_flush_names();
  return 0;
}

void ph_exit(int status) {
  if (!ph_recording()) return;
  ph_record record = {.kind = PH_RANK_EXIT, .exit = {.status = status, .device_peak = ph_memory_peak()}};
  ph_emit(&record);
  atomic_store(&ph_rt.connected, false);  // nothing follows an exit; the mapping stays for other threads
  ph_rt.generation++;
}

void ph_check_simulator(void) {
  if (!ph_live()) return;
  if (__atomic_load_n(&ph_rt.header->sim_state, __ATOMIC_ACQUIRE) == PH_SIM_ABORTED) _exit(EXIT_SIMULATOR_GONE);
  if (!kill(ph_rt.header->sim_pid, 0) || errno != ESRCH) return;
  dprintf(STDERR_FILENO, "phantora: the simulator is gone; rank %d ends\n", ph_rt.rank);
  _exit(EXIT_SIMULATOR_GONE);
}

// ---------------------------------------------------------------- the host clock
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
  int64_t old = atomic_load_explicit(&host_clock, memory_order_relaxed);
  while (old < time && !atomic_compare_exchange_weak(&host_clock, &old, time)) {
  }
}

static void move_clock(int64_t ns) {
  int64_t old = atomic_load_explicit(&host_clock, memory_order_relaxed);
  int64_t to;
  do to = floored(old) + ns;
  while (!atomic_compare_exchange_weak_explicit(&host_clock, &old, to, memory_order_relaxed, memory_order_relaxed));
  if (to - atomic_load_explicit(&published, memory_order_relaxed) >= PUBLISH_NS && ph_recording()) {
    // Under the emit lock: a record that another thread is writing must not lie before it.
    ph_emit_lock();
    ph_publish_clock();
    ph_emit_unlock();
  }
}

void ph_advance(int64_t ns) {
  if (ns > 0 && !ph_rt.null_mode && ph_this_thread()->moves_clock && !ph_self.borrows_clock) move_clock(ns);
}

// How often each cost was charged, for benchmarks: host_time.py fits the host profile with it.
static uint64_t charges[sizeof ((ph_header *)0)->api_ns / sizeof(int64_t)];
const uint64_t *ph_charges(void) { return charges; }

// The host's own time so far, without waits. A Python frame counts as FRAME_NS whatever it is charged,
// since its price depends on this.
#define FRAME_NS 500
static int64_t worked;

// What leaves the caches depends on the work that is done, however long a slow host takes for it.
static void work(int64_t ns) { worked += (int64_t)((double)ns / ph_rt.header->host_scale); }

#define COLD_LEVEL 14  // 1 ms
#define WARM_SHIFT 7   // below 128 ns

// The sixth power of the logarithm follows from the fit: FSDP2's steps, tensor-parallel ones and tight loops at one
// price of a unit of code (benchmarks/host_fit.py).
size_t ph_coldness(int64_t *last) {
  static const uint16_t share[COLD_LEVEL + 1] = {0, 0, 0, 0, 0, 2, 6, 15, 34, 70, 132, 235, 396, 641, 1000};
  uint64_t distance = (uint64_t)(worked - *last) >> WARM_SHIFT;
  size_t level = distance ? (size_t)(64 - __builtin_clzll(distance)) : 0;
  *last = worked;
  return share[level < COLD_LEVEL ? level : COLD_LEVEL];
}

void ph_charge(enum ph_api api) { ph_charge_times(api, 1); }

void ph_charge_times(enum ph_api api, size_t times) {
  if (!ph_rt.modelled || !ph_live() || !ph_this_thread()->moves_clock || ph_self.borrows_clock) return;
  charges[api] += times;  // two clock-moving threads never run at once
  int64_t ns = ph_rt.header->api_ns[api] * (int64_t)times;
  work(ns);
  if (ns > 0) move_clock(ns);
}

void ph_charge_cold(enum ph_api api, int64_t *last) {
  if (!ph_rt.modelled || !ph_live() || !ph_this_thread()->moves_clock || ph_self.borrows_clock) return;
  size_t share = ph_coldness(last);
  charges[api] += share;
  int64_t ns = ph_rt.header->api_ns[api] * (int64_t)share / 1000;
  work(ns);
  if (ns > 0) move_clock(ns);
}

void ph_charge_frame(size_t code) {
  if (!ph_rt.modelled || !ph_live() || !ph_this_thread()->moves_clock || ph_self.borrows_clock) return;
  charges[PH_API_PY_FRAME]++;
  charges[PH_API_PY_CODE] += code;
  worked += FRAME_NS;
  move_clock(ph_rt.header->api_ns[PH_API_PY_FRAME] + ph_rt.header->api_ns[PH_API_PY_CODE] * (int64_t)code / 1000000);
}

void ph_charge_bytes(enum ph_api api, size_t bytes) {
  if (ph_rt.modelled && ph_live()) ph_advance((int64_t)((double)ph_rt.header->api_ns[api] * (double)bytes / 1073741824.0));
}

void ph_enter(void) {
  if (!ph_rt.measured || ph_self.bracket_depth++ || !ph_live()) return;
  if (ph_self.cpu_mark < 0 || !ph_this_thread()->moves_clock || ph_self.borrows_clock) return;
  int64_t spent = thread_cpu_ns() - ph_self.cpu_mark;
  if (spent > 0) move_clock((int64_t)((double)spent * ph_rt.header->host_scale));
}

void ph_leave(void) {
  if (!ph_rt.measured || !ph_self.bracket_depth || --ph_self.bracket_depth) return;
  ph_self.cpu_mark = thread_cpu_ns();
}

// ---------------------------------------------------------------- operators
void ph_push_frame(ph_frame *frame) {
  frame->parent = ph_self.frame;
  ph_self.frame = frame;
}

void ph_pop_frame(ph_frame *frame) { ph_self.frame = frame->parent; }
ph_frame *ph_top_frame(void) { return ph_self.frame; }
uint32_t ph_next_instance(void) { return atomic_fetch_add(&last_instance, 1) + 1; }

void ph_attribute(ph_record *record) {
  ph_frame *frame = ph_self.frame;
  record->op = 0;
  if (!frame) return;
  frame->launches++;
  if (record->kind == PH_KERNEL) frame->kernels++;
  if (!frame->instance && frame->begin && ph_recording()) frame->begin(frame);
  record->op = frame->instance;
}

// CUDA keeps about 1,000 commands of a stream; who launches more waits until the GPU has done some. So a program that
// never synchronises is at most so far ahead, which is when its allocator can use again what other streams used.
#define QUEUE_DEPTH 1024
#define QUEUE_LOOK 128  // kernels between looks: each is a question to the simulator

// Kernels of an operator that has begun have no price before it ends, and what has none holds up its GPU.
static bool operator_open(void) {
  for (const ph_frame *frame = ph_self.frame; frame; frame = frame->parent)
    if (frame->instance) return true;
  return false;
}

static void wait_for_room(uint32_t stream) {
  static unsigned kernels;  // since the last look, by threads that move the clock: two of them never run at once
  if (!ph_this_thread()->moves_clock || ++kernels < QUEUE_LOOK || operator_open()) return;
  kernels = 0;
  ph_record record = {.kind = PH_ROOM, .stream = stream, .room.depth = QUEUE_DEPTH - QUEUE_LOOK / 2};
  ph_request(&record, NULL, 0);
}

void ph_launch(ph_record *record) {
  // A launch is made outside the allocator's locks, which a watchdog's round may want.
  if (record->kind == PH_KERNEL && ph_recording()) {
    wait_for_room(record->stream);
    ph_watchdog_rounds();
  }
  ph_attribute(record);
  ph_emit(record);
}

void ph_launch_blob(ph_record *record, const void *data, size_t length) {
  ph_attribute(record);
  ph_emit_blob(record, data, length);
}

void ph_library_kernel(uint32_t stream, uint64_t key, const char *json, size_t length) {
  ph_record record = {.kind = PH_KERNEL,
                      .flags = PH_F_LIBRARY,
                      .stream = stream,
                      .kernel = {.grid_x = 1, .grid_y = 1, .grid_z = 1, .block_x = 1, .block_y = 1, .block_z = 1}};
  if (!ph_name_known(key, &record.id)) {
    ph_charge(PH_API_LIBRARY_LOAD);
    record.id = ph_name(key, json, length);
  }
  ph_launch(&record);
}

// ---------------------------------------------------------------- loud failure
static bool first_report(uint64_t key) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static uint64_t *seen;
  static size_t count;
  bool first = true;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < count && first; i++) first = seen[i] != key;
  if (first) {
    uint64_t *grown = realloc(seen, (count + 1) * sizeof *seen);
    if (grown) {
      seen = grown;
      seen[count++] = key;
    }
  }
  pthread_mutex_unlock(&lock);
  return first;
}

void ph_unsupported(const char *library, const char *call, bool soft) {
  bool fatal = !soft && ph_live() && ph_rt.header->unsupported == PH_UNSUPPORTED_ERROR;
  uint64_t key = ph_hash(call, strlen(call), ph_hash(library, strlen(library), 0));
  if (fatal) {
    dprintf(STDERR_FILENO,
            "phantora: %s (%s) is not supported by the simulator; run with --unsupported warn to let it pass as a "
            "no-op, or avoid the call\n",
            call, library);
    ph_exit(EXIT_UNSUPPORTED);
    _exit(EXIT_UNSUPPORTED);
  }
  if (!first_report(key)) return;
  dprintf(STDERR_FILENO, "phantora: %s (%s) is not supported by the simulator; %s\n", call, library,
          soft ? "the caller is told so" : "the call does nothing");
  if (!ph_recording()) return;
  ph_record record = {.kind = PH_UNSUPPORTED, .id = ph_name(key, call, strlen(call))};
  ph_emit(&record);
}
