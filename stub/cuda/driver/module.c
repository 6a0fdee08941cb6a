// Modules and libraries.
#define _GNU_SOURCE
#include "cuda/core/device.h"
#include "cuda/core/kernel.h"
#include "cuda/core/table.h"
#include "cuda/driver/entry.h"
#include "cuda/driver/module.h"

#include <stdio.h>
#include <stdlib.h>

static phc_table *modules;

phc_kernel *driver_module_add(driver_module *module, const char *name, size_t length) {
  char *text = strndup(name, length);  // kept for good, as the kernel is
  if (!text) abort();
  module->count++;
  return phc_kernel_create(text, NULL, &module->owned);
}

static cudaError_t module_load(driver_module **out, const void *image) {
  if (!out || !image) return cudaErrorInvalidValue;
  driver_module *module = calloc(1, sizeof *module);
  if (!module) return cudaErrorMemoryAllocation;
  if (!driver_read_image(module, image)) {
    free(module);
    return cudaErrorInvalidKernelImage;
  }
  phc_table_set(&modules, (uintptr_t)module, module);
  *out = module;
  return 0;
}

static cudaError_t module_load_file(driver_module **out, const char *path) {
  FILE *file = path ? fopen(path, "rb") : NULL;
  if (!file) return path ? cudaErrorFileNotFound : cudaErrorInvalidValue;
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  char *image = size > 0 ? calloc(1, (size_t)size + 16) : NULL;
  cudaError_t error = cudaErrorInvalidKernelImage;
  if (image && fread(image, 1, (size_t)size, file) == (size_t)size) error = module_load(out, image);
  fclose(file);
  free(image);
  return error;
}

bool driver_module_alive(const driver_module *module) { return phc_table_get(&modules, (uintptr_t)module) != NULL; }

static cudaError_t module_unload(driver_module *module) {
  if (!driver_module_alive(module)) return cudaErrorInvalidResourceHandle;
  phc_table_set(&modules, (uintptr_t)module, NULL);
  phc_owner_drop(&module->owned);
  free(module->image);
  free(module);
  return 0;
}

static cudaError_t module_function(phc_kernel **kernel, driver_module *module, const char *name) {
  if (!kernel || !name) return cudaErrorInvalidValue;
  if (!driver_module_alive(module)) return cudaErrorInvalidResourceHandle;
  for (phc_kernel *at = module->owned.kernels; at; at = at->next)
    if (!strcmp(at->symbol, name)) return *kernel = at, 0;
  if (!module->any_name) return cudaErrorSymbolNotFound;
  *kernel = driver_module_add(module, name, strlen(name));
  return 0;
}

static cudaError_t module_variable(CUdeviceptr *address, size_t *bytes, driver_module *module, const char *name) {
  if (!name || !driver_module_alive(module)) return name ? cudaErrorInvalidResourceHandle : cudaErrorInvalidValue;
  size_t size = 0;
  const void *variable = driver_find_variable(module, name, &size);
  if (!variable) return cudaErrorSymbolNotFound;
  void *memory = NULL;
  if (phc_symbol_find(variable, NULL, NULL)) phc_symbol_register(variable, size, &module->owned);
  cudaError_t error = phc_symbol_find(variable, &memory, bytes);
  if (address) *address = (CUdeviceptr)memory;
  return error;
}

static cudaError_t module_list(phc_kernel **kernels, unsigned room, driver_module *module) {
  if (!kernels || !room) return cudaErrorInvalidValue;
  if (!driver_module_alive(module)) return cudaErrorInvalidResourceHandle;
  phc_kernel *at = module->owned.kernels;
  for (unsigned i = 0; i < room && at; i++, at = at->next) kernels[i] = at;
  return 0;
}
static cudaError_t module_count(unsigned *count, driver_module *module) {
  return driver_module_alive(module) ? GIVE(count, unsigned, module->count) : cudaErrorInvalidResourceHandle;
}

ENTRY(cuModuleLoadData, OTHER, driver_current, (driver_module * *module, const void *image), module_load(module, image))
ENTRY(cuModuleLoadDataEx, OTHER, driver_current,
      (driver_module * *module, const void *image, unsigned count, int *options, void **values),
      ((void)count, (void)options, (void)values, module_load(module, image)))
ENTRY(cuModuleLoadFatBinary, OTHER, driver_current, (driver_module * *module, const void *image),
      module_load(module, image))
ENTRY(cuModuleLoad, OTHER, driver_current, (driver_module * *module, const char *path), module_load_file(module, path))
ENTRY(cuModuleUnload, OTHER, driver_current, (driver_module * module), module_unload(module))
ENTRY(cuModuleGetFunction, OTHER, driver_current, (phc_kernel * *kernel, driver_module *module, const char *name),
      module_function(kernel, module, name))
ENTRY(cuModuleGetFunctionCount, GET_DEVICE, driver_current, (unsigned *count, driver_module *module),
      module_count(count, module))
ENTRY(cuModuleEnumerateFunctions, GET_DEVICE, driver_current,
      (phc_kernel * *kernels, unsigned room, driver_module *module), module_list(kernels, room, module))
ENTRY(cuModuleGetGlobal_v2, OTHER, driver_current,
      (CUdeviceptr * address, size_t *bytes, driver_module *module, const char *name),
      module_variable(address, bytes, module, name))
ALSO(cuModuleGetGlobal_v2, cuModuleGetGlobal)
ENTRY(cuModuleGetLoadingMode, GET_DEVICE, driver_ready, (int *mode), GIVE(mode, int, 2))  // lazy
// A library is a module that needs no context.
ENTRY(cuLibraryLoadData, OTHER, driver_ready,
      (driver_module * *library, const void *image, int *options, void **values, unsigned count, int *library_options,
       void **library_values, unsigned library_count),
      ((void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count,
       module_load(library, image)))
ENTRY(cuLibraryLoadFromFile, OTHER, driver_ready,
      (driver_module * *library, const char *path, int *options, void **values, unsigned count, int *library_options,
       void **library_values, unsigned library_count),
      ((void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count,
       module_load_file(library, path)))
ENTRY(cuLibraryUnload, OTHER, driver_ready, (driver_module * library), module_unload(library))
ENTRY(cuLibraryGetKernel, OTHER, driver_ready, (phc_kernel * *kernel, driver_module *library, const char *name),
      module_function(kernel, library, name))
ENTRY(cuLibraryGetKernelCount, GET_DEVICE, driver_ready, (unsigned *count, driver_module *library),
      module_count(count, library))
ENTRY(cuLibraryEnumerateKernels, GET_DEVICE, driver_ready,
      (phc_kernel * *kernels, unsigned room, driver_module *library), module_list(kernels, room, library))
ENTRY(cuLibraryGetModule, OTHER, driver_current, (driver_module * *module, driver_module *library),
      driver_module_alive(library) ? GIVE(module, driver_module *, library) : cudaErrorInvalidResourceHandle)
ENTRY(cuLibraryGetGlobal, OTHER, driver_current,
      (CUdeviceptr * address, size_t *bytes, driver_module *library, const char *name),
      module_variable(address, bytes, library, name))
