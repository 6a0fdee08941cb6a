// Copies of memory.
#pragma once
#include <stdbool.h>
#include "abi/cuda_abi.h"
#include "cuda/core/transfer.h"

#pragma GCC visibility push(default)

cudaError_t phc_copy(void *dst, const void *src, size_t bytes, int kind, void *stream, int flags);
cudaError_t phc_copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                        size_t height, int kind, void *stream, int flags);
cudaError_t phc_copy_3d(const cudaMemcpy3DParms *parameters, void *stream, int flags);

#pragma GCC visibility pop
