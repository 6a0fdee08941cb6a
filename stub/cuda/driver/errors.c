// Initialisation, versions, and what errors are called.
#include "cuda/core/device.h"
#include "cuda/driver/entry.h"

// A few conditions have a code of their own in the runtime only.
static CUresult driver_code(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidMemcpyDirection:
      return cudaErrorInvalidValue;
    case cudaErrorInvalidDeviceFunction:
      return cudaErrorInvalidResourceHandle;
    case cudaErrorInvalidSymbol:
      return cudaErrorSymbolNotFound;
    default:
      return error;
  }
}
CUresult driver_finish(cudaError_t error, enum ph_api api) {
  ph_charge(api);
  ph_leave();
  return driver_code(error);
}

cudaError_t driver_unsupported(const char *call) {
  ph_unsupported("libcuda", call, true);
  return cudaErrorNotSupported;
}

ENTRY(cuInit, OTHER, phc_ready, (unsigned flags), flags ? cudaErrorInvalidValue : 0)
ENTRY(cuDriverGetVersion, GET_DEVICE, nothing, (int *version), GIVE(version, int, PH_CUDA_DRIVER_VERSION))

static CUresult error_text(int code, const char **text, bool name) {
  if (!text) return cudaErrorInvalidValue;
  *text = name ? phc_error_name(code, true) : phc_error_text(code, true);
  return *text ? 0 : cudaErrorInvalidValue;
}
PH_EXPORT CUresult cuGetErrorString(CUresult code, const char **text) { return error_text(code, text, false); }
PH_EXPORT CUresult cuGetErrorName(CUresult code, const char **text) { return error_text(code, text, true); }
