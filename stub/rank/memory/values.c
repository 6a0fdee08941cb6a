// Content of memory: the payload rule (docs/values.md). Small data are true, all else reads as zero.
#define _GNU_SOURCE
#include "rank/memory/memory.h"

#include <string.h>

int ph_memory_free(void *pointer) {
  size_t size = ph_memory_release(pointer);
  if (!size) return -1;
  ph_touch_drop(pointer, size);  // bytes on their way would be stored into memory that is gone
  return 0;
}

static bool is_zero(const char *data, size_t bytes) {
  return !bytes || (data[0] == 0 && !memcmp(data, data + 1, bytes - 1));
}

// Zeroes host memory. Pages that read as zero already are not written: large buffers that nothing
// filled then cost no memory.
static void zero_host(char *data, size_t bytes) {
  while (bytes) {
    size_t step = PH_HOST_PAGE - (uintptr_t)data % PH_HOST_PAGE;
    if (step > bytes) step = bytes;
    if (!is_zero(data, step)) memset(data, 0, step);
    data += step;
    bytes -= step;
  }
}

void ph_memory_clear(void *pointer, size_t bytes) {
  ph_range range;
  if (!bytes) return;
  ph_touch_drop(pointer, bytes);
  if (!ph_memory_find(pointer, &range)) return;
  if (range.space == PH_SPACE_DEVICE)
    ph_memory_zero(pointer, bytes);
  else
    zero_host(pointer, bytes);  // memory of the host that a kernel wrote
}

void ph_memory_give(void *pointer, const void *data, size_t bytes) {
  if (!bytes) return;
  ph_touch_drop(pointer, bytes);
  ph_memory_store(pointer, data, bytes);
  ph_memory_mark(pointer, bytes, PH_KNOWN);
}

void ph_memory_set(void *pointer, int value, size_t bytes) {
  if (!bytes) return;
  ph_touch_drop(pointer, bytes);
  if ((unsigned char)value && bytes <= PH_TRUE_COPY_BYTES) {
    memset(pointer, value, bytes);
    ph_memory_wrote(pointer, bytes);
  } else if (ph_memory_on_device(pointer)) {
    ph_memory_clear(pointer, bytes);
  } else {
    memset(pointer, value, bytes);  // host memory: the device would have written it all
  }
}

// Device bytes to the host: what is true is copied, all else is zero without being read.
static void read_device(char *dst, const char *src, size_t bytes) {
  for (const char *at = src, *end = src + bytes, *from, *to; at < end; at = to) {
    ph_memory_run(at, (size_t)(end - at), &from, &to);
    zero_host(dst + (at - src), (size_t)(from - at));
    memcpy(dst + (from - src), from, (size_t)(to - from));
  }
}

size_t ph_memory_length(const void *pointer, size_t bytes) {
  const char *first = pointer, *end = first + bytes, *last = first, *from, *to;
  if (!ph_memory_on_device(pointer)) last = end;
  for (const char *at = first; last < end && at < end; at = to) {
    ph_memory_run(at, (size_t)(end - at), &from, &to);
    if (from < to) last = to;
  }
  while (last > first && !last[-1]) last--;
  return (size_t)(last - first);
}

// The operator knows the number that it will read back from the device (see ph_frame).
static bool answer_readback(void *dst, size_t bytes) {
  for (ph_frame *frame = ph_top_frame(); frame; frame = frame->parent) {
    if (bytes > sizeof(int64_t) * frame->readback) continue;
    size_t first = bytes < sizeof(int64_t) ? bytes : sizeof(int64_t);
    memset(dst, 0, bytes);
    memcpy(dst, &frame->readback_value, first);  // little endian: the lower bytes
    return true;
  }
  return false;
}

// Known pieces of a large copy inside the device: a tensor that was made longer, for example.
static void copy_known(char *dst, const char *src, size_t bytes) {
  const char *end = src + bytes, *from, *to;
  for (const char *at = src; ph_known_piece(at, end, &from, &to); at = to)
    ph_memory_copy(dst + (from - src), from, (size_t)(to - from));
}

// With nothing simulated: see copied.c.
static bool left_over(void *dst, bool to_device, const void *src, bool from_device, size_t bytes) {
  bool is_true = !from_device || ph_copied(src, bytes);
  if (to_device) ph_copied_note(dst, is_true ? bytes : 0);
  return !to_device && !is_true;
}

bool ph_read_by_kernels_only(void) {
  for (ph_frame *frame = ph_top_frame(); frame; frame = frame->parent)
    if (frame->own_copies) return true;
  return false;
}

void ph_memory_copy(void *dst, const void *src, size_t bytes) {
  if (!bytes || dst == src) return;
  bool to_device = ph_memory_on_device(dst), from_device = ph_memory_on_device(src);
  if (ph_rt.null_mode && !ph_probing() && left_over(dst, to_device, src, from_device, bytes)) {
    zero_host(dst, bytes);
    return;
  }
  if (from_device && !to_device && answer_readback(dst, bytes)) return;
  if (from_device && to_device && ph_expect_copy(dst, src, bytes)) return;
  unsigned flags = from_device ? ph_memory_flags(src, bytes) : 0;
  if (to_device && !from_device && ph_read_by_kernels_only()) return ph_memory_clear(dst, bytes);
  if (to_device && bytes > PH_TRUE_COPY_BYTES && !(flags & PH_KNOWN)) {
    ph_memory_clear(dst, bytes);
    if (from_device) copy_known(dst, src, bytes);
    return;
  }
  ph_touch(src, bytes);
  ph_touch_drop(dst, bytes);
  if (!from_device) {
    memmove(dst, src, bytes);
    if (to_device) ph_memory_wrote(dst, bytes);
  } else if (!to_device) {
    read_device(dst, src, bytes);
  } else if (ph_memory_true(src, bytes)) {
    memmove(dst, src, bytes);
    ph_memory_wrote(dst, bytes);
    ph_known_copy(dst, src, bytes);
  } else {
    ph_memory_clear(dst, bytes);
    ph_known_copy(dst, src, bytes);
  }
}
