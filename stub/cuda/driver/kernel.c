// Kernels and functions: names, attributes.
#include "cuda/core/device.h"
#include "cuda/core/kernel.h"
#include "cuda/driver/entry.h"
#include "cuda/driver/module.h"

static cudaError_t kernel_get(void *to, phc_kernel *kernel) {
  return phc_kernel_find(kernel) ? GIVE(to, phc_kernel *, kernel) : cudaErrorInvalidResourceHandle;
}
static cudaError_t kernel_name(const char **name, phc_kernel *kernel) {
  return phc_kernel_find(kernel) ? GIVE(name, const char *, kernel->symbol) : cudaErrorInvalidResourceHandle;
}
static cudaError_t kernel_owner(driver_module **module, phc_kernel *kernel) {
  if (!phc_kernel_find(kernel)) return cudaErrorInvalidResourceHandle;
  driver_module *owner = (driver_module *)(void *)kernel->owner;  // `owned` is the first field
  return driver_module_alive(owner) ? GIVE(module, driver_module *, owner) : cudaErrorSymbolNotFound;
}
static cudaError_t kernel_attribute(int *value, int attribute, phc_kernel *kernel) {
  return phc_kernel_find(kernel) ? phc_kernel_attribute(kernel, attribute, value) : cudaErrorInvalidResourceHandle;
}
static cudaError_t kernel_set_attribute(phc_kernel *kernel, int attribute, int value) {
  return phc_kernel_find(kernel) ? phc_kernel_set_attribute(kernel, attribute, value) : cudaErrorInvalidResourceHandle;
}
static cudaError_t kernel_check(phc_kernel *kernel, int config) {
  if (!phc_kernel_find(kernel)) return cudaErrorInvalidResourceHandle;
  return config < 0 || config > 3 ? cudaErrorInvalidValue : 0;
}
ENTRY(cuKernelGetFunction, GET_DEVICE, driver_current, (phc_kernel * *function, phc_kernel *kernel),
      kernel_get(function, kernel))
ENTRY(cuKernelGetName, GET_DEVICE, driver_ready, (const char **name, phc_kernel *kernel), kernel_name(name, kernel))
ENTRY(cuKernelGetLibrary, GET_DEVICE, driver_ready, (driver_module * *library, phc_kernel *kernel),
      kernel_owner(library, kernel))
ENTRY(cuKernelGetAttribute, GET_DEVICE, driver_ready, (int *value, int attribute, phc_kernel *kernel, int device),
      phc_device_check(device) ? cudaErrorInvalidDevice : kernel_attribute(value, attribute, kernel))
ENTRY(cuKernelSetAttribute, GET_DEVICE, driver_ready, (int attribute, int value, phc_kernel *kernel, int device),
      phc_device_check(device) ? cudaErrorInvalidDevice : kernel_set_attribute(kernel, attribute, value))
ENTRY(cuKernelSetCacheConfig, GET_DEVICE, driver_ready, (phc_kernel * kernel, int config, int device),
      phc_device_check(device) ? cudaErrorInvalidDevice : kernel_check(kernel, config))
ENTRY(cuFuncGetName, GET_DEVICE, driver_current, (const char **name, phc_kernel *function), kernel_name(name, function))
ENTRY(cuFuncGetModule, GET_DEVICE, driver_current, (driver_module * *module, phc_kernel *function),
      kernel_owner(module, function))
ENTRY(cuFuncGetAttribute, GET_DEVICE, driver_current, (int *value, int attribute, phc_kernel *function),
      kernel_attribute(value, attribute, function))
ENTRY(cuFuncSetAttribute, GET_DEVICE, driver_current, (phc_kernel * function, int attribute, int value),
      kernel_set_attribute(function, attribute, value))
ENTRY(cuFuncSetCacheConfig, GET_DEVICE, driver_current, (phc_kernel * function, int config),
      kernel_check(function, config))
ENTRY(cuFuncSetSharedMemConfig, GET_DEVICE, driver_current, (phc_kernel * function, int config),
      config > 2 ? cudaErrorInvalidValue : kernel_check(function, config))
ENTRY(cuFuncLoad, OTHER, driver_current, (phc_kernel * function), kernel_check(function, 0))
ENTRY(cuFuncIsLoaded, GET_DEVICE, driver_current, (int *state, phc_kernel *function),
      kernel_check(function, 0) ? cudaErrorInvalidResourceHandle : GIVE(state, int, 1))
