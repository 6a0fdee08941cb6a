// Entry points of the driver, and libraries, which are the driver's modules.
#define _GNU_SOURCE
#include "cuda/runtime/entry.h"

#include <dlfcn.h>

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
static cudaError_t driver_entry_now(const char *name, void **function, unsigned version, unsigned long long flags,
                                    int *status) {
  int found = 0;
  cudaError_t error = driver_entry(name, function, version, flags, &found);
  if (status) *status = found;
  return error;
}
// clang-format off
#define ENTRY_POINT(name, parameters, version)                                                             \
  ENTRY(name, GET_DEVICE, nothing, parameters, driver_entry_now(symbol, function, version, flags, status)) \
  ENTRY(name##_ptsz, GET_DEVICE, nothing, parameters,                                                      \
        driver_entry_now(symbol, function, version, flags | 2, status))
// clang-format on
ENTRY_POINT(cudaGetDriverEntryPoint, (const char *symbol, void **function, unsigned long long flags, int *status),
            PH_CUDA_RUNTIME_VERSION)
ENTRY_POINT(cudaGetDriverEntryPointByVersion,
            (const char *symbol, void **function, unsigned version, unsigned long long flags, int *status), version)

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
#define LOAD                                                                                                     \
  (void **library, const void *from, int *options, void **values, unsigned count, int *more, void **more_values, \
   unsigned more_count)
#define LOAD_ARGUMENTS (library, from, options, values, count, more, more_values, more_count)
FORWARD(cudaLibraryLoadData, cuLibraryLoadData, LOAD, LOAD_ARGUMENTS)
FORWARD(cudaLibraryLoadFromFile, cuLibraryLoadFromFile, LOAD, LOAD_ARGUMENTS)
FORWARD(cudaLibraryUnload, cuLibraryUnload, (void *library), (library))
FORWARD(cudaLibraryGetKernel, cuLibraryGetKernel, (void **kernel, void *library, const char *name),
        (kernel, library, name))
FORWARD(cudaLibraryGetKernelCount, cuLibraryGetKernelCount, (unsigned *count, void *library), (count, library))
FORWARD(cudaLibraryEnumerateKernels, cuLibraryEnumerateKernels, (void **kernels, unsigned room, void *library),
        (kernels, room, library))
FORWARD(cudaLibraryGetGlobal, cuLibraryGetGlobal, (void **address, size_t *bytes, void *library, const char *name),
        (address, bytes, library, name))
