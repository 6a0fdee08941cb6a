// Attributes, limits and peers of devices.
#pragma once
#include <stdbool.h>
#include "abi/cuda_abi.h"

#pragma GCC visibility push(default)

#define PHC_SHARED_DEFAULT (48 * 1024)   // bytes of shared memory a kernel may use without asking

// CUdevice_attribute and cudaDeviceAttr share their numbers. false: no such attribute.
bool phc_attribute(int attribute, int device, int *value);
cudaError_t phc_limit(int limit, size_t *value);
cudaError_t phc_set_limit(int limit, size_t value);
cudaError_t phc_can_access_peer(int *can, int device, int peer);
cudaError_t phc_peer_access(int device, int peer, bool enable);
cudaError_t phc_p2p_attribute(int *value, int attribute, int source, int destination);

#pragma GCC visibility pop
