// Calls that are not simulated.
#include "cuda/runtime/entry.h"

typedef struct cudaChannelFormatDesc {
  int x, y, z, w, f;
} cudaChannelFormatDesc;
PH_EXPORT cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, int f) {
  return (cudaChannelFormatDesc){x, y, z, w, f};
}

// Calls that programs which probe for a feature understand: refused, with one message.
// clang-format off
#define REFUSED_CALLS(X)                                                                                     \
  X(cudaGraphAddKernelNode) X(cudaGraphAddMemcpyNode) X(cudaGraphAddMemsetNode) X(cudaGraphAddChildGraphNode) \
  X(cudaGraphAddDependencies) X(cudaGraphAddNode) X(cudaGraphKernelNodeSetParams)                            \
  X(cudaGraphExecKernelNodeSetParams) X(cudaGraphClone) X(cudaGraphConditionalHandleCreate)                  \
  X(cudaMallocArray) X(cudaMalloc3DArray) X(cudaMallocMipmappedArray) X(cudaCreateTextureObject)             \
  X(cudaCreateSurfaceObject) X(cudaImportExternalMemory) X(cudaImportExternalSemaphore)
// clang-format on

// Of versions behind the one that torch is built for: a client with a runtime of its own asks for them.
// clang-format off
#define NEWER_CALLS(X)                                                                                        \
  X(cudaFuncGetParamCount) X(cudaGraphConditionalHandleCreate_v2) X(cudaGraphExecGetId) X(cudaGraphGetId)     \
  X(cudaGraphNodeGetContainingGraph) X(cudaGraphNodeGetLocalId) X(cudaGraphNodeGetParams)                     \
  X(cudaGraphNodeGetToolsId) X(cudaLaunchHostFunc_v2) X(cudaMemGetLocationInfo)                               \
  X(cudaMemcpy3DWithAttributesAsync) X(cudaMemcpyWithAttributesAsync) X(cudaStreamBeginRecaptureToGraph)
#define GRAPHICS_CALLS(X)                                                                                     \
  X(cudaDeviceGetNvSciSyncAttributes) X(cudaEGLStreamConsumerAcquireFrame) X(cudaEGLStreamConsumerConnect)    \
  X(cudaEGLStreamConsumerConnectWithFlags) X(cudaEGLStreamConsumerDisconnect)                                 \
  X(cudaEGLStreamConsumerReleaseFrame) X(cudaEGLStreamProducerConnect) X(cudaEGLStreamProducerDisconnect)     \
  X(cudaEGLStreamProducerPresentFrame) X(cudaEGLStreamProducerReturnFrame) X(cudaEventCreateFromEGLSync)      \
  X(cudaGLGetDevices) X(cudaGraphicsEGLRegisterImage) X(cudaGraphicsGLRegisterBuffer)                         \
  X(cudaGraphicsGLRegisterImage) X(cudaGraphicsMapResources) X(cudaGraphicsResourceGetMappedEglFrame)         \
  X(cudaGraphicsResourceGetMappedMipmappedArray) X(cudaGraphicsResourceGetMappedPointer)                      \
  X(cudaGraphicsResourceSetMapFlags) X(cudaGraphicsSubResourceGetMappedArray) X(cudaGraphicsUnmapResources)   \
  X(cudaGraphicsUnregisterResource) X(cudaGraphicsVDPAURegisterOutputSurface)                                 \
  X(cudaGraphicsVDPAURegisterVideoSurface) X(cudaVDPAUGetDevice) X(cudaVDPAUSetVDPAUDevice)
#define GREEN_CALLS(X)                                                                                        \
  X(cudaDevResourceGenerateDesc) X(cudaDevSmResourceSplit) X(cudaDevSmResourceSplitByCount)                   \
  X(cudaDeviceGetDevResource) X(cudaDeviceGetExecutionCtx) X(cudaExecutionCtxDestroy)                         \
  X(cudaExecutionCtxGetDevResource) X(cudaExecutionCtxGetDevice) X(cudaExecutionCtxGetId)                     \
  X(cudaExecutionCtxRecordEvent) X(cudaExecutionCtxStreamCreate) X(cudaExecutionCtxSynchronize)               \
  X(cudaExecutionCtxWaitEvent) X(cudaGreenCtxCreate) X(cudaStreamGetDevResource)
#define REFUSED_GREEN_CALL(name)                                                                  \
  ENTRY(name, OTHER, phc_ready, (void),                                                           \
        cudart_unsupported(#name ": green contexts are not simulated, use streams", cudaErrorNotSupported))
// clang-format on
#define REFUSED_CALL(name) ENTRY(name, OTHER, phc_ready, (void), cudart_unsupported(#name, cudaErrorNotSupported))
REFUSED_CALLS(REFUSED_CALL)
NEWER_CALLS(REFUSED_CALL)
GRAPHICS_CALLS(REFUSED_CALL)
GREEN_CALLS(REFUSED_GREEN_CALL)

// Further calls of the two versions: present, so that extensions which import them load, and loud when
// called. (Calls that torch imports and that are nowhere in this folder get their traps from the build.)
// clang-format off
#define UNSUPPORTED_CALLS(X) \
  X(__cudaGetProcAddress) X(__cudaRegisterUnifiedTable) X(cudaArrayGetInfo) \
  X(cudaArrayGetMemoryRequirements) X(cudaArrayGetPlane) X(cudaArrayGetSparseProperties) \
  X(cudaDestroyExternalMemory) X(cudaDestroyExternalSemaphore) X(cudaDestroySurfaceObject) \
  X(cudaDestroyTextureObject) X(cudaDeviceGetGraphMemAttribute) X(cudaDeviceGetHostAtomicCapabilities) \
  X(cudaDeviceGetP2PAtomicCapabilities) X(cudaDeviceGetTexture1DLinearMaxWidth) \
  X(cudaDeviceGraphMemTrim) X(cudaDeviceRegisterAsyncNotification) X(cudaDeviceSetGraphMemAttribute) \
  X(cudaDeviceUnregisterAsyncNotification) X(cudaExternalMemoryGetMappedBuffer) \
  X(cudaExternalMemoryGetMappedMipmappedArray) X(cudaFreeArray) X(cudaFreeMipmappedArray) \
  X(cudaFuncGetParamInfo) X(cudaGetChannelDesc) X(cudaGetExportTable) X(cudaGetMipmappedArrayLevel) \
  X(cudaGetSurfaceObjectResourceDesc) X(cudaGetTextureObjectResourceDesc) \
  X(cudaGetTextureObjectResourceViewDesc) X(cudaGetTextureObjectTextureDesc) \
  X(cudaGraphAddDependencies_v2) X(cudaGraphAddEventRecordNode) X(cudaGraphAddEventWaitNode) \
  X(cudaGraphAddExternalSemaphoresSignalNode) X(cudaGraphAddExternalSemaphoresWaitNode) \
  X(cudaGraphAddMemAllocNode) X(cudaGraphAddMemFreeNode) X(cudaGraphAddMemcpyNode1D) \
  X(cudaGraphAddMemcpyNodeFromSymbol) X(cudaGraphAddMemcpyNodeToSymbol) X(cudaGraphAddNode_v2) \
  X(cudaGraphChildGraphNodeGetGraph) X(cudaGraphDestroyNode) X(cudaGraphEventRecordNodeGetEvent) \
  X(cudaGraphEventRecordNodeSetEvent) X(cudaGraphEventWaitNodeGetEvent) \
  X(cudaGraphEventWaitNodeSetEvent) X(cudaGraphExecChildGraphNodeSetParams) \
  X(cudaGraphExecEventRecordNodeSetEvent) X(cudaGraphExecEventWaitNodeSetEvent) \
  X(cudaGraphExecExternalSemaphoresSignalNodeSetParams) \
  X(cudaGraphExecExternalSemaphoresWaitNodeSetParams) X(cudaGraphExecGetFlags) \
  X(cudaGraphExecHostNodeSetParams) X(cudaGraphExecMemcpyNodeSetParams) \
  X(cudaGraphExecMemcpyNodeSetParams1D) X(cudaGraphExecMemcpyNodeSetParamsFromSymbol) \
  X(cudaGraphExecMemcpyNodeSetParamsToSymbol) X(cudaGraphExecMemsetNodeSetParams) \
  X(cudaGraphExecNodeSetParams) X(cudaGraphExternalSemaphoresSignalNodeGetParams) \
  X(cudaGraphExternalSemaphoresSignalNodeSetParams) X(cudaGraphExternalSemaphoresWaitNodeGetParams) \
  X(cudaGraphExternalSemaphoresWaitNodeSetParams) X(cudaGraphHostNodeGetParams) \
  X(cudaGraphHostNodeSetParams) X(cudaGraphInstantiateWithParams_ptsz) \
  X(cudaGraphKernelNodeCopyAttributes) X(cudaGraphKernelNodeGetAttribute) \
  X(cudaGraphKernelNodeSetAttribute) X(cudaGraphMemAllocNodeGetParams) X(cudaGraphMemFreeNodeGetParams) \
  X(cudaGraphMemcpyNodeGetParams) X(cudaGraphMemcpyNodeSetParams) X(cudaGraphMemcpyNodeSetParams1D) \
  X(cudaGraphMemcpyNodeSetParamsFromSymbol) X(cudaGraphMemcpyNodeSetParamsToSymbol) \
  X(cudaGraphMemsetNodeGetParams) X(cudaGraphMemsetNodeSetParams) X(cudaGraphNodeFindInClone) \
  X(cudaGraphNodeGetEnabled) \
  X(cudaGraphNodeSetEnabled) X(cudaGraphNodeSetParams) X(cudaGraphRemoveDependencies) \
  X(cudaGraphRemoveDependencies_v2) X(cudaLaunchCooperativeKernelMultiDevice) X(cudaLibraryGetManaged) \
  X(cudaLibraryGetUnifiedFunction) X(cudaLogsCurrent) X(cudaLogsDumpToFile) X(cudaLogsDumpToMemory) \
  X(cudaLogsRegisterCallback) X(cudaLogsUnregisterCallback) X(cudaMemAdvise_v2) \
  X(cudaMemDiscardAndPrefetchBatchAsync) X(cudaMemDiscardAndPrefetchBatchAsync_ptsz) \
  X(cudaMemDiscardBatchAsync) X(cudaMemDiscardBatchAsync_ptsz) X(cudaMemGetDefaultMemPool) \
  X(cudaMemGetMemPool) X(cudaMemPoolExportPointer) X(cudaMemPoolExportToShareableHandle) \
  X(cudaMemPoolImportFromShareableHandle) X(cudaMemPoolImportPointer) X(cudaMemPrefetchAsync_v2) \
  X(cudaMemPrefetchAsync_v2_ptsz) X(cudaMemPrefetchBatchAsync) X(cudaMemPrefetchBatchAsync_ptsz) \
  X(cudaMemRangeGetAttribute) X(cudaMemRangeGetAttributes) X(cudaMemSetMemPool) \
  X(cudaMemcpy2DArrayToArray) X(cudaMemcpy2DArrayToArray_ptds) X(cudaMemcpy2DFromArray) \
  X(cudaMemcpy2DFromArrayAsync) X(cudaMemcpy2DFromArrayAsync_ptsz) X(cudaMemcpy2DFromArray_ptds) \
  X(cudaMemcpy2DToArray) X(cudaMemcpy2DToArrayAsync) X(cudaMemcpy2DToArrayAsync_ptsz) \
  X(cudaMemcpy2DToArray_ptds) X(cudaMemcpy3DBatchAsync) X(cudaMemcpy3DBatchAsync_ptsz) \
  X(cudaMemcpy3DPeer) X(cudaMemcpy3DPeerAsync) X(cudaMemcpy3DPeerAsync_ptsz) X(cudaMemcpy3DPeer_ptds) \
  X(cudaMemcpyArrayToArray) X(cudaMemcpyArrayToArray_ptds) X(cudaMemcpyFromArray) \
  X(cudaMemcpyFromArrayAsync) X(cudaMemcpyFromArrayAsync_ptsz) X(cudaMemcpyFromArray_ptds) \
  X(cudaMemcpyToArray) X(cudaMemcpyToArrayAsync) X(cudaMemcpyToArrayAsync_ptsz) \
  X(cudaMemcpyToArray_ptds) X(cudaMipmappedArrayGetMemoryRequirements) \
  X(cudaMipmappedArrayGetSparseProperties) X(cudaSetDoubleForDevice) X(cudaSetDoubleForHost) \
  X(cudaSignalExternalSemaphoresAsync) X(cudaSignalExternalSemaphoresAsync_ptsz) \
  X(cudaSignalExternalSemaphoresAsync_v2) X(cudaSignalExternalSemaphoresAsync_v2_ptsz) \
  X(cudaThreadGetCacheConfig) X(cudaThreadGetLimit) X(cudaThreadSetCacheConfig) X(cudaThreadSetLimit) \
  X(cudaWaitExternalSemaphoresAsync) X(cudaWaitExternalSemaphoresAsync_ptsz) \
  X(cudaWaitExternalSemaphoresAsync_v2) X(cudaWaitExternalSemaphoresAsync_v2_ptsz)
#define UNSUPPORTED_CALL(name)          \
  ENTRY(name, OTHER, phc_ready, (void), \
        (ph_unsupported("libcudart", #name, false), (cudaError_t)cudaErrorNotSupported))
// clang-format on
UNSUPPORTED_CALLS(UNSUPPORTED_CALL)
