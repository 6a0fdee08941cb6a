// Events.
#pragma once
#include <stdbool.h>
#include "abi/cuda_abi.h"

#pragma GCC visibility push(default)

cudaError_t phc_event_create(void **event, unsigned flags);
cudaError_t phc_event_destroy(void *event);
cudaError_t phc_event_record(void *event, void *stream, unsigned flags, bool per_thread);
cudaError_t phc_stream_wait(void *stream, void *event, unsigned flags, bool per_thread);
cudaError_t phc_event_query(void *event);
cudaError_t phc_event_sync(void *event);
cudaError_t phc_event_elapsed(float *ms, void *start, void *end);

#pragma GCC visibility pop
