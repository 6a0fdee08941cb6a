// Pools of the stream-ordered allocator.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "abi/cuda_abi.h"

#pragma GCC visibility push(default)

typedef struct phc_pool {
  int device;
  bool is_default;
  int reuse[3];  // cudaMemPoolReuse*: kept and reported
  uint64_t threshold, used, used_high, reserved, reserved_high;
} phc_pool;
// Each checks the device: cudaErrorInvalidDevice for a bad ordinal.
cudaError_t phc_default_pool(phc_pool **pool, int device);
cudaError_t phc_current_pool(phc_pool **pool, int device);
cudaError_t phc_set_current_pool(int device, phc_pool *pool);
bool phc_pool_alive(const phc_pool *pool);
cudaError_t phc_pool_create(phc_pool **pool, const cudaMemPoolProps *props);
cudaError_t phc_pool_destroy(phc_pool *pool);
cudaError_t phc_pool_alloc(void **pointer, size_t bytes, phc_pool *pool, void *stream, bool per_thread);
cudaError_t phc_alloc_async(void **pointer, size_t bytes, void *stream, bool per_thread);  // current pool
cudaError_t phc_pool_free(void *pointer, void *stream, bool per_thread);
bool phc_pool_release(void *pointer);  // false: no block of a pool
cudaError_t phc_pool_attribute(phc_pool *pool, int attribute, void *value, bool set);
cudaError_t phc_pool_trim(phc_pool *pool, size_t keep);
// Checks a wish for access, which every device has anyway.
cudaError_t phc_pool_access(const phc_pool *pool, const cudaMemAccessDesc *list, size_t count);

#pragma GCC visibility pop
