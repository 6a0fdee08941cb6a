// Streams, events, waits of the host, and functions of the host that a stream calls.
#pragma once
#include <stdbool.h>
#include "abi/cuda_abi.h"
#include "rank/rank.h"

#pragma GCC visibility push(default)

// ---- stream.c: streams.
cudaError_t phc_stream_create(void **stream, unsigned flags, int priority);
cudaError_t phc_stream_destroy(void *stream);
cudaError_t phc_stream_find(void *handle, bool per_thread, ph_stream **stream);

// ---- event.c: events.
cudaError_t phc_event_create(void **event, unsigned flags);
cudaError_t phc_event_destroy(void *event);
void phc_event_emit(ph_event *event, ph_stream *stream);  // the record of a record
cudaError_t phc_event_record(void *event, void *stream, unsigned flags, bool per_thread);
cudaError_t phc_stream_wait(void *stream, void *event, unsigned flags, bool per_thread);
cudaError_t phc_event_query(void *event);
cudaError_t phc_event_sync(void *event);
cudaError_t phc_event_elapsed(float *ms, void *start, void *end);

// ---- synchronize.c: waits of the host for a stream and for a device.
cudaError_t phc_stream_sync(void *stream, bool per_thread);
cudaError_t phc_stream_query(void *stream, bool per_thread);
cudaError_t phc_device_sync(void);
cudaError_t phc_device_wait(void);  // the same inside another call, whatever is captured

// ---- host_function.c: functions of the host that a stream calls.
// Runs `function` on a helper thread once the stream's earlier work is done.
cudaError_t phc_host_function(void *stream, bool per_thread, cudaHostFn_t function, void *data);
// cudaStreamAddCallback: the same with the stream and a status as arguments.
cudaError_t phc_callback(void *stream, bool per_thread, cudaStreamCallback_t function, void *data, unsigned flags);
// After a wait: whatever is due in virtual time must have run in real time too.
void phc_finish_host_calls(void);

#pragma GCC visibility pop
