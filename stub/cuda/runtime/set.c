// Filling memory.
#include "cuda/core/copy.h"
#include "cuda/runtime/entry.h"

STREAM(cudaMemset, _ptds, MEMSET, (void *pointer, int value, size_t bytes), (pointer, value, bytes),
       phc_set(pointer, 0, (uint8_t)value, 1, bytes, 1, NULL, phc_sync(per_thread)))
STREAM(cudaMemsetAsync, _ptsz, MEMSET, (void *pointer, int value, size_t bytes, void *stream),
       (pointer, value, bytes, stream), phc_set(pointer, 0, (uint8_t)value, 1, bytes, 1, stream, phc_async(per_thread)))
STREAM(cudaMemset2D, _ptds, MEMSET, (void *pointer, size_t pitch, int value, size_t width, size_t height),
       (pointer, pitch, value, width, height),
       phc_set(pointer, pitch, (uint8_t)value, 1, width, height, NULL, phc_sync(per_thread)))
STREAM(cudaMemset2DAsync, _ptsz, MEMSET,
       (void *pointer, size_t pitch, int value, size_t width, size_t height, void *stream),
       (pointer, pitch, value, width, height, stream),
       phc_set(pointer, pitch, (uint8_t)value, 1, width, height, stream, phc_async(per_thread)))
// Slices of a 3D region follow each other at pitch * ysize: whole rows when the region fills them.
static cudaError_t set_3d(cudaPitchedPtr p, int value, cudaExtent extent, void *stream, int flags) {
  if (extent.height > p.ysize && extent.depth > 1) return cudaErrorInvalidValue;
  for (size_t z = 0; z < extent.depth; z++) {
    cudaError_t error = phc_set((char *)p.ptr + z * p.pitch * p.ysize, p.pitch, (uint8_t)value, 1, extent.width,
                                extent.height, stream, flags);
    if (error) return error;
  }
  return 0;
}
STREAM(cudaMemset3D, _ptds, MEMSET, (cudaPitchedPtr p, int value, cudaExtent extent), (p, value, extent),
       set_3d(p, value, extent, NULL, phc_sync(per_thread)))
STREAM(cudaMemset3DAsync, _ptsz, MEMSET, (cudaPitchedPtr p, int value, cudaExtent extent, void *stream),
       (p, value, extent, stream), set_3d(p, value, extent, stream, phc_async(per_thread)))
