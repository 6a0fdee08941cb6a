// cuBLAS handles: their life, state, versions and messages.
#include "cublas/internal.h"

PH_EXPORT int cublasCreate_v2(HANDLE *handle) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = NULL;
  if (ph_devices() < 1) return CUBLAS_STATUS_NOT_INITIALIZED;
  HANDLE created = calloc(1, sizeof *created);
  if (!created) return CUBLAS_STATUS_ALLOC_FAILED;
  created->magic = PH_CUBLAS_MAGIC;
  created->emulation_special_values = 0xFFFF;
  static int first = 1;
  if (__atomic_exchange_n(&first, 0, __ATOMIC_RELAXED)) {
    if (!ph_memory_charge(ph_current_device(), (int64_t)ph_gpu()->cublas_bytes))
      return free(created), CUBLAS_STATUS_ALLOC_FAILED;
    ph_charge(PH_API_CUBLAS_CREATE);
  }
  *handle = created;
  ph_charge(PH_API_OTHER);
  return CUBLAS_STATUS_SUCCESS;
}

PH_EXPORT int cublasDestroy_v2(HANDLE handle) {
  CHECK_HANDLE(handle);
  handle->magic = 0;
  free(handle);
  return CUBLAS_STATUS_SUCCESS;
}

PH_EXPORT int cublasSetStream_v2(HANDLE handle, void *stream) {
  CHECK_HANDLE(handle);
  handle->stream = stream;
  // As documented: a user's workspace ends with the stream that it was set for.
  handle->workspace = NULL;
  handle->workspace_bytes = 0;
  return CUBLAS_STATUS_SUCCESS;
}

PH_EXPORT int cublasSetWorkspace_v2(HANDLE handle, void *workspace, size_t bytes) {
  CHECK_HANDLE(handle);
  if ((uintptr_t)workspace % 256) return CUBLAS_STATUS_INVALID_VALUE;
  ph_note_workspace(workspace);
  handle->workspace = workspace;
  handle->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

PH_EXPORT int cublasGetVersion_v2(HANDLE handle, int *version) {
  (void)handle;  // documented to work without one
  if (!version) return CUBLAS_STATUS_INVALID_VALUE;
  *version = PH_CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

PH_EXPORT int cublasGetProperty(int property, int *value) {
  if (!value || property < LIBRARY_MAJOR || property > LIBRARY_PATCH) return CUBLAS_STATUS_INVALID_VALUE;
  const int parts[] = {PH_CUBLAS_VERSION / 10000, PH_CUBLAS_VERSION / 100 % 100, PH_CUBLAS_VERSION % 100};
  *value = parts[property];
  return CUBLAS_STATUS_SUCCESS;
}

PH_EXPORT size_t cublasGetCudartVersion(void) { return PH_CUDA_MAJOR * 1000; }

// State with a getter and a setter: name of the pair's common part, suffix, field, type, lowest and
// highest value that the setter takes.
// clang-format off
#define HANDLE_STATE(X)                                                             \
  X(PointerMode, _v2, pointer_mode, 0, 1) X(AtomicsMode, , atomics_mode, 0, 1)      \
  X(MathMode, , math_mode, 0, 31) X(SmCountTarget, , sm_count_target, 0, INT32_MAX) \
  X(EmulationStrategy, , emulation_strategy, 0, 2)                                  \
  X(EmulationSpecialValuesSupport, , emulation_special_values, 0, 0xFFFF)           \
  X(FixedPointEmulationMantissaControl, , mantissa_control, 0, 1)                   \
  X(FixedPointEmulationMaxMantissaBitCount, , mantissa_bits, 0, INT32_MAX)          \
  X(FixedPointEmulationMantissaBitOffset, , mantissa_offset, INT32_MIN, INT32_MAX)
// clang-format on
#define STATE(NAME, SUFFIX, FIELD, LOW, HIGH)                          \
  PH_EXPORT int cublasGet##NAME##SUFFIX(HANDLE handle, int *value) {   \
    CHECK_HANDLE(handle);                                              \
    if (!value) return CUBLAS_STATUS_INVALID_VALUE;                    \
    *value = handle->FIELD;                                            \
    return CUBLAS_STATUS_SUCCESS;                                      \
  }                                                                    \
  PH_EXPORT int cublasSet##NAME##SUFFIX(HANDLE handle, int value) {    \
    CHECK_HANDLE(handle);                                              \
    if (outside(value, LOW, HIGH)) return CUBLAS_STATUS_INVALID_VALUE; \
    handle->FIELD = value;                                             \
    return CUBLAS_STATUS_SUCCESS;                                      \
  }
HANDLE_STATE(STATE)

PH_EXPORT int cublasGetStream_v2(HANDLE handle, void **stream) {
  CHECK_HANDLE(handle);
  if (!stream) return CUBLAS_STATUS_INVALID_VALUE;
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasGetFixedPointEmulationMantissaBitCountPointer(HANDLE handle, int **pointer) {
  CHECK_HANDLE(handle);
  if (!pointer) return CUBLAS_STATUS_INVALID_VALUE;
  *pointer = handle->mantissa_pointer;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasSetFixedPointEmulationMantissaBitCountPointer(HANDLE handle, int *pointer) {
  CHECK_HANDLE(handle);
  handle->mantissa_pointer = pointer;
  return CUBLAS_STATUS_SUCCESS;
}

PH_EXPORT const char *cublasGetStatusName(int status) {
  CUBLAS_STATUSES(CUBLAS_STATUS_NAME)
  return "CUBLAS_STATUS_UNKNOWN";
}
PH_EXPORT const char *cublasGetStatusString(int status) {
  CUBLAS_STATUSES(CUBLAS_STATUS_TEXT)
  return "unknown cuBLAS status";
}

// cuBLAS's own logging has nothing to say here: the simulator's log holds every call.
static void (*log_callback)(const char *);
PH_EXPORT int cublasLoggerConfigure(int on, int to_stdout, int to_stderr, const char *file) {
  (void)on, (void)to_stdout, (void)to_stderr, (void)file;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasSetLoggerCallback(void (*callback)(const char *)) {
  log_callback = callback;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasGetLoggerCallback(void (**callback)(const char *)) {
  if (!callback) return CUBLAS_STATUS_INVALID_VALUE;
  *callback = log_callback;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT void cublasXerbla(const char *routine, int info) {
  fprintf(stderr, "cuBLAS: parameter %d of %s had an illegal value\n", info, routine ? routine : "?");
}
