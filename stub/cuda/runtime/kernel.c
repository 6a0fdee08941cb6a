// Kernels: handles, attributes, occupancy.
#include "cuda/core/device.h"
#include "cuda/core/kernel.h"
#include "cuda/runtime/entry.h"

cudaError_t cudart_no_kernel(const void *function) {
  return function ? cudaErrorInvalidResourceHandle : cudaErrorInvalidDeviceFunction;
}
static cudaError_t get_kernel(void **kernel, const void *function) {
  if (!kernel) return cudaErrorInvalidValue;
  *kernel = phc_kernel_find(function);
  return *kernel ? 0 : cudart_no_kernel(function);
}
// Called once per launch site, also before a device exists: it costs nothing and needs none.
PH_EXPORT cudaError_t __cudaGetKernel(void **kernel, const void *function) { return get_kernel(kernel, function); }
ENTRY(cudaGetKernel, GET_DEVICE, nothing, (void **kernel, const void *function), get_kernel(kernel, function))
ENTRY(cudaGetFuncBySymbol, GET_DEVICE, phc_context, (void **function, const void *symbol), get_kernel(function, symbol))

static cudaError_t function_attributes(cudaFuncAttributes *a, const void *function) {
  phc_kernel *kernel = phc_kernel_find(function);
  if (!a) return cudaErrorInvalidValue;
  if (!kernel) return cudart_no_kernel(function);
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
  phc_kernel *kernel = phc_kernel_find(function);
  return kernel ? phc_kernel_set_attribute(kernel, attribute, value) : cudart_no_kernel(function);
}
static cudaError_t check_function(const void *function) {
  return phc_kernel_find(function) ? 0 : cudart_no_kernel(function);
}
static cudaError_t function_name(const char **name, const void *function) {
  phc_kernel *kernel = phc_kernel_find(function);
  if (!name) return cudaErrorInvalidValue;
  return kernel ? (*name = kernel->symbol, 0) : cudart_no_kernel(function);
}
ENTRY(cudaFuncGetAttributes, GET_DEVICE, phc_context, (cudaFuncAttributes * a, const void *function),
      function_attributes(a, function))
ENTRY(cudaFuncSetAttribute, GET_DEVICE, phc_context, (const void *function, int attribute, int value),
      set_function_attribute(function, attribute, value))
ENTRY(cudaKernelSetAttributeForDevice, GET_DEVICE, phc_context, (void *kernel, int attribute, int value, int device),
      phc_device_check(device) ? cudaErrorInvalidDevice : set_function_attribute(kernel, attribute, value))
ENTRY(cudaFuncSetCacheConfig, GET_DEVICE, phc_context, (const void *function, int config),
      config < 0 || config > 3 ? cudaErrorInvalidValue : check_function(function))
ENTRY(cudaFuncSetSharedMemConfig, GET_DEVICE, phc_context, (const void *function, int config),
      config < 0 || config > 2 ? cudaErrorInvalidValue : check_function(function))
ENTRY(cudaFuncGetName, GET_DEVICE, phc_context, (const char **name, const void *function),
      function_name(name, function))

static cudaError_t occupancy(int *blocks, const void *function, int threads, size_t shared) {
  phc_kernel *kernel = phc_kernel_find(function);
  return kernel ? phc_occupancy(blocks, kernel, threads, shared) : cudart_no_kernel(function);
}
static cudaError_t available_shared(size_t *bytes, const void *function, int blocks, int threads) {
  phc_kernel *kernel = phc_kernel_find(function);
  return kernel ? phc_available_shared(bytes, kernel, blocks, threads) : cudart_no_kernel(function);
}
static cudaError_t active_clusters(int *clusters, const void *function, const cudaLaunchConfig_t *c) {
  phc_kernel *kernel = phc_kernel_find(function);
  if (!kernel) return cudart_no_kernel(function);
  if (!c) return cudaErrorInvalidValue;
  return phc_max_active_clusters(clusters, kernel, (int)(c->blockDim.x * c->blockDim.y * c->blockDim.z),
                                 c->dynamicSmemBytes, c->attrs, c->numAttrs);
}
static cudaError_t potential_cluster(int *size, const void *function, const cudaLaunchConfig_t *c) {
  phc_kernel *kernel = phc_kernel_find(function);
  if (!kernel) return cudart_no_kernel(function);
  return c ? GIVE(size, int, phc_potential_cluster(kernel)) : cudaErrorInvalidValue;
}
ENTRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor, GET_DEVICE, phc_context,
      (int *blocks, const void *function, int threads, size_t shared), occupancy(blocks, function, threads, shared))
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
      (int *size, const void *function, const cudaLaunchConfig_t *config), potential_cluster(size, function, config))
