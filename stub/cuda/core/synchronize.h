// Waits of the host for a stream and for a device.
#pragma once
#include <stdbool.h>
#include "abi/cuda_abi.h"

#pragma GCC visibility push(default)

cudaError_t phc_stream_sync(void *stream, bool per_thread);
cudaError_t phc_stream_query(void *stream, bool per_thread);
cudaError_t phc_device_sync(void);
cudaError_t phc_device_wait(void);  // the same inside another call, whatever is captured

#pragma GCC visibility pop
