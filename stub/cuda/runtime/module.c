// Kernels and variables that a program's compilation units register.
#include "cuda/core/kernel.h"
#include "cuda/runtime/entry.h"

#include <stdlib.h>

// A compilation unit registers itself when its library is loaded, before any rank is connected:
// nothing here may need a device.
PH_EXPORT phc_owner *__cudaRegisterFatBinary(void *binary) {
  const struct {
    uint32_t magic, version;
    const void *image;
  } *wrapper = binary;
  phc_owner *handle = calloc(1, sizeof *handle);
  if (!handle) abort();
  if (wrapper && wrapper->magic == CUDA_FATBIN_WRAPPER) handle->image = wrapper->image;
  return handle;
}
PH_EXPORT void __cudaRegisterFatBinaryEnd(phc_owner *handle) { (void)handle; }
PH_EXPORT void __cudaUnregisterFatBinary(phc_owner *handle) { phc_owner_drop(handle); }
PH_EXPORT char __cudaInitModule(phc_owner *handle) { return handle != NULL; }
PH_EXPORT void __cudaRegisterFunction(phc_owner *handle, const char *host, char *device_function,
                                      const char *device_name, int thread_limit, void *tid, void *bid, void *block,
                                      void *grid, int *warp_size) {
  (void)device_function, (void)tid, (void)bid, (void)block, (void)grid, (void)warp_size;
  phc_kernel *kernel = phc_kernel_create(device_name, host, handle);
  if (thread_limit > 0) kernel->max_threads = thread_limit;
}
PH_EXPORT void __cudaRegisterVar(phc_owner *handle, char *host, char *address, const char *name, int external,
                                 size_t size, int constant, int global) {
  (void)address, (void)name, (void)external, (void)constant, (void)global;
  phc_symbol_register(host, size, handle);
}
PH_EXPORT void __cudaRegisterHostVar(phc_owner *handle, const char *name, char *host, size_t size) {
  (void)name;
  phc_symbol_register(host, size, handle);
}
// A managed variable is a pointer that the host follows too.
PH_EXPORT void __cudaRegisterManagedVar(phc_owner *handle, void **host, char *address, const char *name, int external,
                                        size_t size, int constant, int global) {
  (void)address, (void)name, (void)external, (void)constant, (void)global;
  *host = calloc(1, size ? size : 1);
  phc_symbol_register(host, size, handle);
}
