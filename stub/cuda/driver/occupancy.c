// Number of a kernel's blocks that fit a GPU.
#include "cuda/core/kernel.h"
#include "cuda/driver/entry.h"

static cudaError_t occupancy(int *blocks, phc_kernel *function, int threads, size_t shared) {
  return phc_kernel_find(function) ? phc_occupancy(blocks, function, threads, shared) : cudaErrorInvalidResourceHandle;
}
// The block size with the most resident threads; among equals the largest.
static cudaError_t best_block(int *grid, int *block, phc_kernel *function, size_t (*shared_of)(int), size_t shared,
                              int limit) {
  if (!phc_kernel_find(function)) return cudaErrorInvalidResourceHandle;
  if (!grid || !block || limit < 0) return cudaErrorInvalidValue;
  int most = limit && limit < function->max_threads ? limit : function->max_threads, best = 0, best_blocks = 0;
  for (int threads = most; threads > 0; threads = threads % 32 ? threads / 32 * 32 : threads - 32) {
    int blocks = 0;
    phc_occupancy(&blocks, function, threads, shared_of ? shared_of(threads) : shared);
    if (blocks * threads > best_blocks * best) best = threads, best_blocks = blocks;
  }
  *block = best;
  *grid = best_blocks * ph_gpu()->sms;
  return 0;
}
static cudaError_t available_shared(size_t *bytes, phc_kernel *function, int blocks, int threads) {
  return phc_kernel_find(function) ? phc_available_shared(bytes, function, blocks, threads)
                                   : cudaErrorInvalidResourceHandle;
}
static cudaError_t active_clusters(int *clusters, phc_kernel *kernel, const CUlaunchConfig *c) {
  if (!phc_kernel_find(kernel)) return cudaErrorInvalidResourceHandle;
  if (!c) return cudaErrorInvalidValue;
  return phc_max_active_clusters(clusters, kernel, (int)(c->blockDimX * c->blockDimY * c->blockDimZ), c->sharedMemBytes,
                                 c->attrs, c->numAttrs);
}
ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor, GET_DEVICE, driver_current,
      (int *blocks, phc_kernel *function, int threads, size_t shared), occupancy(blocks, function, threads, shared))
ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, GET_DEVICE, driver_current,
      (int *blocks, phc_kernel *function, int threads, size_t shared, unsigned flags),
      flags > 1 ? cudaErrorInvalidValue : occupancy(blocks, function, threads, shared))
ENTRY(cuOccupancyMaxPotentialBlockSize, GET_DEVICE, driver_current,
      (int *grid, int *block, phc_kernel *function, size_t (*shared_of)(int), size_t shared, int limit),
      best_block(grid, block, function, shared_of, shared, limit))
ENTRY(cuOccupancyAvailableDynamicSMemPerBlock, GET_DEVICE, driver_current,
      (size_t *bytes, phc_kernel *function, int blocks, int threads),
      available_shared(bytes, function, blocks, threads))
ENTRY(cuOccupancyMaxActiveClusters, GET_DEVICE, driver_current,
      (int *clusters, phc_kernel *function, const CUlaunchConfig *config), active_clusters(clusters, function, config))
ENTRY(cuOccupancyMaxPotentialClusterSize, GET_DEVICE, driver_current,
      (int *size, phc_kernel *function, const CUlaunchConfig *config),
      !config                      ? cudaErrorInvalidValue
      : !phc_kernel_find(function) ? cudaErrorInvalidResourceHandle
                                   : GIVE(size, int, phc_potential_cluster(function)))
