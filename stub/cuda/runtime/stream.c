// Streams and events.
#include "cuda/core/memory.h"
#include "cuda/core/stream.h"
#include "cuda/runtime/entry.h"

static cudaError_t stream_priority(void *handle, bool per_thread, int *priority) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(priority, int, stream->priority);
}
static cudaError_t stream_flags(void *handle, bool per_thread, unsigned *flags) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(flags, unsigned, stream->flags);
}
static cudaError_t stream_device(void *handle, bool per_thread, int *device) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(device, int, stream->device);
}
static cudaError_t stream_id(void *handle, bool per_thread, unsigned long long *id) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(id, unsigned long long, stream->id);
}
cudaError_t cudart_stream_check(void *handle, bool per_thread) {
  ph_stream *stream = NULL;
  return phc_stream_find(handle, per_thread, &stream);
}
// The attributes that a stream can have: a synchronisation policy and a priority; others read as zero.
static cudaError_t stream_attribute(void *handle, bool per_thread, int id, void *value, bool set) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  if (error || !value) return error ? error : cudaErrorInvalidValue;
  if (id != 1 && id != 3 && id != PH_LAUNCH_PRIORITY && id != 9 && id != 10) return cudaErrorInvalidValue;
  if (set) return 0;
  memset(value, 0, 64);
  if (id == PH_LAUNCH_PRIORITY) *(int *)value = stream->priority;
  return 0;
}

ENTRY(cudaStreamCreate, STREAM_CREATE, phc_context, (void **stream), phc_stream_create(stream, 0, 0))
ENTRY(cudaStreamCreateWithFlags, STREAM_CREATE, phc_context, (void **stream, unsigned flags),
      phc_stream_create(stream, flags, 0))
ENTRY(cudaStreamCreateWithPriority, STREAM_CREATE, phc_context, (void **stream, unsigned flags, int priority),
      phc_stream_create(stream, flags, priority))
ENTRY(cudaStreamDestroy, OTHER, phc_context, (void *stream), phc_stream_destroy(stream))
STREAM(cudaStreamSynchronize, _ptsz, STREAM_SYNC, (void *stream), (stream), phc_stream_sync(stream, per_thread))
STREAM(cudaStreamQuery, _ptsz, STREAM_QUERY, (void *stream), (stream), phc_stream_query(stream, per_thread))
STREAM(cudaStreamWaitEvent, _ptsz, STREAM_WAIT, (void *stream, void *event, unsigned flags), (stream, event, flags),
       phc_stream_wait(stream, event, flags, per_thread))
STREAM(cudaStreamGetPriority, _ptsz, GET_DEVICE, (void *stream, int *priority), (stream, priority),
       stream_priority(stream, per_thread, priority))
STREAM(cudaStreamGetFlags, _ptsz, GET_DEVICE, (void *stream, unsigned *flags), (stream, flags),
       stream_flags(stream, per_thread, flags))
STREAM(cudaStreamGetDevice, _ptsz, GET_DEVICE, (void *stream, int *device), (stream, device),
       stream_device(stream, per_thread, device))
STREAM(cudaStreamGetId, _ptsz, GET_DEVICE, (void *stream, unsigned long long *id), (stream, id),
       stream_id(stream, per_thread, id))
STREAM(cudaStreamGetAttribute, _ptsz, GET_DEVICE, (void *stream, int id, void *value), (stream, id, value),
       stream_attribute(stream, per_thread, id, value, false))
STREAM(cudaStreamSetAttribute, _ptsz, GET_DEVICE, (void *stream, int id, const void *value), (stream, id, value),
       stream_attribute(stream, per_thread, id, (void *)value, true))
STREAM(cudaStreamCopyAttributes, _ptsz, GET_DEVICE, (void *to, void *from), (to, from),
       cudart_stream_check(to, per_thread) ? cudaErrorInvalidResourceHandle : cudart_stream_check(from, per_thread))
STREAM(cudaStreamAttachMemAsync, _ptsz, OTHER, (void *stream, void *pointer, size_t bytes, unsigned flags),
       (stream, pointer, bytes, flags),
       flags != 1 && flags != 2 && flags != 4                ? cudaErrorInvalidValue
       : pointer && !phc_covered(pointer, bytes ? bytes : 1) ? cudaErrorInvalidValue
                                                             : cudart_stream_check(stream, per_thread))

STREAM(cudaLaunchHostFunc, _ptsz, HOST_FUNC, (void *stream, cudaHostFn_t function, void *data),
       (stream, function, data), phc_host_function(stream, per_thread, function, data))
STREAM(cudaStreamAddCallback, _ptsz, HOST_FUNC,
       (void *stream, cudaStreamCallback_t function, void *data, unsigned flags), (stream, function, data, flags),
       phc_callback(stream, per_thread, function, data, flags))

// ---- Events.

ENTRY(cudaEventCreate, EVENT_CREATE, phc_context, (void **event), phc_event_create(event, 0))
ENTRY(cudaEventCreateWithFlags, EVENT_CREATE, phc_context, (void **event, unsigned flags),
      phc_event_create(event, flags))
ENTRY(cudaEventDestroy, OTHER, phc_ready, (void *event), phc_event_destroy(event))
ENTRY(cudaEventQuery, EVENT_QUERY, phc_ready, (void *event), phc_event_query(event))
ENTRY(cudaEventSynchronize, STREAM_SYNC, phc_ready, (void *event), phc_event_sync(event))
ENTRY(cudaEventElapsedTime, EVENT_QUERY, phc_ready, (float *ms, void *start, void *end),
      phc_event_elapsed(ms, start, end))
#if PH_CUDA_MAJOR == 12
ENTRY(cudaEventElapsedTime_v2, EVENT_QUERY, phc_ready, (float *ms, void *start, void *end),
      phc_event_elapsed(ms, start, end))
#endif
STREAM(cudaEventRecord, _ptsz, EVENT_RECORD, (void *event, void *stream), (event, stream),
       phc_event_record(event, stream, 0, per_thread))
STREAM(cudaEventRecordWithFlags, _ptsz, EVENT_RECORD, (void *event, void *stream, unsigned flags),
       (event, stream, flags), phc_event_record(event, stream, flags, per_thread))
