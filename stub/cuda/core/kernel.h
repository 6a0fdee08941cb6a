// Attributes of kernels and how many blocks of one fit a GPU.
#pragma once
#include "cuda/core/module.h"

#pragma GCC visibility push(default)

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

#pragma GCC visibility pop
