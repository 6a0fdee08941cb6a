// Streams.
#pragma once
#include "abi/cuda_abi.h"
#include "rank/rank.h"

#pragma GCC visibility push(default)

cudaError_t phc_stream_create(void **stream, unsigned flags, int priority);
cudaError_t phc_stream_destroy(void *stream);
cudaError_t phc_stream_find(void *handle, bool per_thread, ph_stream **stream);

#pragma GCC visibility pop
