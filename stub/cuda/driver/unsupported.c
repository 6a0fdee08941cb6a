// Calls that are not simulated.
#include "cuda/driver/entry.h"

// Answers CUDA_ERROR_NOT_SUPPORTED, which programs that probe for a feature understand, and prints a message.
// clang-format off
#define UNSUPPORTED_CALLS(X)                                                                           \
  X(cuMemGetHandleForAddressRange)                                                                     \
  X(cuMulticastCreate) X(cuMulticastAddDevice) X(cuMulticastBindMem) X(cuMulticastBindAddr)            \
  X(cuMulticastUnbind) X(cuMulticastGetGranularity)                                                     \
  X(cuGraphClone)                                                                                      \
  X(cuGraphAddKernelNode_v2)                  \
  X(cuGraphExecUpdate_v2) X(cuStreamBatchMemOp_v2) X(cuStreamWriteValue64_v2)       \
  X(cuStreamWaitValue64_v2) X(cuDeviceGetLuid) X(cuArrayCreate_v2)                                     \
  X(cuTexObjectCreate) X(cuSurfObjectCreate) X(cuMemPoolExportToShareableHandle)                       \
  X(cuMemPoolImportFromShareableHandle)
// clang-format on
#define UNSUPPORTED_CALL(name) ENTRY(name, OTHER, driver_ready, (void), driver_unsupported(#name))
UNSUPPORTED_CALLS(UNSUPPORTED_CALL)
// clang-format off
#define GREEN_CALLS(X)                                                                                 \
  X(cuDeviceGetDevResource) X(cuDevSmResourceSplit) X(cuDevSmResourceSplitByCount)                     \
  X(cuDevResourceGenerateDesc) X(cuGreenCtxCreate) X(cuGreenCtxDestroy) X(cuGreenCtxStreamCreate)      \
  X(cuGreenCtxGetDevResource) X(cuGreenCtxGetId) X(cuGreenCtxRecordEvent) X(cuGreenCtxWaitEvent)       \
  X(cuCtxFromGreenCtx) X(cuCtxGetDevResource) X(cuStreamGetDevResource) X(cuStreamGetGreenCtx)
#define GREEN_CALL(name)                                                                               \
  ENTRY(name, OTHER, driver_ready, (void),                                                             \
        driver_unsupported(#name ": green contexts are not simulated, use streams"))
// clang-format on
GREEN_CALLS(GREEN_CALL)
// First requests of a CUDA runtime that is linked into its client: undocumented tables of the driver's functions.
ENTRY(
    cuGetExportTable, OTHER, driver_ready, (const void **table, const void *id),
    ((void)id, table ? *table = NULL : NULL,
     driver_unsupported("cuGetExportTable, which a CUDA runtime asks for that is linked into a program or a library "
                        "(nvcc links it by default; those of cuda.bindings and CuPy for this CUDA are replaced): link "
                        "it with -cudart shared")))
