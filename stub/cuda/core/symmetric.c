// Symmetric memory: torch's own code runs over the driver's calls; its kernels are known by their names and parameters.
#include "cuda/core/symmetric.h"
#include "abi/nccl_abi.h"
#include "cuda/core/capture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PEERS 72  // the largest NVLink domain

typedef struct group {
  struct group *next;
  int members, rank;
  phc_shared parts[MAX_PEERS];
  uint32_t comm;
} group;
static group *groups;  // the newest first
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool imported;

cudaError_t phc_shareable(void) {
  if (ph_probing()) _Exit(0);  // what comes now is communication
  if (!ph_shared() || !ph_shared()->folded) return 0;
  ph_unsupported("libcuda", "symmetric memory in a folded run: run all ranks with --fold off", false);
  return cudaErrorNotSupported;
}

cudaError_t phc_importable(const phc_shared *shared) {
  if (!ph_neighbour(shared->owner)) {
    ph_unsupported("libcuda", "symmetric memory between hosts: leave it to groups inside a host", false);
    return cudaErrorNotSupported;
  }
  atomic_store(&imported, true);
  return 0;
}

// ---------------------------------------------------------------- peers
static const phc_shared *shared_at(const void *pointer) {
  ph_range range;
  if (!ph_memory_find(pointer, &range)) return NULL;
  const phc_mapping *mapping = phc_table_get(&phc_mappings, range.base);
  return mapping && mapping->shared->number ? mapping->shared : NULL;
}

// The parts that a table of addresses names. False: it is none.
static bool read_table(void *const *table, int members, group *into) {
  into->members = members;
  into->rank = -1;
  for (int i = 0; i < members; i++) {
    const phc_shared *part = shared_at(table[i]);
    if (!part) return false;
    for (int j = 0; j < i; j++)
      if (into->parts[j].owner == part->owner) return false;
    if (part->owner == ph_rank()) into->rank = i;
    into->parts[i] = *part;
  }
  return into->rank >= 0;
}

static bool same_parts(const group *a, const group *b) {
  if (a->members != b->members) return false;
  for (int i = 0; i < a->members; i++)
    if (a->parts[i].number != b->parts[i].number) return false;
  return true;
}

static bool among(const group *few, const group *many) {
  for (int i = 0, j = 0; i < few->members; i++) {
    for (j = 0; j < many->members && many->parts[j].number != few->parts[i].number; j++);
    if (j == many->members) return false;
  }
  return true;
}

// A group that all of these belong to, in whatever order, NULL if there is none. With the lock held.
static group *known_to_each_other(const group *parts) {
  group *g = groups;
  while (g && !among(parts, g)) g = g->next;
  return g;
}

// The peers meet, so that none is later than another knows it to be, and tell the simulator. Those who know each other
// have met.
static cudaError_t meet(group *g) {
  uint64_t numbers[MAX_PEERS];
  for (int i = 0; i < g->members; i++) numbers[i] = g->parts[i].number;
  size_t length = (size_t)g->members * sizeof *numbers;
  uint64_t key[2] = {ph_hash(numbers, length, 0x73796d6d65747279ULL), ph_hash(numbers, length, 0x7065657273206f66ULL)};
  g->comm = ph_next_communicator();
  if (ph_null_mode()) return 0;
  uint8_t mine = 0, *all = NULL;
  if (!known_to_each_other(g) && ph_exchange(key[0], key[1], g->members, g->rank, &mine, sizeof mine, &all, &length))
    return cudaErrorOperatingSystem;
  free(all);
  char label[32 + 24 * MAX_PEERS];
  int at = snprintf(label, sizeof label, "symmetric memory") + 1;
  for (int i = 0; i < g->members; i++)
    at += snprintf(label + at, sizeof label - (size_t)at, "%s%d+1x1", i ? "," : "", g->parts[i].owner);
  ph_record record = {.kind = PH_COMM_CREATE, .flags = PH_F_SHARED, .id = g->comm, .stream = (uint32_t)ph_current_device(),
                      .comm = {.key_hi = key[0], .key_lo = key[1], .members = (uint64_t)g->members, .rank = (uint64_t)g->rank}};
  ph_emit_blob(&record, label, (size_t)at);
  return 0;
}

// The group of a table of addresses, NULL if it is none.
static group *group_of(void *const *table, int members, cudaError_t *error) {
  group found = {0};
  *error = 0;
  if (members < 2 || members > MAX_PEERS || !read_table(table, members, &found)) return NULL;
  pthread_mutex_lock(&lock);
  group *g = groups;
  while (g && !same_parts(g, &found)) g = g->next;
  if (!g && (g = malloc(sizeof *g))) {
    *g = found;
    *error = meet(g);
    g->next = groups;
    groups = g;
  }
  pthread_mutex_unlock(&lock);
  return g;
}

cudaError_t phc_learn_peers(const void *table, size_t bytes) {
  cudaError_t error = 0;
  if (!atomic_load_explicit(&imported, memory_order_relaxed) || bytes % sizeof(void *)) return 0;
  if (bytes < 2 * sizeof(void *) || bytes > MAX_PEERS * sizeof(void *)) return 0;
  ph_range range;
  int members = (int)(bytes / sizeof(void *));
  group parts = {0};
  if (!ph_memory_find(table, &range) || range.space != PH_SPACE_DEVICE || !read_table(table, members, &parts)) return 0;
  pthread_mutex_lock(&lock);
  bool known = known_to_each_other(&parts) != NULL;  // a table of the program's own, which other ranks may not have
  pthread_mutex_unlock(&lock);
  if (!known) group_of(table, members, &error);
  return error;
}

bool phc_peer_copy(const void *dst, const void *src, size_t bytes, const ph_stream *stream) {
  if (!atomic_load_explicit(&imported, memory_order_relaxed)) return false;
  const phc_shared *to = shared_at(dst), *from = shared_at(src);
  bool push = to && to->owner != ph_rank(), pull = from && from->owner != ph_rank();
  if (push == pull) return false;
  uint64_t number = push ? to->number : from->number;
  pthread_mutex_lock(&lock);
  int peer = -1;
  group *g = groups;
  for (; g; g = g->next) {
    for (peer = 0; peer < g->members && g->parts[peer].number != number; peer++);
    if (peer < g->members) break;
  }
  pthread_mutex_unlock(&lock);
  if (!g) return false;
  ph_record record = {.kind = PH_PEER_COPY, .stream = stream->id, .id = g->comm,
                      .peer_copy = {.peer = peer, .push = push, .bytes = bytes}};
  ph_launch(&record);
  return true;
}

// ---------------------------------------------------------------- torch's kernels
enum { UNKNOWN, FOREIGN, BARRIER, PUT_SIGNAL, WAIT_SIGNAL, ONE_SHOT, TWO_SHOT, TWO_SHOT_INPLACE, PULLED, PULLED_ROWS, REFUSED };

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), tail = strlen(end);
  return length >= tail && !strcmp(text + length - tail, end);
}

// The mangled names hold the types of the parameters, so another release with others is not taken for this one.
static int recognize(const char *symbol) {
  static const struct {
    const char *part, *end;
    int kind;
  } known[] = {
      {"barrier_kernel", "14barrier_kernelEPPjiiim", BARRIER},
      {"put_signal_kernel", "17put_signal_kernelEPPjiiiim", PUT_SIGNAL},
      {"wait_signal_kernel", "18wait_signal_kernelEPPjiiiim", WAIT_SIGNAL},
      {"26one_shot_all_reduce_kernelI", "_mmPPjmm", ONE_SHOT},
      {"34two_shot_all_reduce_kernel_inplaceI", "EEvPPT_mmPPjmm", TWO_SHOT_INPLACE},
      {"26two_shot_all_reduce_kernelI", "_mmPPjmmm", TWO_SHOT},
  };
  if (!strstr(symbol, "symmetric_memory") && !strstr(symbol, "CUDASymmetricMemoryOps")) return FOREIGN;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (!strstr(symbol, known[i].part) || !ends_with(symbol, known[i].end)) continue;
    if (known[i].kind != TWO_SHOT) return known[i].kind;
    return strstr(symbol, "Lb1ELb1E") ? PULLED_ROWS : strstr(symbol, "Lb1ELb0E") ? PULLED : TWO_SHOT;
  }
  return REFUSED;
}

#define ARGUMENT(type, index) (*(type *)arguments[index])

// In ns. Longer than the simulator counts is for ever.
static int64_t limit_of(size_t milliseconds) {
  return milliseconds > 1000000000000 ? 0 : (int64_t)milliseconds * 1000000;
}

static cudaError_t signals(int kind, const ph_stream *stream, void **arguments) {
  bool all = kind == BARRIER;
  cudaError_t error;
  group *g = group_of(ARGUMENT(void **, 0), ARGUMENT(int, all ? 3 : 4), &error);
  if (!g) return error;  // a group of one
  int64_t limit = limit_of(ARGUMENT(size_t, all ? 4 : 5));
  ph_record record = {.stream = stream->id, .id = g->comm};
  if (all) {
    record.kind = PH_COLLECTIVE;
    record.collective = (ph_collective_fields){.coll = PH_COLL_SYMMETRIC_BARRIER, .root = ARGUMENT(int, 1), .count = 1, .scalar = (double)limit};
  } else {
    record.kind = kind == PUT_SIGNAL ? PH_PUT_SIGNAL : PH_WAIT_SIGNAL;
    record.signal = (ph_signal_fields){.peer = ARGUMENT(int, 1), .channel = (uint32_t)ARGUMENT(int, 2), .limit = limit};
  }
  ph_launch(&record);
  return 0;
}

typedef struct reduction {
  char **inputs, *output, *local;  // local: copied into the own input first
  size_t offset, count;            // elements
  void **pads;
  size_t rank, members;
} reduction;

static reduction reduction_of(int kind, void **arguments) {
  int at = kind == ONE_SHOT ? 3 : kind == TWO_SHOT_INPLACE ? 1 : 2;
  return (reduction){.inputs = ARGUMENT(char **, 0),
                     .output = kind == TWO_SHOT_INPLACE ? NULL : ARGUMENT(char *, 1),
                     .local = kind == ONE_SHOT ? ARGUMENT(char *, 2) : NULL,
                     .offset = ARGUMENT(size_t, at),
                     .count = ARGUMENT(size_t, at + 1),
                     .pads = ARGUMENT(void **, at + 2),
                     .rank = ARGUMENT(size_t, at + 3),
                     .members = ARGUMENT(size_t, at + 4)};
}

static cudaError_t reduce(int kind, const char *symbol, const ph_stream *stream, void **arguments) {
  static const uint8_t collectives[] = {[ONE_SHOT] = PH_COLL_ONE_SHOT_ALL_REDUCE, [TWO_SHOT] = PH_COLL_TWO_SHOT_ALL_REDUCE,
                                        [TWO_SHOT_INPLACE] = PH_COLL_TWO_SHOT_ALL_REDUCE,
                                        [PULLED] = PH_COLL_PULLED_REDUCE_SCATTER, [PULLED_ROWS] = PH_COLL_PULLED_REDUCE_SCATTER};
  reduction r = reduction_of(kind, arguments);
  bool half = strstr(symbol, "BFloat16");
  size_t element = half ? 2 : 4, bytes = r.count * element, given = bytes;
  char *input = r.inputs[r.rank] + r.offset * element, *output = r.output ? r.output : input;
  if (r.local) ph_memory_copy(input, r.local, bytes);
  cudaError_t error;
  group *g = group_of(r.pads, (int)r.members, &error);
  if (error) return error;
  if (!g) {  // a group of one
    if (output != input) ph_memory_copy(output, input, bytes);
    return 0;
  }
  bool scatters = kind == PULLED || kind == PULLED_ROWS;
  if (scatters) given /= r.members;
  ph_record record = {.kind = PH_COLLECTIVE, .stream = stream->id, .id = g->comm,
                      .collective = {.coll = collectives[kind], .dtype = half ? ncclBfloat16 : ncclFloat32,
                                     .count = scatters ? r.count / r.members : r.count, .bytes = (int64_t)bytes}};
  if (bytes > PH_CARRIED_BYTES || kind == PULLED_ROWS || phc_captured(stream) || ph_null_mode()) {
    ph_launch(&record);
    ph_memory_clear(output, given);
    return 0;
  }
  ph_touch(input, bytes);
  record.collective.ticket = ph_next_ticket();
  ph_launch_blob(&record, input, bytes);
  ph_expect(output, given, record.collective.ticket);
  return 0;
}

bool phc_symmetric_launch(phc_kernel *kernel, const ph_stream *stream, void **arguments, cudaError_t *error) {
  if (kernel->symmetric == UNKNOWN) kernel->symmetric = (uint8_t)recognize(kernel->symbol);
  *error = 0;
  switch (kernel->symmetric) {
    case FOREIGN: return false;
    case BARRIER:
    case PUT_SIGNAL:
    case WAIT_SIGNAL: *error = signals(kernel->symmetric, stream, arguments); return true;
    case REFUSED: ph_unsupported("torch's symmetric memory", phc_kernel_display(kernel), false); return false;
    default: *error = reduce(kernel->symmetric, kernel->symbol, stream, arguments); return true;
  }
}
