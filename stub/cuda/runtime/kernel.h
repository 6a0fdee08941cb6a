// Kernels as the runtime is asked for them.
#pragma once
#include "abi/cuda_abi.h"

// What a kernel that is none answers: a null pointer is no function, any other is taken for a handle.
cudaError_t cudart_no_kernel(const void *function);
