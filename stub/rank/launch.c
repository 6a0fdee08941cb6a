// Enqueue kernels, copies and memsets.
#define _GNU_SOURCE
#include "rank/rank.h"
#include "rank/torch_hooks/torch_hooks.h"

// CUDA keeps about 1,000 commands of a stream; a thread that launches more waits until the GPU has done some. So a
// program that never synchronises is at most so far ahead, which is when its allocator can use again what other streams
// used.
#define QUEUE_DEPTH 1024
#define QUEUE_POLL 128  // kernels between polls: each is a question to the simulator

static void wait_for_room(uint32_t stream) {
  static unsigned kernels;  // since the last poll, by threads that move the clock: two of them never run at once
  if (!ph_this_thread()->moves_clock || ++kernels < QUEUE_POLL || ph_operator_open()) return;
  kernels = 0;
  ph_record record = {.kind = PH_ROOM, .stream = stream, .room.depth = QUEUE_DEPTH - QUEUE_POLL / 2};
  ph_request(&record, NULL, 0);
}

static ph_keep *keep;
static atomic_int captures;
void ph_capture_by(ph_keep *function) { keep = function; }
void ph_capturing(bool more) { atomic_fetch_add(&captures, more ? 1 : -1); }

// A kernel without an operator may have written memory that is known to be fresh.
static void attribute(ph_record *record) {
  static atomic_bool values;  // operators with true results have launched
  if (ph_top_frame())
    atomic_store_explicit(&values, true, memory_order_relaxed);
  else if (record->kind == PH_KERNEL)
    ph_known_unseen(atomic_load_explicit(&values, memory_order_relaxed));
  ph_attribute(record);
}

// True when the record's stream is captured, or when it has been sent because another one is.
static bool kept(ph_record *record, const void *data, size_t length) {
  if (!atomic_load_explicit(&captures, memory_order_relaxed)) return false;
  attribute(record);
  if (!keep(record, data, length)) ph_emit_blob(record, data, length);
  return true;
}

void ph_launch(ph_record *record) {
  if (kept(record, NULL, 0)) return;
  if (ph_rt.null_mode && record->kind == PH_KERNEL) ph_copied_launch();
  // A launch is made outside the allocator's locks, which a watchdog's poll may want.
  if (record->kind == PH_KERNEL && ph_recording()) {
    wait_for_room(record->stream);
    ph_watchdog_polls();
    ph_unmodelled_launch();
  }
  ph_await_driver();
  attribute(record);
  ph_emit(record);
}

void ph_launch_blob(ph_record *record, const void *data, size_t length) {
  if (kept(record, data, length)) return;
  ph_await_driver();
  attribute(record);
  ph_emit_blob(record, data, length);
}

void ph_library_kernel(uint32_t stream, uint64_t key, const char *json, size_t length) {
  ph_record record = {.kind = PH_KERNEL,
                      .flags = PH_F_LIBRARY,
                      .stream = stream,
                      .kernel = {.grid_x = 1, .grid_y = 1, .grid_z = 1, .block_x = 1, .block_y = 1, .block_z = 1}};
  if (!ph_name_known(key, &record.id)) record.id = ph_name(key, json, length);
  ph_launch(&record);
}
