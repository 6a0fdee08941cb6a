// Devices, their properties and limits.
#include "cuda/core/device.h"
#include "cuda/core/stream.h"
#include "cuda/runtime/entry.h"

#include <stdio.h>

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
  // clang-format off
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
  // clang-format on
#if PH_CUDA_MAJOR >= 13
                                                                          SAME(deviceNumaConfig, 130) SAME(
                                                                              deviceNumaId, 131) SAME(mpsEnabled, 133)
                                                                              SAME(hostNumaId, 134)
                                                                                  SAME(gpuPciDeviceID, 139)
                                                                                      SAME(gpuPciSubsystemID, 140) SAME(
                                                                                          hostNumaMultinodeIpcSupported,
                                                                                          143)
#else
                                                                  SAME(clockRate,
                                                                       13) SAME(deviceOverlap,
                                                                                15) SAME(kernelExecTimeoutEnabled, 17)
                                                                      SAME(computeMode, 20) SAME(maxTexture1DLinear, 69)
                                                                          SAME(memoryClockRate, 36)
                                                                              SAME(singleToDoublePrecisionPerfRatio, 87)
                                                                                  SAME(cooperativeMultiDeviceLaunch, 96)
#endif
                                                                                          return 0;
}

// The device with these properties: all are identical, so only what the caller must have can fail.
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
ENTRY(cudaGetDeviceFlags, GET_DEVICE, phc_ready, (unsigned *flags), GIVE(flags, unsigned, 8))  // cudaDeviceMapHost
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
ENTRY(cudaGetDeviceProperties_v2, GET_DEVICE, phc_ready, (cudaDeviceProp * p, int device), properties(p, device))
#endif
ENTRY(cudaDeviceGetPCIBusId, GET_DEVICE, phc_ready, (char *text, int length, int device),
      pci_bus_id(text, length, device))
ENTRY(cudaDeviceGetByPCIBusId, GET_DEVICE, phc_ready, (int *device, const char *text), by_pci_bus_id(device, text))
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
ENTRY(cudaDeviceDisablePeerAccess, OTHER, phc_context, (int peer), phc_peer_access(ph_current_device(), peer, false))
ENTRY(cudaDeviceGetP2PAttribute, GET_DEVICE, phc_ready, (int *value, int attribute, int source, int destination),
      phc_p2p_attribute(value, attribute, source, destination))
ENTRY(cudaDeviceFlushGPUDirectRDMAWrites, OTHER, phc_context, (int target, int scope),
      target || scope < 100 ? cudaErrorInvalidValue : 0)
ENTRY(cudaRuntimeGetVersion, GET_DEVICE, nothing, (int *version), GIVE(version, int, PH_CUDA_RUNTIME_VERSION))
ENTRY(cudaDriverGetVersion, GET_DEVICE, nothing, (int *version), GIVE(version, int, PH_CUDA_DRIVER_VERSION))
ENTRY(cudaProfilerStart, OTHER, phc_ready, (void), 0)
ENTRY(cudaProfilerStop, OTHER, phc_ready, (void), 0)
#if PH_CUDA_MAJOR == 12
ENTRY(cudaThreadSynchronize, STREAM_SYNC, phc_context, (void), phc_device_sync())
ENTRY(cudaThreadExit, OTHER, phc_context, (void), phc_device_sync())
#endif
