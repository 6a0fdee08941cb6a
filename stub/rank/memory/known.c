// Known bytes of device memory beyond the rule for small tensors (docs/values.md), by range of bytes:
// PH_KNOWN, true bytes whatever their number; PH_UNKNOWN, bytes that follow from unknown values; PH_HOLDS, elements
// that count as true, PH_EQUALS and PH_COMPARES, those of comparisons; PH_FRESH, a large tensor of torch.empty to which
// nothing was written.
#define _GNU_SOURCE
#include "rank/memory/memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct span {
  uintptr_t from, to;
  unsigned flags;
} span;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static span *spans;  // by address, disjoint; neighbours that touch differ in their flags
static size_t room;
static atomic_size_t count;
static atomic_bool some_fresh;
static atomic_bool some_unseen;

void ph_known_reset(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  atomic_store(&count, 0);
}

static size_t spans_now(void) { return atomic_load_explicit(&count, memory_order_relaxed); }

// Index of the first span that ends after `address`.
static size_t first_after(uintptr_t address) {
  size_t low = 0, high = spans_now();
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (spans[middle].to <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Puts `n` spans in the place of those from `first` up to `end`.
static void replace(size_t first, size_t end, const span *fresh, size_t n) {
  size_t now = spans_now(), then = now - (end - first) + n;
  if (then > room) {
    room = then < 64 ? 64 : then * 2;
    spans = realloc(spans, room * sizeof *spans);
    if (!spans) abort();
  }
  memmove(spans + first + n, spans + end, (now - end) * sizeof *spans);
  memcpy(spans + first, fresh, n * sizeof *spans);
  atomic_store(&count, then);
}

// With the lock held: [from, to) gets `flags`; what lies around it stays.
static void assign(uintptr_t from, uintptr_t to, unsigned flags) {
  size_t first = first_after(from), end = first, n = 0;
  span fresh[3];
  while (end < spans_now() && spans[end].from < to) end++;
  if (first == end && !flags) return;
  if (first < end && spans[first].from < from) fresh[n++] = (span){spans[first].from, from, spans[first].flags};
  if (flags) fresh[n++] = (span){from, to, flags};
  if (first < end && spans[end - 1].to > to) fresh[n++] = (span){to, spans[end - 1].to, spans[end - 1].flags};
  for (size_t i = 1; i < n;) {  // join what touches
    if (fresh[i - 1].to == fresh[i].from && fresh[i - 1].flags == fresh[i].flags) {
      fresh[i - 1].to = fresh[i].to;
      memmove(fresh + i, fresh + i + 1, (--n - i) * sizeof *fresh);
    } else {
      i++;
    }
  }
  if (n && first > 0 && spans[first - 1].to == fresh[0].from && spans[first - 1].flags == fresh[0].flags)
    fresh[0].from = spans[--first].from;
  if (n && end < spans_now() && spans[end].from == fresh[n - 1].to && spans[end].flags == fresh[n - 1].flags)
    fresh[n - 1].to = spans[end++].to;
  replace(first, end, fresh, n);
}

void ph_memory_mark(const void *pointer, size_t bytes, unsigned flags) {
  if (!bytes || (!flags && !spans_now())) return;
  pthread_mutex_lock(&lock);
  if (flags & PH_FRESH) atomic_store(&some_fresh, true);
  assign((uintptr_t)pointer, (uintptr_t)pointer + bytes, flags);
  pthread_mutex_unlock(&lock);
}

void ph_known_drop(const void *pointer, size_t bytes) { ph_memory_mark(pointer, bytes, 0); }

// A kernel without an operator may have written anywhere.
void ph_known_unseen(bool values) {
  if (values) atomic_store_explicit(&some_unseen, true, memory_order_relaxed);
  if (!atomic_load_explicit(&some_fresh, memory_order_relaxed)) return;
  pthread_mutex_lock(&lock);
  size_t kept = 0;
  for (size_t i = 0; i < spans_now(); i++)
    if (!(spans[i].flags & PH_FRESH)) spans[kept++] = spans[i];
  atomic_store(&count, kept);
  atomic_store(&some_fresh, false);
  pthread_mutex_unlock(&lock);
}

bool ph_memory_unseen(void) { return atomic_load_explicit(&some_unseen, memory_order_relaxed); }

bool ph_known_piece(const void *pointer, const void *end, const char **from, const char **to) {
  uintptr_t low = (uintptr_t)pointer, high = (uintptr_t)end;
  bool found = false;
  if (low >= high || !spans_now()) return false;
  pthread_mutex_lock(&lock);
  for (size_t i = first_after(low); !found && i < spans_now() && spans[i].from < high; i++) {
    if (!(spans[i].flags & PH_KNOWN)) continue;
    *from = (const char *)(spans[i].from > low ? spans[i].from : low);
    *to = (const char *)(spans[i].to < high ? spans[i].to : high);
    found = true;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

bool ph_memory_known(void) { return spans_now() > 0; }

size_t ph_known_spans(const void *pointer, size_t bytes, unsigned flags, ph_known_span *found, size_t most) {
  uintptr_t low = (uintptr_t)pointer, high = low + bytes;
  size_t n = 0;
  if (!bytes || !spans_now()) return 0;
  pthread_mutex_lock(&lock);
  for (size_t i = first_after(low); n < most && i < spans_now() && spans[i].from < high; i++) {
    if (!(spans[i].flags & flags)) continue;
    uintptr_t from = spans[i].from > low ? spans[i].from : low, to = spans[i].to < high ? spans[i].to : high;
    found[n++] = (ph_known_span){from - low, to - low, spans[i].flags & (PH_KNOWN | PH_UNKNOWN)};
  }
  pthread_mutex_unlock(&lock);
  return n;
}

void ph_known_copy(void *dst, const void *src, size_t bytes) {
  enum { MOST = 64 };
  ph_known_span spans[MOST];
  const unsigned flags = ph_memory_flags(src, bytes);
  ph_memory_mark(dst, bytes, flags);
  if (flags & PH_KNOWN) return;
  const size_t n = ph_known_spans(src, bytes, PH_KNOWN, spans, MOST);
  for (size_t i = 0; i < n; i++)
    ph_memory_mark((char *)dst + spans[i].from, spans[i].to - spans[i].from, spans[i].flags);
}

void ph_mark_unknown(const void *pointer, size_t bytes) {
  const char *end = (const char *)pointer + bytes, *from, *to;
  for (const char *at = pointer; at < end; at = to) {
    if (!ph_known_piece(at, end, &from, &to)) from = to = end;
    ph_memory_mark(at, (size_t)(from - at), PH_UNKNOWN);
    ph_memory_mark(from, (size_t)(to - from), PH_KNOWN | PH_UNKNOWN);
  }
}

unsigned ph_memory_flags(const void *pointer, size_t bytes) {
  if (!bytes || !spans_now()) return 0;
  uintptr_t from = (uintptr_t)pointer, to = from + bytes, known = from, writable = from;
  const unsigned truths = PH_HOLDS | PH_EQUALS | PH_COMPARES;
  unsigned every = truths;
  uintptr_t told = from;
  unsigned unknown = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = first_after(from); i < spans_now() && spans[i].from < to; i++) {
    unknown |= spans[i].flags & PH_UNKNOWN;
    if (spans[i].flags & PH_KNOWN && spans[i].from <= known) known = spans[i].to;
    if (spans[i].flags & (PH_KNOWN | PH_FRESH) && spans[i].from <= writable) writable = spans[i].to;
    if (spans[i].from <= told) told = spans[i].to, every &= spans[i].flags;
  }
  pthread_mutex_unlock(&lock);
  return unknown | (known >= to ? PH_KNOWN : writable >= to ? PH_FRESH : 0) | (told >= to ? every : 0);
}
