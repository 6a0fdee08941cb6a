// Device variables.
#include "cuda/core/copy.h"
#include "cuda/core/kernel.h"
#include "cuda/runtime/entry.h"

static cudaError_t symbol_copy(const void *symbol, void *other, size_t bytes, size_t offset, int kind, bool to,
                               void *stream, int flags) {
  char *address = NULL;
  size_t size = 0;
  cudaError_t error = phc_symbol_find(symbol, (void **)&address, &size);
  if (error) return error;
  if (offset > size || bytes > size - offset) return cudaErrorInvalidValue;
  bool fits = to ? kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyDefault
                 : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyDefault;
  if (!fits) return cudaErrorInvalidMemcpyDirection;
  return to ? phc_copy(address + offset, other, bytes, kind, stream, flags)
            : phc_copy(other, address + offset, bytes, kind, stream, flags);
}
ENTRY(cudaGetSymbolAddress, GET_DEVICE, phc_context, (void **address, const void *symbol),
      address ? phc_symbol_find(symbol, address, NULL) : cudaErrorInvalidValue)
ENTRY(cudaGetSymbolSize, GET_DEVICE, phc_context, (size_t *size, const void *symbol),
      size ? phc_symbol_find(symbol, NULL, size) : cudaErrorInvalidValue)
STREAM(cudaMemcpyToSymbol, _ptds, MEMCPY_SYNC,
       (const void *symbol, const void *src, size_t bytes, size_t offset, int kind), (symbol, src, bytes, offset, kind),
       symbol_copy(symbol, (void *)src, bytes, offset, kind, true, NULL, phc_sync(per_thread)))
STREAM(cudaMemcpyFromSymbol, _ptds, MEMCPY_SYNC, (void *dst, const void *symbol, size_t bytes, size_t offset, int kind),
       (dst, symbol, bytes, offset, kind),
       symbol_copy(symbol, dst, bytes, offset, kind, false, NULL, phc_sync(per_thread)))
STREAM(cudaMemcpyToSymbolAsync, _ptsz, MEMCPY_ASYNC,
       (const void *symbol, const void *src, size_t bytes, size_t offset, int kind, void *stream),
       (symbol, src, bytes, offset, kind, stream),
       symbol_copy(symbol, (void *)src, bytes, offset, kind, true, stream, phc_async(per_thread)))
STREAM(cudaMemcpyFromSymbolAsync, _ptsz, MEMCPY_ASYNC,
       (void *dst, const void *symbol, size_t bytes, size_t offset, int kind, void *stream),
       (dst, symbol, bytes, offset, kind, stream),
       symbol_copy(symbol, dst, bytes, offset, kind, false, stream, phc_async(per_thread)))
