// What is not simulated.
#include "cuda/driver/entry.h"

// Answers CUDA_ERROR_NOT_SUPPORTED, which programs that probe for a feature understand, and says so.
#define UNSUPPORTED_CALLS(X)                                                                           \
  X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemGetHandleForAddressRange)   \
  X(cuMulticastCreate) X(cuMulticastAddDevice) X(cuMulticastBindMem) X(cuMulticastBindAddr)            \
  X(cuMulticastUnbind) X(cuMulticastGetGranularity) X(cuDeviceGetDevResource)                          \
  X(cuDevSmResourceSplitByCount) X(cuDevResourceGenerateDesc) X(cuGreenCtxCreate) X(cuGreenCtxDestroy) \
  X(cuGreenCtxStreamCreate) X(cuCtxFromGreenCtx) X(cuGraphClone)       \
  X(cuGraphAddKernelNode_v2)                  \
  X(cuGraphExecUpdate_v2) X(cuStreamBatchMemOp_v2) X(cuStreamWriteValue64_v2)       \
  X(cuStreamWaitValue64_v2) X(cuDeviceGetLuid) X(cuGetExportTable) X(cuArrayCreate_v2)                 \
  X(cuTexObjectCreate) X(cuSurfObjectCreate) X(cuMemPoolExportToShareableHandle)                       \
  X(cuMemPoolImportFromShareableHandle)
#define UNSUPPORTED_CALL(name) ENTRY(name, OTHER, phc_ready, (void), driver_unsupported(#name))
UNSUPPORTED_CALLS(UNSUPPORTED_CALL)
