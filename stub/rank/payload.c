// Bytes that arrive later: results of small collectives, awaited by whoever looks at them.
#define _GNU_SOURCE
#include "rank/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A piece of memory that waits for bytes of a ticket's payload, from `offset` on.
typedef struct pending {
  uintptr_t base;
  size_t bytes, offset;
  uint64_t ticket;
} pending;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t fetching = PTHREAD_MUTEX_INITIALIZER;  // one thread at a time asks for payloads
static pending *waiting;
static size_t room;
static atomic_size_t count;
static _Atomic uint64_t last_ticket;

uint32_t ph_next_communicator(void) {
  static atomic_uint last;
  return atomic_fetch_add(&last, 1) + 1;
}

uint64_t ph_next_ticket(void) { return atomic_fetch_add(&last_ticket, 1) + 1; }

void ph_payload_reset(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  fetching = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  atomic_store(&count, 0);
}

static bool overlaps(const pending *p, uintptr_t from, uintptr_t to) {
  return p->base < to && from < p->base + p->bytes;
}

static void append(pending added) {
  size_t n = atomic_load(&count);
  if (n == room) {
    size_t larger = room ? room * 2 : 16;
    pending *grown = realloc(waiting, larger * sizeof *grown);
    if (!grown) abort();
    waiting = grown;
    room = larger;
  }
  waiting[n] = added;
  atomic_store(&count, n + 1);
}

// With the lock held: [from, to) waits for nothing any longer; what lies around it still does.
static void cut(uintptr_t from, uintptr_t to) {
  for (size_t i = 0; i < atomic_load(&count);) {
    pending p = waiting[i];
    if (!overlaps(&p, from, to)) {
      i++;
      continue;
    }
    size_t last = atomic_fetch_sub(&count, 1) - 1;
    waiting[i] = waiting[last];
    if (p.base < from) append((pending){p.base, from - p.base, p.offset, p.ticket});
    uintptr_t end = p.base + p.bytes;
    if (end > to) append((pending){to, end - to, p.offset + (to - p.base), p.ticket});
  }
}

static bool awaited(uint64_t ticket) {
  for (size_t i = 0; i < atomic_load(&count); i++)
    if (waiting[i].ticket == ticket) return true;
  return false;
}

// With the lock held: cuts, and tells the simulator of a payload that nobody awaits any longer.
static void forget(uintptr_t from, uintptr_t to) {
  uint64_t tickets[16];
  size_t n = 0;
  for (size_t i = 0; i < atomic_load(&count) && n < 16; i++)
    if (overlaps(&waiting[i], from, to)) tickets[n++] = waiting[i].ticket;
  cut(from, to);
  for (size_t i = 0; i < n; i++) {
    if (awaited(tickets[i])) continue;
    ph_record record = {.kind = PH_PAYLOAD, .payload.ticket = tickets[i]};
    ph_emit(&record);
  }
}

void ph_touch_drop(void *pointer, size_t bytes) {
  ph_known_drop(pointer, bytes);
  if (!atomic_load_explicit(&count, memory_order_relaxed) || !bytes) return;
  pthread_mutex_lock(&lock);
  forget((uintptr_t)pointer, (uintptr_t)pointer + bytes);
  pthread_mutex_unlock(&lock);
}

void ph_expect(void *pointer, size_t bytes, uint64_t ticket) {
  if (!bytes || !ticket || !ph_recording()) return;
  pthread_mutex_lock(&lock);
  forget((uintptr_t)pointer, (uintptr_t)pointer + bytes);
  append((pending){(uintptr_t)pointer, bytes, 0, ticket});
  pthread_mutex_unlock(&lock);
}

bool ph_expect_copy(void *dst, const void *src, size_t bytes) {
  if (!atomic_load_explicit(&count, memory_order_relaxed) || !bytes) return false;
  uintptr_t from = (uintptr_t)src, to = from + bytes, into = (uintptr_t)dst;
  bool found = false;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < atomic_load(&count); i++) {
    pending p = waiting[i];
    if (!overlaps(&p, from, to)) continue;
    found = p.base <= from && to <= p.base + p.bytes && !overlaps(&p, into, into + bytes);
    if (!found) break;
    forget(into, into + bytes);
    append((pending){into, bytes, p.offset + (from - p.base), p.ticket});
    break;
  }
  pthread_mutex_unlock(&lock);
  if (found) ph_known_drop(dst, bytes);
  return found;
}

// The whole payload of a ticket: malloc'ed, NULL when the simulator has none.
static uint8_t *fetch(uint64_t ticket, size_t *total) {
  uint8_t *first = malloc(PH_REPLY_BYTES);
  if (!first) abort();
  ph_record record = {.kind = PH_PAYLOAD, .payload.ticket = ticket};
  size_t got;
  ph_answer answer = ph_ask(&record, NULL, 0, first, &got);
  *total = answer.status < 0 || answer.value < 0 ? 0 : (size_t)answer.value;
  if (got > *total) got = *total;
  if (got == *total) return first;
  uint8_t *all = realloc(first, *total);
  if (!all) abort();
  if (ph_fetch(ticket, all, *total, got)) *total = got;
  return all;
}

static void zero(uintptr_t from, size_t bytes) {
  void *pointer = (void *)from;
  if (ph_memory_on_device(pointer)) ph_memory_zero(pointer, bytes);  // no page is touched where nothing true lies
  else memset(pointer, 0, bytes);
}

// With the lock held: gives every piece of memory that waits for `ticket` its bytes.
static void deliver(uint64_t ticket, const uint8_t *data, size_t total) {
  for (size_t i = 0; i < atomic_load(&count);) {
    pending p = waiting[i];
    if (p.ticket != ticket) {
      i++;
      continue;
    }
    waiting[i] = waiting[atomic_fetch_sub(&count, 1) - 1];
    size_t n = p.offset >= total ? 0 : total - p.offset;
    if (n > p.bytes) n = p.bytes;
    ph_memory_store((void *)p.base, data + p.offset, n);
    if (n < p.bytes) zero(p.base + n, p.bytes - n);
  }
}

void ph_touch(const void *pointer, size_t bytes) {
  if (!atomic_load_explicit(&count, memory_order_relaxed) || !bytes) return;
  uintptr_t from = (uintptr_t)pointer, to = from + bytes;
  pthread_mutex_lock(&fetching);
  for (;;) {
    uint64_t ticket = UINT64_MAX;  // the oldest first: what arrived later goes on top
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < atomic_load(&count); i++)
      if (overlaps(&waiting[i], from, to) && waiting[i].ticket < ticket) ticket = waiting[i].ticket;
    pthread_mutex_unlock(&lock);
    if (ticket == UINT64_MAX) break;
    size_t total;
    uint8_t *data = fetch(ticket, &total);
    pthread_mutex_lock(&lock);
    deliver(ticket, data, total);
    pthread_mutex_unlock(&lock);
    free(data);
  }
  pthread_mutex_unlock(&fetching);
}
