// Kernels that work on the memory of peers: torch's on symmetric memory, and those of Transformer Engine's Userbuffers.
#pragma once
#include "cuda/core/module.h"
#include "cuda/core/peers.h"

#pragma GCC visibility push(default)

// Each puts a kernel of `blocks` blocks on the stream. False: it is none of these.
bool phc_symmetric_launch(phc_kernel *kernel, const ph_stream *stream, unsigned blocks, void **arguments, cudaError_t *error);
bool phc_userbuffers_launch(phc_kernel *kernel, const ph_stream *stream, unsigned blocks, void **arguments, cudaError_t *error);

#pragma GCC visibility pop
