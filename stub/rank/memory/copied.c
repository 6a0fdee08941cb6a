// Copies of the program to the device, by place: only if nothing is simulated. No kernel writes there, and torch's
// allocator does not say which memory is new, so what lies at an address may be left from a tensor that is gone. A
// read-back is true if just these bytes were copied to just this place; all else reads as zero, as in a simulation.
// Places of single numbers are soon those of other numbers: a loss scaler that finds a learning rate where its flag of
// infinity should be leaves out its step. So a number counts for a few launches only.
#include "rank/memory/memory.h"

enum {
  PLACES = 4096,  // the latest copy of each: one that is forgotten reads as zero
  NUMBER = 8,     // bytes
  LAUNCHES = 16,
};

typedef struct copied {
  const void *at;
  size_t bytes, part;  // all, and what of it may be read alone
  unsigned launches;  // before it
} copied;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static copied places[PLACES];
static atomic_uint launches;

static copied *place(const void *at) { return &places[((uintptr_t)at * 2654435761u >> 12) % PLACES]; }

void ph_copied_reset(void) { lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }

void ph_copied_launch(void) { atomic_fetch_add_explicit(&launches, 1, memory_order_relaxed); }

void ph_memory_gathered(const void *at, size_t bytes, size_t part) {
  pthread_mutex_lock(&lock);
  *place(at) = (copied){at, bytes, part, atomic_load_explicit(&launches, memory_order_relaxed)};
  pthread_mutex_unlock(&lock);
}

void ph_copied_note(const void *at, size_t bytes) { ph_memory_gathered(at, bytes, bytes); }

bool ph_copied(const void *at, size_t bytes) {
  pthread_mutex_lock(&lock);
  copied last = *place(at);
  pthread_mutex_unlock(&lock);
  if (last.at != at || (last.bytes != bytes && last.part != bytes)) return false;
  return bytes > NUMBER || atomic_load_explicit(&launches, memory_order_relaxed) - last.launches <= LAUNCHES;
}
