// Filling memory with a pattern.
#include "cuda/core/copy.h"
#include "cuda/core/graph.h"
#include "cuda/core/memory.h"

#include <stdlib.h>
#include <string.h>

static void set_row(char *at, uint32_t pattern, int width, size_t count) {
  size_t bytes = count * (size_t)width;
  uint32_t first = pattern & 0xff;
  uint32_t repeated = first | first << 8 | (width == 4 ? first << 16 | first << 24 : 0);
  if (width == 1 || pattern == repeated) {
    ph_memory_set(at, (int)first, bytes);
    return;
  }
  if (bytes > PH_TRUE_COPY_BYTES) {
    ph_memory_clear(at, bytes);
    return;
  }
  ph_touch_drop(at, bytes);
  for (size_t i = 0; i < count; i++) memcpy(at + i * (size_t)width, &pattern, (size_t)width);
  ph_memory_wrote(at, bytes);
}

typedef struct filled {
  char *pointer;
  size_t pitch, columns, rows;
  uint32_t pattern;
  int width;
} filled;

static void fill(void *data, ph_stream *stream) {
  (void)stream;
  const filled *f = data;
  for (size_t row = 0; row < f->rows; row++) set_row(f->pointer + row * f->pitch, f->pattern, f->width, f->columns);
}

cudaError_t phc_set(void *pointer, size_t pitch, uint32_t pattern, int width, size_t columns, size_t rows, void *handle,
                    int flags) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_use(handle, flags & PHC_PER_THREAD, &stream);
  if (error || !columns || !rows) return error;
  if (columns > SIZE_MAX / 16 || (rows > 1 && (columns * (size_t)width > pitch || pitch > SIZE_MAX / 8 / rows)))
    return cudaErrorInvalidValue;
  size_t bytes = columns * (size_t)width, span = rows > 1 ? pitch * (rows - 1) + bytes : bytes;
  if (!pointer || (uintptr_t)pointer % (unsigned)width || !phc_covered(pointer, span)) return cudaErrorInvalidValue;
  ph_record record = {.kind = PH_MEMSET, .stream = stream->id, .fill.bytes = bytes * rows};
  ph_launch(&record);
  filled what = {pointer, pitch, columns, rows, pattern, width};
  phc_node *node = phc_captured(stream) ? phc_capture_latest() : NULL;
  if (!node) {
    if (!phc_captured(stream)) fill(&what, stream);
    return 0;
  }
  filled *again = malloc(sizeof *again);
  if (!again) return cudaErrorMemoryAllocation;
  *again = what;
  phc_node_action(node, (phc_action){fill, free, again, 0});
  return 0;
}
