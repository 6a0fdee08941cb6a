// Launches of kernels.
#include "cuda/core/graph.h"
#include "cuda/core/kernel.h"

#include <stdio.h>
#include <string.h>

// A kernel that does nothing for as many cycles as its only argument says, as PyTorch's spin_kernel(int64_t) behind
// torch.cuda._sleep. The price is in the name (phantora/cost/kernels.py).
static bool spins(const phc_kernel *kernel) {
  size_t length = strlen(kernel->symbol);
  const char *spin = strstr(kernel->symbol, "spin_kernel");
  return spin && length > 2 && (kernel->symbol[length - 1] == 'l' || kernel->symbol[length - 1] == 'x');
}

static uint32_t spin_name(phc_kernel *kernel, void **arguments) {
  char text[256];
  int64_t cycles;
  memcpy(&cycles, arguments[0], sizeof cycles);
  int length = snprintf(text, sizeof text, "%.200s [%lld cycles]", phc_kernel_display(kernel), (long long)cycles);
  return ph_name(ph_hash(text, (size_t)length, 0), text, (size_t)length);
}

cudaError_t phc_launch(phc_kernel *kernel, dim3 grid, dim3 block, size_t shared, void *handle, int flags,
                       const cudaLaunchAttribute *attributes, unsigned count, void **arguments) {
  if (!kernel) return cudaErrorInvalidResourceHandle;
  // The runtime of CUDA 12 has a code of its own for this; since CUDA 13 it passes on the driver's.
  bool own_code = PH_CUDA_MAJOR == 12 && !(flags & PHC_LAUNCH_DRIVER);
  cudaError_t bad_shape = own_code ? cudaErrorInvalidConfiguration : cudaErrorInvalidValue;
  if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return bad_shape;
  if (grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) return bad_shape;
  if (block.x > 1024 || block.y > 1024 || block.z > 64) return bad_shape;
  uint64_t threads = (uint64_t)block.x * block.y * block.z;
  if (threads > 1024) return bad_shape;
  if (threads > (uint64_t)kernel->max_threads) return cudaErrorInvalidValue;
  if (shared > (size_t)kernel->max_dynamic_shared) return cudaErrorInvalidValue;
  for (unsigned i = 0; i < count; i++) {
    if (attributes[i].id < 0 || attributes[i].id > PH_LAUNCH_LAST) return cudaErrorInvalidValue;
    if (attributes[i].id == PH_LAUNCH_COOPERATIVE && attributes[i].val.cooperative) flags |= PHC_LAUNCH_COOP;
  }
  uint64_t cluster = phc_cluster_size(attributes, count, &grid);
  if (!cluster || cluster > (kernel->non_portable ? 16u : 8u)) return cudaErrorInvalidClusterSize;
  if (cluster > 1 && ph_gpu()->major < 9) return cudaErrorInvalidClusterSize;
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_use(handle, flags & PHC_LAUNCH_PER_THREAD, &stream);
  if (error) return error;
  if (stream->device != ph_current_device()) return cudaErrorInvalidResourceHandle;
  if (flags & PHC_LAUNCH_COOP) {
    int blocks = 0;
    phc_occupancy(&blocks, kernel, (int)threads, shared);
    if ((uint64_t)grid.x * grid.y * grid.z > (uint64_t)blocks * (uint64_t)ph_gpu()->sms)
      return cudaErrorCooperativeLaunchTooLarge;
  }
  if (!kernel->name) {
    phc_kernel_load(kernel);
    const char *text = phc_kernel_display(kernel);
    size_t length = strlen(text);
    kernel->name = ph_name(ph_hash(text, length, 0), text, length);
    kernel->spins = spins(kernel);
  }
  ph_record record = {
      .kind = PH_KERNEL,
      .stream = stream->id,
      .id = kernel->spins && arguments ? spin_name(kernel, arguments) : kernel->name,
      .kernel = {.grid_x = grid.x,
                 .grid_y = (uint16_t)grid.y,
                 .grid_z = (uint16_t)grid.z,
                 .block_x = (uint16_t)block.x,
                 .block_y = (uint16_t)block.y,
                 .block_z = (uint16_t)block.z,
                 .shared_bytes = shared + (size_t)kernel->static_shared},
  };
  unsigned blocks = grid.x * grid.y * grid.z;
  if (!arguments || !(phc_symmetric_launch(kernel, stream, blocks, arguments, &error) ||
                      phc_userbuffers_launch(kernel, stream, blocks, arguments, &error)))
    ph_launch(&record);
  if (error) return error;
  phc_node *node = phc_captured(stream) ? phc_capture_latest() : NULL;
  if (node) {
    node->kernel = kernel;
    node->grid = grid;
    node->block = block;
    node->shared = (unsigned)shared;
  }
  return 0;
}
