// cuSOLVER (dense): the calls that torch.linalg makes. Sizes of work buffers are those of a blocked
// algorithm, a computing call is one kernel, and every code in device memory is "solved".
#include "rank/library_handle.h"

enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 2, INVALID_VALUE = 3, EXECUTION_FAILED = 6, NOT_SUPPORTED = 9 };
enum { MAJOR, MINOR, PATCH };  // libraryPropertyType
enum { BLOCK = 64 };  // columns of a panel

PH_LIBRARY_HANDLE(cusolverDn, 0x7068736f6c763031ULL, int deterministic;)
typedef handle *HANDLE;

PH_EXPORT int cusolverDnSetDeterministicMode(HANDLE self, int mode) {
  if (!alive(self)) return NOT_INITIALIZED;
  self->deterministic = mode;
  return SUCCESS;
}

// CUDA 13.0 has 12.0.4, CUDA 12.8 has 11.7.3.
#define PH_CUSOLVER_VERSION (PH_CUDA_MAJOR >= 13 ? 12004 : 11703)

PH_EXPORT int cusolverGetVersion(int *version) {
  if (!version) return INVALID_VALUE;
  *version = PH_CUSOLVER_VERSION;
  return SUCCESS;
}

PH_EXPORT int cusolverGetProperty(int property, int *value) {
  if (!value || property < MAJOR || property > PATCH) return INVALID_VALUE;
  const int parts[] = {PH_CUSOLVER_VERSION / 1000, PH_CUSOLVER_VERSION / 100 % 10, PH_CUSOLVER_VERSION % 100};
  *value = parts[property];
  return SUCCESS;
}

// Parameter objects: tolerances and sweeps of the Jacobi methods, options of the generic interface.
typedef struct parameters {
  double tolerance;
  int sweeps, sort;
} parameters;
#define PARAMETERS(X) X(Params) X(GesvdjInfo) X(SyevjInfo)
#define PARAMETERS_LIFE(NAME)                               \
  PH_EXPORT int cusolverDnCreate##NAME(parameters **out) {  \
    if (!out) return INVALID_VALUE;                         \
    *out = calloc(1, sizeof **out);                         \
    return *out ? SUCCESS : ALLOC_FAILED;                   \
  }                                                         \
  PH_EXPORT int cusolverDnDestroy##NAME(parameters *self) { \
    free(self);                                             \
    return SUCCESS;                                         \
  }
PARAMETERS(PARAMETERS_LIFE)
#define JACOBI_STATE(NAME)                                                        \
  PH_EXPORT int cusolverDnX##NAME##SetTolerance(parameters *self, double value) { \
    return self ? (self->tolerance = value, SUCCESS) : INVALID_VALUE;             \
  }                                                                               \
  PH_EXPORT int cusolverDnX##NAME##SetMaxSweeps(parameters *self, int value) {    \
    return self ? (self->sweeps = value, SUCCESS) : INVALID_VALUE;                \
  }                                                                               \
  PH_EXPORT int cusolverDnX##NAME##SetSortEig(parameters *self, int value) {      \
    return self ? (self->sort = value, SUCCESS) : INVALID_VALUE;                  \
  }
JACOBI_STATE(gesvdj)
JACOBI_STATE(syevj)
PH_EXPORT int cusolverDnSetAdvOptions(parameters *self, int function, int algorithm) {
  (void)function, (void)algorithm;
  return self ? SUCCESS : INVALID_VALUE;
}

typedef struct work {
  HANDLE handle;
  const char *name;
  int type;
  bool invalid;
  int64_t m, n, inner, batch;      // inner: right-hand sides, reflectors or rank
  double multiply_adds, elements;  // of one matrix
  int *info;                       // one code per matrix, device memory
  void *out;
  double out_elements;
} work;

// Kernels that a call launches for one matrix of n columns, the first one apart: linear_algebra.parquet of
// validation/measurements counts them by operator.
static const struct {
  const char *name;
  double fixed, per_column;
} launches[] = {
    {"geqrf", 4, 0.12}, {"orgqr", 9, 0.12}, {"ormqr", 9, 0.12}, {"potrf", 4, 0},
    {"potrs", 4, 0},    {"getrf", 6, 0.05}, {"getrs", 6, 0},    {"gesvd", 8, 3.0},
    {"gesvdj", 8, 2.3}, {"syevd", 20, 2.3}, {"syevj", 20, 2.3}, {"geev", 100, 13},
};
static size_t more_launches(const char *name, double n) {
  for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
    if (!strcmp(name, launches[i].name)) return (size_t)(launches[i].fixed + launches[i].per_column * n);
  return 0;
}

static int run(const work *w) {
  if (!alive(w->handle)) return NOT_INITIALIZED;
  const ph_dtype *type = ph_dtype_of(w->type);
  if (w->invalid || w->m < 0 || w->n < 0 || w->inner < 0 || w->batch < 0) return INVALID_VALUE;
  if (!type) return NOT_SUPPORTED;
  if (!w->n && !w->out) return SUCCESS;  // an empty matrix
  const ph_stream *stream = ph_stream_of(w->handle->stream, false);
  if (!stream) return EXECUTION_FAILED;
  ph_call call;
  ph_call_begin(&call, "cusolver", w->name);
  ph_call_text(&call, "a", type->name, true);
  if (w->m) ph_call_number(&call, "m", w->m, true);
  ph_call_number(&call, "n", w->n, true);
  if (w->inner) ph_call_number(&call, "inner", w->inner, true);
  ph_call_number(&call, "batch", w->batch, w->batch > 1);
  call.flops = (type->complex_number ? 8.0 : 2.0) * w->multiply_adds * (double)w->batch;
  call.bytes = w->elements * ph_dtype_bytes(type) * (double)w->batch;
  ph_call_launch(&call, stream);
  ph_charge(PH_API_GEMM);
  if (w->batch == 1) ph_charge_times(PH_API_LAUNCH, more_launches(w->name, (double)w->n));
  ph_wrote_zero(w->info, (size_t)w->batch * sizeof(int));
  ph_wrote_output(w->out, w->out_elements * ph_dtype_bytes(type));
  return SUCCESS;
}
// Calls override the defaults that RUN gives.
#pragma GCC diagnostic ignored "-Woverride-init"
#define RUN(...)                                   \
  work w = {.handle = h, .batch = 1, __VA_ARGS__}; \
  return PH_BRACKET(run(&w))
static int answer(HANDLE h, bool valid, int *out, double elements) {
  if (!alive(h)) return NOT_INITIALIZED;
  if (!valid || !out || elements > INT32_MAX) return INVALID_VALUE;
  *out = elements < 1 ? 1 : (int)elements;
  return SUCCESS;
}
static int answer_bytes(HANDLE h, bool valid, size_t *device, size_t *host, double elements, int type) {
  if (!alive(h)) return NOT_INITIALIZED;
  if (!valid || !device || !host) return INVALID_VALUE;
  if (!ph_dtype_of(type)) return NOT_SUPPORTED;
  *device = (size_t)(elements * ph_dtype_bytes(ph_dtype_of(type)));
  *host = 0;
  return SUCCESS;
}
#define HIDE(...) (void)(__VA_ARGS__)
static double square(double n) { return n * n; }
static double cube(double n) { return n * n * n; }
static double smaller(double a, double b) { return a < b ? a : b; }
static double qr_cost(double m, double n) {
  double k = smaller(m, n);
  return k * k * ((m > n ? m : n) - k / 3);
}

// Linear systems and factorisations.
#define SOLVE(T, TYPE)                                                                                                 \
  PH_EXPORT int cusolverDn##T##potrf_bufferSize(HANDLE h, int uplo, int n, void *a, int lda, int *size) {              \
    HIDE(uplo), HIDE(a);                                                                                               \
    return answer(h, n >= 0 && lda >= n, size, (double)n * BLOCK);                                                     \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##potrf(HANDLE h, int uplo, int n, void *a, int lda, void *space, int size, int *info) {  \
    HIDE(uplo), HIDE(space), HIDE(size);                                                                               \
    RUN(.name = "potrf", .type = TYPE, .invalid = lda < n || !a, .n = n, .multiply_adds = cube(n) / 6,                 \
        .elements = square(n), .info = info, .out = a, .out_elements = (double)lda * n);                               \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##potrs(HANDLE h, int uplo, int n, int nrhs, const void *a, int lda, void *b, int ldb,    \
                                     int *info) {                                                                      \
    HIDE(uplo), HIDE(a);                                                                                               \
    RUN(.name = "potrs", .type = TYPE, .invalid = lda < n || ldb < n || !b, .n = n, .inner = nrhs,                     \
        .multiply_adds = square(n) * nrhs, .elements = square(n) + 2.0 * n * nrhs, .info = info, .out = b,             \
        .out_elements = (double)ldb * nrhs);                                                                           \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##potrfBatched(HANDLE h, int uplo, int n, void *a, int lda, int *info, int batch) {       \
    HIDE(uplo);                                                                                                        \
    RUN(.name = "potrf", .type = TYPE, .invalid = lda < n || !a, .n = n, .batch = batch, .multiply_adds = cube(n) / 6, \
        .elements = square(n), .info = info);                                                                          \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##potrsBatched(HANDLE h, int uplo, int n, int nrhs, void *a, int lda, void *b, int ldb,   \
                                            int *info, int batch) {                                                    \
    HIDE(uplo), HIDE(a);                                                                                               \
    work w = {.handle = h,                                                                                             \
              .name = "potrs",                                                                                         \
              .type = TYPE,                                                                                            \
              .invalid = lda < n || ldb < n || !b,                                                                     \
              .n = n,                                                                                                  \
              .inner = nrhs,                                                                                           \
              .batch = batch,                                                                                          \
              .multiply_adds = square(n) * nrhs,                                                                       \
              .elements = square(n) + 2.0 * n * nrhs};                                                                 \
    int status = PH_BRACKET(run(&w));                                                                                  \
    if (status == SUCCESS) ph_wrote_zero(info, sizeof *info); /* one code for all */                                   \
    return status;                                                                                                     \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##getrf_bufferSize(HANDLE h, int m, int n, void *a, int lda, int *size) {                 \
    HIDE(a);                                                                                                           \
    return answer(h, m >= 0 && n >= 0 && lda >= m, size, (double)m * BLOCK);                                           \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##getrf(HANDLE h, int m, int n, void *a, int lda, void *space, int *pivots, int *info) {  \
    HIDE(space);                                                                                                       \
    if (pivots && m > 0 && n > 0) ph_wrote_output(pivots, sizeof(int) * smaller(m, n));                                \
    RUN(.name = "getrf", .type = TYPE, .invalid = lda < m || !a, .m = m, .n = n, .multiply_adds = qr_cost(m, n) / 2,   \
        .elements = 2.0 * m * n, .info = info, .out = a, .out_elements = (double)lda * n);                             \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##getrs(HANDLE h, int trans, int n, int nrhs, const void *a, int lda, const int *pivots,  \
                                     void *b, int ldb, int *info) {                                                    \
    HIDE(a), HIDE(pivots);                                                                                             \
    RUN(.name = "getrs", .type = TYPE, .invalid = trans < 0 || trans > 2 || lda < n || ldb < n || !b, .n = n,          \
        .inner = nrhs, .multiply_adds = square(n) * nrhs, .elements = square(n) + 2.0 * n * nrhs, .info = info,        \
        .out = b, .out_elements = (double)ldb * nrhs);                                                                 \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##geqrf_bufferSize(HANDLE h, int m, int n, void *a, int lda, int *size) {                 \
    HIDE(a);                                                                                                           \
    return answer(h, m >= 0 && n >= 0 && lda >= m, size, (double)n * BLOCK);                                           \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##geqrf(HANDLE h, int m, int n, void *a, int lda, void *tau, void *space, int size,       \
                                     int *info) {                                                                      \
    HIDE(tau), HIDE(space), HIDE(size);                                                                                \
    RUN(.name = "geqrf", .type = TYPE, .invalid = lda < m || !a, .m = m, .n = n, .multiply_adds = qr_cost(m, n),       \
        .elements = 2.0 * m * n, .info = info, .out = a, .out_elements = (double)lda * n);                             \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##sytrf_bufferSize(HANDLE h, int n, void *a, int lda, int *size) {                        \
    HIDE(a);                                                                                                           \
    return answer(h, n >= 0 && lda >= n, size, (double)n * BLOCK);                                                     \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##sytrf(HANDLE h, int uplo, int n, void *a, int lda, int *pivots, void *space, int size,  \
                                     int *info) {                                                                      \
    HIDE(uplo), HIDE(space), HIDE(size);                                                                               \
    if (pivots && n > 0) ph_wrote_output(pivots, sizeof(int) * (double)n);                                             \
    RUN(.name = "sytrf", .type = TYPE, .invalid = lda < n || !a, .n = n, .multiply_adds = cube(n) / 6,                 \
        .elements = square(n), .info = info, .out = a, .out_elements = (double)lda * n);                               \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##gesvd_bufferSize(HANDLE h, int m, int n, int *size) {                                   \
    return answer(h, m >= n && n >= 0, size, (double)(m + n) * BLOCK);                                                 \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##gesvd(HANDLE h, signed char jobu, signed char jobv, int m, int n, void *a, int lda,     \
                                     void *s, void *u, int ldu, void *v, int ldv, void *space, int size,               \
                                     void *real_space, int *info) {                                                    \
    HIDE(jobu), HIDE(jobv), HIDE(s), HIDE(u), HIDE(ldu), HIDE(v), HIDE(ldv), HIDE(space), HIDE(size),                  \
        HIDE(real_space);                                                                                              \
    RUN(.name = "gesvd", .type = TYPE, .invalid = lda < m || m < n || !a, .m = m, .n = n,                              \
        .multiply_adds = 7 * qr_cost(m, n), .elements = 4.0 * m * n, .info = info);                                    \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##gesvdj_bufferSize(HANDLE h, int job, int economy, int m, int n, const void *a, int lda, \
                                                 const void *s, const void *u, int ldu, const void *v, int ldv,        \
                                                 int *size, parameters *p) {                                           \
    HIDE(job), HIDE(economy), HIDE(a), HIDE(s), HIDE(u), HIDE(ldu), HIDE(v), HIDE(ldv), HIDE(p);                       \
    return answer(h, m >= 0 && n >= 0 && lda >= m, size, 2.0 * m * n + (m + n) * BLOCK);                               \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##gesvdj(HANDLE h, int job, int economy, int m, int n, void *a, int lda, void *s,         \
                                      void *u, int ldu, void *v, int ldv, void *space, int size, int *info,            \
                                      parameters *p) {                                                                 \
    HIDE(job), HIDE(economy), HIDE(s), HIDE(u), HIDE(ldu), HIDE(v), HIDE(ldv), HIDE(space), HIDE(size), HIDE(p);       \
    RUN(.name = "gesvdj", .type = TYPE, .invalid = lda < m || !a, .m = m, .n = n, .multiply_adds = 10 * qr_cost(m, n), \
        .elements = 4.0 * m * n, .info = info);                                                                        \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##gesvdjBatched_bufferSize(HANDLE h, int job, int m, int n, const void *a, int lda,       \
                                                        const void *s, const void *u, int ldu, const void *v, int ldv, \
                                                        int *size, parameters *p, int batch) {                         \
    HIDE(job), HIDE(a), HIDE(s), HIDE(u), HIDE(ldu), HIDE(v), HIDE(ldv), HIDE(p);                                      \
    return answer(h, m >= 0 && n >= 0 && m <= 32 && n <= 32 && lda >= m, size, 2.0 * m * n * batch);                   \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##gesvdjBatched(HANDLE h, int job, int m, int n, void *a, int lda, void *s, void *u,      \
                                             int ldu, void *v, int ldv, void *space, int size, int *info,              \
                                             parameters *p, int batch) {                                               \
    HIDE(job), HIDE(s), HIDE(u), HIDE(ldu), HIDE(v), HIDE(ldv), HIDE(space), HIDE(size), HIDE(p);                      \
    RUN(.name = "gesvdj", .type = TYPE, .invalid = lda < m || m > 32 || n > 32 || !a, .m = m, .n = n, .batch = batch,  \
        .multiply_adds = 10 * qr_cost(m, n), .elements = 4.0 * m * n, .info = info);                                   \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##gesvdaStridedBatched_bufferSize(                                                        \
      HANDLE h, int job, int rank, int m, int n, const void *a, int lda, long long sa, const void *s, long long ss,    \
      const void *u, int ldu, long long su, const void *v, int ldv, long long sv, int *size, int batch) {              \
    HIDE(job), HIDE(a), HIDE(sa), HIDE(s), HIDE(ss), HIDE(u), HIDE(ldu), HIDE(su), HIDE(v), HIDE(ldv), HIDE(sv);       \
    return answer(h, m >= 0 && n >= 0 && rank >= 0 && lda >= m, size, 2.0 * m * n * batch);                            \
  }                                                                                                                    \
  PH_EXPORT int cusolverDn##T##gesvdaStridedBatched(HANDLE h, int job, int rank, int m, int n, const void *a, int lda, \
                                                    long long sa, void *s, long long ss, void *u, int ldu,             \
                                                    long long su, void *v, int ldv, long long sv, void *space,         \
                                                    int size, int *info, double *residuals, int batch) {               \
    HIDE(job), HIDE(sa), HIDE(s), HIDE(ss), HIDE(u), HIDE(ldu), HIDE(su), HIDE(v), HIDE(ldv), HIDE(sv), HIDE(space),   \
        HIDE(size);                                                                                                    \
    if (residuals && batch > 0) memset(residuals, 0, (size_t)batch * sizeof *residuals);                               \
    RUN(.name = "gesvda", .type = TYPE, .invalid = lda < m || !a, .m = m, .n = n, .inner = rank, .batch = batch,       \
        .multiply_adds = 7 * qr_cost(m, n), .elements = 4.0 * m * n, .info = info);                                    \
  }
SOLVE(S, PH_R_32F)
SOLVE(D, PH_R_64F)
SOLVE(C, PH_C_32F)
SOLVE(Z, PH_C_64F)
// Calls whose name depends on whether the numbers are real: orthogonal or unitary, symmetric or
// Hermitian.
// clang-format off
#define ORTHOGONAL(T, G, M, E, EJ, TYPE)                                                                     \
  PH_EXPORT int cusolverDn##T##G##_bufferSize(HANDLE h, int m, int n, int k, const void *a, int lda,         \
                                              const void *tau, int *size) {                                  \
    HIDE(a), HIDE(tau);                                                                                      \
    return answer(h, m >= n && n >= k && k >= 0 && lda >= m, size, (double)n * BLOCK);                       \
  }                                                                                                          \
  PH_EXPORT int cusolverDn##T##G(HANDLE h, int m, int n, int k, void *a, int lda, const void *tau,           \
                                 void *space, int size, int *info) {                                         \
    HIDE(tau), HIDE(space), HIDE(size);                                                                      \
    RUN(.name = "orgqr", .type = TYPE, .invalid = m < n || n < k || lda < m || !a, .m = m, .n = n,           \
        .inner = k, .multiply_adds = 2.0 * m * n * k - (double)(m + n) * k * k + 2.0 / 3 * cube(k),          \
        .elements = 2.0 * m * n, .info = info, .out = a, .out_elements = (double)lda * n);                   \
  }                                                                                                          \
  PH_EXPORT int cusolverDn##T##M##_bufferSize(HANDLE h, int side, int trans, int m, int n, int k,            \
                                              const void *a, int lda, const void *tau, const void *c,        \
                                              int ldc, int *size) {                                          \
    HIDE(side), HIDE(trans), HIDE(a), HIDE(lda), HIDE(tau), HIDE(c);                                         \
    return answer(h, m >= 0 && n >= 0 && k >= 0 && ldc >= m, size, (double)(side ? m : n) * BLOCK);          \
  }                                                                                                          \
  PH_EXPORT int cusolverDn##T##M(HANDLE h, int side, int trans, int m, int n, int k, const void *a, int lda, \
                                 const void *tau, void *c, int ldc, void *space, int size, int *info) {      \
    HIDE(side), HIDE(a), HIDE(lda), HIDE(tau), HIDE(space), HIDE(size);                                      \
    RUN(.name = "ormqr", .type = TYPE, .invalid = trans < 0 || trans > 2 || ldc < m || !c, .m = m, .n = n,   \
        .inner = k, .multiply_adds = 2.0 * m * n * k, .elements = 2.0 * m * n, .info = info, .out = c,       \
        .out_elements = (double)ldc * n);                                                                    \
  }                                                                                                          \
  PH_EXPORT int cusolverDn##T##E##_bufferSize(HANDLE h, int job, int uplo, int n, const void *a, int lda,    \
                                              const void *v, int *size) {                                    \
    HIDE(job), HIDE(uplo), HIDE(a), HIDE(v);                                                                 \
    return answer(h, n >= 0 && lda >= n, size, 2 * square(n) + (double)n * BLOCK);                           \
  }                                                                                                          \
  PH_EXPORT int cusolverDn##T##E(HANDLE h, int job, int uplo, int n, void *a, int lda, void *v, void *space, \
                                 int size, int *info) {                                                      \
    HIDE(job), HIDE(uplo), HIDE(v), HIDE(space), HIDE(size);                                                 \
    RUN(.name = "syevd", .type = TYPE, .invalid = lda < n || !a, .n = n, .multiply_adds = cube(n) * 9 / 2,   \
        .elements = 4 * square(n), .info = info);                                                            \
  }                                                                                                          \
  PH_EXPORT int cusolverDn##T##EJ##_bufferSize(HANDLE h, int job, int uplo, int n, const void *a, int lda,   \
                                               const void *v, int *size, parameters *p) {                    \
    HIDE(job), HIDE(uplo), HIDE(a), HIDE(v), HIDE(p);                                                        \
    return answer(h, n >= 0 && lda >= n, size, square(n) + (double)n * BLOCK);                               \
  }                                                                                                          \
  PH_EXPORT int cusolverDn##T##EJ(HANDLE h, int job, int uplo, int n, void *a, int lda, void *v,             \
                                  void *space, int size, int *info, parameters *p) {                         \
    HIDE(job), HIDE(uplo), HIDE(v), HIDE(space), HIDE(size), HIDE(p);                                        \
    RUN(.name = "syevj", .type = TYPE, .invalid = lda < n || !a, .n = n, .multiply_adds = 10 * cube(n),      \
        .elements = 4 * square(n), .info = info);                                                            \
  }                                                                                                          \
  PH_EXPORT int cusolverDn##T##EJ##Batched_bufferSize(HANDLE h, int job, int uplo, int n, const void *a,     \
                                                      int lda, const void *v, int *size, parameters *p,      \
                                                      int batch) {                                           \
    HIDE(job), HIDE(uplo), HIDE(a), HIDE(v), HIDE(p);                                                        \
    return answer(h, n >= 0 && lda >= n, size, square(n) * batch);                                           \
  }                                                                                                          \
  PH_EXPORT int cusolverDn##T##EJ##Batched(HANDLE h, int job, int uplo, int n, void *a, int lda, void *v,    \
                                           void *space, int size, int *info, parameters *p, int batch) {     \
    HIDE(job), HIDE(uplo), HIDE(v), HIDE(space), HIDE(size), HIDE(p);                                        \
    RUN(.name = "syevj", .type = TYPE, .invalid = lda < n || !a, .n = n, .batch = batch,                     \
        .multiply_adds = 10 * cube(n), .elements = 4 * square(n), .info = info);                             \
  }
// clang-format on
ORTHOGONAL(S, orgqr, ormqr, syevd, syevj, PH_R_32F)
ORTHOGONAL(D, orgqr, ormqr, syevd, syevj, PH_R_64F)
ORTHOGONAL(C, ungqr, unmqr, heevd, heevj, PH_C_32F)
ORTHOGONAL(Z, ungqr, unmqr, heevd, heevj, PH_C_64F)

// The generic interface with 64-bit sizes; buffers are counted in bytes.
PH_EXPORT int cusolverDnXpotrf_bufferSize(HANDLE h, parameters *p, int uplo, int64_t n, int type, const void *a,
                                          int64_t lda, int compute, size_t *device, size_t *host) {
  HIDE(p), HIDE(uplo), HIDE(a), HIDE(compute);
  return answer_bytes(h, n >= 0 && lda >= n, device, host, (double)n * BLOCK, type);
}
PH_EXPORT int cusolverDnXpotrf(HANDLE h, parameters *p, int uplo, int64_t n, int type, void *a, int64_t lda,
                               int compute, void *space, size_t bytes, void *host, size_t host_bytes, int *info) {
  HIDE(p), HIDE(uplo), HIDE(compute), HIDE(space), HIDE(bytes), HIDE(host), HIDE(host_bytes);
  RUN(.name = "potrf", .type = type, .invalid = lda < n || !a, .n = n, .multiply_adds = cube((double)n) / 6,
      .elements = square((double)n), .info = info, .out = a, .out_elements = (double)lda * (double)n);
}
PH_EXPORT int cusolverDnXpotrs(HANDLE h, parameters *p, int uplo, int64_t n, int64_t nrhs, int type, const void *a,
                               int64_t lda, int type_b, void *b, int64_t ldb, int *info) {
  HIDE(p), HIDE(uplo), HIDE(a), HIDE(type_b);
  bool empty = n == 0 || nrhs == 0;
  RUN(.name = "potrs", .type = type, .invalid = lda < n || ldb < n || (!b && !empty), .n = n, .inner = nrhs,
      .multiply_adds = square((double)n) * (double)nrhs, .elements = square((double)n) + 2.0 * (double)n * (double)nrhs,
      .info = info, .out = b, .out_elements = (double)ldb * (double)nrhs);
}
PH_EXPORT int cusolverDnXgeqrf_bufferSize(HANDLE h, parameters *p, int64_t m, int64_t n, int type, const void *a,
                                          int64_t lda, int tau_type, const void *tau, int compute, size_t *device,
                                          size_t *host) {
  HIDE(p), HIDE(a), HIDE(tau_type), HIDE(tau), HIDE(compute);
  return answer_bytes(h, m >= 0 && n >= 0 && lda >= m, device, host, (double)n * BLOCK, type);
}
PH_EXPORT int cusolverDnXgeqrf(HANDLE h, parameters *p, int64_t m, int64_t n, int type, void *a, int64_t lda,
                               int tau_type, void *tau, int compute, void *space, size_t bytes, void *host,
                               size_t host_bytes, int *info) {
  HIDE(p), HIDE(tau_type), HIDE(tau), HIDE(compute), HIDE(space), HIDE(bytes), HIDE(host), HIDE(host_bytes);
  RUN(.name = "geqrf", .type = type, .invalid = lda < m || !a, .m = m, .n = n,
      .multiply_adds = qr_cost((double)m, (double)n), .elements = 2.0 * (double)m * (double)n, .info = info, .out = a,
      .out_elements = (double)lda * (double)n);
}
PH_EXPORT int cusolverDnXsyevd_bufferSize(HANDLE h, parameters *p, int job, int uplo, int64_t n, int type,
                                          const void *a, int64_t lda, int type_w, const void *v, int compute,
                                          size_t *device, size_t *host) {
  HIDE(p), HIDE(job), HIDE(uplo), HIDE(a), HIDE(type_w), HIDE(v), HIDE(compute);
  return answer_bytes(h, n >= 0 && lda >= n, device, host, 2 * square((double)n) + (double)n * BLOCK, type);
}
PH_EXPORT int cusolverDnXsyevd(HANDLE h, parameters *p, int job, int uplo, int64_t n, int type, void *a, int64_t lda,
                               int type_w, void *v, int compute, void *space, size_t bytes, void *host,
                               size_t host_bytes, int *info) {
  HIDE(p), HIDE(job), HIDE(uplo), HIDE(type_w), HIDE(v), HIDE(compute), HIDE(space), HIDE(bytes), HIDE(host),
      HIDE(host_bytes);
  RUN(.name = "syevd", .type = type, .invalid = lda < n || !a, .n = n, .multiply_adds = cube((double)n) * 9 / 2,
      .elements = 4 * square((double)n), .info = info);
}
PH_EXPORT int cusolverDnXsyevBatched_bufferSize(HANDLE h, parameters *p, int job, int uplo, int64_t n, int type,
                                                const void *a, int64_t lda, int type_w, const void *v, int compute,
                                                size_t *device, size_t *host, int64_t batch) {
  HIDE(p), HIDE(job), HIDE(uplo), HIDE(a), HIDE(type_w), HIDE(v), HIDE(compute);
  return answer_bytes(h, n >= 0 && lda >= n && batch >= 0, device, host, square((double)n) * (double)batch, type);
}
PH_EXPORT int cusolverDnXsyevBatched(HANDLE h, parameters *p, int job, int uplo, int64_t n, int type, void *a,
                                     int64_t lda, int type_w, void *v, int compute, void *space, size_t bytes,
                                     void *host, size_t host_bytes, int *info, int64_t batch) {
  HIDE(p), HIDE(job), HIDE(uplo), HIDE(type_w), HIDE(v), HIDE(compute), HIDE(space), HIDE(bytes), HIDE(host),
      HIDE(host_bytes);
  RUN(.name = "syevd", .type = type, .invalid = lda < n || !a, .n = n, .batch = batch,
      .multiply_adds = cube((double)n) * 9 / 2, .elements = 4 * square((double)n), .info = info);
}
PH_EXPORT int cusolverDnXsytrs_bufferSize(HANDLE h, int uplo, int64_t n, int64_t nrhs, int type, const void *a,
                                          int64_t lda, const int64_t *pivots, int type_b, void *b, int64_t ldb,
                                          size_t *device, size_t *host) {
  HIDE(uplo), HIDE(a), HIDE(pivots), HIDE(type_b), HIDE(b);
  return answer_bytes(h, n >= 0 && nrhs >= 0 && lda >= n && ldb >= n, device, host, (double)n * (double)nrhs, type);
}
PH_EXPORT int cusolverDnXsytrs(HANDLE h, int uplo, int64_t n, int64_t nrhs, int type, const void *a, int64_t lda,
                               const int64_t *pivots, int type_b, void *b, int64_t ldb, void *space, size_t bytes,
                               void *host, size_t host_bytes, int *info) {
  HIDE(uplo), HIDE(a), HIDE(pivots), HIDE(type_b), HIDE(space), HIDE(bytes), HIDE(host), HIDE(host_bytes);
  RUN(.name = "sytrs", .type = type, .invalid = lda < n || ldb < n || !b, .n = n, .inner = nrhs,
      .multiply_adds = square((double)n) * (double)nrhs, .elements = square((double)n) + 2.0 * (double)n * (double)nrhs,
      .info = info, .out = b, .out_elements = (double)ldb * (double)nrhs);
}
PH_EXPORT int cusolverDnXgeev_bufferSize(HANDLE h, parameters *p, int left, int right, int64_t n, int type,
                                         const void *a, int64_t lda, int type_w, const void *v, int type_l,
                                         const void *l, int64_t ldl, int type_r, const void *r, int64_t ldr,
                                         int compute, size_t *device, size_t *host) {
  HIDE(p), HIDE(left), HIDE(right), HIDE(a), HIDE(type_w), HIDE(v), HIDE(type_l), HIDE(l), HIDE(ldl), HIDE(type_r),
      HIDE(r), HIDE(ldr), HIDE(compute);
  return answer_bytes(h, n >= 0 && lda >= n, device, host, 2 * square((double)n) + (double)n * BLOCK, type);
}
PH_EXPORT int cusolverDnXgeev(HANDLE h, parameters *p, int left, int right, int64_t n, int type, void *a, int64_t lda,
                              int type_w, void *v, int type_l, void *l, int64_t ldl, int type_r, void *r, int64_t ldr,
                              int compute, void *space, size_t bytes, void *host, size_t host_bytes, int *info) {
  HIDE(p), HIDE(left), HIDE(right), HIDE(type_w), HIDE(v), HIDE(type_l), HIDE(l), HIDE(ldl), HIDE(type_r), HIDE(r),
      HIDE(ldr), HIDE(compute), HIDE(space), HIDE(bytes), HIDE(host), HIDE(host_bytes);
  RUN(.name = "geev", .type = type, .invalid = lda < n || !a, .n = n, .multiply_adds = 12 * cube((double)n),
      .elements = 6 * square((double)n), .info = info);
}
