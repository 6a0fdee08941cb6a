// What a rank knows of the bytes that it gives, and takes as known of those that it gets (docs/values.md).
//
// Members run the same program. So a rank takes as known what it would be if all gave what it gives itself. With the
// bytes comes what their senders know of them, and corrects it (stub/rank/memory/payload.c).
#include "nccl/internal.h"

enum { MOST_SPANS = 64 };  // known pieces of a buffer; further ones count as unknown

static bool is_integer(const operation *op) { return op->dtype <= ncclUint64; }

static bool is_small(const operation *op, uint64_t bytes) {
  return bytes / dtype_bytes[op->dtype] <= PH_SMALL_ELEMENTS;
}

// All of a small buffer is true; unknown bytes are parts of it.
static size_t spans_of_small(const void *buffer, uint64_t bytes, ph_known_span *spans) {
  ph_known_span unknown[MOST_SPANS / 2];
  const size_t pieces = ph_known_spans(buffer, bytes, PH_UNKNOWN, unknown, MOST_SPANS / 2);
  size_t n = 0, at = 0;
  for (size_t i = 0; i < pieces && n + 2 < MOST_SPANS; i++) {
    if (unknown[i].from > at) spans[n++] = (ph_known_span){at, unknown[i].from, PH_KNOWN};
    spans[n++] = (ph_known_span){unknown[i].from, at = unknown[i].to, PH_KNOWN | PH_UNKNOWN};
  }
  const bool cut = pieces == MOST_SPANS / 2;
  if (at < bytes) spans[n++] = (ph_known_span){at, bytes, PH_KNOWN | (cut ? PH_UNKNOWN : 0)};
  return n;
}

static size_t spans_of(const operation *op, const void *buffer, uint64_t bytes, ph_known_span *spans) {
  return is_small(op, bytes) ? spans_of_small(buffer, bytes, spans)
                             : ph_known_spans(buffer, bytes, PH_KNOWN, spans, MOST_SPANS);
}

static bool is_whole(const ph_known_span *spans, size_t n, uint64_t bytes) {
  return n == 1 && spans[0].to - spans[0].from == bytes;
}

uint8_t known_to_send(const operation *op) {
  if (!op->send) return 0;
  ph_known_span spans[MOST_SPANS];
  const size_t n = spans_of(op, op->send, op->send_bytes, spans);
  if (!n) return PH_F_ABSENT;
  bool all_unknown = true;
  for (size_t i = 0; i < n; i++) all_unknown = all_unknown && spans[i].flags & PH_UNKNOWN;
  return (is_whole(spans, n, op->send_bytes) ? 0 : PH_F_PARTS) | (all_unknown ? PH_F_UNKNOWN : 0);
}

typedef struct expectation {
  uint64_t each;  // bytes that one member gives
  size_t count;
  ph_known_span spans[MOST_SPANS];  // of each
} expectation;

// What comes to a rank that gives nothing. Reals that fill new memory are taken as known; others, as far as the buffer
// is.
static void expect_of_others(const operation *op, expectation *e) {
  const bool whole =
      is_integer(op) || is_small(op, op->recv_bytes) || ph_memory_flags(op->recv, op->recv_bytes) & PH_FRESH;
  e->each = op->recv_bytes;
  e->spans[0] = (ph_known_span){0, op->recv_bytes, PH_KNOWN};
  e->count = whole ? 1 : ph_known_spans(op->recv, op->recv_bytes, PH_KNOWN, e->spans, MOST_SPANS);
}

static void expect(const operation *op, expectation *e) {
  if (!op->send) return expect_of_others(op, e);
  const bool scatters = op->send_bytes > op->recv_bytes;  // this rank's own part comes back
  e->each = scatters ? op->recv_bytes : op->send_bytes;
  e->count =
      spans_of(op, (const char *)op->send + (scatters ? (uint64_t)op->comm->rank * e->each : 0), e->each, e->spans);
}

uint64_t expected_parts(const operation *op) {
  expectation e;
  if (!op->recv) return 0;
  expect(op, &e);
  return is_whole(e.spans, e.count, e.each) ? 0 : PH_PARTS;
}

bool expects_known(const operation *op) {
  expectation e;
  if (!op->recv) return false;
  expect(op, &e);
  return e.count > 0;
}

void expect_bytes(const operation *op) {
  expectation e;
  expect(op, &e);  // before the buffer changes, which may hold what is sent
  if (op->sparse)
    ph_memory_clear(op->recv, op->recv_bytes);  // nobody may ask what came: stale bytes would keep their pages
  ph_expect(op->recv, op->recv_bytes, op->ticket);
  for (uint64_t at = 0; at < op->recv_bytes; at += e.each)
    for (size_t i = 0; i < e.count; i++)
      ph_memory_mark((char *)op->recv + at + e.spans[i].from, e.spans[i].to - e.spans[i].from, e.spans[i].flags);
}
