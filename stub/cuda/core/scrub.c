// The driver clears memory that was given back before anyone gets it again, in the order in which it came. It begins
// some milliseconds later, whatever the host's speed. So who frees and allocates on a full GPU waits, and for all that
// was freed, not for as much as it wants; where enough clean memory is left nobody does.
//
// On a full H100 a block that was just freed is mostly handed out again after 7.3 ms (64 MiB), 7.7 (256 MiB), 7.1
// to 8.6 (1 GiB), 18 to 25 (4 GiB); a second later within 0.3 ms: validation/workloads/near_capacity.py OUT blocks. In
// training steps that free 4 to 8 GiB a cudaMalloc of 1 to 2 GiB takes 14 to 18 ms (near_capacity.py OUT calls, as two
// sessions have it). Other GPUs were not measured, and are taken for as fast.
#define _GNU_SOURCE
#include "cuda/core/memory.h"

#include <pthread.h>
#include <string.h>

#include "rank/rank.h"

#define DELAY_NS 7000000    // from the free to the beginning
#define NS_PER_GIB 2400000  // of the clearing itself
#define MOST_BATCHES 64  // those that wait begin at least DELAY_NS apart, or are one

typedef struct batch {
  int64_t bytes;
  int64_t start, end;  // when it is cleared, evenly
} batch;

typedef struct queue {
  batch batches[MOST_BATCHES];  // the oldest first
  int count;
} queue;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static queue queues[PH_MAX_DEVICES];

static int64_t duration(int64_t bytes) { return (int64_t)((double)bytes * NS_PER_GIB / 1073741824.0); }

static void forget_cleared(queue *q, int64_t now) {
  int done = 0;
  while (done < q->count && q->batches[done].end <= now) done++;
  q->count -= done;
  memmove(q->batches, q->batches + done, (size_t)q->count * sizeof *q->batches);
}

void phc_scrub_later(int device, size_t bytes) {
  if (device < 0 || device >= PH_MAX_DEVICES) return;
  pthread_mutex_lock(&lock);
  queue *q = &queues[device];
  int64_t now = ph_now(), start = now + DELAY_NS;
  forget_cleared(q, now);
  batch *last = q->count ? &q->batches[q->count - 1] : NULL;
  if (last && (last->end >= start || q->count == MOST_BATCHES)) {
    last->bytes += (int64_t)bytes;
    last->end += duration((int64_t)bytes);
  } else {
    q->batches[q->count++] = (batch){(int64_t)bytes, start, start + duration((int64_t)bytes)};
  }
  pthread_mutex_unlock(&lock);
}

void phc_scrub_wait(int device) {
  if (device < 0 || device >= PH_MAX_DEVICES) return;
  size_t room, total;
  ph_memory_info(device, &room, &total);
  pthread_mutex_lock(&lock);
  queue *q = &queues[device];
  int64_t now = ph_now(), until = now;
  forget_cleared(q, now);
  // A thread that finds too little clean memory waits until all is clean.
  int64_t unclean = 0;
  for (int i = 0; i < q->count; i++) unclean += q->batches[i].bytes;
  if (unclean > (int64_t)room) until = q->batches[q->count - 1].end;
  pthread_mutex_unlock(&lock);
  ph_advance(until - now);
}
