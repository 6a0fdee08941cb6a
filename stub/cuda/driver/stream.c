// Streams and events.
#include "cuda/core/copy.h"
#include "cuda/core/memory.h"
#include "cuda/core/stream.h"
#include "cuda/driver/context.h"
#include "cuda/driver/entry.h"

static cudaError_t stream_int(void *handle, bool per_thread, int *value, bool priority) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(value, int, priority ? stream->priority : (int)stream->flags);
}
static cudaError_t stream_id(void *handle, bool per_thread, unsigned long long *id) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(id, unsigned long long, stream->id);
}
static cudaError_t stream_device(void *handle, bool per_thread, int *device) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(device, int, stream->device);
}
static cudaError_t driver_stream_check(void *handle, bool per_thread) {
  ph_stream *stream = NULL;
  return phc_stream_find(handle, per_thread, &stream);
}
static cudaError_t stream_context(void *handle, bool per_thread, driver_context **c) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  if (error || !c) return error ? error : cudaErrorInvalidValue;
  *c = driver_primary(stream->device);
  return 0;
}
ENTRY(cuStreamCreate, STREAM_CREATE, driver_current, (void **stream, unsigned flags),
      phc_stream_create(stream, flags, 0))
ENTRY(cuStreamCreateWithPriority, STREAM_CREATE, driver_current, (void **stream, unsigned flags, int priority),
      phc_stream_create(stream, flags, priority))
ENTRY(cuStreamDestroy_v2, OTHER, driver_current, (void *stream), phc_stream_destroy(stream))
ALSO(cuStreamDestroy_v2, cuStreamDestroy)
STREAM(cuStreamSynchronize, _ptsz, STREAM_SYNC, (void *stream), (stream), phc_stream_sync(stream, per_thread))
STREAM(cuStreamQuery, _ptsz, STREAM_QUERY, (void *stream), (stream), phc_stream_query(stream, per_thread))
STREAM(cuStreamWaitEvent, _ptsz, STREAM_WAIT, (void *stream, void *event, unsigned flags), (stream, event, flags),
       phc_stream_wait(stream, event, flags, per_thread))
STREAM(cuStreamGetPriority, _ptsz, GET_DEVICE, (void *stream, int *value), (stream, value),
       stream_int(stream, per_thread, value, true))
STREAM(cuStreamGetFlags, _ptsz, GET_DEVICE, (void *stream, unsigned *value), (stream, value),
       stream_int(stream, per_thread, (int *)value, false))
STREAM(cuStreamGetId, _ptsz, GET_DEVICE, (void *stream, unsigned long long *id), (stream, id),
       stream_id(stream, per_thread, id))
STREAM(cuStreamGetDevice, _ptsz, GET_DEVICE, (void *stream, int *device), (stream, device),
       stream_device(stream, per_thread, device))
STREAM(cuStreamGetCtx, _ptsz, GET_DEVICE, (void *stream, driver_context **c), (stream, c),
       stream_context(stream, per_thread, c))
STREAM(cuStreamAttachMemAsync, _ptsz, OTHER, (void *stream, CUdeviceptr address, size_t bytes, unsigned flags),
       (stream, address, bytes, flags),
       (flags != 1 && flags != 2 && flags != 4) || !phc_covered((void *)address, bytes ? bytes : 1)
           ? cudaErrorInvalidValue
           : driver_stream_check(stream, per_thread))
STREAM(cuLaunchHostFunc, _ptsz, HOST_FUNC, (void *stream, cudaHostFn_t function, void *data), (stream, function, data),
       phc_host_function(stream, per_thread, function, data))
STREAM(cuStreamAddCallback, _ptsz, HOST_FUNC, (void *stream, cudaStreamCallback_t function, void *data, unsigned flags),
       (stream, function, data, flags), phc_callback(stream, per_thread, function, data, flags))

// Writing a word is a small memset. Waiting for one that another device will write cannot be
// followed: only a condition that already holds passes.
static cudaError_t write_word(void *stream, bool per_thread, CUdeviceptr address, uint32_t value) {
  return phc_set((void *)address, 0, value, 4, 1, 1, stream, phc_async(per_thread));
}
static cudaError_t wait_word(void *stream, bool per_thread, CUdeviceptr address, uint32_t wanted, unsigned flags) {
  cudaError_t error = driver_stream_check(stream, per_thread);
  if (error) return error;
  if (address % 4 || !phc_covered((void *)address, 4)) return cudaErrorInvalidValue;
  ph_touch((void *)address, 4);
  uint32_t value = *(volatile uint32_t *)address;
  unsigned how = flags & 3;
  bool holds = how == 0   ? (int32_t)(value - wanted) >= 0
               : how == 1 ? value == wanted
               : how == 2 ? value & wanted
                          : ~(value | wanted);
  return holds ? 0 : driver_unsupported("cuStreamWaitValue32 on a value that is yet to come");
}
STREAM(cuStreamWriteValue32_v2, _ptsz, MEMSET, (void *stream, CUdeviceptr address, uint32_t value, unsigned flags),
       (stream, address, value, flags), ((void)flags, write_word(stream, per_thread, address, value)))
ALSO(cuStreamWriteValue32_v2, cuStreamWriteValue32)
STREAM(cuStreamWaitValue32_v2, _ptsz, STREAM_WAIT, (void *stream, CUdeviceptr address, uint32_t value, unsigned flags),
       (stream, address, value, flags), wait_word(stream, per_thread, address, value, flags))
ALSO(cuStreamWaitValue32_v2, cuStreamWaitValue32)

// ---- Events.

ENTRY(cuEventCreate, EVENT_CREATE, driver_current, (void **event, unsigned flags), phc_event_create(event, flags))
ENTRY(cuEventDestroy_v2, OTHER, driver_ready, (void *event), phc_event_destroy(event))
ALSO(cuEventDestroy_v2, cuEventDestroy)
ENTRY(cuEventQuery, EVENT_QUERY, driver_ready, (void *event), phc_event_query(event))
ENTRY(cuEventSynchronize, STREAM_SYNC, driver_ready, (void *event), phc_event_sync(event))
ENTRY(cuEventElapsedTime, EVENT_QUERY, driver_ready, (float *ms, void *start, void *end),
      phc_event_elapsed(ms, start, end))
ALSO(cuEventElapsedTime, cuEventElapsedTime_v2)
STREAM(cuEventRecord, _ptsz, EVENT_RECORD, (void *event, void *stream), (event, stream),
       phc_event_record(event, stream, 0, per_thread))
STREAM(cuEventRecordWithFlags, _ptsz, EVENT_RECORD, (void *event, void *stream, unsigned flags), (event, stream, flags),
       phc_event_record(event, stream, flags, per_thread))
