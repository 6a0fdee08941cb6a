// Launches.
#include "cuda/core/kernel.h"
#include "cuda/driver/entry.h"

static int driver_flags(bool per_thread, int more) {
  return PHC_LAUNCH_DRIVER | more | (per_thread ? PHC_LAUNCH_PER_THREAD : 0);
}
#define SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define SHAPE_ARGUMENTS gx, gy, gz, bx, by, bz, shared
STREAM(cuLaunchKernel, _ptsz, LAUNCH, (phc_kernel * function, SHAPE, void *stream, void **arguments, void **extra),
       (function, SHAPE_ARGUMENTS, stream, arguments, extra),
       ((void)extra, phc_launch(phc_kernel_find(function), (dim3){gx, gy, gz}, (dim3){bx, by, bz}, shared, stream,
                                driver_flags(per_thread, 0), NULL, 0, arguments)))
STREAM(cuLaunchCooperativeKernel, _ptsz, LAUNCH, (phc_kernel * function, SHAPE, void *stream, void **arguments),
       (function, SHAPE_ARGUMENTS, stream, arguments),
       (phc_launch(phc_kernel_find(function), (dim3){gx, gy, gz}, (dim3){bx, by, bz}, shared, stream,
                   driver_flags(per_thread, PHC_LAUNCH_COOP), NULL, 0, arguments)))
static cudaError_t launch_config(const CUlaunchConfig *c, phc_kernel *function, bool per_thread, void **arguments) {
  if (!c || (c->numAttrs && !c->attrs)) return cudaErrorInvalidValue;
  return phc_launch(phc_kernel_find(function), (dim3){c->gridDimX, c->gridDimY, c->gridDimZ},
                    (dim3){c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, c->hStream,
                    driver_flags(per_thread, 0), c->attrs, c->numAttrs, arguments);
}
STREAM(cuLaunchKernelEx, _ptsz, LAUNCH,
       (const CUlaunchConfig *config, phc_kernel *function, void **arguments, void **extra),
       (config, function, arguments, extra), ((void)extra, launch_config(config, function, per_thread, arguments)))

// A tensor map describes a tensor to the copy engine inside kernels, which do not run here.
static cudaError_t tensor_map(void *map, unsigned rank, const void *address) {
  if (!map || (uintptr_t)map % 64 || !rank || rank > 5 || (uintptr_t)address % 16) return cudaErrorInvalidValue;
  memset(map, 0, 128);
  return 0;
}
#define TENSOR_MAP_HEAD \
  void *map, int type, unsigned rank, void *address, const uint64_t *sizes, const uint64_t *strides
ENTRY(cuTensorMapEncodeTiled, OTHER, nothing,
      (TENSOR_MAP_HEAD, const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion,
       int fill),
      ((void)type, (void)sizes, (void)strides, (void)box, (void)steps, (void)interleave, (void)swizzle, (void)promotion,
       (void)fill, tensor_map(map, rank, address)))
ENTRY(cuTensorMapEncodeIm2col, OTHER, nothing,
      (TENSOR_MAP_HEAD, const int *lower, const int *upper, unsigned channels, unsigned pixels, const uint32_t *steps,
       int interleave, int swizzle, int promotion, int fill),
      ((void)type, (void)sizes, (void)strides, (void)lower, (void)upper, (void)channels, (void)pixels, (void)steps,
       (void)interleave, (void)swizzle, (void)promotion, (void)fill, tensor_map(map, rank, address)))
ENTRY(cuTensorMapReplaceAddress, OTHER, nothing, (void *map, void *address),
      !map || (uintptr_t)address % 16 ? cudaErrorInvalidValue : 0)
