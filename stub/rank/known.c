// Memory that holds true bytes whatever its size: what was given in place of a kernel's result
// (the routing of tokens to experts), and what operators computed from that (docs/values.md).
#define _GNU_SOURCE
#include "rank/internal.h"

#include <stdlib.h>

typedef struct known {
  uintptr_t from, to;
} known;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static known *table;  // in no order: few are alive at a time
static size_t room;
static atomic_size_t count;

void ph_known_reset(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  atomic_store(&count, 0);
}

static void forget(uintptr_t from, uintptr_t to) {
  for (size_t i = 0; i < atomic_load(&count);) {
    if (table[i].from < to && from < table[i].to) table[i] = table[atomic_fetch_sub(&count, 1) - 1];
    else i++;
  }
}

void ph_known_drop(const void *pointer, size_t bytes) {
  if (!atomic_load_explicit(&count, memory_order_relaxed) || !bytes) return;
  pthread_mutex_lock(&lock);
  forget((uintptr_t)pointer, (uintptr_t)pointer + bytes);
  pthread_mutex_unlock(&lock);
}

bool ph_memory_known(const void *pointer, size_t bytes) {
  if (!atomic_load_explicit(&count, memory_order_relaxed)) return false;
  uintptr_t from = (uintptr_t)pointer, to = from + bytes;
  bool found = false;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < atomic_load(&count) && !found; i++) found = table[i].from <= from && to <= table[i].to;
  pthread_mutex_unlock(&lock);
  return found;
}

void ph_memory_know(const void *pointer, size_t bytes) {
  if (!bytes) return;
  pthread_mutex_lock(&lock);
  forget((uintptr_t)pointer, (uintptr_t)pointer + bytes);
  size_t n = atomic_load(&count);
  if (n == room) {
    size_t larger = room ? room * 2 : 16;
    known *grown = realloc(table, larger * sizeof *grown);
    if (!grown) abort();
    table = grown;
    room = larger;
  }
  table[n] = (known){(uintptr_t)pointer, (uintptr_t)pointer + bytes};
  atomic_store(&count, n + 1);
  pthread_mutex_unlock(&lock);
}
