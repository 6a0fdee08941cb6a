// Pools of the stream-ordered allocator.
#include "cuda/runtime/entry.h"
#include "cuda/core/context.h"
#include "cuda/core/pool.h"

ENTRY(cudaDeviceGetDefaultMemPool, GET_DEVICE, phc_ready, (phc_pool * *pool, int device),
      phc_default_pool(pool, device))
ENTRY(cudaDeviceGetMemPool, GET_DEVICE, phc_ready, (phc_pool * *pool, int device), phc_current_pool(pool, device))
ENTRY(cudaDeviceSetMemPool, GET_DEVICE, phc_ready, (int device, phc_pool *pool), phc_set_current_pool(device, pool))
ENTRY(cudaMemPoolCreate, OTHER, phc_context, (phc_pool * *pool, const cudaMemPoolProps *props),
      phc_pool_create(pool, props))
ENTRY(cudaMemPoolDestroy, OTHER, phc_context, (phc_pool * pool), phc_pool_destroy(pool))
ENTRY(cudaMemPoolGetAttribute, GET_DEVICE, phc_ready, (phc_pool * pool, int attribute, void *value),
      phc_pool_attribute(pool, attribute, value, false))
ENTRY(cudaMemPoolSetAttribute, GET_DEVICE, phc_ready, (phc_pool * pool, int attribute, void *value),
      phc_pool_attribute(pool, attribute, value, true))
ENTRY(cudaMemPoolTrimTo, OTHER, phc_context, (phc_pool * pool, size_t keep), phc_pool_trim(pool, keep))
ENTRY(cudaMemPoolSetAccess, OTHER, phc_ready, (phc_pool * pool, const cudaMemAccessDesc *list, size_t count),
      phc_pool_access(pool, list, count))
ENTRY(cudaMemPoolGetAccess, GET_DEVICE, phc_ready, (int *flags, phc_pool *pool, cudaMemLocation *location),
      phc_pool_alive(pool) && location ? GIVE(flags, int, 3) : cudaErrorInvalidValue)
STREAM(cudaMallocAsync, _ptsz, MALLOC, (void **pointer, size_t bytes, void *stream), (pointer, bytes, stream),
       phc_alloc_async(pointer, bytes, stream, per_thread))
STREAM(cudaMallocFromPoolAsync, _ptsz, MALLOC, (void **pointer, size_t bytes, phc_pool *pool, void *stream),
       (pointer, bytes, pool, stream), phc_pool_alloc(pointer, bytes, pool, stream, per_thread))
STREAM(cudaFreeAsync, _ptsz, FREE, (void *pointer, void *stream), (pointer, stream),
       phc_pool_free(pointer, stream, per_thread))
