// Stream capture and graphs.
#include "cuda/runtime/entry.h"
#include "cuda/runtime/stream.h"

// Nothing is ever captured: queries say so, and the calls that would begin a graph fail by name.
static cudaError_t not_capturing(void *stream, bool per_thread, int *status, unsigned long long *id) {
  if (!status) return cudaErrorInvalidValue;
  cudaError_t error = cudart_stream_check(stream, per_thread);
  if (error) return error;
  *status = 0;
  if (id) *id = 0;
  return 0;
}
static cudaError_t exchange_mode(int *mode) {
  static __thread int current;  // cudaStreamCaptureModeGlobal
  if (!mode || *mode < 0 || *mode > 2) return cudaErrorInvalidValue;
  int old = current;
  current = *mode;
  *mode = old;
  return 0;
}
STREAM(cudaStreamIsCapturing, _ptsz, GET_DEVICE, (void *stream, int *status), (stream, status),
       not_capturing(stream, per_thread, status, NULL))
#define CAPTURE_INFO \
  (void *stream, int *status, unsigned long long *id, void *graph, void *nodes, void *count)
#define CAPTURE_INFO_EDGES \
  (void *stream, int *status, unsigned long long *id, void *graph, void *nodes, void *edges, void *count)
#if PH_CUDA_MAJOR >= 13
STREAM(cudaStreamGetCaptureInfo, _ptsz, GET_DEVICE, CAPTURE_INFO_EDGES,
       (stream, status, id, graph, nodes, edges, count),
       ((void)graph, (void)nodes, (void)edges, (void)count, not_capturing(stream, per_thread, status, id)))
#else
STREAM(cudaStreamGetCaptureInfo, _ptsz, GET_DEVICE, (void *stream, int *status, unsigned long long *id),
       (stream, status, id), not_capturing(stream, per_thread, status, id))
STREAM(cudaStreamGetCaptureInfo_v2, _ptsz, GET_DEVICE, CAPTURE_INFO,
       (stream, status, id, graph, nodes, count),
       ((void)graph, (void)nodes, (void)count, not_capturing(stream, per_thread, status, id)))
STREAM(cudaStreamGetCaptureInfo_v3, _ptsz, GET_DEVICE, CAPTURE_INFO_EDGES,
       (stream, status, id, graph, nodes, edges, count),
       ((void)graph, (void)nodes, (void)edges, (void)count, not_capturing(stream, per_thread, status, id)))
#endif
ENTRY(cudaThreadExchangeStreamCaptureMode, GET_DEVICE, nothing, (int *mode), exchange_mode(mode))
STREAM(cudaStreamBeginCapture, _ptsz, OTHER, (void *stream, int mode), (stream, mode),
       ((void)stream, (void)mode, cudart_unsupported("cudaStreamBeginCapture", cudaErrorStreamCaptureUnsupported)))
STREAM(cudaStreamEndCapture, _ptsz, OTHER, (void *stream, void **graph), (stream, graph),
       ((void)graph,
        cudart_stream_check(stream, per_thread) ? cudaErrorInvalidResourceHandle : cudaErrorIllegalState))
// Calls that need a graph, which no one can have.
#define GRAPH_CALLS(X)                                                                                   \
  X(cudaGraphCreate) X(cudaGraphInstantiate) X(cudaGraphInstantiateWithFlags)                            \
  X(cudaGraphInstantiateWithParams) X(cudaGraphLaunch) X(cudaGraphLaunch_ptsz) X(cudaGraphUpload)        \
  X(cudaGraphDestroy) X(cudaGraphExecDestroy) X(cudaGraphGetNodes) X(cudaGraphGetRootNodes)              \
  X(cudaGraphNodeGetType) X(cudaGraphNodeGetDependencies) X(cudaGraphAddEmptyNode)                       \
  X(cudaGraphAddKernelNode) X(cudaGraphAddMemcpyNode) X(cudaGraphAddMemsetNode) X(cudaGraphAddHostNode)  \
  X(cudaGraphAddChildGraphNode) X(cudaGraphAddDependencies) X(cudaGraphAddNode)                          \
  X(cudaGraphKernelNodeGetParams) X(cudaGraphKernelNodeSetParams) X(cudaGraphExecKernelNodeSetParams)    \
  X(cudaGraphExecUpdate) X(cudaGraphClone) X(cudaGraphDebugDotPrint) X(cudaGraphConditionalHandleCreate) \
  X(cudaGraphRetainUserObject) X(cudaUserObjectCreate) X(cudaStreamUpdateCaptureDependencies)            \
  X(cudaStreamBeginCaptureToGraph) X(cudaMallocArray) X(cudaMalloc3DArray) X(cudaMallocMipmappedArray)   \
  X(cudaCreateTextureObject) X(cudaCreateSurfaceObject) X(cudaImportExternalMemory)                      \
  X(cudaImportExternalSemaphore)
#define GRAPH_CALL(name) ENTRY(name, OTHER, phc_ready, (void), cudart_unsupported(#name, cudaErrorNotSupported))
GRAPH_CALLS(GRAPH_CALL)
