// Allocation, pools, memory and events of other processes.
#include "cuda/core/device.h"
#include "cuda/core/memory.h"
#include "cuda/driver/entry.h"

static cudaError_t allocate(CUdeviceptr *address, size_t bytes) {
  return bytes ? phc_malloc((void **)address, bytes) : cudaErrorInvalidValue;
}
static cudaError_t memory_info(size_t *free_bytes, size_t *total_bytes) {
  if (!free_bytes || !total_bytes) return cudaErrorInvalidValue;
  ph_memory_info(ph_current_device(), free_bytes, total_bytes);
  return 0;
}
static cudaError_t address_range(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
  ph_range range;
  if (!ph_memory_find((void *)address, &range)) return cudaErrorSymbolNotFound;
  if (base) *base = range.base;
  if (size) *size = range.size;
  return 0;
}
static cudaError_t pitch_alloc(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element) {
  if ((element != 4 && element != 8 && element != 16) || !width || !height) return cudaErrorInvalidValue;
  return phc_pitch_alloc((void **)address, pitch, width, height);
}
ENTRY(cuMemGetInfo_v2, OTHER, driver_current, (size_t *free_bytes, size_t *total_bytes),
      memory_info(free_bytes, total_bytes))
ALSO(cuMemGetInfo_v2, cuMemGetInfo)
ENTRY(cuMemAlloc_v2, MALLOC, driver_current, (CUdeviceptr * address, size_t bytes), allocate(address, bytes))
ALSO(cuMemAlloc_v2, cuMemAlloc)
ENTRY(cuMemFree_v2, FREE, driver_current, (CUdeviceptr address), phc_free((void *)address))
ALSO(cuMemFree_v2, cuMemFree)
ENTRY(cuMemAllocPitch_v2, MALLOC, driver_current,
      (CUdeviceptr * address, size_t *pitch, size_t width, size_t height, unsigned element),
      pitch_alloc(address, pitch, width, height, element))
ALSO(cuMemAllocPitch_v2, cuMemAllocPitch)
ENTRY(cuMemGetAddressRange_v2, GET_DEVICE, driver_current, (CUdeviceptr * base, size_t *size, CUdeviceptr address),
      address_range(base, size, address))
ALSO(cuMemGetAddressRange_v2, cuMemGetAddressRange)
ENTRY(cuMemAllocHost_v2, HOST_ALLOC, driver_current, (void **pointer, size_t bytes),
      phc_pinned_alloc(pointer, bytes, 0))
ALSO(cuMemAllocHost_v2, cuMemAllocHost)
ENTRY(cuMemHostAlloc, HOST_ALLOC, driver_current, (void **pointer, size_t bytes, unsigned flags),
      phc_pinned_alloc(pointer, bytes, flags))
ENTRY(cuMemFreeHost, HOST_FREE, driver_current, (void *pointer), phc_pinned_free(pointer))
ENTRY(cuMemHostRegister_v2, HOST_ALLOC, driver_current, (void *pointer, size_t bytes, unsigned flags),
      phc_host_register(pointer, bytes, flags))
ALSO(cuMemHostRegister_v2, cuMemHostRegister)
ENTRY(cuMemHostUnregister, HOST_FREE, driver_current, (void *pointer), phc_host_unregister(pointer))
ENTRY(cuMemHostGetDevicePointer_v2, GET_DEVICE, driver_current, (CUdeviceptr * device, void *host, unsigned flags),
      phc_host_device_pointer((void **)device, host, flags))
ALSO(cuMemHostGetDevicePointer_v2, cuMemHostGetDevicePointer)
ENTRY(cuMemAllocManaged, MALLOC, driver_current, (CUdeviceptr * address, size_t bytes, unsigned flags),
      bytes ? phc_managed_alloc((void **)address, bytes, flags) : cudaErrorInvalidValue)

// ---- Pools of the stream-ordered allocator; they are the runtime's.

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
STREAM(cuMemAllocAsync, _ptsz, MALLOC, (CUdeviceptr * address, size_t bytes, void *stream), (address, bytes, stream),
       phc_alloc_async((void **)address, bytes, stream, per_thread))
STREAM(cuMemAllocFromPoolAsync, _ptsz, MALLOC, (CUdeviceptr * address, size_t bytes, phc_pool *pool, void *stream),
       (address, bytes, pool, stream), phc_pool_alloc((void **)address, bytes, pool, stream, per_thread))
STREAM(cuMemFreeAsync, _ptsz, FREE, (CUdeviceptr address, void *stream), (address, stream),
       phc_pool_free((void *)address, stream, per_thread))

// ---- Memory and events of other processes.

ENTRY(cuIpcGetMemHandle, OTHER, driver_current, (cudaIpcHandle * handle, CUdeviceptr address),
      phc_ipc_handle(handle, (void *)address))
ENTRY(cuIpcOpenMemHandle_v2, OTHER, driver_current, (CUdeviceptr * address, cudaIpcHandle handle, unsigned flags),
      flags > 1 ? cudaErrorInvalidValue : phc_ipc_open((void **)address, &handle))
ALSO(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle)
ENTRY(cuIpcCloseMemHandle, OTHER, driver_current, (CUdeviceptr address), phc_ipc_close((void *)address))
ENTRY(cuIpcGetEventHandle, OTHER, driver_current, (cudaIpcHandle * handle, void *event),
      phc_ipc_event_handle(handle, event))
ENTRY(cuIpcOpenEventHandle, OTHER, driver_current, (void **event, cudaIpcHandle handle),
      phc_ipc_event_open(event, &handle))
