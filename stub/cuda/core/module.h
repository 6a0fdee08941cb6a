// Kernels and device variables, and what owns them: a module, or what a program registered in one go.
#pragma once
#include <stdatomic.h>
#include <stdint.h>
#include "abi/cuda_abi.h"

#pragma GCC visibility push(default)

typedef struct phc_owner {
  struct phc_kernel *kernels;
  struct phc_symbol *symbols;
  const void *image;  // the fat binary of a program, NULL for a module
  atomic_bool loaded; // one of its kernels was launched
} phc_owner;
typedef struct phc_kernel {
  const char *symbol;  // as the compiler named it (mangled); not copied, lives as long as the owner
  char *display;       // demangled, as profilers show it; made at the first launch
  uint32_t name;       // wire id of `display`, 0 before the first launch
  int max_threads, registers, static_shared, local_bytes, const_bytes;
  int max_dynamic_shared;  // 48 KiB less `static_shared` until raised
  int carveout, cluster[3], non_portable, policy;
  uint8_t symmetric;       // which of the kernels that symmetric.c knows; 0: not looked at yet
  uint8_t userbuffers;     // and userbuffers.c
  phc_owner *owner;
  struct phc_kernel *next;  // of the owner
  const void *host;         // address of the host function, NULL for a module's kernel
} phc_kernel;
phc_kernel *phc_kernel_create(const char *symbol, const void *host, phc_owner *owner);
phc_kernel *phc_kernel_find(const void *function);  // a host function's address or a handle; NULL: neither
const char *phc_kernel_display(phc_kernel *kernel);
void phc_owner_drop(phc_owner *owner);  // its kernels and variables are no longer found

// Device variables (__constant__, __device__): made when first asked for.
void phc_symbol_register(const void *host, size_t size, phc_owner *owner);
cudaError_t phc_symbol_find(const void *host, void **address, size_t *size);

#pragma GCC visibility pop
