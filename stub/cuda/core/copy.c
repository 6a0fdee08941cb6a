// Copies of memory.
#include "cuda/core/copy.h"
#include "cuda/core/device.h"
#include "cuda/core/graph.h"
#include "cuda/core/memory.h"
#include "cuda/core/stream.h"

#include <stdlib.h>

typedef struct copy_side {
  enum ph_space space;
  int device;
} copy_side;

static copy_side side_of(const void *pointer) {
  ph_range range;
  if (!ph_memory_find(pointer, &range)) return (copy_side){PH_SPACE_NONE, -1};
  return (copy_side){range.space, range.device};
}
static bool on_device(copy_side side) { return side.space == PH_SPACE_DEVICE || side.space == PH_SPACE_MANAGED; }
static bool pageable(copy_side side) { return side.space == PH_SPACE_NONE; }

// CUDA trusts addresses more than `kind`: with unified addressing it only insists that what the
// kind calls device memory is allocated memory, up to the last byte (as measured on an H200).
static cudaError_t copy_check(const void *dst, size_t dst_span, const void *src, size_t src_span, int kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (!dst_span || !src_span) return 0;
  if (!dst || !src || dst_span > SIZE_MAX / 4 || src_span > SIZE_MAX / 4) return cudaErrorInvalidValue;
  bool dst_known = side_of(dst).space != PH_SPACE_NONE, src_known = side_of(src).space != PH_SPACE_NONE;
  if ((kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) && !dst_known) return cudaErrorInvalidValue;
  if ((kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice) && !src_known) return cudaErrorInvalidValue;
  // Unknown memory is memory of the host, unless it is device memory that was freed: there is nothing any more.
  if (dst_known ? !phc_covered(dst, dst_span) : !phc_mapped(dst, dst_span)) return cudaErrorInvalidValue;
  if (src_known ? !phc_covered(src, src_span) : !phc_mapped(src, src_span)) return cudaErrorInvalidValue;
  return 0;
}

static cudaError_t stream_for(void *handle, int flags, ph_stream **stream) {
  cudaError_t error = flags & PHC_ASYNC ? 0 : phc_capture_implicit();
  return error ? error : phc_stream_use(handle, flags & PHC_PER_THREAD, stream);
}

// Puts the copy on the stream and waits where CUDA does ("API synchronization behavior" in the
// runtime's manual): all but device-to-device for synchronous calls; for asynchronous ones what
// reads from or writes to pageable memory, except that a block of up to 64 KiB is staged and the
// call returns.
static cudaError_t copy_emit(const void *dst, const void *src, size_t bytes, ph_stream *stream, bool async) {
  copy_side to = side_of(dst), from = side_of(src);
  if (on_device(to) && on_device(from) && phc_peer_copy(dst, src, bytes, stream)) return 0;
  enum ph_copy kind;
  bool wait = !async;
  if (on_device(to) && on_device(from)) {
    kind = to.device == from.device ? PH_COPY_D2D : PH_COPY_P2P;
    wait = false;
  } else if (on_device(to)) {
    kind = pageable(from) ? PH_COPY_H2D_PAGEABLE : PH_COPY_H2D_PINNED;
    if (pageable(from) && bytes > 64 * 1024) wait = true;
  } else if (on_device(from)) {
    kind = pageable(to) ? PH_COPY_D2H_PAGEABLE : PH_COPY_D2H_PINNED;
    if (pageable(to)) wait = true;
  } else {
    kind = PH_COPY_H2H;
    wait = true;
  }
  ph_record record = {
      .kind = PH_MEMCPY,
      .stream = stream->id,
      .id = kind,
      .copy = {.bytes = bytes,
               .peer = kind != PH_COPY_P2P           ? -1
                       : stream->device == to.device ? from.device
                                                     : to.device},
  };
  if (!wait || phc_captured(stream)) {
    ph_launch(&record);
    return 0;
  }
  record.flags = PH_F_SYNC | phc_helper_flag();
  int64_t host = kind == PH_COPY_H2D_PAGEABLE   ? ph_bytes_ns(PH_API_PAGEABLE_H2D_GIB, bytes)
                 : kind == PH_COPY_D2H_PAGEABLE ? ph_bytes_ns(PH_API_PAGEABLE_D2H_GIB, bytes)
                                                : 0;
  int64_t staged = ph_now() + host;
  if (ph_request(&record, NULL, 0).status < 0) return phc_request_failed();
  if (host > 0) ph_advance(staged - ph_now());
  phc_waited_for_stream(stream);
  phc_finish_host_calls();
  return phc_assertion();
}

// A copy to pinned memory that is not waited for: its bytes arrive later.
static bool arrives_later(void *dst, const void *src, size_t bytes, const ph_stream *stream, int flags) {
  bool later = flags & PHC_ASYNC && on_device(side_of(src)) && !on_device(side_of(dst)) && !pageable(side_of(dst));
  if (!later || !ph_connected() || ph_null_mode() || phc_captured(stream)) return false;
  return phc_arrive_later(dst, src, bytes, stream);
}

// Rows of one copy: the payload rule looks at the whole, so multiple small rows are not all carried.
static void move_rows(char *dst, size_t dst_pitch, const char *src, size_t src_pitch, size_t width, size_t height,
                      size_t total) {
  bool carried = total <= PH_TRUE_COPY_BYTES || !on_device(side_of(dst));
  for (size_t row = 0; row < height; row++, dst += dst_pitch, src += src_pitch) {
    if (carried)
      ph_memory_copy(dst, src, width);
    else
      ph_memory_clear(dst, width);
  }
}

typedef struct copied {  // what a graph copies again
  char *dst;
  const char *src;
  size_t dst_pitch, src_pitch, width, height, total;
} copied;

static void copy_again(void *data, ph_stream *stream) {
  (void)stream;
  const copied *c = data;
  move_rows(c->dst, c->dst_pitch, c->src, c->src_pitch, c->width, c->height, c->total);
}

static void copy_rows(ph_stream *stream, char *dst, size_t dst_pitch, const char *src, size_t src_pitch, size_t width,
                      size_t height, size_t total) {
  if (!phc_captured(stream)) {
    move_rows(dst, dst_pitch, src, src_pitch, width, height, total);
    return;
  }
  phc_node *node = phc_capture_latest();
  copied *c = node ? malloc(sizeof *c) : NULL;
  if (!c) return;
  *c = (copied){dst, src, dst_pitch, src_pitch, width, height, total};
  phc_node_action(node, (phc_action){copy_again, free, c, 0});
}

cudaError_t phc_copy(void *dst, const void *src, size_t bytes, int kind, void *handle, int flags) {
  ph_stream *stream = NULL;
  cudaError_t error = stream_for(handle, flags, &stream);
  if (!error) error = copy_check(dst, bytes, src, bytes, kind);
  if (error || !bytes) return error;
  error = copy_emit(dst, src, bytes, stream, flags & PHC_ASYNC);
  phc_arrive(src, bytes);
  phc_arrive(dst, bytes);
  if (!error && !arrives_later(dst, src, bytes, stream, flags)) copy_rows(stream, dst, 0, src, 0, bytes, 1, 0);
  return error ? error : phc_learn_peers(dst, bytes);
}

cudaError_t phc_copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
                        int kind, void *handle, int flags) {
  ph_stream *stream = NULL;
  cudaError_t error = stream_for(handle, flags, &stream);
  if (error) return error;
  if (width > dst_pitch || width > src_pitch) return cudaErrorInvalidPitchValue;
  size_t widest = dst_pitch > src_pitch ? dst_pitch : src_pitch;
  if (height && widest > SIZE_MAX / 8 / height) return cudaErrorInvalidValue;
  bool empty = !width || !height;
  error = copy_check(dst, empty ? 0 : dst_pitch * (height - 1) + width, src,
                     empty ? 0 : src_pitch * (height - 1) + width, kind);
  if (error || empty) return error;
  error = copy_emit(dst, src, width * height, stream, flags & PHC_ASYNC);
  if (!error) copy_rows(stream, dst, dst_pitch, src, src_pitch, width, height, width * height);
  return error;
}

cudaError_t phc_copy_3d(const cudaMemcpy3DParms *p, void *handle, int flags) {
  if (!p) return cudaErrorInvalidValue;
  if (p->srcArray || p->dstArray) {
    ph_unsupported("libcudart", "cudaMemcpy3D of a cudaArray", true);
    return cudaErrorNotSupported;
  }
  ph_stream *stream = NULL;
  cudaError_t error = stream_for(handle, flags, &stream);
  if (error) return error;
  size_t width = p->extent.width, height = p->extent.height, depth = p->extent.depth;
  if (!width || !height || !depth) return 0;
  if (width > p->dstPtr.pitch || width > p->srcPtr.pitch) return cudaErrorInvalidPitchValue;
  size_t dst_slice = p->dstPtr.pitch * p->dstPtr.ysize, src_slice = p->srcPtr.pitch * p->srcPtr.ysize;
  char *dst = (char *)p->dstPtr.ptr + p->dstPos.z * dst_slice + p->dstPos.y * p->dstPtr.pitch + p->dstPos.x;
  char *src = (char *)p->srcPtr.ptr + p->srcPos.z * src_slice + p->srcPos.y * p->srcPtr.pitch + p->srcPos.x;
  error = copy_check(dst, (depth - 1) * dst_slice + (height - 1) * p->dstPtr.pitch + width, src,
                     (depth - 1) * src_slice + (height - 1) * p->srcPtr.pitch + width, p->kind);
  if (!error) error = copy_emit(dst, src, width * height * depth, stream, flags & PHC_ASYNC);
  for (size_t z = 0; !error && z < depth; z++)
    copy_rows(stream, dst + z * dst_slice, p->dstPtr.pitch, src + z * src_slice, p->srcPtr.pitch, width, height,
              width * height * depth);
  return error;
}
