// Copies to pinned memory that are not waited for. A program that reads the memory before it has waited for the copy
// finds there what was there before, as on a GPU.
//
// The order on the GPU decides which copies a wait of the host covers: a stream covers its own copies and what the
// events that it waited for cover. No time is asked for, so that equal runs read equal bytes.
#define _GNU_SOURCE
#include "cuda/core/copy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MOST_COPIES 64  // on their way at a time: a bit each in what streams and events cover; older ones arrive

typedef struct copy {
  char *dst;
  size_t bytes;
  char *data;           // NULL: zeros
  uint64_t number;      // from 1; 0: none
} copy;

// Predecessors of a stream or an event: its place in `covers`, by address.
typedef struct cover {
  const void *of;       // a stream or an event
  const ph_stream *stream;  // NULL: an event
  uint64_t copies;      // a bit for each place in `copies`
} cover;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static copy copies[MOST_COPIES];
static atomic_int under_way;
static uint64_t issued;
static cover *covers;
static size_t cover_count, cover_room;

static cover *cover_of(const void *of, const ph_stream *stream, bool make) {
  for (size_t i = 0; i < cover_count; i++)
    if (covers[i].of == of) return &covers[i];
  if (!make) return NULL;
  if (cover_count == cover_room) {
    size_t room = cover_room ? cover_room * 2 : 16;
    cover *grown = realloc(covers, room * sizeof *grown);
    if (!grown) abort();
    covers = grown;
    cover_room = room;
  }
  covers[cover_count] = (cover){of, stream, 0};
  return &covers[cover_count++];
}

// With the lock held. Memory that has been freed meanwhile takes nothing.
static void arrive(size_t place) {
  copy *c = &copies[place];
  ph_range range;
  if (ph_memory_find(c->dst, &range) && range.base + range.size >= (uintptr_t)c->dst + c->bytes) {
    if (c->data)
      memcpy(c->dst, c->data, c->bytes);
    else
      ph_memory_clear(c->dst, c->bytes);
  }
  free(c->data);
  *c = (copy){0};
  for (size_t i = 0; i < cover_count; i++) covers[i].copies &= ~(UINT64_C(1) << place);
  if (atomic_fetch_sub(&under_way, 1) == 1) cover_count = 0;  // nothing is left to be covered
}

// With the lock held: those of a set, in the order in which they were issued.
static void arrive_all(uint64_t set) {
  while (set) {
    size_t first = MOST_COPIES;
    for (size_t i = 0; i < MOST_COPIES; i++)
      if (set >> i & 1 && (first == MOST_COPIES || copies[i].number < copies[first].number)) first = i;
    set &= ~(UINT64_C(1) << first);
    if (copies[first].number) arrive(first);
  }
}

bool phc_arrive_later(void *dst, const void *src, size_t bytes, const ph_stream *stream) {
  char *data = NULL;
  if (bytes > PH_HOST_PAGE) ph_touch(src, bytes);
  if (bytes <= PH_HOST_PAGE || ph_memory_true(src, bytes)) {
    if (!(data = malloc(bytes))) return false;
    ph_memory_copy(data, src, bytes);
  }
  pthread_mutex_lock(&lock);
  size_t place = 0, oldest = 0;
  for (; place < MOST_COPIES && copies[place].number; place++)
    if (copies[place].number < copies[oldest].number) oldest = place;
  if (place == MOST_COPIES) arrive(place = oldest);
  copies[place] = (copy){dst, bytes, data, ++issued};
  atomic_fetch_add(&under_way, 1);
  cover_of(stream, stream, true)->copies |= UINT64_C(1) << place;
  pthread_mutex_unlock(&lock);
  return true;
}

static bool nothing(void) { return !atomic_load_explicit(&under_way, memory_order_relaxed); }

void phc_arrive(const void *pointer, size_t bytes) {
  if (nothing()) return;
  const char *from = pointer, *to = from + bytes;
  uint64_t set = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < MOST_COPIES; i++)
    if (copies[i].number && copies[i].dst < to && from < copies[i].dst + copies[i].bytes) set |= UINT64_C(1) << i;
  arrive_all(set);
  pthread_mutex_unlock(&lock);
}

// With the lock held. The legacy default stream comes after all streams that block, and they after it.
static uint64_t covered(const ph_stream *stream) {
  const cover *own = cover_of(stream, stream, false);
  uint64_t set = own ? own->copies : 0;
  bool legacy = stream->id < (uint32_t)ph_devices(), blocking = !(stream->flags & 1);
  for (size_t i = 0; i < cover_count && (legacy || blocking); i++) {
    const ph_stream *other = covers[i].stream;
    if (other && (legacy ? !(other->flags & 1) : other->id < (uint32_t)ph_devices())) set |= covers[i].copies;
  }
  return set;
}

void phc_order_record(ph_event *event, const ph_stream *stream) {
  const ph_order *order = ph_ordered();
  if (order) order->recorded(event, stream->id);
  if (nothing()) return;
  pthread_mutex_lock(&lock);
  uint64_t set = covered(stream);
  cover_of(event, NULL, true)->copies = set;
  pthread_mutex_unlock(&lock);
}

void phc_order_wait(const ph_stream *stream, const ph_event *event) {
  const ph_order *order = ph_ordered();
  if (order) order->waits(stream->id, event);
  if (nothing()) return;
  pthread_mutex_lock(&lock);
  const cover *of = cover_of(event, NULL, false);
  uint64_t set = of ? of->copies : 0;
  if (set) cover_of(stream, stream, true)->copies |= set;
  pthread_mutex_unlock(&lock);
}

void phc_waited_for_stream(const ph_stream *stream) {
  const ph_order *order = ph_ordered();
  if (order) order->host_after_stream(stream->id);
  if (nothing()) return;
  pthread_mutex_lock(&lock);
  arrive_all(covered(stream));
  pthread_mutex_unlock(&lock);
}

void phc_waited_for_event(const ph_event *event) {
  const ph_order *order = ph_ordered();
  if (order) order->host_after_event(event);
  if (nothing()) return;
  pthread_mutex_lock(&lock);
  const cover *of = cover_of(event, NULL, false);
  arrive_all(of ? of->copies : 0);
  pthread_mutex_unlock(&lock);
}

void phc_waited_for_all(void) {
  const ph_order *order = ph_ordered();
  if (order) order->host_after_all();
  if (nothing()) return;
  pthread_mutex_lock(&lock);
  arrive_all(UINT64_MAX);
  pthread_mutex_unlock(&lock);
}
