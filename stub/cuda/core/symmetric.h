// Memory that processes share by handles, as torch's symmetric memory: who is whose peer, copies between peers, and
// torch's kernels that synchronise them.
#pragma once
#include "cuda/core/module.h"
#include "cuda/core/space.h"

#pragma GCC visibility push(default)

// May this process give handles away, and take such a one? Else the run ends with the reason.
cudaError_t phc_shareable(void);
cudaError_t phc_importable(const phc_shared *shared);
// Bytes came to the device: if they are addresses of the same memory on each of several GPUs, these are peers now, who
// meet here.
cudaError_t phc_learn_peers(const void *table, size_t bytes);
// Puts the copy on the stream if one side is a peer's memory.
bool phc_peer_copy(const void *dst, const void *src, size_t bytes, const ph_stream *stream);
// Puts a kernel on the stream that works on the memory of peers. False: it is another kernel.
bool phc_symmetric_launch(phc_kernel *kernel, const ph_stream *stream, void **arguments, cudaError_t *error);

#pragma GCC visibility pop
