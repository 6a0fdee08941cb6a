// Vectors. The type's size serves for results: `R` is the result's type.
#include "cublas/internal.h"

#define BYTES(TYPE) ((size_t)ph_dtype_of(TYPE)->bits / 8)
#define REDUCTION(I, SUFFIX, NAME, TYPE, RESULT, WORD)                                                \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, I n, const void *x, I incx, void *result) {  \
    HIDE(x);                                                                                          \
    RUN(.name = WORD, .type = TYPE, .invalid = !result, .n = positive(n), .multiply_adds = (double)n, \
        .elements = span(n, incx), .result = result, .result_bytes = RESULT);                         \
  }
#define DOT(I, SUFFIX, NAME, TYPE)                                                                          \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, I n, const void *x, I incx, const void *y, I incy, \
                                          void *result) {                                                   \
    HIDE(x), HIDE(y), HIDE(incx), HIDE(incy);                                                               \
    RUN(.name = "dot", .type = TYPE, .invalid = !result, .n = positive(n), .multiply_adds = (double)n,      \
        .elements = 2.0 * (double)n, .result = result, .result_bytes = BYTES(TYPE));                        \
  }
#define SCAL(I, SUFFIX, NAME, TYPE)                                                                    \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, I n, const void *alpha, void *x, I incx) {    \
    RUN(.name = "scal", .type = TYPE, .invalid = !alpha, .n = positive(n), .multiply_adds = (double)n, \
        .elements = 2.0 * (double)n, .out = x, .out_elements = span(n, incx));                         \
  }
#define AXPY(I, SUFFIX, T, TYPE)                                                                                  \
  PH_EXPORT int cublas##T##axpy_v2##SUFFIX(HANDLE handle, I n, const void *alpha, const void *x, I incx, void *y, \
                                           I incy) {                                                              \
    HIDE(x), HIDE(incx);                                                                                          \
    RUN(.name = "axpy", .type = TYPE, .invalid = !alpha, .n = positive(n), .multiply_adds = (double)n,            \
        .elements = 3.0 * (double)n, .out = y, .out_elements = span(n, incy));                                    \
  }
#define COPY(I, SUFFIX, T, TYPE)                                                                         \
  PH_EXPORT int cublas##T##copy_v2##SUFFIX(HANDLE handle, I n, const void *x, I incx, void *y, I incy) { \
    HIDE(x), HIDE(incx);                                                                                 \
    RUN(.name = "copy", .type = TYPE, .n = positive(n), .elements = 2.0 * (double)n, .out = y,           \
        .out_elements = span(n, incy));                                                                  \
  }
#define SWAP(I, SUFFIX, T, TYPE)                                                                   \
  PH_EXPORT int cublas##T##swap_v2##SUFFIX(HANDLE handle, I n, void *x, I incx, void *y, I incy) { \
    HIDE(x), HIDE(incx);                                                                           \
    RUN(.name = "swap", .type = TYPE, .n = positive(n), .elements = 4.0 * (double)n, .out = y,     \
        .out_elements = span(n, incy));                                                            \
  }
#define ROT(I, SUFFIX, NAME, TYPE)                                                                             \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, I n, void *x, I incx, void *y, I incy, const void *c, \
                                          const void *s) {                                                     \
    HIDE(x), HIDE(incx);                                                                                       \
    RUN(.name = "rot", .type = TYPE, .invalid = !c || !s, .n = positive(n), .multiply_adds = 3.0 * (double)n,  \
        .elements = 4.0 * (double)n, .out = y, .out_elements = span(n, incy));                                 \
  }
#define ROTM(I, SUFFIX, NAME, TYPE)                                                                               \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, I n, void *x, I incx, void *y, I incy,                   \
                                          const void *parameters) {                                               \
    HIDE(x), HIDE(incx);                                                                                          \
    RUN(.name = "rotm", .type = TYPE, .invalid = !parameters, .n = positive(n), .multiply_adds = 2.0 * (double)n, \
        .elements = 4.0 * (double)n, .out = y, .out_elements = span(n, incy));                                    \
  }
// clang-format off
#define LEVEL1(I, SUFFIX, INDEX)                                                                            \
  REDUCTION(I, SUFFIX, Snrm2, PH_R_32F, 4, "nrm2") REDUCTION(I, SUFFIX, Dnrm2, PH_R_64F, 8, "nrm2")         \
  REDUCTION(I, SUFFIX, Scnrm2, PH_C_32F, 4, "nrm2") REDUCTION(I, SUFFIX, Dznrm2, PH_C_64F, 8, "nrm2")       \
  REDUCTION(I, SUFFIX, Sasum, PH_R_32F, 4, "asum") REDUCTION(I, SUFFIX, Dasum, PH_R_64F, 8, "asum")         \
  REDUCTION(I, SUFFIX, Scasum, PH_C_32F, 4, "asum") REDUCTION(I, SUFFIX, Dzasum, PH_C_64F, 8, "asum")       \
  REDUCTION(I, SUFFIX, Isamax, PH_R_32F, sizeof(I), "amax")                                                 \
  REDUCTION(I, SUFFIX, Idamax, PH_R_64F, sizeof(I), "amax")                                                 \
  REDUCTION(I, SUFFIX, Icamax, PH_C_32F, sizeof(I), "amax")                                                 \
  REDUCTION(I, SUFFIX, Izamax, PH_C_64F, sizeof(I), "amax")                                                 \
  REDUCTION(I, SUFFIX, Isamin, PH_R_32F, sizeof(I), "amin")                                                 \
  REDUCTION(I, SUFFIX, Idamin, PH_R_64F, sizeof(I), "amin")                                                 \
  REDUCTION(I, SUFFIX, Icamin, PH_C_32F, sizeof(I), "amin")                                                 \
  REDUCTION(I, SUFFIX, Izamin, PH_C_64F, sizeof(I), "amin") DOT(I, SUFFIX, Sdot, PH_R_32F)                  \
  DOT(I, SUFFIX, Ddot, PH_R_64F) DOT(I, SUFFIX, Cdotu, PH_C_32F) DOT(I, SUFFIX, Zdotu, PH_C_64F)            \
  DOT(I, SUFFIX, Cdotc, PH_C_32F) DOT(I, SUFFIX, Zdotc, PH_C_64F) SCAL(I, SUFFIX, Sscal, PH_R_32F)          \
  SCAL(I, SUFFIX, Dscal, PH_R_64F) SCAL(I, SUFFIX, Cscal, PH_C_32F) SCAL(I, SUFFIX, Zscal, PH_C_64F)        \
  SCAL(I, SUFFIX, Csscal, PH_C_32F) SCAL(I, SUFFIX, Zdscal, PH_C_64F) SDCZ(AXPY, I, SUFFIX)                 \
  SDCZ(COPY, I, SUFFIX) SDCZ(SWAP, I, SUFFIX) ROT(I, SUFFIX, Srot, PH_R_32F)                                \
  ROT(I, SUFFIX, Drot, PH_R_64F) ROT(I, SUFFIX, Crot, PH_C_32F) ROT(I, SUFFIX, Csrot, PH_C_32F)             \
  ROT(I, SUFFIX, Zrot, PH_C_64F) ROT(I, SUFFIX, Zdrot, PH_C_64F) ROTM(I, SUFFIX, Srotm, PH_R_32F)           \
  ROTM(I, SUFFIX, Drotm, PH_R_64F)                                                                          \
  PH_EXPORT int cublasNrm2Ex##SUFFIX(HANDLE handle, I n,                                                    \
      const void *x, int type,                                                                              \
      I incx, void *result,                                                                                 \
      int rt, int et) {                                                                                     \
    HIDE(x), HIDE(et);                                                                                      \
    RUN(.name = "nrm2", .type = type, .invalid = !result || !ph_dtype_of(rt), .n = positive(n),             \
        .multiply_adds = (double)n, .elements = span(n, incx), .result = result,                            \
        .result_bytes = ph_dtype_of(rt) ? BYTES(rt) : 0);                                                   \
  }                                                                                                         \
  PH_EXPORT int cublasAsumEx##SUFFIX(HANDLE handle, I n, const void *x, int type, I incx, void *result,     \
                                     int rt, int et) {                                                      \
    HIDE(x), HIDE(et);                                                                                      \
    RUN(.name = "asum", .type = type, .invalid = !result || !ph_dtype_of(rt), .n = positive(n),             \
        .multiply_adds = (double)n, .elements = span(n, incx), .result = result,                            \
        .result_bytes = ph_dtype_of(rt) ? BYTES(rt) : 0);                                                   \
  }                                                                                                         \
  DOT_EX(I, SUFFIX, DotEx)                                                                                  \
  DOT_EX(I, SUFFIX, DotcEx) PH_EXPORT int cublasScalEx##SUFFIX(HANDLE handle, I n, const void *alpha,       \
                                                               int at, void *x, int type, I incx, int et) { \
    HIDE(at), HIDE(et);                                                                                     \
    RUN(.name = "scal", .type = type, .invalid = !alpha, .n = positive(n), .multiply_adds = (double)n,      \
        .elements = 2.0 * (double)n, .out = x, .out_elements = span(n, incx));                              \
  }                                                                                                         \
  PH_EXPORT int cublasAxpyEx##SUFFIX(HANDLE handle, I n, const void *alpha, int at, const void *x, int xt,  \
                                     I incx, void *y, int type, I incy, int et) {                           \
    HIDE(at), HIDE(et), HIDE(x), HIDE(xt), HIDE(incx);                                                      \
    RUN(.name = "axpy", .type = type, .invalid = !alpha, .n = positive(n), .multiply_adds = (double)n,      \
        .elements = 3.0 * (double)n, .out = y, .out_elements = span(n, incy));                              \
  }                                                                                                         \
  PH_EXPORT int cublasCopyEx##SUFFIX(HANDLE handle, I n, const void *x, int xt, I incx, void *y, int type,  \
                                     I incy) {                                                              \
    HIDE(x), HIDE(xt), HIDE(incx);                                                                          \
    RUN(.name = "copy", .type = type, .n = positive(n), .elements = 2.0 * (double)n, .out = y,              \
        .out_elements = span(n, incy));                                                                     \
  }
// clang-format on
#define DOT_EX(I, SUFFIX, NAME)                                                                                  \
  PH_EXPORT int cublas##NAME##SUFFIX(HANDLE handle, I n, const void *x, int type, I incx, const void *y, int yt, \
                                     I incy, void *result, int rt, int et) {                                     \
    HIDE(x), HIDE(incx), HIDE(y), HIDE(yt), HIDE(incy), HIDE(et);                                                \
    RUN(.name = "dot", .type = type, .invalid = !result || !ph_dtype_of(rt), .n = positive(n),                   \
        .multiply_adds = (double)n, .elements = 2.0 * (double)n, .result = result,                               \
        .result_bytes = ph_dtype_of(rt) ? BYTES(rt) : 0);                                                        \
  }
INT_AND_INT64(LEVEL1, )

// Givens rotations of scalars: a kernel only when the scalars live on the device.
#define ROTG(T, TYPE)                                                                                              \
  PH_EXPORT int cublas##T##rotg_v2(HANDLE handle, void *a, void *b, void *c, void *s) {                            \
    RUN(.name = "rotg", .type = TYPE, .invalid = !a || !b || !c || !s, .n = 1, .multiply_adds = 4, .elements = 4); \
  }
ROTG(S, PH_R_32F)
ROTG(D, PH_R_64F)
ROTG(C, PH_C_32F)
ROTG(Z, PH_C_64F)
#define ROTMG(T, TYPE)                                                                                                 \
  PH_EXPORT int cublas##T##rotmg_v2(HANDLE handle, void *d1, void *d2, void *x1, const void *y1, void *parameters) {   \
    RUN(.name = "rotmg", .type = TYPE, .invalid = !d1 || !d2 || !x1 || !y1 || !parameters, .n = 1, .multiply_adds = 8, \
        .elements = 9);                                                                                                \
  }
ROTMG(S, PH_R_32F)
ROTMG(D, PH_R_64F)
