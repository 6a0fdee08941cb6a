// Memory that processes share by handles: who is whose peer, and copies between peers.
#pragma once
#include "cuda/core/space.h"

#pragma GCC visibility push(default)

#define PHC_MOST_PEERS 72  // the largest NVLink domain

typedef struct phc_peers {  // a block of memory of each of several GPUs, which their processes have all mapped
  struct phc_peers *next;
  int members, rank;
  phc_shared parts[PHC_MOST_PEERS];
  uint32_t comm;
} phc_peers;

// May this process take such a handle of the driver? Else the run ends with the reason.
cudaError_t phc_importable(const phc_shared *shared);
// Bytes came to the device: if they are addresses of the same memory on each of several GPUs, these are peers now, who
// meet here.
cudaError_t phc_learn_peers(const void *table, size_t bytes);
// The peers of a table of addresses, who meet if they have not yet, NULL if it is none.
phc_peers *phc_peers_of(void *const *table, int members, cudaError_t *error);
// Those to whom the memory at this address belongs, and whose of them it is; NULL: it is nobody's who is known.
phc_peers *phc_peers_at(const void *pointer, int *member);
// Puts the copy on the stream if one side is a peer's memory.
bool phc_peer_copy(const void *dst, const void *src, size_t bytes, const ph_stream *stream);

#pragma GCC visibility pop
