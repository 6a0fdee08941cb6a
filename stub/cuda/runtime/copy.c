// Copies.
#include "cuda/core/copy.h"
#include "cuda/core/device.h"
#include "cuda/runtime/entry.h"

static cudaError_t peer_copy(void *dst, int dst_device, const void *src, int src_device, size_t bytes, void *stream,
                             int flags) {
  cudaError_t error = phc_device_check(dst_device);
  if (!error) error = phc_device_check(src_device);
  return error ? error : phc_copy(dst, src, bytes, cudaMemcpyDefault, stream, flags);
}
STREAM(cudaMemcpy, _ptds, MEMCPY_SYNC, (void *dst, const void *src, size_t bytes, int kind), (dst, src, bytes, kind),
       phc_copy(dst, src, bytes, kind, NULL, phc_sync(per_thread)))
STREAM(cudaMemcpyAsync, _ptsz, MEMCPY_ASYNC, (void *dst, const void *src, size_t bytes, int kind, void *stream),
       (dst, src, bytes, kind, stream), phc_copy(dst, src, bytes, kind, stream, phc_async(per_thread)))
STREAM(cudaMemcpyPeer, _ptds, MEMCPY_SYNC, (void *dst, int dst_device, const void *src, int src_device, size_t bytes),
       (dst, dst_device, src, src_device, bytes),
       peer_copy(dst, dst_device, src, src_device, bytes, NULL, phc_sync(per_thread)))
STREAM(cudaMemcpyPeerAsync, _ptsz, MEMCPY_ASYNC,
       (void *dst, int dst_device, const void *src, int src_device, size_t bytes, void *stream),
       (dst, dst_device, src, src_device, bytes, stream),
       peer_copy(dst, dst_device, src, src_device, bytes, stream, phc_async(per_thread)))
#define COPY_2D void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height, int kind
#define COPY_2D_ARGUMENTS dst, dst_pitch, src, src_pitch, width, height, kind
STREAM(cudaMemcpy2D, _ptds, MEMCPY_SYNC, (COPY_2D), (COPY_2D_ARGUMENTS),
       phc_copy_2d(COPY_2D_ARGUMENTS, NULL, phc_sync(per_thread)))
STREAM(cudaMemcpy2DAsync, _ptsz, MEMCPY_ASYNC, (COPY_2D, void *stream), (COPY_2D_ARGUMENTS, stream),
       phc_copy_2d(COPY_2D_ARGUMENTS, stream, phc_async(per_thread)))
STREAM(cudaMemcpy3D, _ptds, MEMCPY_SYNC, (const cudaMemcpy3DParms *p), (p), phc_copy_3d(p, NULL, phc_sync(per_thread)))
STREAM(cudaMemcpy3DAsync, _ptsz, MEMCPY_ASYNC, (const cudaMemcpy3DParms *p, void *stream), (p, stream),
       phc_copy_3d(p, stream, phc_async(per_thread)))

static cudaError_t copy_batch(void *const *dsts, const void *const *srcs, const size_t *sizes, size_t count,
                              size_t *failed, void *stream, bool per_thread) {
  if (!dsts || !srcs || !sizes || !count) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; i++) {
    cudaError_t error = phc_copy(dsts[i], srcs[i], sizes[i], cudaMemcpyDefault, stream, phc_async(per_thread));
    if (!error) continue;
    if (failed) *failed = i;
    return error;
  }
  return 0;
}
#if PH_CUDA_MAJOR >= 13
STREAM(cudaMemcpyBatchAsync, _ptsz, MEMCPY_ASYNC,
       (void *const *dsts, const void *const *srcs, const size_t *sizes, size_t count, void *attributes,
        size_t *indices, size_t attribute_count, void *stream),
       (dsts, srcs, sizes, count, attributes, indices, attribute_count, stream),
       ((void)attributes, (void)indices, (void)attribute_count,
        copy_batch(dsts, srcs, sizes, count, NULL, stream, per_thread)))
#else
STREAM(cudaMemcpyBatchAsync, _ptsz, MEMCPY_ASYNC,
       (void **dsts, void **srcs, size_t *sizes, size_t count, void *attributes, size_t *indices,
        size_t attribute_count, size_t *failed, void *stream),
       (dsts, srcs, sizes, count, attributes, indices, attribute_count, failed, stream),
       ((void)attributes, (void)indices, (void)attribute_count,
        copy_batch(dsts, (const void *const *)srcs, sizes, count, failed, stream, per_thread)))
#endif
