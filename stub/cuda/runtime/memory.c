// Allocation, what is known of a pointer, pools, memory and events of other processes.
#include "cuda/core/device.h"
#include "cuda/core/memory.h"
#include "cuda/runtime/entry.h"

static cudaError_t memory_info(size_t *free_bytes, size_t *total_bytes) {
  size_t values[2];
  ph_memory_info(ph_current_device(), &values[0], &values[1]);
  if (!free_bytes || !total_bytes) return cudaErrorInvalidValue;
  *free_bytes = values[0];
  *total_bytes = values[1];
  return 0;
}
static cudaError_t pointer_attributes(cudaPointerAttributes *a, const void *pointer) {
  if (!a) return cudaErrorInvalidValue;
  memset(a, 0, sizeof *a);
  ph_range range;
  if (!ph_memory_find(pointer, &range)) {
    a->type = cudaMemoryTypeUnregistered;
    a->device = -2;
    a->hostPointer = (void *)pointer;
    return 0;
  }
  a->type = range.space == PH_SPACE_DEVICE    ? cudaMemoryTypeDevice
            : range.space == PH_SPACE_MANAGED ? cudaMemoryTypeManaged
                                              : cudaMemoryTypeHost;
  a->device = range.device < 0 ? 0 : range.device;
  a->devicePointer = (void *)pointer;
  a->hostPointer = range.space == PH_SPACE_DEVICE ? NULL : (void *)pointer;
  return 0;
}
static cudaError_t host_flags(unsigned *flags, void *pointer) {
  ph_range range;
  if (!ph_memory_find(pointer, &range) || (range.space != PH_SPACE_PINNED && range.space != PH_SPACE_REGISTERED))
    return cudaErrorInvalidValue;
  return GIVE(flags, unsigned, 2);  // cudaHostAllocMapped: all page-locked memory is
}

ENTRY(cudaMalloc, MALLOC, phc_context, (void **pointer, size_t bytes), phc_malloc(pointer, bytes))
ENTRY(cudaFree, FREE, phc_context, (void *pointer), phc_free(pointer))
ENTRY(cudaMallocManaged, MALLOC, phc_context, (void **pointer, size_t bytes, unsigned flags),
      phc_managed_alloc(pointer, bytes, flags))
ENTRY(cudaMallocPitch, MALLOC, phc_context, (void **pointer, size_t *pitch, size_t width, size_t height),
      phc_pitch_alloc(pointer, pitch, width, height))
static cudaError_t malloc_3d(cudaPitchedPtr *pitched, cudaExtent extent) {
  if (!pitched || (extent.depth && extent.height > SIZE_MAX / extent.depth)) return cudaErrorInvalidValue;
  cudaError_t error = phc_pitch_alloc(&pitched->ptr, &pitched->pitch, extent.width, extent.height * extent.depth);
  pitched->xsize = extent.width;
  pitched->ysize = extent.height;
  return error;
}
ENTRY(cudaMalloc3D, MALLOC, phc_context, (cudaPitchedPtr * pitched, cudaExtent extent), malloc_3d(pitched, extent))
ENTRY(cudaMallocHost, HOST_ALLOC, phc_context, (void **pointer, size_t bytes), phc_pinned_alloc(pointer, bytes, 0))
ENTRY(cudaHostAlloc, HOST_ALLOC, phc_context, (void **pointer, size_t bytes, unsigned flags),
      phc_pinned_alloc(pointer, bytes, flags))
ENTRY(cudaFreeHost, HOST_FREE, phc_context, (void *pointer), phc_pinned_free(pointer))
ENTRY(cudaHostRegister, HOST_ALLOC, phc_context, (void *pointer, size_t bytes, unsigned flags),
      phc_host_register(pointer, bytes, flags))
ENTRY(cudaHostUnregister, HOST_FREE, phc_context, (void *pointer), phc_host_unregister(pointer))
ENTRY(cudaHostGetDevicePointer, GET_DEVICE, phc_context, (void **device, void *host, unsigned flags),
      phc_host_device_pointer(device, host, flags))
ENTRY(cudaHostGetFlags, GET_DEVICE, phc_context, (unsigned *flags, void *pointer), host_flags(flags, pointer))
ENTRY(cudaMemGetInfo, OTHER, phc_context, (size_t *free_bytes, size_t *total_bytes),
      memory_info(free_bytes, total_bytes))
ENTRY(cudaPointerGetAttributes, GET_DEVICE, phc_ready, (cudaPointerAttributes * a, const void *pointer),
      pointer_attributes(a, pointer))
// Hints about managed memory: taken, checked, and without effect on simulated time.
#if PH_CUDA_MAJOR >= 13
ENTRY(cudaMemAdvise, OTHER, phc_context, (const void *pointer, size_t bytes, int advice, cudaMemLocation location),
      ((void)location, advice < 1 || advice > 6 || !phc_covered(pointer, bytes) ? cudaErrorInvalidValue : 0))
STREAM(cudaMemPrefetchAsync, _ptsz, OTHER,
       (const void *pointer, size_t bytes, cudaMemLocation location, unsigned flags, void *stream),
       (pointer, bytes, location, flags, stream),
       ((void)location,
        flags || !phc_covered(pointer, bytes) ? cudaErrorInvalidValue : cudart_stream_check(stream, per_thread)))
#else
ENTRY(cudaMemAdvise, OTHER, phc_context, (const void *pointer, size_t bytes, int advice, int device),
      ((void)device, advice < 1 || advice > 6 || !phc_covered(pointer, bytes) ? cudaErrorInvalidValue : 0))
STREAM(cudaMemPrefetchAsync, _ptsz, OTHER, (const void *pointer, size_t bytes, int device, void *stream),
       (pointer, bytes, device, stream),
       ((void)device, !phc_covered(pointer, bytes) ? cudaErrorInvalidValue : cudart_stream_check(stream, per_thread)))
#endif

// ---- Pools of the stream-ordered allocator.

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

// ---- Memory and events of other processes.

ENTRY(cudaIpcGetMemHandle, OTHER, phc_context, (cudaIpcHandle * handle, void *pointer), phc_ipc_handle(handle, pointer))
ENTRY(cudaIpcOpenMemHandle, OTHER, phc_context, (void **pointer, cudaIpcHandle handle, unsigned flags),
      flags > 1 ? cudaErrorInvalidValue : phc_ipc_open(pointer, &handle))
ENTRY(cudaIpcCloseMemHandle, OTHER, phc_context, (void *pointer), phc_ipc_close(pointer))
ENTRY(cudaIpcGetEventHandle, OTHER, phc_context, (cudaIpcHandle * handle, void *event),
      phc_ipc_event_handle(handle, event))
ENTRY(cudaIpcOpenEventHandle, OTHER, phc_context, (void **event, cudaIpcHandle handle),
      phc_ipc_event_open(event, &handle))
