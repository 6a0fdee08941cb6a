// Copies of vectors and matrices between host and device.
#include "cublas/internal.h"

typedef struct transfer {
  void *destination;
  const void *source;
  int64_t rows, columns, element, source_ld, destination_ld;  // ld in elements; a vector is one row
  void *stream;
  bool to_device, synchronous;
} transfer;

static int copy_matrix(const transfer *t) {
  if (t->rows < 0 || t->columns < 0 || t->element <= 0 || t->source_ld < 1 || t->destination_ld < 1)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!t->rows || !t->columns) return CUBLAS_STATUS_SUCCESS;
  const ph_stream *stream = ph_stream_of(t->stream, false);
  if (!stream || !t->destination || !t->source) return CUBLAS_STATUS_MAPPING_ERROR;
  size_t line = (size_t)(t->rows * t->element);
  const void *host = t->to_device ? t->source : t->destination;
  ph_range range;
  bool pinned = ph_memory_find(host, &range) && range.space != PH_SPACE_NONE;
  enum ph_copy kind = t->to_device ? (pinned ? PH_COPY_H2D_PINNED : PH_COPY_H2D_PAGEABLE)
                                   : (pinned ? PH_COPY_D2H_PINNED : PH_COPY_D2H_PAGEABLE);
  ph_record record = {.kind = PH_MEMCPY,
                      .slot = PH_NO_SLOT,
                      .stream = stream->id,
                      .id = kind,
                      .copy = {.bytes = line * (uint64_t)t->columns, .peer = -1}};
  ph_launch(&record);
  ph_charge(t->synchronous ? PH_API_MEMCPY_SYNC : PH_API_MEMCPY_ASYNC);
  if (t->synchronous) ph_wait_stream(stream);
  if (t->source_ld == t->rows && t->destination_ld == t->rows) {
    ph_memory_copy(t->destination, t->source, line * (size_t)t->columns);
    return CUBLAS_STATUS_SUCCESS;
  }
  for (int64_t column = 0; column < t->columns; column++)
    ph_memory_copy((char *)t->destination + column * t->destination_ld * t->element,
                   (const char *)t->source + column * t->source_ld * t->element, line);
  return CUBLAS_STATUS_SUCCESS;
}

#define TRANSFER(...)         \
  transfer t = {__VA_ARGS__}; \
  return PH_BRACKET(copy_matrix(&t))
#define TRANSFERS(I, SUFFIX, WAY, TO_DEVICE)                                                                         \
  PH_EXPORT int cublas##WAY##Vector##SUFFIX(I n, I element, const void *x, I incx, void *y, I incy) {                \
    TRANSFER(y, x, 1, n, element, incx, incy, NULL, TO_DEVICE, true);                                                \
  }                                                                                                                  \
  PH_EXPORT int cublas##WAY##VectorAsync##SUFFIX(I n, I element, const void *x, I incx, void *y, I incy,             \
                                                 void *stream) {                                                     \
    TRANSFER(y, x, 1, n, element, incx, incy, stream, TO_DEVICE, false);                                             \
  }                                                                                                                  \
  PH_EXPORT int cublas##WAY##Matrix##SUFFIX(I rows, I columns, I element, const void *a, I lda, void *b, I ldb) {    \
    TRANSFER(b, a, rows, columns, element, lda, ldb, NULL, TO_DEVICE, true);                                         \
  }                                                                                                                  \
  PH_EXPORT int cublas##WAY##MatrixAsync##SUFFIX(I rows, I columns, I element, const void *a, I lda, void *b, I ldb, \
                                                 void *stream) {                                                     \
    TRANSFER(b, a, rows, columns, element, lda, ldb, stream, TO_DEVICE, false);                                      \
  }
TRANSFERS(int, , Set, true)
TRANSFERS(int64_t, _64, Set, true)
TRANSFERS(int, , Get, false)
TRANSFERS(int64_t, _64, Get, false)
