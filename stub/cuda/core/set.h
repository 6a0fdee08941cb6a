// Filling memory with a pattern.
#pragma once
#include <stdint.h>
#include "abi/cuda_abi.h"
#include "cuda/core/transfer.h"

#pragma GCC visibility push(default)

// `pattern` of `width` bytes (1, 2 or 4), rows of `columns` elements.
cudaError_t phc_set(void *pointer, size_t pitch, uint32_t pattern, int width, size_t columns, size_t rows,
                    void *stream, int flags);

#pragma GCC visibility pop
