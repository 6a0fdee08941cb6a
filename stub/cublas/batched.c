// Factorisations of many small matrices.
#include "cublas/internal.h"

// `info` is a host value about the arguments; per-matrix codes lie in device memory: 0, solved.
static int factorise(work *w, int *host_info, void *device_info, void *pivots, int64_t pivot_count) {
  if (host_info) *host_info = 0;
  if (!w->batch) return alive(w->handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
  int status = run(w);
  if (status == CUBLAS_STATUS_INVALID_VALUE && host_info) *host_info = -1;
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (device_info) ph_wrote_zero(device_info, (size_t)w->batch * sizeof(int));
  if (pivots) ph_wrote_output(pivots, (double)pivot_count * (double)w->batch * sizeof(int));
  return status;
}
#define FACTORISE(INFO, DEVICE_INFO, PIVOTS, COUNT, ...)                      \
  work w = {.handle = handle, .m = -1, .k = -1, .batch = batch, __VA_ARGS__}; \
  return PH_BRACKET(factorise(&w, INFO, DEVICE_INFO, PIVOTS, COUNT))
#define CUBE(N) ((double)(N) * (double)(N) * (double)(N))
#define FACTORISATIONS(T, TYPE)                                                                                      \
  PH_EXPORT int cublas##T##getrfBatched(HANDLE handle, int n, void *a, int lda, int *pivots, int *info, int batch) { \
    FACTORISE(NULL, info, pivots, n, .name = "getrf", .type = TYPE, .n = n,                                          \
              .invalid = n < 0 || lda < at_least_1(n) || !a || !info, .multiply_adds = CUBE(n) / 3,                  \
              .elements = 2.0 * (double)n * (double)n);                                                              \
  }                                                                                                                  \
  PH_EXPORT int cublas##T##getriBatched(HANDLE handle, int n, const void *a, int lda, const int *pivots, void *c,    \
                                        int ldc, int *info, int batch) {                                             \
    HIDE(a), HIDE(pivots);                                                                                           \
    FACTORISE(NULL, info, NULL, 0, .name = "getri", .type = TYPE, .n = n,                                            \
              .invalid = n < 0 || lda < at_least_1(n) || ldc < at_least_1(n) || !c || !info,                         \
              .multiply_adds = 2 * CUBE(n) / 3, .elements = 2.0 * (double)n * (double)n);                            \
  }                                                                                                                  \
  PH_EXPORT int cublas##T##matinvBatched(HANDLE handle, int n, const void *a, int lda, void *inverse, int ldi,       \
                                         int *info, int batch) {                                                     \
    HIDE(a);                                                                                                         \
    FACTORISE(NULL, info, NULL, 0, .name = "matinv", .type = TYPE, .n = n,                                           \
              .invalid = n < 0 || n > 32 || lda < at_least_1(n) || ldi < at_least_1(n) || !inverse || !info,         \
              .multiply_adds = CUBE(n), .elements = 2.0 * (double)n * (double)n);                                    \
  }                                                                                                                  \
  PH_EXPORT int cublas##T##getrsBatched(HANDLE handle, int trans, int n, int nrhs, const void *a, int lda,           \
                                        const int *pivots, void *b, int ldb, int *info, int batch) {                 \
    HIDE(a), HIDE(pivots);                                                                                           \
    FACTORISE(info, NULL, NULL, 0, .name = "getrs", .type = TYPE, .trans = trans_word(trans), .n = n, .nrhs = nrhs,  \
              .invalid = trans < 0 || trans > CUBLAS_OP_C || n < 0 || nrhs < 0 || lda < at_least_1(n) ||             \
                         ldb < at_least_1(n) || !b,                                                                  \
              .multiply_adds = (double)n * (double)n * (double)nrhs,                                                 \
              .elements = (double)n * ((double)n + 2.0 * nrhs));                                                     \
  }                                                                                                                  \
  PH_EXPORT int cublas##T##geqrfBatched(HANDLE handle, int m, int n, void *a, int lda, void *tau, int *info,         \
                                        int batch) {                                                                 \
    HIDE(tau);                                                                                                       \
    FACTORISE(info, NULL, NULL, 0, .name = "geqrf", .type = TYPE, .m = m, .n = n,                                    \
              .invalid = m < 0 || n < 0 || lda < at_least_1(m) || !a,                                                \
              .multiply_adds = (double)n * (double)n * ((double)m - (double)n / 3),                                  \
              .elements = 2.0 * (double)m * (double)n);                                                              \
  }                                                                                                                  \
  PH_EXPORT int cublas##T##gelsBatched(HANDLE handle, int trans, int m, int n, int nrhs, void *a, int lda, void *c,  \
                                       int ldc, int *info, int *device_info, int batch) {                            \
    FACTORISE(info, device_info, NULL, 0, .name = "gels", .type = TYPE, .trans = trans_word(trans), .m = m, .n = n,  \
              .nrhs = nrhs,                                                                                          \
              .invalid = m < n || n < 0 || nrhs < 0 || lda < at_least_1(m) || ldc < at_least_1(m) || !a || !c,       \
              .multiply_adds = (double)n * (double)n * (double)m + 2.0 * (double)m * (double)n * nrhs,               \
              .elements = 2.0 * (double)m * ((double)n + nrhs));                                                     \
  }
FACTORISATIONS(S, PH_R_32F)
FACTORISATIONS(D, PH_R_64F)
FACTORISATIONS(C, PH_C_32F)
FACTORISATIONS(Z, PH_C_64F)
