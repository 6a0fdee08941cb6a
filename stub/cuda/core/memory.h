// Allocation of device, page-locked and managed memory.
#pragma once
#include "abi/cuda_abi.h"

#pragma GCC visibility push(default)

cudaError_t phc_malloc(void **pointer, size_t bytes);
cudaError_t phc_free(void *pointer);
cudaError_t phc_pinned_alloc(void **pointer, size_t bytes, unsigned flags);
cudaError_t phc_pinned_free(void *pointer);
cudaError_t phc_managed_alloc(void **pointer, size_t bytes, unsigned flags);
cudaError_t phc_pitch_alloc(void **pointer, size_t *pitch, size_t width, size_t height);
cudaError_t phc_host_register(void *pointer, size_t bytes, unsigned flags);
cudaError_t phc_host_unregister(void *pointer);
cudaError_t phc_host_device_pointer(void **device, void *host, unsigned flags);

#pragma GCC visibility pop
