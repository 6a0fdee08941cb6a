// Common parts of the simulated cuBLAS: its handle, and the description of a call that is not a product. The
// functions declared here are private to the library.
#pragma once
#include "abi/cublas_abi.h"

typedef struct cublas_handle {
  uint64_t magic;
  void *stream;
  int pointer_mode, atomics_mode, math_mode, sm_count_target;
  int emulation_strategy, emulation_special_values, mantissa_control, mantissa_bits, mantissa_offset;
  int *mantissa_pointer;
  void *workspace;
  size_t workspace_bytes;
} cublas_handle;
typedef cublas_handle *HANDLE;

static inline bool alive(HANDLE handle) { return handle && handle->magic == PH_CUBLAS_MAGIC; }
static inline bool outside(int64_t value, int64_t low, int64_t high) { return value < low || value > high; }
static inline int64_t at_least_1(int64_t value) { return value > 1 ? value : 1; }
#define CHECK_HANDLE(handle) \
  if (!alive(handle)) return CUBLAS_STATUS_NOT_INITIALIZED

// Index types of the two forms of every call.
#define INT_AND_INT64(X, ...) X(int, , __VA_ARGS__) X(int64_t, _64, __VA_ARGS__)
// clang-format off
#define SDCZ(X, I, SUFFIX) \
  X(I, SUFFIX, S, PH_R_32F) X(I, SUFFIX, D, PH_R_64F) X(I, SUFFIX, C, PH_C_32F) X(I, SUFFIX, Z, PH_C_64F)
// clang-format on

// ---------------------------------------------------------------- calls that are not products
// One description serves levels 1 to 3 and the batched factorisations.
typedef struct work {
  HANDLE handle;
  const char *name;
  int type;
  bool invalid;                  // an argument is out of its range
  const char *trans;             // or NULL
  int64_t m, n, k, nrhs, batch;  // m, k: -1 if the call has no such dimension; nrhs, batch: 0 if not
  double multiply_adds;          // in elements of `type`
  double elements;               // read and written
  void *out;
  double out_elements;  // 0: not computable or not in device memory
  void *result;         // a scalar that comes back to the host in host pointer mode
  size_t result_bytes;
} work;

// Checks the arguments, sends one kernel to the handle's stream and leaves the results. Returns a cublasStatus_t.
int run(const work *w);

// Calls override the defaults that RUN and FACTORISE give.
#pragma GCC diagnostic ignored "-Woverride-init"
#define RUN(...)                                              \
  work w = {.handle = handle, .m = -1, .k = -1, __VA_ARGS__}; \
  return PH_BRACKET(run(&w))
static inline int64_t positive(int64_t n) { return n > 0 ? n : 0; }  // level 1: n <= 0 does nothing
static inline double span(int64_t n, int64_t increment) {
  return n > 0 ? 1 + (double)(n - 1) * (double)llabs((long long)increment) : 0;
}
static inline double matrix_span(int64_t rows, int64_t columns, int64_t ld) {
  return columns > 0 ? (double)rows + (double)ld * (double)(columns - 1) : 0;
}
static inline const char *trans_word(int trans) {
  return trans == CUBLAS_OP_N ? "n" : trans == CUBLAS_OP_T ? "t" : "c";
}
static inline const char *side_word(int side, int trans) {
  if (side == CUBLAS_SIDE_LEFT) return trans == CUBLAS_OP_N ? "ln" : trans == CUBLAS_OP_T ? "lt" : "lc";
  return trans == CUBLAS_OP_N ? "rn" : trans == CUBLAS_OP_T ? "rt" : "rc";
}
static inline bool flag_invalid(int value) { return value < 0 || value > 1; }
#define HIDE(...) (void)(__VA_ARGS__)
