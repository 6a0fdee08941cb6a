// Waits of the host for a stream and for a device.
#include "cuda/core/copy.h"
#include "cuda/core/device.h"
#include "cuda/core/graph.h"
#include "cuda/core/stream.h"

cudaError_t phc_stream_sync(void *handle, bool per_thread) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_observe(handle, per_thread, &stream);
  if (error) return error;
  ph_record record = {.kind = PH_STREAM_SYNC, .stream = stream->id, .flags = phc_helper_flag()};
  if (ph_request(&record, NULL, 0).status < 0) return phc_request_failed();
  phc_waited_for_stream(stream);
  phc_finish_host_calls();
  return phc_assertion();
}

cudaError_t phc_stream_query(void *handle, bool per_thread) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_observe(handle, per_thread, &stream);
  if (error) return error;
  ph_record record = {.kind = PH_STREAM_QUERY, .stream = stream->id, .flags = phc_helper_flag()};
  ph_answer answer = ph_request(&record, NULL, 0);
  if (answer.status < 0) return phc_request_failed();
  if (answer.status) return cudaErrorNotReady;
  phc_waited_for_stream(stream);
  phc_finish_host_calls();
  return phc_assertion();
}

cudaError_t phc_device_sync(void) {
  cudaError_t error = phc_capture_whole_device();
  return error ? error : phc_device_wait();
}

cudaError_t phc_device_wait(void) {
  ph_record record = {
      .kind = PH_DEVICE_SYNC, .device_sync.device = (uint64_t)ph_current_device(), .flags = phc_helper_flag()};
  if (ph_request(&record, NULL, 0).status < 0) return phc_request_failed();
  phc_waited_for_all();
  phc_finish_host_calls();
  return phc_assertion();
}
