// Events.
#include "cuda/core/copy.h"
#include "cuda/core/device.h"
#include "cuda/core/graph.h"
#include "cuda/core/stream.h"

cudaError_t phc_event_create(void **event, unsigned flags) {
  unsigned known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
  if (!event || flags & ~known) return cudaErrorInvalidValue;
  if (flags & cudaEventInterprocess && !(flags & cudaEventDisableTiming)) return cudaErrorInvalidValue;
  *event = ph_event_create(ph_current_device(), flags);
  return *event ? 0 : cudaErrorMemoryAllocation;
}

cudaError_t phc_event_destroy(void *event) {
  if (ph_event_alive(event)) phc_capture_forget(event);
  return ph_event_alive(event) && !ph_event_destroy(event) ? 0 : cudaErrorInvalidResourceHandle;
}

void phc_event_emit(ph_event *event, ph_stream *stream) {
  ph_record record = {.kind = PH_EVENT_RECORD, .stream = stream->id, .id = event->id};
  if (!(event->flags & cudaEventDisableTiming)) record.flags = PH_F_TIMING;
  event->recorded = true;
  event->done_at = -1;
  event->stream = stream;
  event->place = ++stream->events;
  ph_emit(&record);
}

cudaError_t phc_event_record(void *handle, void *stream_handle, unsigned flags, bool per_thread) {
  ph_event *event = handle;
  ph_stream *stream = NULL;
  if (flags > 1) return cudaErrorInvalidValue;
  if (!ph_event_alive(event)) return cudaErrorInvalidResourceHandle;
  cudaError_t error = phc_stream_use(stream_handle, per_thread, &stream);
  if (error) return error;
  if (stream->device != event->device) return cudaErrorInvalidResourceHandle;
  if (phc_captured(stream)) return phc_capture_record(stream, event, flags);
  phc_capture_forget(event);
  phc_event_emit(event, stream);
  phc_order_record(event, stream);
  return 0;
}

cudaError_t phc_stream_wait(void *handle, void *event, unsigned flags, bool per_thread) {
  ph_stream *stream = NULL;
  if (flags > 1) return cudaErrorInvalidValue;  // 1: external, a node of its own in a capture
  cudaError_t error = phc_stream_use(handle, per_thread, &stream);
  if (error) return error;
  if (!ph_event_alive(event)) return cudaErrorInvalidResourceHandle;
  if (phc_captured(stream) || (((ph_event *)event)->captured && !flags))
    return phc_capture_wait(stream, event, flags && phc_captured(stream));
  if (!((ph_event *)event)->recorded) return 0;
  ph_record record = {.kind = PH_STREAM_WAIT, .stream = stream->id, .id = ((ph_event *)event)->id};
  ph_emit(&record);
  phc_order_wait(stream, event);
  return 0;
}

// A loop that polls must end even where calls cost no virtual time: a second "not ready" at the
// same instant moves the clock to the known completion.
static void poll_moves_on(const ph_event *event) {
  if (ph_watchdog_undone()) return;
  static __thread uint32_t last_event;
  static __thread int64_t last_time = -1;
  int64_t now = ph_now();
  if (last_event == event->id && last_time == now && event->done_at > now && ph_moves_clock())
    ph_advance(event->done_at - now);
  last_event = event->id;
  last_time = now;
}

// A stream is done in order. A watchdog's round asks about many events at one instant: what comes after an event that
// is not done is not asked for.
static bool is_undone(const ph_event *event) {
  const ph_stream *stream = event->stream;
  return stream && stream->undone && event->place >= stream->undone && ph_now() <= stream->undone_at;
}

static void note_undone(const ph_event *event) {
  if (!event->stream) return;
  event->stream->undone = event->place;
  event->stream->undone_at = ph_now();
}

cudaError_t phc_event_query(void *handle) {
  ph_event *event = handle;
  if (!ph_event_alive(event)) return cudaErrorInvalidResourceHandle;
  ph_watchdog_locked(false);
  if (event->recorded && ph_watchdog_blind(event)) return cudaErrorNotReady;
  cudaError_t error = phc_event_observe(event);
  if (!error) error = phc_capture_unsafe();
  if (error) return error;
  if (!event->recorded) return 0;
  if (event->done_at < 0) {
    if (is_undone(event) && ph_watchdog_undone()) return cudaErrorNotReady;
    ph_record record = {.kind = PH_EVENT_QUERY, .id = event->id, .flags = phc_helper_flag()};
    ph_answer answer = ph_request(&record, NULL, 0);
    if (answer.status < 0) return phc_request_failed();
    if (answer.time >= 0 && (answer.status == 0 || answer.value == 1)) event->done_at = answer.time;
    // A watchdog's clock may lie before an end that is known.
    if (answer.status || (event->done_at > ph_now() && ph_watchdog_undone())) {
      note_undone(event);
      poll_moves_on(event);
      return cudaErrorNotReady;
    }
  } else if (event->done_at > ph_now()) {
    poll_moves_on(event);
    return cudaErrorNotReady;
  }
  if (event->done_at >= 0 && ph_watchdog_early(event)) return cudaErrorNotReady;
  phc_waited_for_event(event);
  phc_finish_host_calls();
  return phc_assertion();
}

cudaError_t phc_event_sync(void *handle) {
  ph_event *event = handle;
  if (!ph_event_alive(event)) return cudaErrorInvalidResourceHandle;
  cudaError_t error = phc_event_observe(event);
  if (!error) error = phc_capture_unsafe();
  if (error) return error;
  if (!event->recorded) return 0;
  if (event->done_at < 0 || event->done_at > ph_now()) {
    ph_record record = {.kind = PH_EVENT_SYNC, .id = event->id, .flags = phc_helper_flag()};
    if (ph_request(&record, NULL, 0).status < 0) return phc_request_failed();
  }
  phc_waited_for_event(event);
  phc_finish_host_calls();
  return phc_assertion();
}

static cudaError_t event_time(ph_event *event, int64_t *time) {
  cudaError_t error = phc_event_query(event);
  if (error) return error;
  if (event->done_at < 0) {
    ph_record record = {.kind = PH_EVENT_TIME, .id = event->id, .flags = phc_helper_flag()};
    ph_answer answer = ph_request(&record, NULL, 0);
    if (answer.status < 0) return phc_request_failed();
    event->done_at = answer.time;
  }
  *time = event->done_at;
  return 0;
}

// An operator that asks how long kernels took tries candidates (torch.backends.cudnn.benchmark, TunableOp): what it has
// launched so far is tuning.
static void note_trials(void) {
  static const char name[] = "phantora: tuning";  // TUNING of phantora/wire/names.py
  ph_frame *frame = ph_top_frame();
  if (!frame || !frame->launches) return;
  ph_record record = {.kind = PH_ANNOTATION, .id = ph_name(ph_hash(name, sizeof name - 1, 0), name, sizeof name - 1)};
  record.span.start = frame->timed;
  ph_emit(&record);
  frame->timed = ph_now();
}

cudaError_t phc_event_elapsed(float *ms, void *start_handle, void *end_handle) {
  ph_event *start = start_handle, *end = end_handle;
  if (!ms) return cudaErrorInvalidValue;
  if (!ph_event_alive(start) || !ph_event_alive(end) || start->device != end->device)
    return cudaErrorInvalidResourceHandle;
  if ((start->flags | end->flags) & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
  if (!start->recorded || !end->recorded) return cudaErrorInvalidResourceHandle;
  int64_t begin = 0, finish = 0;
  cudaError_t error = event_time(start, &begin);
  if (!error) error = event_time(end, &finish);
  if (error) return error;
  *ms = (float)((double)(finish - begin) * 1e-6);
  note_trials();
  return 0;
}
