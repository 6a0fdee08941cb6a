// Memory and events of other processes.
#include "cuda/driver/entry.h"
#include "cuda/core/ipc.h"

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
