// Allocation of device, page-locked and managed memory.
#define _GNU_SOURCE
#include "cuda/core/graph.h"
#include "cuda/core/memory.h"
#include "cuda/core/stream.h"
#include "cuda/core/table.h"

static phc_table *managed_blocks;  // address -> size + 1

cudaError_t phc_malloc(void **pointer, size_t bytes) {
  if (!pointer) return cudaErrorInvalidValue;
  *pointer = NULL;
  if (!bytes) return 0;
  cudaError_t unsafe = phc_capture_unsafe();
  if (unsafe) return unsafe;
  ph_await_driver();
  if (bytes <= (size_t)ph_gpu()->memory_bytes) *pointer = ph_memory_alloc(ph_current_device(), bytes);
  if (*pointer) {
    ph_charge_bytes(PH_API_MALLOC_GIB, bytes);
    phc_scrub_wait(ph_current_device());
    return 0;
  }
  ph_charge(PH_API_MALLOC_FAIL);
  return cudaErrorMemoryAllocation;
}

cudaError_t phc_free(void *pointer) {
  if (!pointer) return 0;
  cudaError_t unsafe = phc_capture_unsafe();
  if (unsafe) return unsafe;
  ph_range range;
  if (!ph_memory_find(pointer, &range) || range.base != (uintptr_t)pointer) return cudaErrorInvalidValue;
  if (range.space == PH_SPACE_MANAGED) {
    size_t size = (size_t)(uintptr_t)phc_table_get(&managed_blocks, range.base);
    if (!size) return cudaErrorInvalidValue;
    cudaError_t error = phc_device_wait();
    if (error) return error;
    phc_table_set(&managed_blocks, range.base, NULL);
    phc_unmap(pointer, size);
    return 0;
  }
  if (range.space != PH_SPACE_DEVICE) return cudaErrorInvalidValue;
  ph_await_driver();
  ph_charge_bytes(PH_API_FREE_GIB, range.size);
  // cudaFree waits for the device: work in flight may still use the memory.
  cudaError_t error = phc_device_wait();
  if (error) return error;
  phc_ipc_freed(pointer);
  if (phc_pool_release(pointer)) return 0;
  if (ph_memory_free(pointer)) return cudaErrorInvalidValue;
  phc_scrub_later(range.device, range.size);
  return 0;
}

cudaError_t phc_pinned_alloc(void **pointer, size_t bytes, unsigned flags) {
  if (!pointer || flags & ~15u) return cudaErrorInvalidValue;
  *pointer = NULL;
  if (!bytes) return 0;
  cudaError_t unsafe = phc_capture_unsafe();
  if (unsafe) return unsafe;
  *pointer = ph_pinned_alloc(bytes);
  ph_charge_locked(PH_API_HOST_ALLOC, PH_API_HOST_ALLOC_GIB, bytes);
  return *pointer ? 0 : cudaErrorMemoryAllocation;
}

cudaError_t phc_pinned_free(void *pointer) {
  if (!pointer) return 0;
  cudaError_t unsafe = phc_capture_unsafe();
  if (unsafe) return unsafe;
  ph_range range;
  if (!ph_memory_find(pointer, &range) || range.space != PH_SPACE_PINNED || range.base != (uintptr_t)pointer)
    return cudaErrorInvalidValue;
  return ph_pinned_free(pointer) ? cudaErrorInvalidValue : 0;
}

// Managed memory is host memory until a kernel touches it, which the stubs cannot see: it is not
// charged to the GPU, as memory that the host uses alone would not be.
cudaError_t phc_managed_alloc(void **pointer, size_t bytes, unsigned flags) {
  if (!pointer || flags < 1 || flags > 2) return cudaErrorInvalidValue;
  *pointer = NULL;
  if (!bytes) return 0;
  cudaError_t unsafe = phc_capture_unsafe();
  if (unsafe) return unsafe;
  void *address = phc_map(bytes, PH_SPACE_MANAGED, ph_current_device());
  if (!address) return cudaErrorMemoryAllocation;
  phc_table_set(&managed_blocks, (uintptr_t)address, (void *)(uintptr_t)bytes);
  *pointer = address;
  return 0;
}

cudaError_t phc_pitch_alloc(void **pointer, size_t *pitch, size_t width, size_t height) {
  if (!pointer || !pitch) return cudaErrorInvalidValue;
  *pitch = phc_round_up(width, 512);
  if (height && *pitch > SIZE_MAX / height) return cudaErrorMemoryAllocation;
  return phc_malloc(pointer, *pitch * height);
}

cudaError_t phc_host_register(void *pointer, size_t bytes, unsigned flags) {
  if (!pointer || !bytes || flags & ~15u) return cudaErrorInvalidValue;
  if (!phc_mapped(pointer, bytes)) return cudaErrorInvalidValue;
  ph_range range;
  if (ph_memory_find(pointer, &range) || ph_memory_find((char *)pointer + bytes - 1, &range))
    return cudaErrorHostMemoryAlreadyRegistered;
  ph_charge_locked(PH_API_HOST_ALLOC, PH_API_HOST_ALLOC_GIB, bytes);
  return ph_register(pointer, bytes, PH_SPACE_REGISTERED, ph_current_device()) ? cudaErrorHostMemoryAlreadyRegistered
                                                                               : 0;
}

cudaError_t phc_host_unregister(void *pointer) {
  ph_range range;
  if (!ph_memory_find(pointer, &range)) return cudaErrorHostMemoryNotRegistered;
  if (range.space != PH_SPACE_REGISTERED || range.base != (uintptr_t)pointer) return cudaErrorInvalidValue;
  return ph_unregister(pointer) ? cudaErrorHostMemoryNotRegistered : 0;
}

cudaError_t phc_host_device_pointer(void **device, void *host, unsigned flags) {
  ph_range range;
  if (!device || flags || !ph_memory_find(host, &range) || range.space == PH_SPACE_DEVICE) return cudaErrorInvalidValue;
  *device = host;
  return 0;
}
