// Records for a profiler: the program's calls as they are made, and their launches once the simulator has placed them.
#include "cuda/cupti/activity.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rank/rank.h"

#define COPY_KINDS 7  // of ph_copy

typedef struct call {
  uint32_t id, thread, correlation;  // id: CUPTI's number of the function
  int64_t start, end;
  int32_t grid[3], block[3], shared, device;
  uint64_t external[CUPTI_EXTERNAL_KINDS];  // 0: none
} call;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static call *calls;
static size_t count, room;
static uint32_t last;                  // correlation of the last call
static bool enabled[CUPTI_KINDS];
static bool kept[CUPTI_KINDS];         // enabled since the last flush: a profiler disables first, then flushes
static int listening;                  // number of kinds
static cupti_request *request;
static cupti_complete *complete;
static uint8_t *open_buffer;           // the profiler's, to be filled
static size_t open_size;
static _Thread_local uint32_t graph;   // correlation of the graph launch whose nodes are being sent
static _Thread_local uint64_t grouped; // records of a group of NCCL calls that are still to come
static _Thread_local uint32_t group;   // and the correlation of the launch that they form

// Runtime functions, CUPTI's numbers for them, and the release that the name has there (cupti_runtime_cbid.h).
// clang-format off
#define FUNCTIONS(X)                                                                            \
  X(cudaMemcpyAsync, 41, v3020) X(cudaMemsetAsync, 51, v3020) X(cudaStreamSynchronize, 131, v3020) \
  X(cudaEventRecord, 135, v3020) X(cudaEventSynchronize, 137, v3020) X(cudaEventQuery, 138, v3020) \
  X(cudaStreamWaitEvent, 147, v3020) X(cudaDeviceSynchronize, 165, v3020) X(cudaLaunchKernel, 211, v7000) \
  X(cudaGraphLaunch, 311, v10000) X(cudaLaunchKernelExC, 430, v11060)
// clang-format on
#define NUMBER(name, number, release) ID_##name = number,
enum { FUNCTIONS(NUMBER) };

const char *cupti_function_name(uint32_t id) {
#define NAMED(name, number, release) \
  case number:                       \
    return #name "_" #release;
  switch (id) {
    FUNCTIONS(NAMED)
    default:
      return NULL;
  }
}

// And what the host is charged for one.
typedef struct function {
  uint32_t id;
  enum ph_api api;
} function;

static function function_of(const ph_record *record) {
  switch (record->kind) {
    case PH_PUT_SIGNAL:
    case PH_WAIT_SIGNAL:
    case PH_KERNEL:
      return (function){ID_cudaLaunchKernel, PH_API_LAUNCH};
    case PH_PEER_COPY:
    case PH_MEMCPY:
      return (function){ID_cudaMemcpyAsync, PH_API_MEMCPY_ASYNC};
    case PH_MEMSET:
      return (function){ID_cudaMemsetAsync, PH_API_MEMSET};
    case PH_COLLECTIVE:
    case PH_SEND:
    case PH_RECV:
      return (function){ID_cudaLaunchKernelExC, PH_API_NCCL_ENQUEUE};
    case PH_EVENT_RECORD:
      return (function){ID_cudaEventRecord, PH_API_EVENT_RECORD};
    case PH_STREAM_WAIT:
      return (function){ID_cudaStreamWaitEvent, PH_API_STREAM_WAIT};
    case PH_STREAM_SYNC:
      return (function){ID_cudaStreamSynchronize, PH_API_STREAM_SYNC};
    case PH_DEVICE_SYNC:
      return (function){ID_cudaDeviceSynchronize, PH_API_STREAM_SYNC};
    case PH_EVENT_SYNC:
      return (function){ID_cudaEventSynchronize, PH_API_STREAM_SYNC};
    case PH_EVENT_QUERY:
      return (function){ID_cudaEventQuery, PH_API_EVENT_QUERY};
    case PH_HOST_SPAN:
      return (function){record->flags & PH_F_GRAPH ? ID_cudaGraphLaunch : 0, PH_API_OTHER};
    default:
      return (function){0, PH_API_OTHER};
  }
}

static int64_t cost_of(enum ph_api api) {
  const ph_header *header = ph_shared();
  return header && header->host_mode == PH_HOST_MODELLED ? header->api_ns[api] : 0;
}

static call *add_call(const ph_record *record, function made) {
  if (count == room) {
    size_t larger = room ? 2 * room : 4096;
    call *grown = realloc(calls, larger * sizeof *grown);
    if (!grown) abort();
    calls = grown;
    room = larger;
  }
  call *c = &calls[count++];
  *c = (call){.id = made.id,
              .thread = (uint32_t)(uintptr_t)pthread_self(),
              .correlation = ++last,
              .start = record->time,
              .end = record->time + cost_of(made.api),
              .grid = {1, 1, 1},
              .block = {1, 1, 1},
              .device = ph_current_device()};
  if (record->kind == PH_HOST_SPAN) {
    c->start = record->span.start;
    c->end = record->time;
  }
  if (record->kind == PH_KERNEL) {
    const ph_kernel_fields *k = &record->kernel;
    memcpy(c->grid, (int32_t[]){(int32_t)k->grid_x, k->grid_y, k->grid_z}, sizeof c->grid);
    memcpy(c->block, (int32_t[]){k->block_x, k->block_y, k->block_z}, sizeof c->block);
    c->shared = (int32_t)k->shared_bytes;
  }
  for (int kind = 0; kind < CUPTI_EXTERNAL_KINDS; kind++) c->external[kind] = cupti_external_id(kind);
  return c;
}

// A call that waited returns now.
static uint32_t returned(void) {
  uint32_t correlation = ph_last_correlation();
  pthread_mutex_lock(&lock);
  for (size_t i = count; correlation && i-- > 0;) {
    if (calls[i].correlation != correlation) continue;
    if (calls[i].end < ph_now()) calls[i].end = ph_now();
    break;
  }
  pthread_mutex_unlock(&lock);
  return correlation;
}

static uint32_t heard(const ph_record *record, bool answered) {
  if (record->kind == PH_GROUP_BEGIN) {
    grouped = record->group.records;
    group = 0;
  }
  function made = function_of(record);
  if (!made.id) return 0;
  if (answered) return returned();
  bool of_graph = record->flags & PH_F_GRAPH, communicates = made.api == PH_API_NCCL_ENQUEUE;
  if (of_graph && record->kind != PH_HOST_SPAN) return graph;
  bool in_group = communicates && grouped;
  if (in_group && grouped-- && group) return group;
  pthread_mutex_lock(&lock);
  uint32_t correlation = add_call(record, made)->correlation;
  pthread_mutex_unlock(&lock);
  if (of_graph) graph = correlation;
  if (in_group) group = correlation;
  return correlation;
}

// ------------------------------------------------------------------ buffers
static void open_one(void) {
  if (open_buffer || !request) return;
  size_t most = 0;
  request(&open_buffer, &open_size, &most);
}

typedef struct writer {
  size_t used;
} writer;

static cupti_record *next(writer *w, uint32_t kind) {
  if (open_buffer && w->used + sizeof(cupti_record) > open_size) {
    complete(NULL, 0, open_buffer, open_size, w->used);
    open_buffer = NULL;
    w->used = 0;
    open_one();
  }
  if (!open_buffer) return NULL;  // the profiler takes no more
  cupti_record *record = (cupti_record *)(open_buffer + w->used);
  w->used += sizeof *record;
  memset(record, 0, sizeof *record);
  record->kind = kind;
  return record;
}

static uint64_t unix_ns(int64_t virtual_ns) {
  const ph_header *header = ph_shared();
  return (uint64_t)((header ? header->epoch_ns : 0) + virtual_ns);
}

static void write_call(writer *w, const call *c) {
  cupti_record *r;
  for (uint32_t kind = 0; kept[CUPTI_KIND_EXTERNAL_CORRELATION] && kind < CUPTI_EXTERNAL_KINDS; kind++)
    if (c->external[kind] && (r = next(w, CUPTI_KIND_EXTERNAL_CORRELATION)))
      r->external = (cupti_external){r->kind, kind, c->external[kind], c->correlation, 0};
  if (kept[CUPTI_KIND_RUNTIME] && (r = next(w, CUPTI_KIND_RUNTIME)))
    r->api = (cupti_api){r->kind,        c->id, unix_ns(c->start), unix_ns(c->end), (uint32_t)getpid(), c->thread,
                         c->correlation, 0};
}

static int by_correlation(const void *key, const void *other) {
  uint32_t wanted = *(const uint32_t *)key, found = ((const call *)other)->correlation;
  return wanted < found ? -1 : wanted > found;
}

static void write_activity(writer *w, const ph_activity *a) {
  static const uint8_t copies[COPY_KINDS][3] = {
      // kind, source, destination; 1: pageable, 2: pinned, 3: device
      {1, 2, 3}, {1, 1, 3}, {2, 3, 2}, {2, 3, 1}, {8, 3, 3}, {10, 3, 3}, {9, 1, 1}};
  const call *c = bsearch(&a->correlation, calls, count, sizeof *calls, by_correlation);
  uint64_t start = unix_ns(a->start), end = unix_ns(a->end);
  uint32_t device = c ? (uint32_t)c->device : 0;
  cupti_record *r;
  if (a->kind == PH_ROW_MEMCPY) {
    const uint8_t *copy = copies[a->sub < COPY_KINDS ? a->sub : 4];
    if (kept[CUPTI_KIND_MEMCPY] && (r = next(w, CUPTI_KIND_MEMCPY)))
      r->copy = (cupti_memcpy){r->kind,        copy[0], copy[1], copy[2], 1,         (uint64_t)a->bytes,
                               start,          end,     device,  1,       a->stream, a->correlation,
                               a->correlation, 0,       NULL};
  } else if (a->kind == PH_ROW_MEMSET) {
    if (kept[CUPTI_KIND_MEMSET] && (r = next(w, CUPTI_KIND_MEMSET)))
      r->set = (cupti_memset){r->kind, 0,   (uint64_t)a->bytes, start, end, device, 1, a->stream, a->correlation, 1, 3,
                              0,       NULL};
  } else if (kept[CUPTI_KIND_CONCURRENT_KERNEL] && (r = next(w, CUPTI_KIND_CONCURRENT_KERNEL))) {
    bool own = c && !(a->flags & PH_F_GRAPH);  // of a graph's nodes the simulator keeps no sizes
    r->kernel = (cupti_kernel){.kind = r->kind,
                               .start = start,
                               .end = end,
                               .completed = end,
                               .device = device,
                               .context = 1,
                               .stream = a->stream,
                               .grid = {own ? c->grid[0] : 1, own ? c->grid[1] : 1, own ? c->grid[2] : 1},
                               .block = {own ? c->block[0] : 1, own ? c->block[1] : 1, own ? c->block[2] : 1},
                               .dynamic_shared = own ? c->shared : 0,
                               .correlation = a->correlation,
                               .name = cupti_name(a->name),
                               .queued = unix_ns(a->launch),
                               .submitted = unix_ns(a->launch)};
  }
}

void cupti_flush(void) {
  enum { PIECE = 1024 };
  ph_activity *piece = malloc(PIECE * sizeof *piece);
  if (!piece || !complete) return free(piece);
  size_t got, used = 0, capacity = 0;
  ph_activity *all = NULL;
  while ((got = ph_activities(piece, PIECE))) {
    if (used + got > capacity) {
      capacity = 2 * (used + got);
      ph_activity *grown = realloc(all, capacity * sizeof *all);
      if (!grown) abort();
      all = grown;
    }
    memcpy(all + used, piece, got * sizeof *piece);
    used += got;
  }
  free(piece);
  for (size_t i = 0; i < used; i++) cupti_name(all[i].name);  // asks the simulator, which the lock must not span
  pthread_mutex_lock(&lock);
  open_one();
  writer w = {0};
  for (size_t i = 0; i < count; i++) write_call(&w, &calls[i]);
  for (size_t i = 0; i < used; i++) write_activity(&w, &all[i]);
  if (open_buffer) {
    complete(NULL, 0, open_buffer, open_size, w.used);
    open_buffer = NULL;
  }
  count = 0;
  memcpy(kept, enabled, sizeof kept);
  if (listening) open_one();  // a profiler flushes only when a buffer is out
  pthread_mutex_unlock(&lock);
  free(all);
}

// ------------------------------------------------------------------ what a profiler asks for
void cupti_callbacks(cupti_request *requested, cupti_complete *completed) {
  request = requested;
  complete = completed;
}

void cupti_enable(int kind, bool on) {
  if (kind < 0 || kind >= CUPTI_KINDS || enabled[kind] == on) return;
  enabled[kind] = on;
  kept[kind] = kept[kind] || on;
  listening += on ? 1 : -1;
  if (on && listening == 1) {
    open_one();
    ph_profile(heard);
  }
  if (!listening) ph_profile(NULL);
}

cupti_record *cupti_next(uint8_t *buffer, size_t bytes, cupti_record *before) {
  cupti_record *record = before ? before + 1 : (cupti_record *)buffer;
  return (uint8_t *)(record + 1) <= buffer + bytes ? record : NULL;
}
