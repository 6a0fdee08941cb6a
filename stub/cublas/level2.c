// Matrices and vectors.
#include "cublas/internal.h"

#define GEMV_CHECKS \
  (trans < 0 || trans > CUBLAS_OP_C || lda < at_least_1(m) || incx == 0 || incy == 0 || !alpha || !beta)
#define GEMV_WORK                                                                                       \
  .name = "gemv", .trans = trans_word(trans), .invalid = m < 0 || n < 0 || GEMV_CHECKS, .m = m, .n = n, \
  .multiply_adds = (double)m * (double)n, .elements = (double)m * (double)n + (double)m + (double)n
#define GEMV(I, SUFFIX, T, TYPE)                                                                                 \
  PH_EXPORT int cublas##T##gemv_v2##SUFFIX(HANDLE handle, int trans, I m, I n, const void *alpha, const void *a, \
                                           I lda, const void *x, I incx, const void *beta, void *y, I incy) {    \
    HIDE(a), HIDE(x);                                                                                            \
    RUN(GEMV_WORK, .type = TYPE, .out = y, .out_elements = span(trans == CUBLAS_OP_N ? m : n, incy));            \
  }
#define GEMV_BATCHED(I, SUFFIX, T, TYPE)                                                                             \
  PH_EXPORT int cublas##T##gemvBatched##SUFFIX(HANDLE handle, int trans, I m, I n, const void *alpha, const void *a, \
                                               I lda, const void *x, I incx, const void *beta, void *y, I incy,      \
                                               I batch) {                                                            \
    HIDE(a), HIDE(x), HIDE(y);                                                                                       \
    if (!batch) return alive(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;                        \
    RUN(GEMV_WORK, .type = TYPE, .batch = batch);                                                                    \
  }                                                                                                                  \
  PH_EXPORT int cublas##T##gemvStridedBatched##SUFFIX(                                                               \
      HANDLE handle, int trans, I m, I n, const void *alpha, const void *a, I lda, long long sa, const void *x,      \
      I incx, long long sx, const void *beta, void *y, I incy, long long sy, I batch) {                              \
    HIDE(a), HIDE(sa), HIDE(x), HIDE(sx);                                                                            \
    if (!batch) return alive(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;                        \
    RUN(GEMV_WORK, .type = TYPE, .batch = batch, .out = y,                                                           \
        .out_elements = span(trans == CUBLAS_OP_N ? m : n, incy) + (double)sy * (double)(batch - 1));                \
  }
#define GER(I, SUFFIX, NAME, TYPE)                                                                            \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, I m, I n, const void *alpha, const void *x, I incx,  \
                                          const void *y, I incy, void *a, I lda) {                            \
    HIDE(x), HIDE(y);                                                                                         \
    RUN(.name = "ger", .type = TYPE,                                                                          \
        .invalid = m < 0 || n < 0 || incx == 0 || incy == 0 || lda < at_least_1(m) || !alpha, .m = m, .n = n, \
        .multiply_adds = (double)m * (double)n, .elements = 2.0 * (double)m * (double)n, .out = a,            \
        .out_elements = matrix_span(m, n, lda));                                                              \
  }
#define SYMV(I, SUFFIX, NAME, TYPE)                                                                                 \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, int uplo, I n, const void *alpha, const void *a, I lda,    \
                                          const void *x, I incx, const void *beta, void *y, I incy) {               \
    HIDE(a), HIDE(x);                                                                                               \
    RUN(.name = "symv", .type = TYPE,                                                                               \
        .invalid = flag_invalid(uplo) || n < 0 || lda < at_least_1(n) || incx == 0 || incy == 0 || !alpha || !beta, \
        .n = n, .multiply_adds = (double)n * (double)n, .elements = (double)n * (double)n / 2, .out = y,            \
        .out_elements = span(n, incy));                                                                             \
  }
#define SYR(I, SUFFIX, NAME, TYPE)                                                                                \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, int uplo, I n, const void *alpha, const void *x, I incx, \
                                          void *a, I lda) {                                                       \
    HIDE(x);                                                                                                      \
    RUN(.name = "syr", .type = TYPE,                                                                              \
        .invalid = flag_invalid(uplo) || n < 0 || incx == 0 || lda < at_least_1(n) || !alpha, .n = n,             \
        .multiply_adds = (double)n * (double)n / 2, .elements = (double)n * (double)n, .out = a,                  \
        .out_elements = matrix_span(n, n, lda));                                                                  \
  }
#define SYR2(I, SUFFIX, NAME, TYPE)                                                                                \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, int uplo, I n, const void *alpha, const void *x, I incx,  \
                                          const void *y, I incy, void *a, I lda) {                                 \
    HIDE(x), HIDE(y);                                                                                              \
    RUN(.name = "syr2", .type = TYPE,                                                                              \
        .invalid = flag_invalid(uplo) || n < 0 || incx == 0 || incy == 0 || lda < at_least_1(n) || !alpha, .n = n, \
        .multiply_adds = (double)n * (double)n, .elements = (double)n * (double)n, .out = a,                       \
        .out_elements = matrix_span(n, n, lda));                                                                   \
  }
#define TRV(I, SUFFIX, NAME, TYPE, WORD)                                                                           \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, int uplo, int trans, int diag, I n, const void *a, I lda, \
                                          void *x, I incx) {                                                       \
    HIDE(a);                                                                                                       \
    RUN(.name = WORD, .type = TYPE, .trans = trans_word(trans), .n = n,                                            \
        .invalid = flag_invalid(uplo) || flag_invalid(diag) || trans < 0 || trans > CUBLAS_OP_C || n < 0 ||        \
                   lda < at_least_1(n) || incx == 0,                                                               \
        .multiply_adds = (double)n * (double)n / 2, .elements = (double)n * (double)n / 2, .out = x,               \
        .out_elements = span(n, incx));                                                                            \
  }
// clang-format off
#define LEVEL2(I, SUFFIX, _)                                                                            \
  SDCZ(GEMV, I, SUFFIX) SDCZ(GEMV_BATCHED, I, SUFFIX) GEMV_BATCHED(I, SUFFIX, HSH, PH_R_16F)            \
  GEMV_BATCHED(I, SUFFIX, HSS, PH_R_16F) GEMV_BATCHED(I, SUFFIX, TST, PH_R_16BF)                       \
  GEMV_BATCHED(I, SUFFIX, TSS, PH_R_16BF) GER(I, SUFFIX, Sger, PH_R_32F) GER(I, SUFFIX, Dger, PH_R_64F) \
  GER(I, SUFFIX, Cgeru, PH_C_32F) GER(I, SUFFIX, Cgerc, PH_C_32F) GER(I, SUFFIX, Zgeru, PH_C_64F)      \
  GER(I, SUFFIX, Zgerc, PH_C_64F) SYMV(I, SUFFIX, Ssymv, PH_R_32F) SYMV(I, SUFFIX, Dsymv, PH_R_64F)     \
  SYMV(I, SUFFIX, Csymv, PH_C_32F) SYMV(I, SUFFIX, Zsymv, PH_C_64F) SYMV(I, SUFFIX, Chemv, PH_C_32F)   \
  SYMV(I, SUFFIX, Zhemv, PH_C_64F) SYR(I, SUFFIX, Ssyr, PH_R_32F) SYR(I, SUFFIX, Dsyr, PH_R_64F)        \
  SYR(I, SUFFIX, Csyr, PH_C_32F) SYR(I, SUFFIX, Zsyr, PH_C_64F) SYR(I, SUFFIX, Cher, PH_C_32F)          \
  SYR(I, SUFFIX, Zher, PH_C_64F) SYR2(I, SUFFIX, Ssyr2, PH_R_32F) SYR2(I, SUFFIX, Dsyr2, PH_R_64F)      \
  SYR2(I, SUFFIX, Csyr2, PH_C_32F) SYR2(I, SUFFIX, Zsyr2, PH_C_64F) SYR2(I, SUFFIX, Cher2, PH_C_32F)    \
  SYR2(I, SUFFIX, Zher2, PH_C_64F) TRV(I, SUFFIX, Strmv, PH_R_32F, "trmv")                              \
  TRV(I, SUFFIX, Dtrmv, PH_R_64F, "trmv") TRV(I, SUFFIX, Ctrmv, PH_C_32F, "trmv")                       \
  TRV(I, SUFFIX, Ztrmv, PH_C_64F, "trmv") TRV(I, SUFFIX, Strsv, PH_R_32F, "trsv")                       \
  TRV(I, SUFFIX, Dtrsv, PH_R_64F, "trsv") TRV(I, SUFFIX, Ctrsv, PH_C_32F, "trsv")                       \
  TRV(I, SUFFIX, Ztrsv, PH_C_64F, "trsv")
// clang-format on
INT_AND_INT64(LEVEL2, )
