// Copies of memory, filling it, and copies to the host that are not waited for.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "abi/cuda_abi.h"
#include "rank/rank.h"

#pragma GCC visibility push(default)

// ---- How a call that copies or fills memory behaves.
enum { PHC_ASYNC = 1, PHC_PER_THREAD = 2 };
static inline int phc_async(bool per_thread) { return PHC_ASYNC | (per_thread ? PHC_PER_THREAD : 0); }
static inline int phc_sync(bool per_thread) { return per_thread ? PHC_PER_THREAD : 0; }

// ---- copy.c: copies of memory.
cudaError_t phc_copy(void *dst, const void *src, size_t bytes, int kind, void *stream, int flags);
cudaError_t phc_copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
                        int kind, void *stream, int flags);
cudaError_t phc_copy_3d(const cudaMemcpy3DParms *parameters, void *stream, int flags);

// ---- set.c: filling memory with a pattern.
// `pattern` of `width` bytes (1, 2 or 4), rows of `columns` elements.
cudaError_t phc_set(void *pointer, size_t pitch, uint32_t pattern, int width, size_t columns, size_t rows, void *stream,
                    int flags);

// ---- arrivals.c: copies to the host that are not waited for: their bytes arrive when the host has waited for them.
// The bytes at `src` arrive at `dst` once the host waits for `stream`, or for what comes after this on the GPU. False:
// there is no memory to keep them.
bool phc_arrive_later(void *dst, const void *src, size_t bytes, const ph_stream *stream);
// Before the range is read or written by something that the GPU orders behind the copy: what is still to come arrives.
void phc_arrive(const void *pointer, size_t bytes);
// The order of what is on the GPU: an event, and what waits for it, come after the copies of its stream.
void phc_order_record(ph_event *event, const ph_stream *stream);
void phc_order_wait(const ph_stream *stream, const ph_event *event);
// The host has waited: all that comes before arrives.
void phc_waited_for_stream(const ph_stream *stream);
void phc_waited_for_event(const ph_event *event);
void phc_waited_for_all(void);

#pragma GCC visibility pop
