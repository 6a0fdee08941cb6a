// Kernels and device variables, their attributes, and launches.
#pragma once
#include <stdatomic.h>
#include <stdint.h>
#include "abi/cuda_abi.h"
#include "cuda/core/memory.h"

#pragma GCC visibility push(default)

// ---- module.c: kernels and device variables, and what owns them: a module, or what a program registered in one go.
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
  bool spins;          // does nothing for a number of cycles; known with `name`
  int max_threads, registers, static_shared, local_bytes, const_bytes;
  int max_dynamic_shared;  // 48 KiB less `static_shared` until raised
  int carveout, cluster[3], non_portable, policy;
  uint8_t symmetric;       // which of the kernels of symmetric.c; 0: not tested yet
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

// ---- kernel.c: attributes of kernels and how many blocks of one fit a GPU.
// Charges the host for the first launch of `kernel`: CUDA loads modules when one of their kernels is launched.
void phc_kernel_load(const phc_kernel *kernel);
cudaError_t phc_kernel_attribute(const phc_kernel *kernel, int attribute, int *value);
cudaError_t phc_kernel_set_attribute(phc_kernel *kernel, int attribute, int value);
cudaError_t phc_occupancy(int *blocks, const phc_kernel *kernel, int threads, size_t shared);
// Shared memory that is left for a block where `blocks` share a multiprocessor.
cudaError_t phc_available_shared(size_t *bytes, const phc_kernel *kernel, int blocks, int threads);
int phc_potential_cluster(const phc_kernel *kernel);  // the largest cluster that it may be launched with
// The cluster size that launch attributes ask for: 1 when none do, 0 when it does not divide the grid.
uint64_t phc_cluster_size(const cudaLaunchAttribute *attributes, unsigned count, const dim3 *grid);
cudaError_t phc_max_active_clusters(int *clusters, const phc_kernel *kernel, int threads, size_t shared,
                                    const cudaLaunchAttribute *attributes, unsigned count);

// ---- launch.c: launches of kernels.
enum { PHC_LAUNCH_DRIVER = 1, PHC_LAUNCH_COOP = 2, PHC_LAUNCH_PER_THREAD = 4 };
cudaError_t phc_launch(phc_kernel *kernel, dim3 grid, dim3 block, size_t shared, void *stream, int flags,
                       const cudaLaunchAttribute *attributes, unsigned count, void **arguments);

// ---- symmetric.c, userbuffers.c: kernels on the memory of peers: torch's on symmetric memory, and Transformer
// Engine's. Each puts a kernel of `blocks` blocks on the stream. False: it is none of these.
bool phc_symmetric_launch(phc_kernel *kernel, const ph_stream *stream, unsigned blocks, void **arguments,
                          cudaError_t *error);
bool phc_userbuffers_launch(phc_kernel *kernel, const ph_stream *stream, unsigned blocks, void **arguments,
                            cudaError_t *error);

#pragma GCC visibility pop
