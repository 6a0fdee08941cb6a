// Memory and events shared with other processes.
#pragma once
#include "abi/cuda_abi.h"

#pragma GCC visibility push(default)

cudaError_t phc_ipc_handle(cudaIpcHandle *handle, void *pointer);
cudaError_t phc_ipc_open(void **pointer, const cudaIpcHandle *handle);
cudaError_t phc_ipc_close(void *pointer);
void phc_ipc_freed(const void *pointer);  // its handles mean nothing any longer
cudaError_t phc_ipc_event_handle(cudaIpcHandle *handle, void *event);
cudaError_t phc_ipc_event_open(void **event, const cudaIpcHandle *handle);

#pragma GCC visibility pop
