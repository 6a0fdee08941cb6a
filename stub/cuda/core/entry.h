// Common parts of the entry points of the runtime and of the driver.
#pragma once
#include <string.h>
#include "abi/cuda_abi.h"
#include "abi/export.h"
#include "cuda/core/device.h"
#include "rank/rank.h"

#define UNPACK(...) __VA_ARGS__

// For a call that needs neither device nor context.
static inline cudaError_t nothing(void) { return 0; }
static inline cudaError_t give(void *to, const void *value, size_t size) {
  if (!to) return cudaErrorInvalidValue;
  memcpy(to, value, size);
  return 0;
}
// Writes a value to where a caller wants it; cudaErrorInvalidValue for nowhere.
#define GIVE(to, type, value) give((to), &(type){value}, sizeof(type))
