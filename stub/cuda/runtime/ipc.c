// Memory and events of other processes.
#include "cuda/runtime/entry.h"
#include "cuda/core/ipc.h"

ENTRY(cudaIpcGetMemHandle, OTHER, phc_context, (cudaIpcHandle * handle, void *pointer),
      phc_ipc_handle(handle, pointer))
ENTRY(cudaIpcOpenMemHandle, OTHER, phc_context, (void **pointer, cudaIpcHandle handle, unsigned flags),
      flags > 1 ? cudaErrorInvalidValue : phc_ipc_open(pointer, &handle))
ENTRY(cudaIpcCloseMemHandle, OTHER, phc_context, (void *pointer), phc_ipc_close(pointer))
ENTRY(cudaIpcGetEventHandle, OTHER, phc_context, (cudaIpcHandle * handle, void *event),
      phc_ipc_event_handle(handle, event))
ENTRY(cudaIpcOpenEventHandle, OTHER, phc_context, (void **event, cudaIpcHandle handle),
      phc_ipc_event_open(event, &handle))
