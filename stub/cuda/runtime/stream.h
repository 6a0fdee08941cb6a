// Streams as the runtime is asked for them.
#pragma once
#include <stdbool.h>
#include "abi/cuda_abi.h"

cudaError_t cudart_stream_check(void *handle, bool per_thread);  // is it a stream?
