// A hash table from addresses to objects.
#include "cuda/core/table.h"
#include "phantora_wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

// Open addressing; readers take no lock: an entry's value is published before its key, and a table
// that grew is kept (growth is rare and doubles).
typedef struct table_entry {
  _Atomic(uintptr_t) key;
  _Atomic(void *) value;
} table_entry;
struct phc_table {
  size_t mask, used;
  table_entry slots[];
};
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t table_index(uintptr_t key, size_t mask) { return (key * PH_GOLDEN >> 20) & mask; }

static table_entry *table_slot(phc_table *table, uintptr_t key) {
  for (size_t i = table_index(key, table->mask);; i = (i + 1) & table->mask) {
    uintptr_t found = atomic_load_explicit(&table->slots[i].key, memory_order_acquire);
    if (found == key || found == 0) return &table->slots[i];
  }
}

static phc_table *table_make(size_t size) {
  phc_table *table = calloc(1, sizeof *table + size * sizeof(table_entry));
  if (!table) abort();
  table->mask = size - 1;
  return table;
}

static void table_put(phc_table *table, uintptr_t key, void *value) {
  table_entry *slot = table_slot(table, key);
  if (!atomic_load(&slot->key)) table->used++;
  atomic_store_explicit(&slot->value, value, memory_order_release);
  atomic_store_explicit(&slot->key, key, memory_order_release);
}

void phc_table_set(phc_table **table, uintptr_t key, void *value) {
  pthread_mutex_lock(&table_lock);
  phc_table *now = *table;
  if (!now || now->used * 2 > now->mask) {
    phc_table *grown = table_make(now ? (now->mask + 1) * 2 : 256);
    for (size_t i = 0; now && i <= now->mask; i++)
      if (now->slots[i].value) table_put(grown, now->slots[i].key, now->slots[i].value);
    __atomic_store_n(table, grown, __ATOMIC_RELEASE);
    now = grown;
  }
  table_put(now, key, value);
  pthread_mutex_unlock(&table_lock);
}

void *phc_table_get(phc_table *const *table, uintptr_t key) {
  phc_table *now = __atomic_load_n(table, __ATOMIC_ACQUIRE);
  if (!now || !key) return NULL;
  table_entry *slot = table_slot(now, key);
  return atomic_load(&slot->key) == key ? atomic_load(&slot->value) : NULL;
}

void phc_table_each(phc_table *const *table, void (*visit)(uintptr_t, void *, void *), void *data) {
  phc_table *now = __atomic_load_n(table, __ATOMIC_ACQUIRE);
  for (size_t i = 0; now && i <= now->mask; i++) {
    void *value = atomic_load(&now->slots[i].value);
    if (value) visit(now->slots[i].key, value, data);
  }
}
