// Common beginning of libcuda's files: how an entry point is written. The driver is the other face of cuda/core.
#pragma once
#include "cuda/core/entry.h"

typedef uintptr_t CUdeviceptr;

// Charges the call; returns the driver's code for the error.
CUresult driver_finish(cudaError_t error, enum ph_api api);
// Tells the user that a call is not supported; returns cudaErrorNotSupported.
cudaError_t driver_unsupported(const char *call);

// Requirement of a call: nothing, a device (driver_ready), or a current context (driver_current).
cudaError_t driver_ready(
    void);  // cudaErrorInitializationError before cuInit, or the runtime's first call, in this process
cudaError_t driver_current(void);

#define ENTRY(name, api, needs, parameters, expression)               \
  PH_EXPORT CUresult name parameters {                                \
    ph_enter();                                                       \
    cudaError_t error = needs();                                      \
    return driver_finish(error ? error : (expression), PH_API_##api); \
  }
// With a twin for per-thread default streams: `per_thread` is true for the twin.
#define STREAM(name, suffix, api, parameters, arguments, expression)                         \
  static CUresult name##_any(bool per_thread, UNPACK parameters) {                           \
    (void)per_thread;                                                                        \
    ph_enter();                                                                              \
    cudaError_t error = driver_current();                                                    \
    return driver_finish(error ? error : (expression), PH_API_##api);                        \
  }                                                                                          \
  PH_EXPORT CUresult name(UNPACK parameters) { return name##_any(false, UNPACK arguments); } \
  PH_EXPORT CUresult name##suffix(UNPACK parameters) { return name##_any(true, UNPACK arguments); }
// An older or newer name with the same interface.
#define ALSO(name, other) PH_EXPORT extern __typeof__(name) other __attribute__((alias(#name)));
