// Modules. They are read for facts about their kernels: names, and from a CUBIN also registers,
// shared memory and launch bounds. An image whose contents are compressed (a fat binary) takes any
// kernel name.
#pragma once
#include "cuda/core/kernel.h"

typedef struct driver_module {
  phc_owner owned;  // the kernels, the last one first
  bool any_name;
  char *image;  // own copy of a CUBIN, for its variables; NULL otherwise
  size_t size;
  unsigned count;
} driver_module;
phc_kernel *driver_module_add(driver_module *module, const char *name, size_t length);
bool driver_module_alive(const driver_module *module);
bool driver_read_image(driver_module *module, const void *image);  // false: no image of a known kind
// The variable `name` of a CUBIN: a key of its own and its size. NULL: there is none.
const void *driver_find_variable(const driver_module *module, const char *name, size_t *size);
