// Peers: processes that map each other's memory, by handles of the driver or of cudaIpc, and copies between them.
#include "cuda/core/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static phc_peers *groups;  // the newest first
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool imported;

cudaError_t phc_importable(const phc_shared *shared) {
  if (!ph_neighbour(shared->owner)) {
    ph_unsupported("libcuda", "memory of a peer on another host: leave it to groups inside a host", false);
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
  if (!mapping) return phc_table_get(&phc_handed, range.base);
  return mapping->shared->number ? mapping->shared : NULL;
}

// The parts that a table of addresses names. False: it is none.
static bool read_table(void *const *table, int members, phc_peers *into) {
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

static bool same_parts(const phc_peers *a, const phc_peers *b) {
  if (a->members != b->members) return false;
  for (int i = 0; i < a->members; i++)
    if (a->parts[i].number != b->parts[i].number) return false;
  return true;
}

static bool among(const phc_peers *few, const phc_peers *many) {
  for (int i = 0, j = 0; i < few->members; i++) {
    for (j = 0; j < many->members && many->parts[j].number != few->parts[i].number; j++);
    if (j == many->members) return false;
  }
  return true;
}

// A group that all of these belong to, in whatever order, NULL if there is none. With the lock held.
static phc_peers *known_to_each_other(const phc_peers *parts) {
  phc_peers *g = groups;
  while (g && !among(parts, g)) g = g->next;
  return g;
}

// The peers meet, so that none is later than another knows it to be, and tell the simulator. Those who know each other
// have met.
static cudaError_t meet(phc_peers *g) {
  uint64_t numbers[PHC_MOST_PEERS];
  for (int i = 0; i < g->members; i++) numbers[i] = g->parts[i].number;
  size_t length = (size_t)g->members * sizeof *numbers;
  uint64_t key[2] = {ph_hash(numbers, length, 0x73796d6d65747279ULL), ph_hash(numbers, length, 0x7065657273206f66ULL)};
  g->comm = ph_next_communicator();
  if (ph_null_mode()) return 0;
  uint8_t mine = 0, *all = NULL;
  if (!known_to_each_other(g) && ph_exchange(key[0], key[1], g->members, g->rank, &mine, sizeof mine, &all, &length))
    return cudaErrorOperatingSystem;
  free(all);
  char label[32 + 24 * PHC_MOST_PEERS];
  int at = snprintf(label, sizeof label, "symmetric memory") + 1;
  for (int i = 0; i < g->members; i++)
    at += snprintf(label + at, sizeof label - (size_t)at, "%s%d+1x1", i ? "," : "", g->parts[i].owner);
  ph_record record = {
      .kind = PH_COMM_CREATE,
      .flags = PH_F_SHARED,
      .id = g->comm,
      .stream = (uint32_t)ph_current_device(),
      .comm = {.key_hi = key[0], .key_lo = key[1], .members = (uint64_t)g->members, .rank = (uint64_t)g->rank}};
  ph_emit_blob(&record, label, (size_t)at);
  return 0;
}

phc_peers *phc_peers_of(void *const *table, int members, cudaError_t *error) {
  phc_peers found = {0};
  *error = 0;
  if (members < 2 || members > PHC_MOST_PEERS || !read_table(table, members, &found)) return NULL;
  pthread_mutex_lock(&lock);
  phc_peers *g = groups;
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
  if (bytes < 2 * sizeof(void *) || bytes > PHC_MOST_PEERS * sizeof(void *)) return 0;
  ph_range range;
  int members = (int)(bytes / sizeof(void *));
  phc_peers parts = {0};
  if (!ph_memory_find(table, &range) || range.space != PH_SPACE_DEVICE || !read_table(table, members, &parts)) return 0;
  pthread_mutex_lock(&lock);
  bool known = known_to_each_other(&parts) != NULL;  // a table of the program's own, which other ranks may not have
  pthread_mutex_unlock(&lock);
  if (!known) phc_peers_of(table, members, &error);
  return error;
}

phc_peers *phc_peers_at(const void *pointer, int *member) {
  const phc_shared *part = shared_at(pointer);
  if (!part) return NULL;
  pthread_mutex_lock(&lock);
  phc_peers *g = groups;
  for (; g; g = g->next) {
    for (*member = 0; *member < g->members && g->parts[*member].number != part->number; ++*member);
    if (*member < g->members) break;
  }
  pthread_mutex_unlock(&lock);
  return g;
}

bool phc_peer_copy(const void *dst, const void *src, size_t bytes, const ph_stream *stream) {
  if (!atomic_load_explicit(&imported, memory_order_relaxed)) return false;
  const phc_shared *to = shared_at(dst), *from = shared_at(src);
  bool push = to && to->owner != ph_rank(), pull = from && from->owner != ph_rank();
  if (push == pull) return false;
  int peer;
  const phc_peers *g = phc_peers_at(push ? dst : src, &peer);
  if (!g) return false;
  ph_record record = {.kind = PH_PEER_COPY,
                      .stream = stream->id,
                      .id = g->comm,
                      .peer_copy = {.peer = peer, .push = push, .bytes = bytes}};
  ph_launch(&record);
  return true;
}
