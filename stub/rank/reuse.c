// What of an operator's operands the GPU's L2 still holds. What was touched leaves L2 as other bytes come into it: so the
// clock of this model counts bytes that missed, and an operand's age is what has missed since it was touched last.
// A granule of addresses has one age for all of its pieces that were touched. Work of all streams counts in the order in
// which the host issues it.
// What was written must go to memory before other bytes take its place, and who displaces it waits. The same clock tells
// how much of what an operator displaces was written: the oldest bytes leave first.
#include "rank/internal.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#define PIECE_BITS 10        // 1 KiB; a granule has 64
#define GRANULE_PIECES 64u
#define WAYS 8u
#define SET_BITS 12u         // more granules than are young at a time: the oldest of a set makes room
#define YOUNG 0.2            // shares of L2: what was touched so many missed bytes ago is all held,
#define OLD 0.9              // and from here on none of it (docs/costs.md says where these come from)
#define UNREAD_WEIGHT 0.25   // of a byte that is written and not read, beside one that is read
#define SEGMENTS 4096u       // of the clock, each with its own share of written bytes
#define SEGMENT 65536.0      // bytes, at least

typedef struct granule {
  uint64_t address;
  double touched;  // the clock then
  uint64_t pieces; // that were touched
} granule;

typedef struct segment {
  double end, dirty; // the clock, and how many bytes had been written until then
} segment;

typedef struct l2 {
  double missed;      // the clock: bytes
  double young, old;  // ages: up to here all is held, from here on nothing is
  double reach;       // age from which on nothing is dirty
  segment segments[SEGMENTS];
  uint64_t segment_count;  // ever; the last SEGMENTS are kept
  granule sets[1u << SET_BITS][WAYS];
} l2;

static l2 *caches[PH_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double held(const l2 *c, double age) {
  return age <= c->young ? 1 : age >= c->old ? 0 : (c->old - age) / (c->old - c->young);
}

// Touches the pieces `first` to `last` of a granule; returns how many of them count as held.
static double touch_granule(l2 *c, uint64_t address, unsigned first, unsigned last) {
  unsigned count = last - first + 1;
  uint64_t pieces = (count == GRANULE_PIECES ? ~(uint64_t)0 : ((uint64_t)1 << count) - 1) << first;
  granule *set = c->sets[address * PH_GOLDEN >> (64 - SET_BITS)], *found = set;
  for (unsigned way = 0; way < WAYS; way++) {
    if (set[way].address == address) {
      found = &set[way];
      break;
    }
    if (set[way].touched < found->touched) found = &set[way];
  }
  double hold = found->address == address ? held(c, c->missed - found->touched) : 0;
  if (hold <= 0) *found = (granule){.address = address};
  double hits = hold * __builtin_popcountll(found->pieces & pieces);
  found->touched = c->missed;
  found->pieces |= pieces;
  return hits;
}

// Bytes of an operand that are held.
static double touch(l2 *c, uint64_t address, double bytes) {
  if (bytes > c->old) {  // only its end will be held, and none of it is now
    c->missed += bytes - c->old;
    touch(c, address + (uint64_t)(bytes - c->old), c->old);
    return 0;
  }
  uint64_t first = address >> PIECE_BITS, last = (address + (uint64_t)bytes - 1) >> PIECE_BITS;
  double pieces = (double)(last - first + 1), hits = 0;
  for (uint64_t at = first; at <= last;) {
    uint64_t end = at | (GRANULE_PIECES - 1);
    if (end > last) end = last;
    hits += touch_granule(c, at / GRANULE_PIECES, at % GRANULE_PIECES, end % GRANULE_PIECES);
    at = end + 1;
  }
  double held_bytes = bytes * hits / pieces;
  c->missed += bytes - held_bytes;
  return held_bytes;
}

static segment *segment_at(l2 *c, uint64_t number) { return &c->segments[number % SEGMENTS]; }

// How many bytes had been written when the clock was `at`, as far back as segments are kept.
static double dirty_until(l2 *c, double at) {
  uint64_t low = c->segment_count > SEGMENTS ? c->segment_count - SEGMENTS : 0, high = c->segment_count - 1;
  if (at >= segment_at(c, high)->end) return segment_at(c, high)->dirty;
  if (at <= segment_at(c, low)->end) return segment_at(c, low)->dirty;
  while (high - low > 1) {
    uint64_t middle = low + (high - low) / 2;
    *(segment_at(c, middle)->end <= at ? &low : &high) = middle;
  }
  const segment *from = segment_at(c, low), *to = segment_at(c, high);
  return from->dirty + (to->dirty - from->dirty) * (at - from->end) / (to->end - from->end);
}

// An operator has brought in bytes until now, this share of them written.
static void add_segment(l2 *c, double from, double written) {
  double share = fmin(1, written / (c->missed - from) / PH_L2_MOST_DIRTY);
  segment *last = segment_at(c, c->segment_count - 1);
  segment next = {c->missed, last->dirty + share * (c->missed - from)};
  bool short_one = c->segment_count > 1 && last->end - segment_at(c, c->segment_count - 2)->end < SEGMENT;
  if (!short_one) c->segment_count++;
  *segment_at(c, c->segment_count - 1) = next;
}

// Of what was displaced since the clock was `from`, the share that had been written, of the most that can be.
static double displaced_dirty(l2 *c, double from) {
  double oldest = from - c->reach, bytes = fmin(c->missed - from, c->reach);
  return bytes > 0 ? (dirty_until(c, oldest + bytes) - dirty_until(c, oldest)) / bytes : 0;
}

static l2 *cache_of(int device) {
  l2 *c = caches[device];
  if (c) return c;
  c = caches[device] = calloc(1, sizeof *c);
  if (!c) abort();
  c->young = YOUNG * ph_gpu()->l2_bytes;
  c->old = OLD * ph_gpu()->l2_bytes;
  c->reach = PH_L2_REACH * ph_gpu()->l2_bytes;
  c->missed = 2 * c->reach;
  c->segment_count = 1;
  c->segments[0] = (segment){.end = c->missed};
  return c;
}

void ph_reuse(int device, const ph_operand *operands, size_t count, ph_record *end) {
  double all = 0, hits = 0, written = 0;
  if (device < 0 || device >= PH_MAX_DEVICES || !count) return;
  pthread_mutex_lock(&lock);
  l2 *c = cache_of(device);
  double from = c->missed, dirty = 0;
  for (size_t i = 0; i < count; i++) {
    double weight = operands[i].unread ? UNREAD_WEIGHT : 1, bytes = (double)operands[i].bytes;
    if (bytes <= 0) continue;
    all += weight * bytes;
    hits += weight * touch(c, (uintptr_t)operands[i].data, bytes);
    if (operands[i].changed) written += bytes;
  }
  if (c->missed > from) {
    dirty = displaced_dirty(c, from);
    add_segment(c, from, written);
  }
  pthread_mutex_unlock(&lock);
  if (all <= 0) return;
  end->op_end.reuse = 1 + (uint64_t)(hits / all * PH_REUSE_STEPS + 0.5);
  end->op_end.dirty = 1 + (uint64_t)(dirty * PH_REUSE_STEPS + 0.5);
}
