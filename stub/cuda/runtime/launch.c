// Launches.
#include "cuda/core/kernel.h"
#include "cuda/runtime/entry.h"

typedef struct phc_configuration {
  dim3 grid, block;
  size_t shared;
  void *stream;
} phc_configuration;
static __thread phc_configuration pushed[8];
static __thread int pushes;

PH_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  if (pushes == (int)(sizeof pushed / sizeof *pushed)) return cudaErrorInvalidConfiguration;
  pushed[pushes++] = (phc_configuration){grid, block, shared, stream};
  return 0;
}
PH_EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (!pushes) return cudart_fail(cudaErrorMissingConfiguration);
  phc_configuration *top = &pushed[--pushes];
  *grid = top->grid;
  *block = top->block;
  *shared = top->shared;
  *(void **)stream = top->stream;
  return 0;
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, size_t shared, void *stream, bool per_thread,
                          int flags, const cudaLaunchAttribute *attributes, unsigned count, void **arguments) {
  phc_kernel *kernel = phc_kernel_find(function);
  if (!kernel) return cudart_no_kernel(function);
  return phc_launch(kernel, grid, block, shared, stream, flags | (per_thread ? PHC_LAUNCH_PER_THREAD : 0), attributes,
                    count, arguments);
}
#define LAUNCH_PARAMETERS (const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream)
#define LAUNCH_ARGUMENTS (function, grid, block, arguments, shared, stream)
STREAM(cudaLaunchKernel, _ptsz, LAUNCH, LAUNCH_PARAMETERS, LAUNCH_ARGUMENTS,
       launch(function, grid, block, shared, stream, per_thread, 0, NULL, 0, arguments))
STREAM(__cudaLaunchKernel, _ptsz, LAUNCH, LAUNCH_PARAMETERS, LAUNCH_ARGUMENTS,
       launch(function, grid, block, shared, stream, per_thread, 0, NULL, 0, arguments))
STREAM(cudaLaunchCooperativeKernel, _ptsz, LAUNCH, LAUNCH_PARAMETERS, LAUNCH_ARGUMENTS,
       launch(function, grid, block, shared, stream, per_thread, PHC_LAUNCH_COOP, NULL, 0, arguments))
static cudaError_t launch_config(const cudaLaunchConfig_t *c, const void *function, bool per_thread, void **arguments) {
  if (!c || (c->numAttrs && !c->attrs)) return cudaErrorInvalidValue;
  return launch(function, c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream, per_thread, 0, c->attrs, c->numAttrs,
                arguments);
}
STREAM(cudaLaunchKernelExC, _ptsz, LAUNCH, (const cudaLaunchConfig_t *config, const void *function, void **arguments),
       (config, function, arguments), launch_config(config, function, per_thread, arguments))
