// Streams.
#include "cuda/core/stream.h"

cudaError_t phc_stream_create(void **stream, unsigned flags, int priority) {
  if (!stream || flags & ~(unsigned)cudaStreamNonBlocking) return cudaErrorInvalidValue;
  if (priority > 0) priority = 0;  // the range is 0 to -5 and CUDA clamps
  if (priority < -5) priority = -5;
  *stream = ph_stream_create(ph_current_device(), flags, priority);
  return *stream ? 0 : cudaErrorMemoryAllocation;
}

cudaError_t phc_stream_destroy(void *stream) {
  if ((uintptr_t)stream <= 2) return cudaErrorInvalidResourceHandle;
  return ph_stream_alive(stream) && !ph_stream_destroy(stream) ? 0 : cudaErrorInvalidResourceHandle;
}

cudaError_t phc_stream_find(void *handle, bool per_thread, ph_stream **stream) {
  *stream = ph_stream_of(handle, per_thread);
  return *stream ? 0 : cudaErrorInvalidResourceHandle;
}
