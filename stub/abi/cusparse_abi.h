// Codes of cuSPARSE, which cuSPARSELt returns too.
#pragma once

// clang-format off
#define CUSPARSE_STATUSES(X)                                                                  \
  X(SUCCESS, 0, "success") X(NOT_INITIALIZED, 1, "initialization error")                      \
  X(ALLOC_FAILED, 2, "allocation failed") X(INVALID_VALUE, 3, "invalid value")                \
  X(ARCH_MISMATCH, 4, "architecture mismatch") X(MAPPING_ERROR, 5, "mapping error")           \
  X(EXECUTION_FAILED, 6, "execution failed") X(INTERNAL_ERROR, 7, "internal error")           \
  X(MATRIX_TYPE_NOT_SUPPORTED, 8, "matrix type not supported") X(ZERO_PIVOT, 9, "zero pivot") \
  X(NOT_SUPPORTED, 10, "not supported") X(INSUFFICIENT_RESOURCES, 11, "insufficient resources")
// clang-format on

#define CUSPARSE_STATUS(NAME, VALUE, WORDS) NAME = VALUE,
enum cusparse_status { CUSPARSE_STATUSES(CUSPARSE_STATUS) };
