// Bytes that arrive later: results of small collectives, and values that are computed when they are read
// (stub/tracer/deferred.cpp), awaited by what reads them.
#define _GNU_SOURCE
#include "rank/memory/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A piece of memory that waits for bytes of a ticket's payload, from `offset` on.
typedef struct pending {
  uintptr_t base;
  size_t bytes, offset;
  uint64_t ticket;
} pending;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;  // a value that ends may have awaited others
static pthread_mutex_t fetching = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;  // one thread at a time asks for payloads
static pending *waiting;  // by address, disjoint
static size_t room;
static atomic_size_t count;
static _Atomic uint64_t last_deferred;
static ph_deferred_bytes *deferred_bytes;
static ph_deferred_drop *deferred_drop;

uint32_t ph_next_communicator(void) {
  static atomic_uint last;
  return atomic_fetch_add(&last, 1) + 1;
}

uint64_t ph_next_deferred(void) { return (atomic_fetch_add(&last_deferred, 1) + 1) | PH_DEFERRED; }

void ph_deferred_by(ph_deferred_bytes *bytes, ph_deferred_drop *drop) {
  deferred_bytes = bytes;
  deferred_drop = drop;
}

void ph_payload_reset(void) {
  lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
  fetching = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
  atomic_store(&count, 0);
}

static size_t waiting_now(void) { return atomic_load_explicit(&count, memory_order_relaxed); }

static bool overlaps(const pending *p, uintptr_t from, uintptr_t to) {
  return p->base < to && from < p->base + p->bytes;
}

// With the lock held, as all below: index of the first piece that ends after `address`.
static size_t first_after(uintptr_t address) {
  size_t low = 0, high = waiting_now();
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (waiting[middle].base + waiting[middle].bytes <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Puts `n` pieces in the place of those from `first` up to `end`.
static void replace(size_t first, size_t end, const pending *fresh, size_t n) {
  size_t now = waiting_now(), then = now - (end - first) + n;
  if (then > room) {
    room = then < 16 ? 16 : then * 2;
    waiting = realloc(waiting, room * sizeof *waiting);
    if (!waiting) abort();
  }
  memmove(waiting + first + n, waiting + end, (now - end) * sizeof *waiting);
  memcpy(waiting + first, fresh, n * sizeof *waiting);
  atomic_store(&count, then);
}

static bool awaited(uint64_t ticket) {
  for (size_t i = 0; i < waiting_now(); i++)
    if (waiting[i].ticket == ticket) return true;
  return false;
}

// Nothing awaits the ticket's bytes any longer.
static void end_ticket(uint64_t ticket) {
  if (ticket & PH_DEFERRED) return deferred_drop(ticket);
  ph_record record = {.kind = PH_PAYLOAD, .payload.ticket = ticket};
  ph_emit(&record);
}

// [from, to) waits for nothing any longer; what lies around it still does.
static void forget(uintptr_t from, uintptr_t to) {
  for (;;) {
    size_t i = first_after(from), n = 0;
    if (i == waiting_now() || waiting[i].base >= to) return;
    pending p = waiting[i], rest[2];
    uintptr_t end = p.base + p.bytes;
    if (p.base < from) rest[n++] = (pending){p.base, from - p.base, p.offset, p.ticket};
    if (end > to) rest[n++] = (pending){to, end - to, p.offset + (to - p.base), p.ticket};
    replace(i, i + 1, rest, n);
    if (!n && !awaited(p.ticket)) end_ticket(p.ticket);
  }
}

void ph_forget_ticket(uint64_t ticket) { end_ticket(ticket); }

static void await(pending added) {
  forget(added.base, added.base + added.bytes);
  size_t at = first_after(added.base);
  replace(at, at, &added, 1);
}

void ph_touch_drop(void *pointer, size_t bytes) {
  ph_known_drop(pointer, bytes);
  if (!waiting_now() || !bytes) return;
  pthread_mutex_lock(&lock);
  forget((uintptr_t)pointer, (uintptr_t)pointer + bytes);
  pthread_mutex_unlock(&lock);
}

void ph_expect(void *pointer, size_t bytes, uint64_t ticket) {
  if (!bytes || !ticket || !ph_recording()) return;
  pthread_mutex_lock(&lock);
  await((pending){(uintptr_t)pointer, bytes, 0, ticket});
  pthread_mutex_unlock(&lock);
}

bool ph_awaited(const void *pointer, size_t bytes, ph_awaited_piece *piece) {
  if (!waiting_now() || !bytes) return false;
  uintptr_t from = (uintptr_t)pointer, to = from + bytes;
  pthread_mutex_lock(&lock);
  size_t i = first_after(from);
  bool found = i < waiting_now() && waiting[i].base < to;
  if (found) {
    pending p = waiting[i];
    uintptr_t begin = p.base > from ? p.base : from, end = p.base + p.bytes < to ? p.base + p.bytes : to;
    *piece = (ph_awaited_piece){begin - from, end - begin, p.offset + (begin - p.base), p.ticket};
  }
  pthread_mutex_unlock(&lock);
  return found;
}

bool ph_expect_copy(void *dst, const void *src, size_t bytes) {
  ph_awaited_piece piece;
  uintptr_t into = (uintptr_t)dst;
  if (!ph_awaited(src, bytes, &piece) || piece.bytes != bytes) return false;
  pthread_mutex_lock(&lock);
  size_t i = first_after((uintptr_t)src);
  bool found = i < waiting_now() && waiting[i].ticket == piece.ticket && !overlaps(&waiting[i], into, into + bytes);
  if (found) await((pending){into, bytes, piece.offset, piece.ticket});
  pthread_mutex_unlock(&lock);
  if (found) ph_known_copy(dst, src, bytes);
  return found;
}

// The whole payload of a ticket, malloc'ed. `knowledge`: what its senders know of it (PH_F_UNKNOWN and the like).
static uint8_t *fetch(uint64_t ticket, size_t *total, int *knowledge) {
  uint8_t *first = malloc(PH_REPLY_BYTES);
  if (!first) abort();
  ph_record record = {.kind = PH_PAYLOAD, .payload.ticket = ticket};
  size_t got;
  ph_answer answer = ph_ask(&record, NULL, 0, first, &got);
  *knowledge = answer.status > 0 ? answer.status : 0;
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
  if (ph_memory_on_device(pointer))
    ph_memory_zero(pointer, bytes);  // no page is touched where nothing true lies
  else
    memset(pointer, 0, bytes);
}

// Corrects what the receiver took as known (stub/nccl/known.c).
static void correct(const pending *p, int knowledge) {
  if (knowledge & PH_F_ABSENT)
    ph_memory_mark((void *)p->base, p->bytes, PH_UNKNOWN);
  else if (knowledge & PH_F_UNKNOWN || (knowledge & PH_F_PARTS && !(p->ticket & PH_PARTS)))
    ph_mark_unknown((void *)p->base, p->bytes);
}

// With the lock held: gives every piece of memory that waits for `ticket` its bytes.
static void deliver(uint64_t ticket, const uint8_t *data, size_t total, int knowledge) {
  for (size_t i = 0; i < waiting_now();) {
    pending p = waiting[i];
    if (p.ticket != ticket) {
      i++;
      continue;
    }
    replace(i, i + 1, NULL, 0);
    size_t n = p.offset >= total ? 0 : total - p.offset;
    if (n > p.bytes) n = p.bytes;
    if (n) ph_memory_store((void *)p.base, data + p.offset, n);
    if (n < p.bytes) zero(p.base + n, p.bytes - n);
    correct(&p, knowledge);
  }
}

static void give(uint64_t ticket) {
  size_t total = 0;
  bool deferred = ticket & PH_DEFERRED;
  int knowledge = 0;
  const uint8_t *data = deferred ? deferred_bytes(ticket, &total, &knowledge) : NULL;
  uint8_t *fetched = deferred ? NULL : fetch(ticket, &total, &knowledge);
  pthread_mutex_lock(&lock);
  deliver(ticket, deferred ? data : fetched, total, knowledge);
  if (deferred) deferred_drop(ticket);
  pthread_mutex_unlock(&lock);
  free(fetched);
}

// The first ticket from other ranks that a piece of the range waits for; 0 without one.
static uint64_t arriving(uintptr_t from, uintptr_t to) {
  uint64_t ticket = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = first_after(from); !ticket && i < waiting_now() && waiting[i].base < to; i++)
    if (!(waiting[i].ticket & PH_DEFERRED)) ticket = waiting[i].ticket;
  pthread_mutex_unlock(&lock);
  return ticket;
}

void ph_touch_arriving(const void *pointer, size_t bytes) {
  if (!waiting_now() || !bytes) return;
  pthread_mutex_lock(&fetching);
  for (uint64_t ticket; (ticket = arriving((uintptr_t)pointer, (uintptr_t)pointer + bytes));) give(ticket);
  pthread_mutex_unlock(&fetching);
}

void ph_touch(const void *pointer, size_t bytes) {
  if (!waiting_now() || !bytes) return;
  pthread_mutex_lock(&fetching);
  for (ph_awaited_piece piece; ph_awaited(pointer, bytes, &piece);) give(piece.ticket);
  pthread_mutex_unlock(&fetching);
}
