// Pools of the stream-ordered allocator; they are the runtime's.
#include "cuda/driver/entry.h"
#include "cuda/core/context.h"
#include "cuda/core/pool.h"

ENTRY(cuDeviceGetDefaultMemPool, GET_DEVICE, driver_ready, (phc_pool * *pool, int device),
      phc_default_pool(pool, device))
ENTRY(cuDeviceGetMemPool, GET_DEVICE, driver_ready, (phc_pool * *pool, int device), phc_current_pool(pool, device))
ENTRY(cuDeviceSetMemPool, GET_DEVICE, driver_ready, (int device, phc_pool *pool), phc_set_current_pool(device, pool))
ENTRY(cuMemPoolCreate, OTHER, driver_ready, (phc_pool * *pool, const cudaMemPoolProps *props),
      phc_pool_create(pool, props))
ENTRY(cuMemPoolDestroy, OTHER, driver_ready, (phc_pool * pool), phc_pool_destroy(pool))
ENTRY(cuMemPoolGetAttribute, GET_DEVICE, driver_ready, (phc_pool * pool, int attribute, void *value),
      phc_pool_attribute(pool, attribute, value, false))
ENTRY(cuMemPoolSetAttribute, GET_DEVICE, driver_ready, (phc_pool * pool, int attribute, void *value),
      phc_pool_attribute(pool, attribute, value, true))
ENTRY(cuMemPoolTrimTo, OTHER, driver_ready, (phc_pool * pool, size_t keep), phc_pool_trim(pool, keep))
ENTRY(cuMemPoolSetAccess, OTHER, driver_ready, (phc_pool * pool, const cudaMemAccessDesc *list, size_t count),
      phc_pool_access(pool, list, count))
STREAM(cuMemAllocAsync, _ptsz, MALLOC, (CUdeviceptr * address, size_t bytes, void *stream),
       (address, bytes, stream),
       phc_alloc_async((void **)address, bytes, stream, per_thread))
STREAM(cuMemAllocFromPoolAsync, _ptsz, MALLOC,
       (CUdeviceptr * address, size_t bytes, phc_pool *pool, void *stream), (address, bytes, pool, stream),
       phc_pool_alloc((void **)address, bytes, pool, stream, per_thread))
STREAM(cuMemFreeAsync, _ptsz, FREE, (CUdeviceptr address, void *stream), (address, stream),
       phc_pool_free((void *)address, stream, per_thread))
