// The part of CUDA's binary interface that the stubs implement: types, constants and layouts as in
// NVIDIA's public headers (CUDA 12 and 13), declared here so that no NVIDIA header is needed.
// A library that is built for one major version is compiled with -DPH_CUDA_MAJOR=12 or 13.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "cuda_errors.h"

#ifndef PH_CUDA_MAJOR
#define PH_CUDA_MAJOR 13
#endif
#if PH_CUDA_MAJOR != 12 && PH_CUDA_MAJOR != 13
#error "the stubs know the interfaces of CUDA 12 and CUDA 13"
#endif
// Version that the runtime reports; the driver is at least as new, as a real installation's must be.
#ifdef PH_CUDA_VERSION
#define PH_CUDA_RUNTIME_VERSION PH_CUDA_VERSION
#else
#define PH_CUDA_RUNTIME_VERSION (PH_CUDA_MAJOR == 13 ? 13000 : 12080)
#endif
#define PH_CUDA_DRIVER_VERSION (PH_CUDA_RUNTIME_VERSION > 13000 ? PH_CUDA_RUNTIME_VERSION : 13000)
#define PH_DRIVER_VERSION_TEXT "580.95.05"

// First words of a fat binary, and of the wrapper that nvcc puts around it.
#define CUDA_FATBIN 0xba55ed50u
#define CUDA_FATBIN_WRAPPER 0x466243b1u

// Codes that the stubs return. The runtime and the driver share the numbers (see cuda_errors.h).
typedef int cudaError_t;
typedef int CUresult;
enum {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidPitchValue = 12,
  cudaErrorInvalidSymbol = 13,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorMissingConfiguration = 52,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidKernelImage = 200,
  cudaErrorDeviceUninitialized = 201,
  cudaErrorPeerAccessUnsupported = 217,
  cudaErrorFileNotFound = 301,
  cudaErrorOperatingSystem = 304,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalState = 401,
  cudaErrorSymbolNotFound = 500,
  cudaErrorNotReady = 600,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorPeerAccessNotEnabled = 705,
  cudaErrorAssert = 710,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorHostMemoryNotRegistered = 713,
  cudaErrorLaunchFailure = 719,
  cudaErrorCooperativeLaunchTooLarge = 720,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureMerge = 902,
  cudaErrorStreamCaptureUnmatched = 903,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorStreamCaptureImplicit = 906,
  cudaErrorCapturedEvent = 907,
  cudaErrorStreamCaptureWrongThread = 908,
  cudaErrorGraphExecUpdateFailure = 910,
  cudaErrorInvalidClusterSize = 912,
};

typedef struct ph_stream *cudaStream_t;
typedef struct ph_event *cudaEvent_t;
typedef struct phc_pool *cudaMemPool_t;
typedef struct phc_kernel *cudaKernel_t;
typedef void (*cudaHostFn_t)(void *data);
typedef void (*cudaStreamCallback_t)(cudaStream_t stream, cudaError_t status, void *data);

typedef struct dim3 {
  unsigned x, y, z;
} dim3;
typedef struct cudaUUID_t {
  char bytes[16];
} cudaUUID_t;

enum {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum { cudaStreamNonBlocking = 1 };
enum { cudaEventBlockingSync = 1, cudaEventDisableTiming = 2, cudaEventInterprocess = 4 };
enum { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };

typedef struct cudaPointerAttributes {
  int type;
  int device;
  void *devicePointer;
  void *hostPointer;
#if PH_CUDA_MAJOR >= 13
  long reserved[8];
#endif
} cudaPointerAttributes;

typedef struct cudaFuncAttributes {
  size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
  int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA, maxDynamicSharedSizeBytes;
  int preferredShmemCarveout, clusterDimMustBeSet;
  int requiredClusterWidth, requiredClusterHeight, requiredClusterDepth;
  int clusterSchedulingPolicyPreference, nonPortableClusterSizeAllowed;
  int reserved[16];
} cudaFuncAttributes;
_Static_assert(sizeof(cudaFuncAttributes) == 144, "cudaFuncAttributes");

// cudaLaunchAttribute and CUlaunchAttribute have the same layout.
enum {
  PH_LAUNCH_COOPERATIVE = 2,
  PH_LAUNCH_CLUSTER_DIMENSION = 4,
  PH_LAUNCH_PRIORITY = 8,
  PH_LAUNCH_LAST = 16,
};
typedef struct cudaLaunchAttribute {
  int id;
  char pad[4];
  union {
    char pad[64];
    int cooperative;
    int priority;
    unsigned dim[3];
  } val;
} cudaLaunchAttribute;
_Static_assert(sizeof(cudaLaunchAttribute) == 72, "cudaLaunchAttribute");
typedef struct cudaKernelNodeParams {
  void *func;
  dim3 gridDim, blockDim;
  unsigned sharedMemBytes;
  void **kernelParams, **extra;
} cudaKernelNodeParams;
typedef struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute *attrs;
  unsigned numAttrs;
} cudaLaunchConfig_t;
typedef struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  cudaStream_t hStream;
  cudaLaunchAttribute *attrs;
  unsigned numAttrs;
} CUlaunchConfig;

// cudaFuncAttribute (8 and up) and CUfunction_attribute.
enum {
  PH_FUNC_MAX_THREADS,
  PH_FUNC_SHARED,
  PH_FUNC_CONST,
  PH_FUNC_LOCAL,
  PH_FUNC_REGS,
  PH_FUNC_PTX,
  PH_FUNC_BINARY,
  PH_FUNC_CACHE_CA,
  PH_FUNC_MAX_DYNAMIC,
  PH_FUNC_CARVEOUT,
  PH_FUNC_CLUSTER_MUST,
  PH_FUNC_CLUSTER_WIDTH,
  PH_FUNC_CLUSTER_HEIGHT,
  PH_FUNC_CLUSTER_DEPTH,
  PH_FUNC_NON_PORTABLE,
  PH_FUNC_POLICY,
  PH_FUNC_COUNT
};

typedef struct cudaMemLocation {
  int type;  // 1 = device, 2 = host
  int id;
} cudaMemLocation;
typedef struct cudaMemAccessDesc {
  cudaMemLocation location;
  int flags;
} cudaMemAccessDesc;
typedef struct cudaMemPoolProps {
  int allocType, handleTypes;
  cudaMemLocation location;
  void *win32SecurityAttributes;
  size_t maxSize;
  unsigned short usage;
  unsigned char reserved[54];
} cudaMemPoolProps;
typedef struct CUmemAllocationProp {
  int type, requestedHandleTypes;
  cudaMemLocation location;
  void *win32HandleMetaData;
  struct {
    unsigned char compressionType, gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
} CUmemAllocationProp;
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
typedef struct cudaIpcHandle {
  char reserved[64];
} cudaIpcHandle;

typedef struct cudaPitchedPtr {
  void *ptr;
  size_t pitch, xsize, ysize;
} cudaPitchedPtr;
typedef struct cudaPos {
  size_t x, y, z;
} cudaPos;
typedef struct cudaExtent {
  size_t width, height, depth;
} cudaExtent;
typedef struct cudaMemcpy3DParms {
  void *srcArray;
  cudaPos srcPos;
  cudaPitchedPtr srcPtr;
  void *dstArray;
  cudaPos dstPos;
  cudaPitchedPtr dstPtr;
  cudaExtent extent;
  int kind;
} cudaMemcpy3DParms;
typedef struct CUDA_MEMCPY2D {
  size_t srcXInBytes, srcY;
  int srcMemoryType;
  const void *srcHost;
  uintptr_t srcDevice;
  void *srcArray;
  size_t srcPitch;
  size_t dstXInBytes, dstY;
  int dstMemoryType;
  void *dstHost;
  uintptr_t dstDevice;
  void *dstArray;
  size_t dstPitch;
  size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

// cudaDeviceProp: CUDA 13 dropped the fields that only attributes answer now, and uses some of the
// reserved words. PH_12(...) marks what only CUDA 12 has.
#if PH_CUDA_MAJOR == 12
#define PH_12(declaration) declaration;
#else
#define PH_12(declaration)
#endif
typedef struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  char luid[8];
  unsigned luidDeviceNodeMask;
  size_t totalGlobalMem, sharedMemPerBlock;
  int regsPerBlock, warpSize;
  size_t memPitch;
  int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
  PH_12(int clockRate)
  size_t totalConstMem;
  int major, minor;
  size_t textureAlignment, texturePitchAlignment;
  PH_12(int deviceOverlap)
  int multiProcessorCount;
  PH_12(int kernelExecTimeoutEnabled)
  int integrated, canMapHostMemory;
  PH_12(int computeMode)
  int maxTexture1D, maxTexture1DMipmap;
  PH_12(int maxTexture1DLinear)
  int maxTexture2D[2], maxTexture2DMipmap[2], maxTexture2DLinear[3], maxTexture2DGather[2];
  int maxTexture3D[3], maxTexture3DAlt[3], maxTextureCubemap, maxTexture1DLayered[2], maxTexture2DLayered[3];
  int maxTextureCubemapLayered[2], maxSurface1D, maxSurface2D[2], maxSurface3D[3], maxSurface1DLayered[2];
  int maxSurface2DLayered[3], maxSurfaceCubemap, maxSurfaceCubemapLayered[2];
  size_t surfaceAlignment;
  int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount;
  int unifiedAddressing;
  PH_12(int memoryClockRate)
  int memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor;
  int streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID, hostNativeAtomicSupported;
  PH_12(int singleToDoublePrecisionPerfRatio)
  int pageableMemoryAccess, concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem;
  int cooperativeLaunch;
  PH_12(int cooperativeMultiDeviceLaunch)
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost, maxBlocksPerMultiProcessor;
  int accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisterSupported, sparseCudaArraySupported, hostRegisterReadOnlySupported;
  int timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;
  unsigned gpuDirectRDMAFlushWritesOptions;
  int gpuDirectRDMAWritesOrdering;
  unsigned memoryPoolSupportedHandleTypes;
  int deferredMappingCudaArraySupported, ipcEventSupported, clusterLaunch, unifiedFunctionPointers;
#if PH_CUDA_MAJOR >= 13
  int deviceNumaConfig, deviceNumaId, mpsEnabled, hostNumaId;
  unsigned gpuPciDeviceID, gpuPciSubsystemID;
  int hostNumaMultinodeIpcSupported;
  int reserved[56];
#else
  int reserved[63];
#endif
} cudaDeviceProp;
#if PH_CUDA_MAJOR >= 13
_Static_assert(sizeof(cudaDeviceProp) == 1008, "cudaDeviceProp of CUDA 13");
#else
_Static_assert(sizeof(cudaDeviceProp) == 1032, "cudaDeviceProp of CUDA 12");
#endif
