// The part of cuBLAS's binary interface that stub/cublas and stub/cublaslt share: values as in
// the public cublas_api.h of CUDA 12 and 13, declared here so that no NVIDIA header is needed.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "rank/library.h"

#ifndef PH_CUDA_MAJOR
#error "PH_CUDA_MAJOR must be defined: the CUDA major version of the libraries to stand in for"
#endif
// major * 10000 + minor * 100 + patch; the build may pass the version of the installed library.
#ifndef PH_CUBLAS_VERSION
#define PH_CUBLAS_VERSION (PH_CUDA_MAJOR >= 13 ? 130100 : 120804)
#endif

enum {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_ARCH_MISMATCH = 8,
  CUBLAS_STATUS_MAPPING_ERROR = 11,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
  CUBLAS_STATUS_INTERNAL_ERROR = 14,
  CUBLAS_STATUS_NOT_SUPPORTED = 15,
  CUBLAS_STATUS_LICENSE_ERROR = 16,
};
enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2, CUBLAS_OP_CONJG = 3 };
enum { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1, CUBLAS_FILL_MODE_FULL = 2 };
enum { CUBLAS_SIDE_LEFT = 0, CUBLAS_SIDE_RIGHT = 1 };
enum { CUBLAS_DIAG_NON_UNIT = 0, CUBLAS_DIAG_UNIT = 1 };
enum { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 };
enum {
  CUBLAS_DEFAULT_MATH = 0,
  CUBLAS_TENSOR_OP_MATH = 1,
  CUBLAS_PEDANTIC_MATH = 2,
  CUBLAS_TF32_TENSOR_OP_MATH = 3,
  CUBLAS_FP32_EMULATED_BF16X9_MATH = 4,
  CUBLAS_FP64_EMULATED_FIXEDPOINT_MATH = 8,
  CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16,
  CUBLAS_MATH_MODE_MASK = 15,
};
enum {
  CUBLAS_COMPUTE_16F = 64,
  CUBLAS_COMPUTE_16F_PEDANTIC = 65,
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_COMPUTE_32F_PEDANTIC = 69,
  CUBLAS_COMPUTE_64F = 70,
  CUBLAS_COMPUTE_64F_PEDANTIC = 71,
  CUBLAS_COMPUTE_32I = 72,
  CUBLAS_COMPUTE_32I_PEDANTIC = 73,
  CUBLAS_COMPUTE_32F_FAST_16F = 74,
  CUBLAS_COMPUTE_32F_FAST_16BF = 75,
  CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
  CUBLAS_COMPUTE_32F_EMULATED_16BFX9 = 78,
  CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT = 79,
};
enum { LIBRARY_MAJOR = 0, LIBRARY_MINOR = 1, LIBRARY_PATCH = 2 };  // libraryPropertyType

// A cuBLAS handle may be used where a cublasLt handle is asked for (torch does), so both begin with
// this word while they are alive.
#define PH_CUBLAS_MAGIC 0x7068626c61733031ULL

// clang-format off
#define CUBLAS_STATUSES(X)                                                         \
  X(SUCCESS, "success") X(NOT_INITIALIZED, "the library was not initialized")      \
  X(ALLOC_FAILED, "the resource allocation failed")                                \
  X(INVALID_VALUE, "an unsupported value or parameter was passed to the function") \
  X(ARCH_MISMATCH, "the device lacks a required feature")                          \
  X(MAPPING_ERROR, "an access to GPU memory space failed")                         \
  X(EXECUTION_FAILED, "the function failed to launch on the GPU")                  \
  X(INTERNAL_ERROR, "an internal operation failed")                                \
  X(NOT_SUPPORTED, "the functionality requested is not supported")                 \
  X(LICENSE_ERROR, "the functionality requested requires a license")
// clang-format on
#define CUBLAS_STATUS_NAME(STATUS, TEXT) \
  if (status == CUBLAS_STATUS_##STATUS) return "CUBLAS_STATUS_" #STATUS;
#define CUBLAS_STATUS_TEXT(STATUS, TEXT) \
  if (status == CUBLAS_STATUS_##STATUS) return TEXT;

// "nn", "tn", ...: how the operands of a product are stored; "c" for a conjugate transpose.
static inline const char *cublas_trans(int a, int b) {
  static const char *const names[4][4] = {
      {"nn", "nt", "nc", "nr"}, {"tn", "tt", "tc", "tr"}, {"cn", "ct", "cc", "cr"}, {"rn", "rt", "rc", "rr"}};
  return names[a & 3][b & 3];
}
static inline int cublas_operation_valid(int operation) {
  return operation >= CUBLAS_OP_N && operation <= CUBLAS_OP_CONJG;
}

// Format of the multiply-add units, as a word: NULL for an unknown type.
static inline const char *cublas_compute_name(int compute) {
  switch (compute) {
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC:
      return "f16";
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      return "f32";
    case CUBLAS_COMPUTE_32F_FAST_16F:
      return "f16_fast";
    case CUBLAS_COMPUTE_32F_FAST_16BF:
      return "bf16_fast";
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return "tf32";
    case CUBLAS_COMPUTE_32F_EMULATED_16BFX9:
      return "bf16x9";
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      return "f64";
    case CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT:
      return "f64_fixed";
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC:
      return "i32";
    default:
      return NULL;
  }
}

// The combinations that cublasGemmEx documents: compute type, type of A and B, type of C.
static inline int cublas_types_supported(int compute, int a, int b, int c) {
  if (a != b) return 0;
  switch (compute) {
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC:
      return a == PH_R_16F && c == PH_R_16F;
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC:
      return a == PH_R_8I && c == PH_R_32I;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      if (a == PH_R_16BF || a == PH_R_16F) return c == a || c == PH_R_32F;
      if (a == PH_R_8I || a == PH_R_32F) return c == PH_R_32F;
      return (a == PH_C_8I || a == PH_C_32F) && c == PH_C_32F;
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
    case CUBLAS_COMPUTE_32F_FAST_TF32:
    case CUBLAS_COMPUTE_32F_EMULATED_16BFX9:
      return (a == PH_R_32F || a == PH_C_32F) && c == a;
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
    case CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT:
      return (a == PH_R_64F || a == PH_C_64F) && c == a;
    default:
      return 0;
  }
}
