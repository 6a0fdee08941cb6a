// Allocation.
#include "cuda/driver/entry.h"
#include "cuda/core/memory.h"
#include "cuda/core/space.h"

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
static cudaError_t pitch_alloc(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                               unsigned element) {
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
