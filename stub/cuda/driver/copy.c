// Copies, and filling memory.
#include "cuda/core/copy.h"
#include "cuda/driver/context.h"
#include "cuda/driver/entry.h"

#define COPY(name, twin, api, direction, to, from, stream_parameter, stream, flag)                                   \
  STREAM(name, twin, api, (to dst, from src, size_t bytes UNPACK stream_parameter), (dst, src, bytes UNPACK stream), \
         phc_copy((void *)dst, (const void *)src, bytes, direction, flag##_handle stream, phc_##flag(per_thread)))
#define async_handle(unused, handle) handle
#define sync_handle() NULL
COPY(cuMemcpyHtoD_v2, _ptds, MEMCPY_SYNC, cudaMemcpyHostToDevice, CUdeviceptr, const void *, (), (), sync)
COPY(cuMemcpyDtoH_v2, _ptds, MEMCPY_SYNC, cudaMemcpyDeviceToHost, void *, CUdeviceptr, (), (), sync)
COPY(cuMemcpyDtoD_v2, _ptds, MEMCPY_SYNC, cudaMemcpyDeviceToDevice, CUdeviceptr, CUdeviceptr, (), (), sync)
COPY(cuMemcpy, _ptds, MEMCPY_SYNC, cudaMemcpyDefault, CUdeviceptr, CUdeviceptr, (), (), sync)
COPY(cuMemcpyHtoDAsync_v2, _ptsz, MEMCPY_ASYNC, cudaMemcpyHostToDevice, CUdeviceptr, const void *, (, void *stream),
     (, stream), async)
COPY(cuMemcpyDtoHAsync_v2, _ptsz, MEMCPY_ASYNC, cudaMemcpyDeviceToHost, void *, CUdeviceptr, (, void *stream),
     (, stream), async)
COPY(cuMemcpyDtoDAsync_v2, _ptsz, MEMCPY_ASYNC, cudaMemcpyDeviceToDevice, CUdeviceptr, CUdeviceptr, (, void *stream),
     (, stream), async)
COPY(cuMemcpyAsync, _ptsz, MEMCPY_ASYNC, cudaMemcpyDefault, CUdeviceptr, CUdeviceptr, (, void *stream), (, stream),
     async)
ALSO(cuMemcpyHtoD_v2, cuMemcpyHtoD)
ALSO(cuMemcpyDtoH_v2, cuMemcpyDtoH)
ALSO(cuMemcpyDtoD_v2, cuMemcpyDtoD)
ALSO(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync)
ALSO(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync)
ALSO(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync)
#define PEER CUdeviceptr dst, driver_context *to, CUdeviceptr src, driver_context *from, size_t bytes
STREAM(cuMemcpyPeer, _ptds, MEMCPY_SYNC, (PEER), (dst, to, src, from, bytes),
       ((void)to, (void)from, phc_copy((void *)dst, (void *)src, bytes, cudaMemcpyDefault, NULL, phc_sync(per_thread))))
STREAM(cuMemcpyPeerAsync, _ptsz, MEMCPY_ASYNC, (PEER, void *stream), (dst, to, src, from, bytes, stream),
       ((void)to, (void)from,
        phc_copy((void *)dst, (void *)src, bytes, cudaMemcpyDefault, stream, phc_async(per_thread))))

static cudaError_t copy_2d(const CUDA_MEMCPY2D *p, void *stream, int flags) {
  if (!p) return cudaErrorInvalidValue;
  if (p->srcMemoryType == 3 || p->dstMemoryType == 3) return driver_unsupported("cuMemcpy2D of an array");
  const char *src = p->srcMemoryType == 1 ? (const char *)p->srcHost : (const char *)p->srcDevice;
  char *dst = p->dstMemoryType == 1 ? (char *)p->dstHost : (char *)p->dstDevice;
  size_t src_pitch = p->srcPitch ? p->srcPitch : p->WidthInBytes,
         dst_pitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
  return phc_copy_2d(dst + p->dstY * dst_pitch + p->dstXInBytes, dst_pitch, src + p->srcY * src_pitch + p->srcXInBytes,
                     src_pitch, p->WidthInBytes, p->Height, cudaMemcpyDefault, stream, flags);
}
STREAM(cuMemcpy2D_v2, _ptds, MEMCPY_SYNC, (const CUDA_MEMCPY2D *p), (p), copy_2d(p, NULL, phc_sync(per_thread)))
STREAM(cuMemcpy2DUnaligned_v2, _ptds, MEMCPY_SYNC, (const CUDA_MEMCPY2D *p), (p),
       copy_2d(p, NULL, phc_sync(per_thread)))
STREAM(cuMemcpy2DAsync_v2, _ptsz, MEMCPY_ASYNC, (const CUDA_MEMCPY2D *p, void *stream), (p, stream),
       copy_2d(p, stream, phc_async(per_thread)))
ALSO(cuMemcpy2D_v2, cuMemcpy2D)
ALSO(cuMemcpy2DAsync_v2, cuMemcpy2DAsync)

#define SETS(bits, type)                                                                                              \
  STREAM(cuMemsetD##bits##_v2, _ptds, MEMSET, (CUdeviceptr address, type value, size_t count),                        \
         (address, value, count), phc_set((void *)address, 0, value, bits / 8, count, 1, NULL, phc_sync(per_thread))) \
  ALSO(cuMemsetD##bits##_v2, cuMemsetD##bits)                                                                         \
  STREAM(cuMemsetD##bits##Async, _ptsz, MEMSET, (CUdeviceptr address, type value, size_t count, void *stream),        \
         (address, value, count, stream),                                                                             \
         phc_set((void *)address, 0, value, bits / 8, count, 1, stream, phc_async(per_thread)))                       \
  STREAM(cuMemsetD2D##bits##_v2, _ptds, MEMSET,                                                                       \
         (CUdeviceptr address, size_t pitch, type value, size_t width, size_t rows),                                  \
         (address, pitch, value, width, rows),                                                                        \
         phc_set((void *)address, pitch, value, bits / 8, width, rows, NULL, phc_sync(per_thread)))                   \
  ALSO(cuMemsetD2D##bits##_v2, cuMemsetD2D##bits)                                                                     \
  STREAM(cuMemsetD2D##bits##Async, _ptsz, MEMSET,                                                                     \
         (CUdeviceptr address, size_t pitch, type value, size_t width, size_t rows, void *stream),                    \
         (address, pitch, value, width, rows, stream),                                                                \
         phc_set((void *)address, pitch, value, bits / 8, width, rows, stream, phc_async(per_thread)))
SETS(8, unsigned char)
SETS(16, unsigned short)
SETS(32, unsigned)
