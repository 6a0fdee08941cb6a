// The last error of a thread, and what errors are called.
#include "cuda/core/device.h"
#include "cuda/runtime/entry.h"

static __thread cudaError_t last_error;

cudaError_t cudart_fail(cudaError_t error) { return last_error = error; }

cudaError_t cudart_finish(cudaError_t error, enum ph_api api) {
  ph_charge(api);
  ph_leave();
  if (error) last_error = error;
  return error;
}

cudaError_t cudart_unsupported(const char *call, cudaError_t error) {
  ph_unsupported("libcudart", call, true);
  return error;
}

PH_EXPORT cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  if (!phc_is_sticky(error)) last_error = 0;
  return error;
}
PH_EXPORT cudaError_t cudaPeekAtLastError(void) { return last_error; }
PH_EXPORT const char *cudaGetErrorName(cudaError_t error) {
  const char *name = phc_error_name(error, false);
  return name ? name : "unrecognized error code";
}
PH_EXPORT const char *cudaGetErrorString(cudaError_t error) {
  const char *text = phc_error_text(error, false);
  return text ? text : "unrecognized error code";
}
