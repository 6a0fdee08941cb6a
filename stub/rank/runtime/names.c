// Interned names: a caller's key -> the id that travels in records.
#define _GNU_SOURCE
#include "rank/runtime/runtime.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_SLOTS 1024  // a power of two

// Readers take no lock: an id is stored before its key. A table that grew is kept for them;
// doubling makes all old tables together no larger than the current one.
typedef struct entry {
  _Atomic uint64_t key;  // 0 = empty
  _Atomic uint32_t id;
} entry;
typedef struct table {
  size_t mask;
  entry slots[];
} table;

// A name that was defined before the connection (while the fork server imported torch).
typedef struct early {
  enum ph_kind kind;
  uint32_t id;
  size_t length;
  char *text;
} early;

static _Atomic(table *) names;
static uint32_t count;
static early *waiting;
static size_t waiting_count;

static uint64_t mix(uint64_t a, uint64_t b) {
  __uint128_t product = (__uint128_t)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t ph_hash(const void *data, size_t length, uint64_t seed) {
  const unsigned char *p = data;
  uint64_t h = seed ^ PH_GOLDEN ^ length;
  for (; length >= 16; length -= 16, p += 16) {
    uint64_t a, b;
    memcpy(&a, p, 8);
    memcpy(&b, p + 8, 8);
    h = mix(a ^ PH_HASH_1 ^ h, b ^ 0x8ebc6af09c88c6e3ULL);
  }
  uint64_t tail[2] = {0, 0};
  if (length) memcpy(tail, p, length);
  h = mix(tail[0] ^ PH_HASH_0 ^ h, tail[1] ^ PH_HASH_1);
  return mix(h ^ 0x589965cc75374cc3ULL, 0x1d8e4e27c47d124fULL);
}

static table *make(size_t slots) {
  table *made = calloc(1, sizeof *made + slots * sizeof(entry));
  if (!made) abort();
  made->mask = slots - 1;
  return made;
}

static entry *slot_of(table *in, uint64_t key) {
  for (size_t i = mix(key, PH_GOLDEN) & in->mask;; i = (i + 1) & in->mask) {
    uint64_t found = atomic_load_explicit(&in->slots[i].key, memory_order_acquire);
    if (found == key || !found) return &in->slots[i];
  }
}

bool ph_name_known(uint64_t key, uint32_t *id) {
  table *in = atomic_load_explicit(&names, memory_order_acquire);
  if (!in) return false;
  key += !key;
  entry *slot = slot_of(in, key);
  if (!atomic_load_explicit(&slot->key, memory_order_acquire)) return false;
  *id = atomic_load_explicit(&slot->id, memory_order_relaxed);
  return true;
}

static void insert(table *in, uint64_t key, uint32_t id) {
  entry *slot = slot_of(in, key);
  atomic_store_explicit(&slot->id, id, memory_order_relaxed);
  atomic_store_explicit(&slot->key, key, memory_order_release);
}

static void make_room(void) {
  table *in = atomic_load(&names);
  if (in && (count + 1) * 2 <= in->mask) return;
  table *larger = make(in ? (in->mask + 1) * 2 : FIRST_SLOTS);
  for (size_t i = 0; in && i <= in->mask; i++)
    if (in->slots[i].key) insert(larger, in->slots[i].key, in->slots[i].id);
  atomic_store_explicit(&names, larger, memory_order_release);
}

bool ph_kernel_is_new(uint64_t kernel) {
  static uint64_t *seen;  // in no order: there are few
  static size_t kernels, room;
  kernel += !kernel;
  bool is_new = true;
  ph_emit_lock();
  for (size_t i = 0; i < kernels && is_new; i++) is_new = seen[i] != kernel;
  if (is_new) {
    if (kernels == room) {
      room = room ? 2 * room : 64;
      seen = realloc(seen, room * sizeof *seen);
      if (!seen) abort();
    }
    seen[kernels++] = kernel;
  }
  ph_emit_unlock();
  return is_new;
}

static void define(enum ph_kind kind, uint32_t id, const char *text, size_t length) {
  ph_record record = {.kind = (uint8_t)kind, .id = id};
  ph_emit_blob(&record, text, length);
}

static void keep_for_later(enum ph_kind kind, uint32_t id, const char *text, size_t length) {
  early *grown = realloc(waiting, (waiting_count + 1) * sizeof *grown);
  char *copy = malloc(length + 1);
  if (!grown || !copy) abort();
  memcpy(copy, text, length);
  waiting = grown;
  waiting[waiting_count++] = (early){kind, id, length, copy};
}

uint32_t ph_define(uint64_t key, enum ph_kind kind, const char *text, size_t length) {
  uint32_t id;
  if (ph_name_known(key, &id)) return id;
  key += !key;
  ph_emit_lock();
  if (!ph_name_known(key, &id)) {
    make_room();
    id = ++count;
    if (ph_live())
      define(kind, id, text, length);
    else
      keep_for_later(kind, id, text, length);
    insert(atomic_load(&names), key, id);  // only now may others use the id in records
  }
  ph_emit_unlock();
  return id;
}

uint32_t ph_name(uint64_t key, const char *text, size_t length) { return ph_define(key, PH_DEFINE_NAME, text, length); }

void ph_flush_names(void) {
  ph_emit_lock();
  for (size_t i = 0; i < waiting_count; i++) {
    define(waiting[i].kind, waiting[i].id, waiting[i].text, waiting[i].length);
    free(waiting[i].text);
  }
  free(waiting);
  waiting = NULL;
  waiting_count = 0;
  ph_emit_unlock();
}
