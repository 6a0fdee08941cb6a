// Matrices of special forms.
#include "cublas/internal.h"

#define SYRK(I, SUFFIX, NAME, TYPE)                                                                                   \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, int uplo, int trans, I n, I k, const void *alpha,            \
                                          const void *a, I lda, const void *beta, void *c, I ldc) {                   \
    HIDE(a);                                                                                                          \
    RUN(.name = "syrk", .type = TYPE, .trans = trans_word(trans), .n = n, .k = k,                                     \
        .invalid = flag_invalid(uplo) || trans < 0 || trans > CUBLAS_OP_C || n < 0 || k < 0 ||                        \
                   lda < at_least_1(trans == CUBLAS_OP_N ? n : k) || ldc < at_least_1(n) || !alpha || !beta,          \
        .multiply_adds = (double)n * (double)n * (double)k / 2,                                                       \
        .elements = (double)n * (double)k + (double)n * (double)n, .out = c, .out_elements = matrix_span(n, n, ldc)); \
  }
#define SYR2K(I, SUFFIX, NAME, TYPE)                                                                                   \
  PH_EXPORT int cublas##NAME##SUFFIX(HANDLE handle, int uplo, int trans, I n, I k, const void *alpha, const void *a,   \
                                     I lda, const void *b, I ldb, const void *beta, void *c, I ldc) {                  \
    HIDE(a), HIDE(b);                                                                                                  \
    RUN(.name = "syr2k", .type = TYPE, .trans = trans_word(trans), .n = n, .k = k,                                     \
        .invalid = flag_invalid(uplo) || trans < 0 || trans > CUBLAS_OP_C || n < 0 || k < 0 ||                         \
                   lda < at_least_1(trans == CUBLAS_OP_N ? n : k) || ldb < at_least_1(trans == CUBLAS_OP_N ? n : k) || \
                   ldc < at_least_1(n) || !alpha || !beta,                                                             \
        .multiply_adds = (double)n * (double)n * (double)k,                                                            \
        .elements = 2.0 * (double)n * (double)k + (double)n * (double)n, .out = c,                                     \
        .out_elements = matrix_span(n, n, ldc));                                                                       \
  }
#define SYMM(I, SUFFIX, NAME, TYPE)                                                                              \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, int side, int uplo, I m, I n, const void *alpha,        \
                                          const void *a, I lda, const void *b, I ldb, const void *beta, void *c, \
                                          I ldc) {                                                               \
    HIDE(a), HIDE(b);                                                                                            \
    int64_t order = side == CUBLAS_SIDE_LEFT ? m : n;                                                            \
    RUN(.name = "symm", .type = TYPE, .trans = side_word(side, CUBLAS_OP_N), .m = m, .n = n,                     \
        .invalid = flag_invalid(side) || flag_invalid(uplo) || m < 0 || n < 0 || lda < at_least_1(order) ||      \
                   ldb < at_least_1(m) || ldc < at_least_1(m) || !alpha || !beta,                                \
        .multiply_adds = (double)m * (double)n * (double)order,                                                  \
        .elements = (double)order * (double)order / 2 + 2.0 * (double)m * (double)n, .out = c,                   \
        .out_elements = matrix_span(m, n, ldc));                                                                 \
  }
#define TRIANGULAR_INVALID                                                                                        \
  (flag_invalid(side) || flag_invalid(uplo) || flag_invalid(diag) || trans < 0 || trans > CUBLAS_OP_C || m < 0 || \
   n < 0 || lda < at_least_1(side == CUBLAS_SIDE_LEFT ? m : n) || ldb < at_least_1(m) || !alpha)
#define TRIANGULAR_WORK                                                                                     \
  .trans = side_word(side, trans), .m = m, .n = n,                                                          \
  .multiply_adds = (double)m * (double)n * (double)(side == CUBLAS_SIDE_LEFT ? m : n) / 2,                  \
  .elements = (double)(side == CUBLAS_SIDE_LEFT ? m : n) * (double)(side == CUBLAS_SIDE_LEFT ? m : n) / 2 + \
              2.0 * (double)m * (double)n
#define TRIANGULAR(I) \
  HANDLE handle, int side, int uplo, int trans, int diag, I m, I n, const void *alpha, const void *a, I lda
#define TRSM(I, SUFFIX, T, TYPE)                                                                                       \
  PH_EXPORT int cublas##T##trsm_v2##SUFFIX(TRIANGULAR(I), void *b, I ldb) {                                            \
    HIDE(a);                                                                                                           \
    RUN(.name = "trsm", .type = TYPE, .invalid = TRIANGULAR_INVALID, TRIANGULAR_WORK, .out = b,                        \
        .out_elements = matrix_span(m, n, ldb));                                                                       \
  }                                                                                                                    \
  PH_EXPORT int cublas##T##trsmBatched##SUFFIX(TRIANGULAR(I), void *b, I ldb, I batch) {                               \
    HIDE(a), HIDE(b);                                                                                                  \
    if (!batch) return alive(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;                          \
    RUN(.name = "trsm", .type = TYPE, .invalid = TRIANGULAR_INVALID, TRIANGULAR_WORK, .batch = batch);                 \
  }                                                                                                                    \
  PH_EXPORT int cublas##T##trmm_v2##SUFFIX(TRIANGULAR(I), const void *b, I ldb, void *c, I ldc) {                      \
    HIDE(a), HIDE(b);                                                                                                  \
    RUN(.name = "trmm", .type = TYPE, .invalid = TRIANGULAR_INVALID || ldc < at_least_1(m), TRIANGULAR_WORK, .out = c, \
        .out_elements = matrix_span(m, n, ldc));                                                                       \
  }
#define GEAM(I, SUFFIX, T, TYPE)                                                                                   \
  PH_EXPORT int cublas##T##geam##SUFFIX(HANDLE handle, int ta, int tb, I m, I n, const void *alpha, const void *a, \
                                        I lda, const void *beta, const void *b, I ldb, void *c, I ldc) {           \
    HIDE(a), HIDE(b);                                                                                              \
    RUN(.name = "geam", .type = TYPE, .trans = cublas_trans(ta, tb), .m = m, .n = n,                               \
        .invalid = !cublas_operation_valid(ta) || !cublas_operation_valid(tb) || m < 0 || n < 0 ||                 \
                   lda < at_least_1(ta == CUBLAS_OP_N ? m : n) || ldb < at_least_1(tb == CUBLAS_OP_N ? m : n) ||   \
                   ldc < at_least_1(m) || !alpha || !beta,                                                         \
        .multiply_adds = (double)m * (double)n, .elements = 3.0 * (double)m * (double)n, .out = c,                 \
        .out_elements = matrix_span(m, n, ldc));                                                                   \
  }                                                                                                                \
  PH_EXPORT int cublas##T##dgmm##SUFFIX(HANDLE handle, int side, I m, I n, const void *a, I lda, const void *x,    \
                                        I incx, void *c, I ldc) {                                                  \
    HIDE(a), HIDE(x), HIDE(incx);                                                                                  \
    RUN(.name = "dgmm", .type = TYPE, .trans = side_word(side, CUBLAS_OP_N), .m = m, .n = n,                       \
        .invalid = flag_invalid(side) || m < 0 || n < 0 || lda < at_least_1(m) || ldc < at_least_1(m),             \
        .multiply_adds = (double)m * (double)n, .elements = 2.0 * (double)m * (double)n, .out = c,                 \
        .out_elements = matrix_span(m, n, ldc));                                                                   \
  }
// clang-format off
#define LEVEL3(I, SUFFIX, _)                                                                               \
  SYRK(I, SUFFIX, Ssyrk, PH_R_32F) SYRK(I, SUFFIX, Dsyrk, PH_R_64F) SYRK(I, SUFFIX, Csyrk, PH_C_32F)       \
  SYRK(I, SUFFIX, Zsyrk, PH_C_64F) SYRK(I, SUFFIX, Cherk, PH_C_32F) SYRK(I, SUFFIX, Zherk, PH_C_64F)       \
  SYR2K(I, SUFFIX, Ssyr2k_v2, PH_R_32F) SYR2K(I, SUFFIX, Dsyr2k_v2, PH_R_64F)                              \
  SYR2K(I, SUFFIX, Csyr2k_v2, PH_C_32F) SYR2K(I, SUFFIX, Zsyr2k_v2, PH_C_64F)                              \
  SYR2K(I, SUFFIX, Cher2k_v2, PH_C_32F) SYR2K(I, SUFFIX, Zher2k_v2, PH_C_64F)                              \
  SYR2K(I, SUFFIX, Ssyrkx, PH_R_32F) SYR2K(I, SUFFIX, Dsyrkx, PH_R_64F) SYR2K(I, SUFFIX, Csyrkx, PH_C_32F) \
  SYR2K(I, SUFFIX, Zsyrkx, PH_C_64F) SYR2K(I, SUFFIX, Cherkx, PH_C_32F) SYR2K(I, SUFFIX, Zherkx, PH_C_64F) \
  SYMM(I, SUFFIX, Ssymm, PH_R_32F) SYMM(I, SUFFIX, Dsymm, PH_R_64F) SYMM(I, SUFFIX, Csymm, PH_C_32F)       \
  SYMM(I, SUFFIX, Zsymm, PH_C_64F) SYMM(I, SUFFIX, Chemm, PH_C_32F) SYMM(I, SUFFIX, Zhemm, PH_C_64F)       \
  SDCZ(TRSM, I, SUFFIX) SDCZ(GEAM, I, SUFFIX)
// clang-format on
INT_AND_INT64(LEVEL3, )
