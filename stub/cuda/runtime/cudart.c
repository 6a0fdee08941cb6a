// libcudart: the CUDA runtime, as a face of cuda_core.c. Every function is listed once, with the
// host cost it is charged and the expression that does it; what is not listed becomes a trap that
// names itself (phantora.stubs).
//
// The numbers and codes follow NVIDIA's runtime as measured on an H200 (tests/cuda/semantics.py).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "abi/export.h"
#include "cuda/core/cuda_core.h"

// ---------------------------------------------------------------- entry points
static __thread cudaError_t last_error;

static cudaError_t finish(cudaError_t error, enum ph_api api) {
  ph_charge(api);
  ph_leave();
  if (error) last_error = error;
  return error;
}

#define UNPACK(...) __VA_ARGS__
// An entry point that needs nothing (NEEDS_NOTHING), a device (phc_ready) or a context (phc_context).
#define ENTRY(name, api, needs, parameters, expression)        \
  PH_EXPORT cudaError_t name parameters {                      \
    ph_enter();                                                \
    cudaError_t error = needs();                               \
    return finish(error ? error : (expression), PH_API_##api); \
  }
// The same with its twin for per-thread default streams: `per_thread` tells which was called.
#define ENTRY2(name, suffix, api, parameters, expression)             \
  static cudaError_t name##_any(bool per_thread, UNPACK parameters) { \
    (void)per_thread;                                                 \
    ph_enter();                                                       \
    cudaError_t error = phc_context();                                \
    return finish(error ? error : (expression), PH_API_##api);        \
  }
#define TWINS(name, suffix, parameters, arguments)                                              \
  PH_EXPORT cudaError_t name(UNPACK parameters) { return name##_any(false, UNPACK arguments); } \
  PH_EXPORT cudaError_t name##suffix(UNPACK parameters) { return name##_any(true, UNPACK arguments); }
#define STREAM(name, suffix, api, parameters, arguments, expression) \
  ENTRY2(name, suffix, api, parameters, expression)                  \
  TWINS(name, suffix, parameters, arguments)

static cudaError_t nothing(void) { return 0; }
static int give(void *to, const void *value, size_t size) {
  if (!to) return cudaErrorInvalidValue;
  memcpy(to, value, size);
  return 0;
}
#define GIVE(to, type, value) give((to), &(type){value}, sizeof(type))
static int async_flag(bool per_thread) { return PHC_ASYNC | (per_thread ? PHC_PER_THREAD : 0); }
static int sync_flag(bool per_thread) { return per_thread ? PHC_PER_THREAD : 0; }

// ---------------------------------------------------------------- errors
PH_EXPORT cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  if (!phc_is_sticky(error)) last_error = 0;
  return error;
}
PH_EXPORT cudaError_t cudaPeekAtLastError(void) { return last_error; }
PH_EXPORT const char *cudaGetErrorName(cudaError_t error) {
  const char *name = phc_error_name(error, false);
  return name ? name : "unrecognized error code";
}
PH_EXPORT const char *cudaGetErrorString(cudaError_t error) {
  const char *text = phc_error_text(error, false);
  return text ? text : "unrecognized error code";
}

// ---------------------------------------------------------------- devices
static cudaError_t device_count(int *count) {
  if (!count) return cudaErrorInvalidValue;
  cudaError_t error = phc_ready();
  // Modules ask while the fork server imports them, and torch keeps the answer for all ranks.
  if (error == cudaErrorNoDevice && (*count = ph_assumed_devices())) return 0;
  *count = error ? 0 : phc_devices();
  return error;
}
static cudaError_t set_device(int device) {
  cudaError_t error = phc_device_check(device);
  if (!error) phc_context_set(device);
  return error;
}
static cudaError_t get_attribute(int *value, int attribute, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  return value && phc_attribute(attribute, device, value) ? 0 : cudaErrorInvalidValue;
}
static cudaError_t pci_bus_id(char *text, int length, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!text || length < 13) return cudaErrorInvalidValue;
  snprintf(text, (size_t)length, "0000:%02X:00.0", phc_pci_bus(phc_physical(device)));
  return 0;
}
static cudaError_t by_pci_bus_id(int *device, const char *text) {
  unsigned domain = 0, bus = 0, slot = 0;
  if (!device || !text) return cudaErrorInvalidValue;
  if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) return cudaErrorInvalidValue;
  for (int i = 0; i < phc_devices(); i++)
    if (!domain && !slot && (int)bus == phc_pci_bus(phc_physical(i))) return *device = i, 0;
  return cudaErrorInvalidDevice;
}

static cudaError_t properties(cudaDeviceProp *p, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!p) return cudaErrorInvalidValue;
  const ph_device *gpu = ph_gpu();
  memset(p, 0, sizeof *p);
  memcpy(p->name, gpu->name, sizeof gpu->name);
  p->name[sizeof gpu->name - 1] = 0;
  phc_device_uuid(phc_physical(device), (unsigned char *)p->uuid.bytes);
  p->totalGlobalMem = gpu->memory_bytes;
  p->luidDeviceNodeMask = 0;
  // Fields that an attribute answers too: {field, number of elements, first attribute}.
#define SAME(field, attribute) phc_attribute(attribute, device, (int *)&p->field);
#define SAME2(field, first) SAME(field[0], first) SAME(field[1], (first) + 1)
#define SAME3(field, first) SAME2(field, first) SAME(field[2], (first) + 2)
  int value = 0;
#define SIZE(field, attribute) phc_attribute(attribute, device, &value), p->field = (size_t)value;
  SIZE(sharedMemPerBlock, 8) SAME(regsPerBlock, 12) SAME(warpSize, 10) SIZE(memPitch, 11)
  SAME(maxThreadsPerBlock, 1) SAME3(maxThreadsDim, 2) SAME3(maxGridSize, 5) SIZE(totalConstMem, 9)
  SAME(major, 75) SAME(minor, 76) SIZE(textureAlignment, 14) SIZE(texturePitchAlignment, 51)
  SAME(multiProcessorCount, 16) SAME(integrated, 18) SAME(canMapHostMemory, 19) SAME(maxTexture1D, 21)
  SAME(maxTexture1DMipmap, 77) SAME2(maxTexture2D, 22) SAME2(maxTexture2DMipmap, 73)
  SAME3(maxTexture2DLinear, 70) SAME2(maxTexture2DGather, 45) SAME3(maxTexture3D, 24)
  SAME3(maxTexture3DAlt, 47) SAME(maxTextureCubemap, 52) SAME2(maxTexture1DLayered, 42)
  SAME3(maxTexture2DLayered, 27) SAME2(maxTextureCubemapLayered, 53) SAME(maxSurface1D, 55)
  SAME2(maxSurface2D, 56) SAME3(maxSurface3D, 58) SAME2(maxSurface1DLayered, 61)
  SAME3(maxSurface2DLayered, 63) SAME(maxSurfaceCubemap, 66) SAME2(maxSurfaceCubemapLayered, 67)
  SIZE(surfaceAlignment, 30) SAME(concurrentKernels, 31) SAME(ECCEnabled, 32) SAME(pciBusID, 33)
  SAME(pciDeviceID, 34) SAME(pciDomainID, 50) SAME(tccDriver, 35) SAME(asyncEngineCount, 40)
  SAME(unifiedAddressing, 41) SAME(memoryBusWidth, 37) SAME(l2CacheSize, 38)
  SAME(persistingL2CacheMaxSize, 108) SAME(maxThreadsPerMultiProcessor, 39)
  SAME(streamPrioritiesSupported, 78) SAME(globalL1CacheSupported, 79) SAME(localL1CacheSupported, 80)
  SIZE(sharedMemPerMultiprocessor, 81) SAME(regsPerMultiprocessor, 82) SAME(managedMemory, 83)
  SAME(isMultiGpuBoard, 84) SAME(multiGpuBoardGroupID, 85) SAME(hostNativeAtomicSupported, 86)
  SAME(pageableMemoryAccess, 88) SAME(concurrentManagedAccess, 89) SAME(computePreemptionSupported, 90)
  SAME(canUseHostPointerForRegisteredMem, 91) SAME(cooperativeLaunch, 95) SIZE(sharedMemPerBlockOptin, 97)
  SAME(pageableMemoryAccessUsesHostPageTables, 100) SAME(directManagedMemAccessFromHost, 101)
  SAME(maxBlocksPerMultiProcessor, 106) SAME(accessPolicyMaxWindowSize, 109)
  SIZE(reservedSharedMemPerBlock, 111) SAME(hostRegisterSupported, 99) SAME(sparseCudaArraySupported, 112)
  SAME(hostRegisterReadOnlySupported, 113) SAME(timelineSemaphoreInteropSupported, 114)
  SAME(memoryPoolsSupported, 115) SAME(gpuDirectRDMASupported, 116) SAME(gpuDirectRDMAFlushWritesOptions, 117)
  SAME(gpuDirectRDMAWritesOrdering, 118) SAME(memoryPoolSupportedHandleTypes, 119)
  SAME(deferredMappingCudaArraySupported, 121) SAME(ipcEventSupported, 125) SAME(clusterLaunch, 120)
  SAME(unifiedFunctionPointers, 129)
#if PH_CUDA_MAJOR >= 13
  SAME(deviceNumaConfig, 130) SAME(deviceNumaId, 131) SAME(mpsEnabled, 133) SAME(hostNumaId, 134)
  SAME(gpuPciDeviceID, 139) SAME(gpuPciSubsystemID, 140) SAME(hostNumaMultinodeIpcSupported, 143)
#else
  SAME(clockRate, 13) SAME(deviceOverlap, 15) SAME(kernelExecTimeoutEnabled, 17) SAME(computeMode, 20)
  SAME(maxTexture1DLinear, 69) SAME(memoryClockRate, 36) SAME(singleToDoublePrecisionPerfRatio, 87)
  SAME(cooperativeMultiDeviceLaunch, 96)
#endif
      return 0;
}

// Which device has these properties: all are alike, so only what the caller must have can fail.
static cudaError_t choose_device(int *device, const cudaDeviceProp *wanted) {
  return device && wanted ? (*device = 0, 0) : cudaErrorInvalidValue;
}

ENTRY(cudaGetDeviceCount, GET_DEVICE, nothing, (int *count), device_count(count))
ENTRY(cudaSetDevice, GET_DEVICE, phc_ready, (int device), set_device(device))
ENTRY(cudaInitDevice, GET_DEVICE, phc_ready, (int device, unsigned device_flags, unsigned flags),
      flags > 1 || device_flags > 0x7f ? cudaErrorInvalidValue : phc_device_check(device))
ENTRY(cudaGetDevice, GET_DEVICE, phc_ready, (int *device), GIVE(device, int, ph_current_device()))
ENTRY(cudaSetValidDevices, GET_DEVICE, phc_ready, (int *devices, int count),
      devices || !count ? phc_device_check(count ? devices[0] : 0) : cudaErrorInvalidValue)
ENTRY(cudaChooseDevice, GET_DEVICE, phc_ready, (int *device, const cudaDeviceProp *wanted),
      choose_device(device, wanted))
ENTRY(cudaSetDeviceFlags, GET_DEVICE, phc_ready, (unsigned flags), flags > 0xff ? cudaErrorInvalidValue : 0)
ENTRY(cudaGetDeviceFlags, GET_DEVICE, phc_ready, (unsigned *flags),
      GIVE(flags, unsigned, 8))  // cudaDeviceMapHost
ENTRY(cudaDeviceGetAttribute, GET_DEVICE, phc_ready, (int *value, int attribute, int device),
      get_attribute(value, attribute, device))
#if PH_CUDA_MAJOR >= 13
ENTRY(cudaGetDeviceProperties, GET_DEVICE, phc_ready, (cudaDeviceProp * p, int device), properties(p, device))
#else
// Programs built for CUDA 12 call _v2; the old name fills the structure of CUDA 11, which is its beginning.
static cudaError_t properties_11(void *p, int device) {
  cudaDeviceProp full;
  cudaError_t error = properties(&full, device);
  return error ? error : give(p, &full, offsetof(cudaDeviceProp, hostRegisterSupported));
}
ENTRY(cudaGetDeviceProperties, GET_DEVICE, phc_ready, (void *p, int device), properties_11(p, device))
ENTRY(cudaGetDeviceProperties_v2, GET_DEVICE, phc_ready, (cudaDeviceProp * p, int device),
      properties(p, device))
#endif
ENTRY(cudaDeviceGetPCIBusId, GET_DEVICE, phc_ready, (char *text, int length, int device),
      pci_bus_id(text, length, device))
ENTRY(cudaDeviceGetByPCIBusId, GET_DEVICE, phc_ready, (int *device, const char *text),
      by_pci_bus_id(device, text))
ENTRY(cudaDeviceGetStreamPriorityRange, GET_DEVICE, phc_ready, (int *least, int *greatest),
      (least ? *least = 0 : 0, greatest ? *greatest = -5 : 0, 0))
ENTRY(cudaDeviceGetLimit, GET_DEVICE, phc_ready, (size_t *value, int limit), phc_limit(limit, value))
ENTRY(cudaDeviceSetLimit, GET_DEVICE, phc_ready, (int limit, size_t value), phc_set_limit(limit, value))
ENTRY(cudaDeviceGetCacheConfig, GET_DEVICE, phc_ready, (int *config), GIVE(config, int, 0))
ENTRY(cudaDeviceSetCacheConfig, GET_DEVICE, phc_ready, (int config),
      config < 0 || config > 3 ? cudaErrorInvalidValue : 0)
ENTRY(cudaDeviceGetSharedMemConfig, GET_DEVICE, phc_ready, (int *config), GIVE(config, int, 1))
ENTRY(cudaDeviceSetSharedMemConfig, GET_DEVICE, phc_ready, (int config),
      config < 0 || config > 2 ? cudaErrorInvalidValue : 0)
ENTRY(cudaCtxResetPersistingL2Cache, OTHER, phc_context, (void), 0)
ENTRY(cudaDeviceSynchronize, STREAM_SYNC, phc_context, (void), phc_device_sync())
// Memory and handles stay valid: the process goes on with a fresh context, as after the real call.
ENTRY(cudaDeviceReset, OTHER, phc_context, (void), phc_device_sync())
ENTRY(cudaDeviceCanAccessPeer, GET_DEVICE, phc_ready, (int *can, int device, int peer),
      phc_can_access_peer(can, device, peer))
ENTRY(cudaDeviceEnablePeerAccess, OTHER, phc_context, (int peer, unsigned flags),
      flags ? cudaErrorInvalidValue : phc_peer_access(ph_current_device(), peer, true))
ENTRY(cudaDeviceDisablePeerAccess, OTHER, phc_context, (int peer),
      phc_peer_access(ph_current_device(), peer, false))
ENTRY(cudaDeviceGetP2PAttribute, GET_DEVICE, phc_ready,
      (int *value, int attribute, int source, int destination),
      phc_p2p_attribute(value, attribute, source, destination))
ENTRY(cudaDeviceFlushGPUDirectRDMAWrites, OTHER, phc_context, (int target, int scope),
      target || scope < 100 ? cudaErrorInvalidValue : 0)
ENTRY(cudaRuntimeGetVersion, GET_DEVICE, nothing, (int *version), GIVE(version, int, PH_CUDA_RUNTIME_VERSION))
ENTRY(cudaDriverGetVersion, GET_DEVICE, nothing, (int *version), GIVE(version, int, PH_CUDA_DRIVER_VERSION))
ENTRY(cudaProfilerStart, OTHER, phc_ready, (void), 0)
ENTRY(cudaProfilerStop, OTHER, phc_ready, (void), 0)

// ---------------------------------------------------------------- modules and kernels
// A compilation unit registers itself when its library is loaded, before any rank is connected:
// nothing here may need a device.
PH_EXPORT ph_owner *__cudaRegisterFatBinary(void *binary) {
  const struct {
    uint32_t magic, version;
    const void *image;
  } *wrapper = binary;
  ph_owner *handle = calloc(1, sizeof *handle);
  if (!handle) abort();
  if (wrapper && wrapper->magic == 0x466243b1) handle->image = wrapper->image;
  return handle;
}
PH_EXPORT void __cudaRegisterFatBinaryEnd(ph_owner *handle) { (void)handle; }
PH_EXPORT void __cudaUnregisterFatBinary(ph_owner *handle) { phc_owner_drop(handle); }
PH_EXPORT char __cudaInitModule(ph_owner *handle) { return handle != NULL; }
PH_EXPORT void __cudaRegisterFunction(ph_owner *handle, const char *host, char *device_function,
                                      const char *device_name, int thread_limit, void *tid, void *bid,
                                      void *block, void *grid, int *warp_size) {
  (void)device_function, (void)tid, (void)bid, (void)block, (void)grid, (void)warp_size;
  ph_kernel *kernel = phc_kernel_create(device_name, host, handle);
  if (thread_limit > 0) kernel->max_threads = thread_limit;
}
PH_EXPORT void __cudaRegisterVar(ph_owner *handle, char *host, char *address, const char *name, int external,
                                 size_t size, int constant, int global) {
  (void)address, (void)name, (void)external, (void)constant, (void)global;
  phc_symbol_register(host, size, handle);
}
PH_EXPORT void __cudaRegisterHostVar(ph_owner *handle, const char *name, char *host, size_t size) {
  (void)name;
  phc_symbol_register(host, size, handle);
}
// A managed variable is a pointer that the host follows too.
PH_EXPORT void __cudaRegisterManagedVar(ph_owner *handle, void **host, char *address, const char *name,
                                        int external, size_t size, int constant, int global) {
  (void)address, (void)name, (void)external, (void)constant, (void)global;
  *host = calloc(1, size ? size : 1);
  phc_symbol_register(host, size, handle);
}

typedef struct ph_configuration {
  dim3 grid, block;
  size_t shared;
  void *stream;
} ph_configuration;
static __thread ph_configuration pushed[8];
static __thread int pushes;

PH_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  if (pushes == (int)(sizeof pushed / sizeof *pushed)) return cudaErrorInvalidConfiguration;
  pushed[pushes++] = (ph_configuration){grid, block, shared, stream};
  return 0;
}
PH_EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (!pushes) return last_error = cudaErrorMissingConfiguration;
  ph_configuration *top = &pushed[--pushes];
  *grid = top->grid;
  *block = top->block;
  *shared = top->shared;
  *(void **)stream = top->stream;
  return 0;
}

// What a kernel that is none answers: a null pointer is no function, any other is taken for a handle.
static cudaError_t no_kernel(const void *function) {
  return function ? cudaErrorInvalidResourceHandle : cudaErrorInvalidDeviceFunction;
}
static cudaError_t get_kernel(void **kernel, const void *function) {
  if (!kernel) return cudaErrorInvalidValue;
  *kernel = phc_kernel(function);
  return *kernel ? 0 : no_kernel(function);
}
// Called once per launch site, also before a device exists: it costs nothing and needs none.
PH_EXPORT cudaError_t __cudaGetKernel(void **kernel, const void *function) {
  return get_kernel(kernel, function);
}
ENTRY(cudaGetKernel, GET_DEVICE, nothing, (void **kernel, const void *function), get_kernel(kernel, function))
ENTRY(cudaGetFuncBySymbol, GET_DEVICE, phc_context, (void **function, const void *symbol),
      get_kernel(function, symbol))

static cudaError_t launch(const void *function, dim3 grid, dim3 block, size_t shared, void *stream,
                          bool per_thread, int flags, const cudaLaunchAttribute *attributes, unsigned count) {
  ph_kernel *kernel = phc_kernel(function);
  if (!kernel) return no_kernel(function);
  return phc_launch(kernel, grid, block, shared, stream, flags | (per_thread ? PH_LAUNCH_PER_THREAD : 0),
                    attributes, count);
}
#define LAUNCH_PARAMETERS \
  (const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream)
#define LAUNCH_ARGUMENTS (function, grid, block, arguments, shared, stream)
STREAM(cudaLaunchKernel, _ptsz, LAUNCH, LAUNCH_PARAMETERS, LAUNCH_ARGUMENTS,
       ((void)arguments, launch(function, grid, block, shared, stream, per_thread, 0, NULL, 0)))
STREAM(__cudaLaunchKernel, _ptsz, LAUNCH, LAUNCH_PARAMETERS, LAUNCH_ARGUMENTS,
       ((void)arguments, launch(function, grid, block, shared, stream, per_thread, 0, NULL, 0)))
STREAM(cudaLaunchCooperativeKernel, _ptsz, LAUNCH, LAUNCH_PARAMETERS, LAUNCH_ARGUMENTS,
       ((void)arguments, launch(function, grid, block, shared, stream, per_thread, PH_LAUNCH_COOP, NULL, 0)))
static cudaError_t launch_config(const cudaLaunchConfig_t *c, const void *function, bool per_thread) {
  if (!c || (c->numAttrs && !c->attrs)) return cudaErrorInvalidValue;
  return launch(function, c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream, per_thread, 0, c->attrs,
                c->numAttrs);
}
STREAM(cudaLaunchKernelExC, _ptsz, LAUNCH,
       (const cudaLaunchConfig_t *config, const void *function, void **arguments),
       (config, function, arguments), ((void)arguments, launch_config(config, function, per_thread)))

static cudaError_t function_attributes(cudaFuncAttributes *a, const void *function) {
  ph_kernel *kernel = phc_kernel(function);
  if (!a) return cudaErrorInvalidValue;
  if (!kernel) return no_kernel(function);
  memset(a, 0, sizeof *a);
  a->sharedSizeBytes = (size_t)kernel->static_shared;
  a->constSizeBytes = (size_t)kernel->const_bytes;
  a->localSizeBytes = (size_t)kernel->local_bytes;
  int *fields[] = {&a->maxThreadsPerBlock,
                   NULL,
                   NULL,
                   NULL,
                   &a->numRegs,
                   &a->ptxVersion,
                   &a->binaryVersion,
                   &a->cacheModeCA,
                   &a->maxDynamicSharedSizeBytes,
                   &a->preferredShmemCarveout,
                   &a->clusterDimMustBeSet,
                   &a->requiredClusterWidth,
                   &a->requiredClusterHeight,
                   &a->requiredClusterDepth,
                   &a->nonPortableClusterSizeAllowed,
                   &a->clusterSchedulingPolicyPreference};
  for (int i = 0; i < PH_FUNC_COUNT; i++)
    if (fields[i]) phc_kernel_attribute(kernel, i, fields[i]);
  return 0;
}
static cudaError_t set_function_attribute(const void *function, int attribute, int value) {
  ph_kernel *kernel = phc_kernel(function);
  return kernel ? phc_kernel_set_attribute(kernel, attribute, value) : no_kernel(function);
}
static cudaError_t check_function(const void *function) {
  return phc_kernel(function) ? 0 : no_kernel(function);
}
static cudaError_t function_name(const char **name, const void *function) {
  ph_kernel *kernel = phc_kernel(function);
  if (!name) return cudaErrorInvalidValue;
  return kernel ? (*name = kernel->symbol, 0) : no_kernel(function);
}
ENTRY(cudaFuncGetAttributes, GET_DEVICE, phc_context, (cudaFuncAttributes * a, const void *function),
      function_attributes(a, function))
ENTRY(cudaFuncSetAttribute, GET_DEVICE, phc_context, (const void *function, int attribute, int value),
      set_function_attribute(function, attribute, value))
ENTRY(cudaKernelSetAttributeForDevice, GET_DEVICE, phc_context,
      (void *kernel, int attribute, int value, int device),
      phc_device_check(device) ? cudaErrorInvalidDevice : set_function_attribute(kernel, attribute, value))
ENTRY(cudaFuncSetCacheConfig, GET_DEVICE, phc_context, (const void *function, int config),
      config < 0 || config > 3 ? cudaErrorInvalidValue : check_function(function))
ENTRY(cudaFuncSetSharedMemConfig, GET_DEVICE, phc_context, (const void *function, int config),
      config < 0 || config > 2 ? cudaErrorInvalidValue : check_function(function))
ENTRY(cudaFuncGetName, GET_DEVICE, phc_context, (const char **name, const void *function),
      function_name(name, function))

static cudaError_t occupancy(int *blocks, const void *function, int threads, size_t shared) {
  ph_kernel *kernel = phc_kernel(function);
  return kernel ? phc_occupancy(blocks, kernel, threads, shared) : no_kernel(function);
}
static cudaError_t available_shared(size_t *bytes, const void *function, int blocks, int threads) {
  ph_kernel *kernel = phc_kernel(function);
  if (!kernel) return no_kernel(function);
  if (!bytes || blocks <= 0 || threads <= 0) return cudaErrorInvalidValue;
  size_t share = (size_t)ph_gpu()->smem_per_sm / (size_t)blocks,
         most = (size_t)ph_gpu()->smem_per_block_optin;
  share = share < most ? share : most;
  size_t own = (size_t)kernel->static_shared;
  *bytes = share > own ? share - own : 0;
  return 0;
}
static cudaError_t active_clusters(int *clusters, const void *function, const cudaLaunchConfig_t *c) {
  ph_kernel *kernel = phc_kernel(function);
  if (!kernel) return no_kernel(function);
  if (!c) return cudaErrorInvalidValue;
  return phc_max_active_clusters(clusters, kernel, (int)(c->blockDim.x * c->blockDim.y * c->blockDim.z),
                                 c->dynamicSmemBytes, c->attrs, c->numAttrs);
}
static cudaError_t potential_cluster(int *size, const void *function, const cudaLaunchConfig_t *c) {
  ph_kernel *kernel = phc_kernel(function);
  if (!kernel) return no_kernel(function);
  return c ? GIVE(size, int, ph_gpu()->major < 9 ? 1 : kernel->non_portable ? 16 : 8) : cudaErrorInvalidValue;
}
ENTRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor, GET_DEVICE, phc_context,
      (int *blocks, const void *function, int threads, size_t shared),
      occupancy(blocks, function, threads, shared))
ENTRY(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, GET_DEVICE, phc_context,
      (int *blocks, const void *function, int threads, size_t shared, unsigned flags),
      flags > 1 ? cudaErrorInvalidValue : occupancy(blocks, function, threads, shared))
ENTRY(cudaOccupancyAvailableDynamicSMemPerBlock, GET_DEVICE, phc_context,
      (size_t *bytes, const void *function, int blocks, int threads),
      available_shared(bytes, function, blocks, threads))
ENTRY(cudaOccupancyMaxActiveClusters, GET_DEVICE, phc_context,
      (int *clusters, const void *function, const cudaLaunchConfig_t *config),
      active_clusters(clusters, function, config))
ENTRY(cudaOccupancyMaxPotentialClusterSize, GET_DEVICE, phc_context,
      (int *size, const void *function, const cudaLaunchConfig_t *config),
      potential_cluster(size, function, config))

static cudaError_t symbol_copy(const void *symbol, void *other, size_t bytes, size_t offset, int kind,
                               bool to, void *stream, int flags) {
  char *address = NULL;
  size_t size = 0;
  cudaError_t error = phc_symbol(symbol, (void **)&address, &size);
  if (error) return error;
  if (offset > size || bytes > size - offset) return cudaErrorInvalidValue;
  bool fits =
      to ? kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyDefault
         : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyDefault;
  if (!fits) return cudaErrorInvalidMemcpyDirection;
  return to ? phc_copy(address + offset, other, bytes, kind, stream, flags)
            : phc_copy(other, address + offset, bytes, kind, stream, flags);
}
ENTRY(cudaGetSymbolAddress, GET_DEVICE, phc_context, (void **address, const void *symbol),
      address ? phc_symbol(symbol, address, NULL) : cudaErrorInvalidValue)
ENTRY(cudaGetSymbolSize, GET_DEVICE, phc_context, (size_t *size, const void *symbol),
      size ? phc_symbol(symbol, NULL, size) : cudaErrorInvalidValue)
STREAM(cudaMemcpyToSymbol, _ptds, MEMCPY_SYNC,
       (const void *symbol, const void *src, size_t bytes, size_t offset, int kind),
       (symbol, src, bytes, offset, kind),
       symbol_copy(symbol, (void *)src, bytes, offset, kind, true, NULL, sync_flag(per_thread)))
STREAM(cudaMemcpyFromSymbol, _ptds, MEMCPY_SYNC,
       (void *dst, const void *symbol, size_t bytes, size_t offset, int kind),
       (dst, symbol, bytes, offset, kind),
       symbol_copy(symbol, dst, bytes, offset, kind, false, NULL, sync_flag(per_thread)))
STREAM(cudaMemcpyToSymbolAsync, _ptsz, MEMCPY_ASYNC,
       (const void *symbol, const void *src, size_t bytes, size_t offset, int kind, void *stream),
       (symbol, src, bytes, offset, kind, stream),
       symbol_copy(symbol, (void *)src, bytes, offset, kind, true, stream, async_flag(per_thread)))
STREAM(cudaMemcpyFromSymbolAsync, _ptsz, MEMCPY_ASYNC,
       (void *dst, const void *symbol, size_t bytes, size_t offset, int kind, void *stream),
       (dst, symbol, bytes, offset, kind, stream),
       symbol_copy(symbol, dst, bytes, offset, kind, false, stream, async_flag(per_thread)))

// ---------------------------------------------------------------- streams
static cudaError_t stream_priority(void *handle, bool per_thread, int *priority) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(priority, int, stream->priority);
}
static cudaError_t stream_flags(void *handle, bool per_thread, unsigned *flags) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(flags, unsigned, stream->flags);
}
static cudaError_t stream_device(void *handle, bool per_thread, int *device) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(device, int, stream->device);
}
static cudaError_t stream_id(void *handle, bool per_thread, unsigned long long *id) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(id, unsigned long long, stream->id);
}
static cudaError_t stream_alive(void *handle, bool per_thread) {
  ph_stream *stream = NULL;
  return phc_stream_find(handle, per_thread, &stream);
}
// The attributes that a stream can have: a synchronisation policy and a priority; others read as zero.
static cudaError_t stream_attribute(void *handle, bool per_thread, int id, void *value, bool set) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  if (error || !value) return error ? error : cudaErrorInvalidValue;
  if (id != 1 && id != 3 && id != PH_LAUNCH_PRIORITY && id != 9 && id != 10) return cudaErrorInvalidValue;
  if (set) return 0;
  memset(value, 0, 64);
  if (id == PH_LAUNCH_PRIORITY) *(int *)value = stream->priority;
  return 0;
}

ENTRY(cudaStreamCreate, STREAM_CREATE, phc_context, (void **stream), phc_stream_create(stream, 0, 0))
ENTRY(cudaStreamCreateWithFlags, STREAM_CREATE, phc_context, (void **stream, unsigned flags),
      phc_stream_create(stream, flags, 0))
ENTRY(cudaStreamCreateWithPriority, STREAM_CREATE, phc_context, (void **stream, unsigned flags, int priority),
      phc_stream_create(stream, flags, priority))
ENTRY(cudaStreamDestroy, OTHER, phc_context, (void *stream), phc_stream_destroy(stream))
STREAM(cudaStreamSynchronize, _ptsz, STREAM_SYNC, (void *stream), (stream),
       phc_stream_sync(stream, per_thread))
STREAM(cudaStreamQuery, _ptsz, STREAM_QUERY, (void *stream), (stream), phc_stream_query(stream, per_thread))
STREAM(cudaStreamWaitEvent, _ptsz, STREAM_WAIT, (void *stream, void *event, unsigned flags),
       (stream, event, flags), phc_stream_wait(stream, event, flags, per_thread))
STREAM(cudaStreamGetPriority, _ptsz, GET_DEVICE, (void *stream, int *priority), (stream, priority),
       stream_priority(stream, per_thread, priority))
STREAM(cudaStreamGetFlags, _ptsz, GET_DEVICE, (void *stream, unsigned *flags), (stream, flags),
       stream_flags(stream, per_thread, flags))
STREAM(cudaStreamGetDevice, _ptsz, GET_DEVICE, (void *stream, int *device), (stream, device),
       stream_device(stream, per_thread, device))
STREAM(cudaStreamGetId, _ptsz, GET_DEVICE, (void *stream, unsigned long long *id), (stream, id),
       stream_id(stream, per_thread, id))
STREAM(cudaStreamGetAttribute, _ptsz, GET_DEVICE, (void *stream, int id, void *value), (stream, id, value),
       stream_attribute(stream, per_thread, id, value, false))
STREAM(cudaStreamSetAttribute, _ptsz, GET_DEVICE, (void *stream, int id, const void *value),
       (stream, id, value), stream_attribute(stream, per_thread, id, (void *)value, true))
STREAM(cudaStreamCopyAttributes, _ptsz, GET_DEVICE, (void *to, void *from), (to, from),
       stream_alive(to, per_thread) ? cudaErrorInvalidResourceHandle : stream_alive(from, per_thread))
STREAM(cudaStreamAttachMemAsync, _ptsz, OTHER, (void *stream, void *pointer, size_t bytes, unsigned flags),
       (stream, pointer, bytes, flags),
       flags != 1 && flags != 2 && flags != 4                ? cudaErrorInvalidValue
       : pointer && !phc_covered(pointer, bytes ? bytes : 1) ? cudaErrorInvalidValue
                                                             : stream_alive(stream, per_thread))

typedef struct ph_callback {
  cudaStreamCallback_t function;
  void *stream, *data;
} ph_callback;
static void run_callback(void *data) {
  ph_callback call = *(ph_callback *)data;
  free(data);
  call.function(call.stream, 0, call.data);
}
static cudaError_t add_callback(void *stream, bool per_thread, cudaStreamCallback_t function, void *data,
                                unsigned flags) {
  if (!function || flags) return cudaErrorInvalidValue;
  ph_callback *call = malloc(sizeof *call);
  if (!call) return cudaErrorMemoryAllocation;
  *call = (ph_callback){function, stream, data};
  cudaError_t error = phc_host_function(stream, per_thread, run_callback, call);
  if (error) free(call);
  return error;
}
STREAM(cudaLaunchHostFunc, _ptsz, HOST_FUNC, (void *stream, cudaHostFn_t function, void *data),
       (stream, function, data), phc_host_function(stream, per_thread, function, data))
STREAM(cudaStreamAddCallback, _ptsz, HOST_FUNC,
       (void *stream, cudaStreamCallback_t function, void *data, unsigned flags),
       (stream, function, data, flags), add_callback(stream, per_thread, function, data, flags))

// ---------------------------------------------------------------- capture and graphs
// Nothing is ever captured: queries say so, and the calls that would begin a graph fail by name.
static cudaError_t not_capturing(void *stream, bool per_thread, int *status, unsigned long long *id) {
  if (!status) return cudaErrorInvalidValue;
  cudaError_t error = stream_alive(stream, per_thread);
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
static cudaError_t unsupported(const char *call, cudaError_t error) {
  ph_unsupported("libcudart", call, true);
  return error;
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
       ((void)stream, (void)mode, unsupported("cudaStreamBeginCapture", cudaErrorStreamCaptureUnsupported)))
STREAM(cudaStreamEndCapture, _ptsz, OTHER, (void *stream, void **graph), (stream, graph),
       ((void)graph,
        stream_alive(stream, per_thread) ? cudaErrorInvalidResourceHandle : cudaErrorIllegalState))
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
#define GRAPH_CALL(name) ENTRY(name, OTHER, phc_ready, (void), unsupported(#name, cudaErrorNotSupported))
GRAPH_CALLS(GRAPH_CALL)

// ---------------------------------------------------------------- events
ENTRY(cudaEventCreate, EVENT_CREATE, phc_context, (void **event), phc_event_create(event, 0))
ENTRY(cudaEventCreateWithFlags, EVENT_CREATE, phc_context, (void **event, unsigned flags),
      phc_event_create(event, flags))
ENTRY(cudaEventDestroy, OTHER, phc_ready, (void *event), phc_event_destroy(event))
ENTRY(cudaEventQuery, EVENT_QUERY, phc_ready, (void *event), phc_event_query(event))
ENTRY(cudaEventSynchronize, STREAM_SYNC, phc_ready, (void *event), phc_event_sync(event))
ENTRY(cudaEventElapsedTime, EVENT_QUERY, phc_ready, (float *ms, void *start, void *end),
      phc_event_elapsed(ms, start, end))
#if PH_CUDA_MAJOR == 12
ENTRY(cudaEventElapsedTime_v2, EVENT_QUERY, phc_ready, (float *ms, void *start, void *end),
      phc_event_elapsed(ms, start, end))
#endif
STREAM(cudaEventRecord, _ptsz, EVENT_RECORD, (void *event, void *stream), (event, stream),
       phc_event_record(event, stream, 0, per_thread))
STREAM(cudaEventRecordWithFlags, _ptsz, EVENT_RECORD, (void *event, void *stream, unsigned flags),
       (event, stream, flags), phc_event_record(event, stream, flags, per_thread))

// ---------------------------------------------------------------- memory
static cudaError_t memory_info(size_t *free_bytes, size_t *total_bytes) {
  size_t values[2];
  ph_memory_info(ph_current_device(), &values[0], &values[1]);
  if (!free_bytes || !total_bytes) return cudaErrorInvalidValue;
  *free_bytes = values[0];
  *total_bytes = values[1];
  return 0;
}
static cudaError_t pointer_attributes(cudaPointerAttributes *a, const void *pointer) {
  if (!a) return cudaErrorInvalidValue;
  memset(a, 0, sizeof *a);
  ph_range range;
  if (!ph_memory_find(pointer, &range)) {
    a->type = cudaMemoryTypeUnregistered;
    a->device = -2;
    a->hostPointer = (void *)pointer;
    return 0;
  }
  a->type = range.space == PH_SPACE_DEVICE    ? cudaMemoryTypeDevice
            : range.space == PH_SPACE_MANAGED ? cudaMemoryTypeManaged
                                              : cudaMemoryTypeHost;
  a->device = range.device < 0 ? 0 : range.device;
  a->devicePointer = (void *)pointer;
  a->hostPointer = range.space == PH_SPACE_DEVICE ? NULL : (void *)pointer;
  return 0;
}
static cudaError_t host_flags(unsigned *flags, void *pointer) {
  ph_range range;
  if (!ph_memory_find(pointer, &range) ||
      (range.space != PH_SPACE_PINNED && range.space != PH_SPACE_REGISTERED))
    return cudaErrorInvalidValue;
  return GIVE(flags, unsigned, 2);  // cudaHostAllocMapped: all page-locked memory is
}

ENTRY(cudaMalloc, MALLOC, phc_context, (void **pointer, size_t bytes), phc_malloc(pointer, bytes))
ENTRY(cudaFree, FREE, phc_context, (void *pointer), phc_free(pointer))
ENTRY(cudaMallocManaged, MALLOC, phc_context, (void **pointer, size_t bytes, unsigned flags),
      phc_managed_alloc(pointer, bytes, flags))
ENTRY(cudaMallocPitch, MALLOC, phc_context, (void **pointer, size_t *pitch, size_t width, size_t height),
      phc_pitch_alloc(pointer, pitch, width, height))
static cudaError_t malloc_3d(cudaPitchedPtr *pitched, cudaExtent extent) {
  if (!pitched || (extent.depth && extent.height > SIZE_MAX / extent.depth)) return cudaErrorInvalidValue;
  cudaError_t error =
      phc_pitch_alloc(&pitched->ptr, &pitched->pitch, extent.width, extent.height * extent.depth);
  pitched->xsize = extent.width;
  pitched->ysize = extent.height;
  return error;
}
ENTRY(cudaMalloc3D, MALLOC, phc_context, (cudaPitchedPtr * pitched, cudaExtent extent),
      malloc_3d(pitched, extent))
ENTRY(cudaMallocHost, HOST_ALLOC, phc_context, (void **pointer, size_t bytes),
      phc_pinned_alloc(pointer, bytes, 0))
ENTRY(cudaHostAlloc, HOST_ALLOC, phc_context, (void **pointer, size_t bytes, unsigned flags),
      phc_pinned_alloc(pointer, bytes, flags))
ENTRY(cudaFreeHost, HOST_FREE, phc_context, (void *pointer), phc_pinned_free(pointer))
ENTRY(cudaHostRegister, HOST_ALLOC, phc_context, (void *pointer, size_t bytes, unsigned flags),
      phc_host_register(pointer, bytes, flags))
ENTRY(cudaHostUnregister, HOST_FREE, phc_context, (void *pointer), phc_host_unregister(pointer))
ENTRY(cudaHostGetDevicePointer, GET_DEVICE, phc_context, (void **device, void *host, unsigned flags),
      phc_host_device_pointer(device, host, flags))
ENTRY(cudaHostGetFlags, GET_DEVICE, phc_context, (unsigned *flags, void *pointer), host_flags(flags, pointer))
ENTRY(cudaMemGetInfo, OTHER, phc_context, (size_t *free_bytes, size_t *total_bytes),
      memory_info(free_bytes, total_bytes))
ENTRY(cudaPointerGetAttributes, GET_DEVICE, phc_ready, (cudaPointerAttributes * a, const void *pointer),
      pointer_attributes(a, pointer))
// Hints about managed memory: taken, checked, and without effect on simulated time.
#if PH_CUDA_MAJOR >= 13
ENTRY(cudaMemAdvise, OTHER, phc_context,
      (const void *pointer, size_t bytes, int advice, cudaMemLocation location),
      ((void)location, advice < 1 || advice > 6 || !phc_covered(pointer, bytes) ? cudaErrorInvalidValue : 0))
STREAM(cudaMemPrefetchAsync, _ptsz, OTHER,
       (const void *pointer, size_t bytes, cudaMemLocation location, unsigned flags, void *stream),
       (pointer, bytes, location, flags, stream),
       ((void)location,
        flags || !phc_covered(pointer, bytes) ? cudaErrorInvalidValue : stream_alive(stream, per_thread)))
#else
ENTRY(cudaMemAdvise, OTHER, phc_context, (const void *pointer, size_t bytes, int advice, int device),
      ((void)device, advice < 1 || advice > 6 || !phc_covered(pointer, bytes) ? cudaErrorInvalidValue : 0))
STREAM(cudaMemPrefetchAsync, _ptsz, OTHER, (const void *pointer, size_t bytes, int device, void *stream),
       (pointer, bytes, device, stream),
       ((void)device,
        !phc_covered(pointer, bytes) ? cudaErrorInvalidValue : stream_alive(stream, per_thread)))
#endif

static cudaError_t peer_copy(void *dst, int dst_device, const void *src, int src_device, size_t bytes,
                             void *stream, int flags) {
  cudaError_t error = phc_device_check(dst_device);
  if (!error) error = phc_device_check(src_device);
  return error ? error : phc_copy(dst, src, bytes, cudaMemcpyDefault, stream, flags);
}
STREAM(cudaMemcpy, _ptds, MEMCPY_SYNC, (void *dst, const void *src, size_t bytes, int kind),
       (dst, src, bytes, kind), phc_copy(dst, src, bytes, kind, NULL, sync_flag(per_thread)))
STREAM(cudaMemcpyAsync, _ptsz, MEMCPY_ASYNC,
       (void *dst, const void *src, size_t bytes, int kind, void *stream), (dst, src, bytes, kind, stream),
       phc_copy(dst, src, bytes, kind, stream, async_flag(per_thread)))
STREAM(cudaMemcpyPeer, _ptds, MEMCPY_SYNC,
       (void *dst, int dst_device, const void *src, int src_device, size_t bytes),
       (dst, dst_device, src, src_device, bytes),
       peer_copy(dst, dst_device, src, src_device, bytes, NULL, sync_flag(per_thread)))
STREAM(cudaMemcpyPeerAsync, _ptsz, MEMCPY_ASYNC,
       (void *dst, int dst_device, const void *src, int src_device, size_t bytes, void *stream),
       (dst, dst_device, src, src_device, bytes, stream),
       peer_copy(dst, dst_device, src, src_device, bytes, stream, async_flag(per_thread)))
#define COPY_2D \
  void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height, int kind
#define COPY_2D_ARGUMENTS dst, dst_pitch, src, src_pitch, width, height, kind
STREAM(cudaMemcpy2D, _ptds, MEMCPY_SYNC, (COPY_2D), (COPY_2D_ARGUMENTS),
       phc_copy_2d(COPY_2D_ARGUMENTS, NULL, sync_flag(per_thread)))
STREAM(cudaMemcpy2DAsync, _ptsz, MEMCPY_ASYNC, (COPY_2D, void *stream), (COPY_2D_ARGUMENTS, stream),
       phc_copy_2d(COPY_2D_ARGUMENTS, stream, async_flag(per_thread)))
STREAM(cudaMemcpy3D, _ptds, MEMCPY_SYNC, (const cudaMemcpy3DParms *p), (p),
       phc_copy_3d(p, NULL, sync_flag(per_thread)))
STREAM(cudaMemcpy3DAsync, _ptsz, MEMCPY_ASYNC, (const cudaMemcpy3DParms *p, void *stream), (p, stream),
       phc_copy_3d(p, stream, async_flag(per_thread)))

static cudaError_t copy_batch(void *const *dsts, const void *const *srcs, const size_t *sizes, size_t count,
                              size_t *failed, void *stream, bool per_thread) {
  if (!dsts || !srcs || !sizes || !count) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; i++) {
    cudaError_t error =
        phc_copy(dsts[i], srcs[i], sizes[i], cudaMemcpyDefault, stream, async_flag(per_thread));
    if (!error) continue;
    if (failed) *failed = i;
    return error;
  }
  return 0;
}
#if PH_CUDA_MAJOR >= 13
STREAM(cudaMemcpyBatchAsync, _ptsz, MEMCPY_ASYNC,
       (void *const *dsts, const void *const *srcs, const size_t *sizes, size_t count, void *attributes,
        size_t *indices, size_t attribute_count, void *stream),
       (dsts, srcs, sizes, count, attributes, indices, attribute_count, stream),
       ((void)attributes, (void)indices, (void)attribute_count,
        copy_batch(dsts, srcs, sizes, count, NULL, stream, per_thread)))
#else
STREAM(cudaMemcpyBatchAsync, _ptsz, MEMCPY_ASYNC,
       (void **dsts, void **srcs, size_t *sizes, size_t count, void *attributes, size_t *indices,
        size_t attribute_count, size_t *failed, void *stream),
       (dsts, srcs, sizes, count, attributes, indices, attribute_count, failed, stream),
       ((void)attributes, (void)indices, (void)attribute_count,
        copy_batch(dsts, (const void *const *)srcs, sizes, count, failed, stream, per_thread)))
#endif

STREAM(cudaMemset, _ptds, MEMSET, (void *pointer, int value, size_t bytes), (pointer, value, bytes),
       phc_set(pointer, 0, (uint8_t)value, 1, bytes, 1, NULL, sync_flag(per_thread)))
STREAM(cudaMemsetAsync, _ptsz, MEMSET, (void *pointer, int value, size_t bytes, void *stream),
       (pointer, value, bytes, stream),
       phc_set(pointer, 0, (uint8_t)value, 1, bytes, 1, stream, async_flag(per_thread)))
STREAM(cudaMemset2D, _ptds, MEMSET, (void *pointer, size_t pitch, int value, size_t width, size_t height),
       (pointer, pitch, value, width, height),
       phc_set(pointer, pitch, (uint8_t)value, 1, width, height, NULL, sync_flag(per_thread)))
STREAM(cudaMemset2DAsync, _ptsz, MEMSET,
       (void *pointer, size_t pitch, int value, size_t width, size_t height, void *stream),
       (pointer, pitch, value, width, height, stream),
       phc_set(pointer, pitch, (uint8_t)value, 1, width, height, stream, async_flag(per_thread)))
// Slices of a 3D region follow each other at pitch * ysize: whole rows when the region fills them.
static cudaError_t set_3d(cudaPitchedPtr p, int value, cudaExtent extent, void *stream, int flags) {
  if (extent.height > p.ysize && extent.depth > 1) return cudaErrorInvalidValue;
  for (size_t z = 0; z < extent.depth; z++) {
    cudaError_t error = phc_set((char *)p.ptr + z * p.pitch * p.ysize, p.pitch, (uint8_t)value, 1,
                                extent.width, extent.height, stream, flags);
    if (error) return error;
  }
  return 0;
}
STREAM(cudaMemset3D, _ptds, MEMSET, (cudaPitchedPtr p, int value, cudaExtent extent), (p, value, extent),
       set_3d(p, value, extent, NULL, sync_flag(per_thread)))
STREAM(cudaMemset3DAsync, _ptsz, MEMSET, (cudaPitchedPtr p, int value, cudaExtent extent, void *stream),
       (p, value, extent, stream), set_3d(p, value, extent, stream, async_flag(per_thread)))

// ---------------------------------------------------------------- pools
static cudaError_t default_pool(ph_pool **pool, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  return pool ? (*pool = phc_default_pool(device), 0) : cudaErrorInvalidValue;
}
static cudaError_t current_pool(ph_pool **pool, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  return pool ? (*pool = phc_current_pool(device), 0) : cudaErrorInvalidValue;
}
static cudaError_t set_pool(int device, ph_pool *pool) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!phc_pool_alive(pool)) return cudaErrorInvalidValue;
  phc_set_current_pool(device, pool);
  return 0;
}
static cudaError_t pool_create(ph_pool **pool, const cudaMemPoolProps *props) {
  if (!pool || !props || props->allocType != 1 || props->location.type != 1) return cudaErrorInvalidValue;
  cudaError_t error = phc_device_check(props->location.id);
  if (error) return error;
  if (props->handleTypes)
    return unsupported("cudaMemPoolCreate with shareable handles", cudaErrorNotSupported);
  *pool = phc_pool_create(props->location.id);
  return *pool ? 0 : cudaErrorMemoryAllocation;
}
static cudaError_t pool_access(ph_pool *pool, const cudaMemAccessDesc *list, size_t count) {
  if (!phc_pool_alive(pool) || (count && !list)) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; i++) {
    if (list[i].location.type != 1 || phc_device_check(list[i].location.id)) return cudaErrorInvalidDevice;
    if (list[i].flags != 0 && list[i].flags != 3) return cudaErrorInvalidValue;
  }
  return 0;
}
ENTRY(cudaDeviceGetDefaultMemPool, GET_DEVICE, phc_ready, (ph_pool * *pool, int device),
      default_pool(pool, device))
ENTRY(cudaDeviceGetMemPool, GET_DEVICE, phc_ready, (ph_pool * *pool, int device), current_pool(pool, device))
ENTRY(cudaDeviceSetMemPool, GET_DEVICE, phc_ready, (int device, ph_pool *pool), set_pool(device, pool))
ENTRY(cudaMemPoolCreate, OTHER, phc_context, (ph_pool * *pool, const cudaMemPoolProps *props),
      pool_create(pool, props))
ENTRY(cudaMemPoolDestroy, OTHER, phc_context, (ph_pool * pool), phc_pool_destroy(pool))
ENTRY(cudaMemPoolGetAttribute, GET_DEVICE, phc_ready, (ph_pool * pool, int attribute, void *value),
      phc_pool_attribute(pool, attribute, value, false))
ENTRY(cudaMemPoolSetAttribute, GET_DEVICE, phc_ready, (ph_pool * pool, int attribute, void *value),
      phc_pool_attribute(pool, attribute, value, true))
ENTRY(cudaMemPoolTrimTo, OTHER, phc_context, (ph_pool * pool, size_t keep), phc_pool_trim(pool, keep))
ENTRY(cudaMemPoolSetAccess, OTHER, phc_ready, (ph_pool * pool, const cudaMemAccessDesc *list, size_t count),
      pool_access(pool, list, count))
ENTRY(cudaMemPoolGetAccess, GET_DEVICE, phc_ready, (int *flags, ph_pool *pool, cudaMemLocation *location),
      phc_pool_alive(pool) && location ? GIVE(flags, int, 3) : cudaErrorInvalidValue)
STREAM(cudaMallocAsync, _ptsz, MALLOC, (void **pointer, size_t bytes, void *stream), (pointer, bytes, stream),
       phc_pool_alloc(pointer, bytes, phc_current_pool(ph_current_device()), stream, per_thread))
STREAM(cudaMallocFromPoolAsync, _ptsz, MALLOC, (void **pointer, size_t bytes, ph_pool *pool, void *stream),
       (pointer, bytes, pool, stream), phc_pool_alloc(pointer, bytes, pool, stream, per_thread))
STREAM(cudaFreeAsync, _ptsz, FREE, (void *pointer, void *stream), (pointer, stream),
       phc_pool_free(pointer, stream, per_thread))

// ---------------------------------------------------------------- between processes
ENTRY(cudaIpcGetMemHandle, OTHER, phc_context, (cudaIpcHandle * handle, void *pointer),
      phc_ipc_handle(handle, pointer))
ENTRY(cudaIpcOpenMemHandle, OTHER, phc_context, (void **pointer, cudaIpcHandle handle, unsigned flags),
      flags > 1 ? cudaErrorInvalidValue : phc_ipc_open(pointer, &handle))
ENTRY(cudaIpcCloseMemHandle, OTHER, phc_context, (void *pointer), phc_ipc_close(pointer))
ENTRY(cudaIpcGetEventHandle, OTHER, phc_context, (cudaIpcHandle * handle, void *event),
      phc_ipc_event_handle(handle, event))
ENTRY(cudaIpcOpenEventHandle, OTHER, phc_context, (void **event, cudaIpcHandle handle),
      phc_ipc_event_open(event, &handle))

// ---------------------------------------------------------------- the driver below
static cudaError_t driver_entry(const char *name, void **function, unsigned version, unsigned long long flags,
                                int *status) {
  typedef CUresult lookup(const char *, void **, int, uint64_t, int *);
  static lookup *find;
  if (!name || !function) return cudaErrorInvalidValue;
  if (!find) {
    find = (lookup *)dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
    void *driver = find ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (driver) find = (lookup *)dlsym(driver, "cuGetProcAddress_v2");
    if (!find) return cudaErrorSymbolNotFound;
  }
  return find(name, function, (int)version, flags, status);
}
static cudaError_t driver_entry_now(const char *name, void **function, unsigned version,
                                    unsigned long long flags, int *status) {
  int found = 0;
  cudaError_t error = driver_entry(name, function, version, flags, &found);
  if (status) *status = found;
  return error;
}
#define ENTRY_POINT(name, parameters, version)                                                             \
  ENTRY(name, GET_DEVICE, nothing, parameters, driver_entry_now(symbol, function, version, flags, status)) \
  ENTRY(name##_ptsz, GET_DEVICE, nothing, parameters,                                                      \
        driver_entry_now(symbol, function, version, flags | 2, status))
ENTRY_POINT(cudaGetDriverEntryPoint,
            (const char *symbol, void **function, unsigned long long flags, int *status),
            PH_CUDA_RUNTIME_VERSION)
ENTRY_POINT(cudaGetDriverEntryPointByVersion,
            (const char *symbol, void **function, unsigned version, unsigned long long flags, int *status),
            version)

// A library is a module of the driver.
static void *driver_call(const char *name) {
  void *function = NULL;
  return driver_entry(name, &function, PH_CUDA_DRIVER_VERSION, 0, &(int){0}) ? NULL : function;
}
#define FORWARD(name, target, parameters, arguments)                     \
  static cudaError_t name##_forward parameters {                         \
    static cudaError_t(*call) parameters;                                \
    if (!call) call = (cudaError_t(*) parameters)driver_call(#target);   \
    return call ? call arguments : (cudaError_t)cudaErrorSymbolNotFound; \
  }                                                                      \
  ENTRY(name, OTHER, phc_context, parameters, name##_forward arguments)
#define LOAD                                                                                 \
  (void **library, const void *from, int *options, void **values, unsigned count, int *more, \
   void **more_values, unsigned more_count)
#define LOAD_ARGUMENTS (library, from, options, values, count, more, more_values, more_count)
FORWARD(cudaLibraryLoadData, cuLibraryLoadData, LOAD, LOAD_ARGUMENTS)
FORWARD(cudaLibraryLoadFromFile, cuLibraryLoadFromFile, LOAD, LOAD_ARGUMENTS)
FORWARD(cudaLibraryUnload, cuLibraryUnload, (void *library), (library))
FORWARD(cudaLibraryGetKernel, cuLibraryGetKernel, (void **kernel, void *library, const char *name),
        (kernel, library, name))
FORWARD(cudaLibraryGetKernelCount, cuLibraryGetKernelCount, (unsigned *count, void *library),
        (count, library))
FORWARD(cudaLibraryEnumerateKernels, cuLibraryEnumerateKernels,
        (void **kernels, unsigned room, void *library), (kernels, room, library))
FORWARD(cudaLibraryGetGlobal, cuLibraryGetGlobal,
        (void **address, size_t *bytes, void *library, const char *name), (address, bytes, library, name))

// ---------------------------------------------------------------- the rest
#if PH_CUDA_MAJOR == 12
ENTRY(cudaThreadSynchronize, STREAM_SYNC, phc_context, (void), phc_device_sync())
ENTRY(cudaThreadExit, OTHER, phc_context, (void), phc_device_sync())
#endif
typedef struct cudaChannelFormatDesc {
  int x, y, z, w, f;
} cudaChannelFormatDesc;
PH_EXPORT cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, int f) {
  return (cudaChannelFormatDesc){x, y, z, w, f};
}
// Further calls of the two versions: present, so that extensions which import them load, and loud when
// called. (Calls that torch imports and that are nowhere in this file get their traps from the build.)
#define UNSUPPORTED_CALLS(X)                                                                               \
  X(__cudaGetProcAddress) X(__cudaRegisterUnifiedTable) X(cudaArrayGetInfo)                                \
  X(cudaArrayGetMemoryRequirements) X(cudaArrayGetPlane) X(cudaArrayGetSparseProperties)                   \
  X(cudaDestroyExternalMemory) X(cudaDestroyExternalSemaphore) X(cudaDestroySurfaceObject)                 \
  X(cudaDestroyTextureObject) X(cudaDeviceGetGraphMemAttribute) X(cudaDeviceGetHostAtomicCapabilities)     \
  X(cudaDeviceGetP2PAtomicCapabilities) X(cudaDeviceGetTexture1DLinearMaxWidth) X(cudaDeviceGraphMemTrim)  \
  X(cudaDeviceRegisterAsyncNotification) X(cudaDeviceSetGraphMemAttribute)                                 \
  X(cudaDeviceUnregisterAsyncNotification) X(cudaExternalMemoryGetMappedBuffer)                            \
  X(cudaExternalMemoryGetMappedMipmappedArray) X(cudaFreeArray) X(cudaFreeMipmappedArray)                  \
  X(cudaFuncGetParamInfo) X(cudaGetChannelDesc) X(cudaGetExportTable) X(cudaGetMipmappedArrayLevel)        \
  X(cudaGetSurfaceObjectResourceDesc) X(cudaGetTextureObjectResourceDesc)                                  \
  X(cudaGetTextureObjectResourceViewDesc) X(cudaGetTextureObjectTextureDesc)                               \
  X(cudaGraphAddDependencies_v2) X(cudaGraphAddEventRecordNode) X(cudaGraphAddEventWaitNode)               \
  X(cudaGraphAddExternalSemaphoresSignalNode) X(cudaGraphAddExternalSemaphoresWaitNode)                    \
  X(cudaGraphAddMemAllocNode) X(cudaGraphAddMemFreeNode) X(cudaGraphAddMemcpyNode1D)                       \
  X(cudaGraphAddMemcpyNodeFromSymbol) X(cudaGraphAddMemcpyNodeToSymbol) X(cudaGraphAddNode_v2)             \
  X(cudaGraphChildGraphNodeGetGraph) X(cudaGraphDestroyNode) X(cudaGraphEventRecordNodeGetEvent)           \
  X(cudaGraphEventRecordNodeSetEvent) X(cudaGraphEventWaitNodeGetEvent) X(cudaGraphEventWaitNodeSetEvent)  \
  X(cudaGraphExecChildGraphNodeSetParams) X(cudaGraphExecEventRecordNodeSetEvent)                          \
  X(cudaGraphExecEventWaitNodeSetEvent) X(cudaGraphExecExternalSemaphoresSignalNodeSetParams)              \
  X(cudaGraphExecExternalSemaphoresWaitNodeSetParams) X(cudaGraphExecGetFlags)                             \
  X(cudaGraphExecHostNodeSetParams) X(cudaGraphExecMemcpyNodeSetParams)                                    \
  X(cudaGraphExecMemcpyNodeSetParams1D) X(cudaGraphExecMemcpyNodeSetParamsFromSymbol)                      \
  X(cudaGraphExecMemcpyNodeSetParamsToSymbol) X(cudaGraphExecMemsetNodeSetParams)                          \
  X(cudaGraphExecNodeSetParams) X(cudaGraphExternalSemaphoresSignalNodeGetParams)                          \
  X(cudaGraphExternalSemaphoresSignalNodeSetParams) X(cudaGraphExternalSemaphoresWaitNodeGetParams)        \
  X(cudaGraphExternalSemaphoresWaitNodeSetParams) X(cudaGraphGetEdges) X(cudaGraphGetEdges_v2)             \
  X(cudaGraphHostNodeGetParams) X(cudaGraphHostNodeSetParams) X(cudaGraphInstantiateWithParams_ptsz)       \
  X(cudaGraphKernelNodeCopyAttributes) X(cudaGraphKernelNodeGetAttribute)                                  \
  X(cudaGraphKernelNodeSetAttribute) X(cudaGraphMemAllocNodeGetParams) X(cudaGraphMemFreeNodeGetParams)    \
  X(cudaGraphMemcpyNodeGetParams) X(cudaGraphMemcpyNodeSetParams) X(cudaGraphMemcpyNodeSetParams1D)        \
  X(cudaGraphMemcpyNodeSetParamsFromSymbol) X(cudaGraphMemcpyNodeSetParamsToSymbol)                        \
  X(cudaGraphMemsetNodeGetParams) X(cudaGraphMemsetNodeSetParams) X(cudaGraphNodeFindInClone)              \
  X(cudaGraphNodeGetDependencies_v2) X(cudaGraphNodeGetDependentNodes)                                     \
  X(cudaGraphNodeGetDependentNodes_v2) X(cudaGraphNodeGetEnabled) X(cudaGraphNodeSetEnabled)               \
  X(cudaGraphNodeSetParams) X(cudaGraphReleaseUserObject) X(cudaGraphRemoveDependencies)                   \
  X(cudaGraphRemoveDependencies_v2) X(cudaGraphUpload_ptsz) X(cudaLaunchCooperativeKernelMultiDevice)      \
  X(cudaLibraryGetManaged) X(cudaLibraryGetUnifiedFunction) X(cudaLogsCurrent) X(cudaLogsDumpToFile)       \
  X(cudaLogsDumpToMemory) X(cudaLogsRegisterCallback) X(cudaLogsUnregisterCallback) X(cudaMemAdvise_v2)    \
  X(cudaMemDiscardAndPrefetchBatchAsync) X(cudaMemDiscardAndPrefetchBatchAsync_ptsz)                       \
  X(cudaMemDiscardBatchAsync) X(cudaMemDiscardBatchAsync_ptsz) X(cudaMemGetDefaultMemPool)                 \
  X(cudaMemGetMemPool) X(cudaMemPoolExportPointer) X(cudaMemPoolExportToShareableHandle)                   \
  X(cudaMemPoolImportFromShareableHandle) X(cudaMemPoolImportPointer) X(cudaMemPrefetchAsync_v2)           \
  X(cudaMemPrefetchAsync_v2_ptsz) X(cudaMemPrefetchBatchAsync) X(cudaMemPrefetchBatchAsync_ptsz)           \
  X(cudaMemRangeGetAttribute) X(cudaMemRangeGetAttributes) X(cudaMemSetMemPool)                            \
  X(cudaMemcpy2DArrayToArray) X(cudaMemcpy2DArrayToArray_ptds) X(cudaMemcpy2DFromArray)                    \
  X(cudaMemcpy2DFromArrayAsync) X(cudaMemcpy2DFromArrayAsync_ptsz) X(cudaMemcpy2DFromArray_ptds)           \
  X(cudaMemcpy2DToArray) X(cudaMemcpy2DToArrayAsync) X(cudaMemcpy2DToArrayAsync_ptsz)                      \
  X(cudaMemcpy2DToArray_ptds) X(cudaMemcpy3DBatchAsync) X(cudaMemcpy3DBatchAsync_ptsz) X(cudaMemcpy3DPeer) \
  X(cudaMemcpy3DPeerAsync) X(cudaMemcpy3DPeerAsync_ptsz) X(cudaMemcpy3DPeer_ptds)                          \
  X(cudaMemcpyArrayToArray) X(cudaMemcpyArrayToArray_ptds) X(cudaMemcpyFromArray)                          \
  X(cudaMemcpyFromArrayAsync) X(cudaMemcpyFromArrayAsync_ptsz) X(cudaMemcpyFromArray_ptds)                 \
  X(cudaMemcpyToArray) X(cudaMemcpyToArrayAsync) X(cudaMemcpyToArrayAsync_ptsz) X(cudaMemcpyToArray_ptds)  \
  X(cudaMipmappedArrayGetMemoryRequirements) X(cudaMipmappedArrayGetSparseProperties)                      \
  X(cudaSetDoubleForDevice) X(cudaSetDoubleForHost) X(cudaSignalExternalSemaphoresAsync)                   \
  X(cudaSignalExternalSemaphoresAsync_ptsz) X(cudaSignalExternalSemaphoresAsync_v2)                        \
  X(cudaSignalExternalSemaphoresAsync_v2_ptsz) X(cudaStreamBeginCaptureToGraph_ptsz)                       \
  X(cudaStreamUpdateCaptureDependencies_ptsz) X(cudaStreamUpdateCaptureDependencies_v2)                    \
  X(cudaStreamUpdateCaptureDependencies_v2_ptsz) X(cudaThreadGetCacheConfig) X(cudaThreadGetLimit)         \
  X(cudaThreadSetCacheConfig) X(cudaThreadSetLimit) X(cudaUserObjectRelease) X(cudaUserObjectRetain)       \
  X(cudaWaitExternalSemaphoresAsync) X(cudaWaitExternalSemaphoresAsync_ptsz)                               \
  X(cudaWaitExternalSemaphoresAsync_v2) X(cudaWaitExternalSemaphoresAsync_v2_ptsz)
#define UNSUPPORTED_CALL(name)          \
  ENTRY(name, OTHER, phc_ready, (void), \
        (ph_unsupported("libcudart", #name, false), (cudaError_t)cudaErrorNotSupported))
UNSUPPORTED_CALLS(UNSUPPORTED_CALL)
