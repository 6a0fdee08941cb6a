// L2 residency: the share of an operator's operands that the GPU's L2 holds.
//
// A touched piece of memory leaves L2 as other bytes come in. So the model's clock counts missed bytes, and the age of
// a piece is the number of bytes missed since its last touch. Pieces are intervals of addresses, each with one age. An
// allocation never has the addresses of an earlier one (space.c), so the result does not depend on where memory lies.
// Written bytes go to memory before others take their place, and a reading operator waits for it. The model keeps their
// share of the last missed bytes as a moving average.
// Streams count in the order in which the host issues their work.
#include "rank/memory/memory.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define YOUNG 0.2  // shares of L2: up to this age L2 holds all of a piece,
#define OLD 0.9  // and from this age on none of it (docs/costs.md has the source)
#define WRITTEN_WEIGHT 0.25  // of a byte that is written and not read, compared with one that is read
#define ROOM 4096u  // intervals

typedef struct interval {
  uintptr_t from, to;
  double touched;  // the clock at the last touch
} interval;

typedef struct l2 {
  double missed;  // the clock: bytes
  double written;  // share of what an operator displaces that was written, of the most that can be
  double young, old;  // ages
  size_t count, limit;  // intervals; at `limit` those that have left L2 are removed
  interval pieces[ROOM + 2];  // disjoint, by address
} l2;

static l2 *caches[PH_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double hit_share(const l2 *c, double age) {
  return age <= c->young ? 1 : age >= c->old ? 0 : (c->old - age) / (c->old - c->young);
}

static void remove_older(l2 *c, double age) {
  size_t kept = 0;
  for (size_t i = 0; i < c->count; i++)
    if (c->missed - c->pieces[i].touched < age) c->pieces[kept++] = c->pieces[i];
  c->count = kept;
}

static void make_room(l2 *c) {
  if (c->count < c->limit) return;
  for (double age = c->old; remove_older(c, age), c->count > ROOM / 2; age /= 2) {}
  c->limit = 2 * c->count + 64 < ROOM ? 2 * c->count + 64 : ROOM;
}

// The first interval that ends behind `address`.
static size_t first_behind(const l2 *c, uintptr_t address) {
  size_t low = 0, high = c->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (c->pieces[middle].to <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Touches [from, to); returns the bytes that L2 holds of it.
static double touch(l2 *c, uintptr_t from, uintptr_t to) {
  if ((double)(to - from) > c->old) {  // L2 holds none of it now, and only its end afterwards
    uintptr_t end = to - (uintptr_t)c->old;
    c->missed += (double)(end - from);
    touch(c, end, to);
    return 0;
  }
  make_room(c);
  size_t first = first_behind(c, from), last = first;
  double hits = 0;
  for (; last < c->count && c->pieces[last].from < to; last++) {
    const interval *piece = &c->pieces[last];
    uintptr_t begin = piece->from > from ? piece->from : from, end = piece->to < to ? piece->to : to;
    hits += (double)(end - begin) * hit_share(c, c->missed - piece->touched);
  }
  interval fresh[3];  // take the place of those: what is left of the first, the operand, what is left of the last
  size_t count = 0;
  if (first < last && c->pieces[first].from < from)
    fresh[count++] = (interval){c->pieces[first].from, from, c->pieces[first].touched};
  fresh[count++] = (interval){from, to, c->missed};
  if (first < last && c->pieces[last - 1].to > to)
    fresh[count++] = (interval){to, c->pieces[last - 1].to, c->pieces[last - 1].touched};
  if (count != last - first)
    memmove(c->pieces + first + count, c->pieces + last, (c->count - last) * sizeof *c->pieces);
  memcpy(c->pieces + first, fresh, count * sizeof *fresh);
  c->count = c->count + count - (last - first);
  c->missed += (double)(to - from) - hits;
  return hits;
}

static l2 *cache_of(int device) {
  l2 *c = caches[device];
  if (c) return c;
  c = caches[device] = calloc(1, sizeof *c);
  if (!c) abort();
  c->young = YOUNG * ph_gpu()->l2_bytes;
  c->old = OLD * ph_gpu()->l2_bytes;
  c->limit = 64;
  return c;
}

void ph_l2_touch(int device, const ph_operand *operands, size_t count, ph_record *end) {
  double all = 0, hits = 0, written = 0;
  if (device < 0 || device >= PH_MAX_DEVICES || !count) return;
  pthread_mutex_lock(&lock);
  l2 *c = cache_of(device);
  double before = c->missed, displaced = c->written;
  for (size_t i = 0; i < count; i++) {
    uintptr_t from = (uintptr_t)operands[i].data;
    double weight = operands[i].unread ? WRITTEN_WEIGHT : 1;
    if (!operands[i].bytes) continue;
    all += weight * (double)operands[i].bytes;
    hits += weight * touch(c, from, from + operands[i].bytes);
    if (operands[i].changed) written += (double)operands[i].bytes;
  }
  double missed = c->missed - before, reach = PH_L2_REACH * ph_gpu()->l2_bytes;
  if (missed > 0) {
    double share = fmin(1, written / missed / PH_L2_MOST_WRITTEN);
    c->written += (share - c->written) * fmin(1, missed / reach);
  }
  pthread_mutex_unlock(&lock);
  if (all <= 0) return;
  end->op_end.l2_hits = 1 + (uint64_t)(hits / all * PH_L2_STEPS + 0.5);
  end->op_end.l2_written = 1 + (uint64_t)(displaced * PH_L2_STEPS + 0.5);
}
