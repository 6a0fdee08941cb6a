// Common beginning of libcudart's files: how an entry point is written.
//
// libcudart is a face of cuda/core. Every function is listed once, with the host cost it is charged and the
// expression that does it; what is not listed becomes a trap that names itself (phantora.stubs).
//
// The numbers and codes follow NVIDIA's runtime as measured on an H200 (tests/cuda/semantics.py).
#pragma once
#include "cuda/core/entry.h"

cudaError_t cudart_fail(cudaError_t error);  // keeps an error of a call that costs nothing
// Charges the call and keeps its error for cudaGetLastError.
cudaError_t cudart_finish(cudaError_t error, enum ph_api api);
// Tells the user that a call is not supported; returns `error`.
cudaError_t cudart_unsupported(const char *call, cudaError_t error);
// Answer of a kernel that is none: a null pointer is no function, any other is taken for a handle.
cudaError_t cudart_no_kernel(const void *function);
cudaError_t cudart_stream_check(void *handle, bool per_thread);  // is it a stream?

// An entry point that needs nothing (NEEDS_NOTHING), a device (phc_ready) or a context (phc_context).
#define ENTRY(name, api, needs, parameters, expression)               \
  PH_EXPORT cudaError_t name parameters {                             \
    ph_enter();                                                       \
    cudaError_t error = needs();                                      \
    return cudart_finish(error ? error : (expression), PH_API_##api); \
  }
// The same with its twin for per-thread default streams: `per_thread` is true for the twin.
#define ENTRY2(name, suffix, api, parameters, expression)             \
  static cudaError_t name##_any(bool per_thread, UNPACK parameters) { \
    (void)per_thread;                                                 \
    ph_enter();                                                       \
    cudaError_t error = phc_context();                                \
    return cudart_finish(error ? error : (expression), PH_API_##api); \
  }
#define TWINS(name, suffix, parameters, arguments)                                              \
  PH_EXPORT cudaError_t name(UNPACK parameters) { return name##_any(false, UNPACK arguments); } \
  PH_EXPORT cudaError_t name##suffix(UNPACK parameters) { return name##_any(true, UNPACK arguments); }
// clang-format off
#define STREAM(name, suffix, api, parameters, arguments, expression) \
  ENTRY2(name, suffix, api, parameters, expression)                  \
  TWINS(name, suffix, parameters, arguments)
// clang-format on
