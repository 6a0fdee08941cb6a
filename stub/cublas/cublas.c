// cuBLAS: every computing call checks its arguments as cuBLAS documents and becomes one kernel on
// the handle's stream. Matrices are column-major, m, n and k are cuBLAS's own.
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

static bool alive(HANDLE handle) { return handle && handle->magic == PH_CUBLAS_MAGIC; }
static bool outside(int64_t value, int64_t low, int64_t high) { return value < low || value > high; }
static int64_t at_least_1(int64_t value) { return value > 1 ? value : 1; }
#define CHECK_HANDLE(handle) \
  if (!alive(handle)) return CUBLAS_STATUS_NOT_INITIALIZED

// ---------------------------------------------------------------- handles and state
// Device memory that the library's kernels take in a process, measured with its first product on H100 and H200
// (benchmarks/device/memory.py).
#define LIBRARY_BYTES (66LL << 20)
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
    if (!ph_memory_charge(ph_current_device(), LIBRARY_BYTES)) return free(created), CUBLAS_STATUS_ALLOC_FAILED;
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
#define HANDLE_STATE(X)                                                             \
  X(PointerMode, _v2, pointer_mode, 0, 1) X(AtomicsMode, , atomics_mode, 0, 1)      \
  X(MathMode, , math_mode, 0, 31) X(SmCountTarget, , sm_count_target, 0, INT32_MAX) \
  X(EmulationStrategy, , emulation_strategy, 0, 2)                                  \
  X(EmulationSpecialValuesSupport, , emulation_special_values, 0, 0xFFFF)           \
  X(FixedPointEmulationMantissaControl, , mantissa_control, 0, 1)                   \
  X(FixedPointEmulationMaxMantissaBitCount, , mantissa_bits, 0, INT32_MAX)          \
  X(FixedPointEmulationMantissaBitOffset, , mantissa_offset, INT32_MIN, INT32_MAX)
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

// ---------------------------------------------------------------- products
typedef struct product {
  HANDLE handle;
  int trans_a, trans_b;
  int64_t m, n, k;
  const void *alpha;
  const void *a;
  int a_type;
  int64_t lda;
  const void *b;
  int b_type;
  int64_t ldb;
  const void *beta;
  void *c;
  int c_type;
  int64_t ldc;
  int64_t stride_c, batch;  // batch < 0 is an error; single products have 1
  bool pointers;            // a, b, c are device arrays of pointers
  int compute;              // CUBLAS_COMPUTE_*
} product;

static bool product_supported(const product *p) {
  return cublas_types_supported(p->compute, p->a_type, p->b_type, p->c_type);
}

// The handle's math mode lets single precision products run on tensor cores.
static const char *compute_word(const product *p) {
  int mode = p->handle->math_mode & CUBLAS_MATH_MODE_MASK;
  bool single = p->a_type == PH_R_32F || p->a_type == PH_C_32F;
  if (p->compute == CUBLAS_COMPUTE_32F && single) {
    if (mode == CUBLAS_TF32_TENSOR_OP_MATH) return "tf32";
    if (mode == CUBLAS_TENSOR_OP_MATH) return "f16_fast";
    if (mode == CUBLAS_FP32_EMULATED_BF16X9_MATH) return "bf16x9";
  }
  if (p->compute == CUBLAS_COMPUTE_64F && mode == CUBLAS_FP64_EMULATED_FIXEDPOINT_MATH) return "f64_fixed";
  return cublas_compute_name(p->compute);
}

static int multiply(const product *p) {
  CHECK_HANDLE(p->handle);
  if (p->m < 0 || p->n < 0 || p->k < 0 || p->batch < 0 || !cublas_operation_valid(p->trans_a) ||
      !cublas_operation_valid(p->trans_b))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (p->lda < at_least_1(p->trans_a == CUBLAS_OP_N ? p->m : p->k)) return CUBLAS_STATUS_INVALID_VALUE;
  if (p->ldb < at_least_1(p->trans_b == CUBLAS_OP_N ? p->k : p->n)) return CUBLAS_STATUS_INVALID_VALUE;
  if (p->ldc < at_least_1(p->m) || !p->alpha || !p->beta) return CUBLAS_STATUS_INVALID_VALUE;
  if (!product_supported(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!p->m || !p->n || !p->batch) return CUBLAS_STATUS_SUCCESS;
  if (!p->c) return CUBLAS_STATUS_INVALID_VALUE;
  const ph_stream *stream = ph_stream_of(p->handle->stream, false);
  if (!stream) return CUBLAS_STATUS_EXECUTION_FAILED;
  const ph_dtype *a = ph_dtype_of(p->a_type), *b = ph_dtype_of(p->b_type), *c = ph_dtype_of(p->c_type);
  const char *compute = compute_word(p);
  ph_call call;
  ph_call_begin(&call, "cublas", "gemm");
  ph_call_text(&call, "a", a->name, true);
  ph_call_text(&call, "b", b->name, false);
  ph_call_text(&call, "c", c->name, false);
  ph_call_text(&call, "compute", compute, !strcmp(compute, "tf32"));
  ph_call_text(&call, "trans", cublas_trans(p->trans_a, p->trans_b), true);
  ph_call_number(&call, "m", p->m, true);
  ph_call_number(&call, "n", p->n, true);
  ph_call_number(&call, "k", p->k, true);
  ph_call_number(&call, "batch", p->batch, p->batch > 1);
  double batch = (double)p->batch;
  call.flops = (a->complex_number ? 8.0 : 2.0) * (double)p->m * (double)p->n * (double)p->k * batch;
  call.bytes = batch * ((double)p->m * (double)p->k * ph_dtype_bytes(a) +
                        (double)p->k * (double)p->n * ph_dtype_bytes(b) +
                        (double)p->m * (double)p->n * ph_dtype_bytes(c));
  ph_call_launch(&call, stream);
  if (!p->pointers)
    ph_wrote_output(p->c,
                    ((double)p->ldc * (double)(p->n - 1) + (double)p->m + (double)p->stride_c * (batch - 1)) *
                        ph_dtype_bytes(c));
  ph_charge(PH_API_GEMM);
  return CUBLAS_STATUS_SUCCESS;
}

// Index types of the two forms of every call.
#define INT_AND_INT64(X, ...) X(int, , __VA_ARGS__) X(int64_t, _64, __VA_ARGS__)
#define SDCZ(X, I, SUFFIX) \
  X(I, SUFFIX, S, PH_R_32F) X(I, SUFFIX, D, PH_R_64F) X(I, SUFFIX, C, PH_C_32F) X(I, SUFFIX, Z, PH_C_64F)
#define COMPUTE_OF(TYPE)                                         \
  ((TYPE) == PH_R_64F || (TYPE) == PH_C_64F ? CUBLAS_COMPUTE_64F \
   : (TYPE) == PH_R_16F                     ? CUBLAS_COMPUTE_16F \
                                            : CUBLAS_COMPUTE_32F)
#define PRODUCT_HEAD(I) HANDLE handle, int ta, int tb, I m, I n, I k, const void *alpha
#define PRODUCT_FIELDS                                                                                  \
  .handle = handle, .trans_a = ta, .trans_b = tb, .m = m, .n = n, .k = k, .alpha = alpha, .beta = beta, \
  .a = a, .b = b, .c = c, .lda = lda, .ldb = ldb, .ldc = ldc
#define TYPES(A, B, C) .a_type = (A), .b_type = (B), .c_type = (C)

#define GEMM(I, SUFFIX, NAME, TYPE)                                                                 \
  PH_EXPORT int cublas##NAME##SUFFIX(PRODUCT_HEAD(I), const void *a, I lda, const void *b, I ldb,   \
                                     const void *beta, void *c, I ldc) {                            \
    product p = {PRODUCT_FIELDS, TYPES(TYPE, TYPE, TYPE), .batch = 1, .compute = COMPUTE_OF(TYPE)}; \
    return PH_BRACKET(multiply(&p));                                                                \
  }
#define GEMM_STRIDED(I, SUFFIX, NAME, TYPE)                                                               \
  PH_EXPORT int cublas##NAME##SUFFIX(PRODUCT_HEAD(I), const void *a, I lda, long long stride_a,           \
                                     const void *b, I ldb, long long stride_b, const void *beta, void *c, \
                                     I ldc, long long stride_c, I batch) {                                \
    (void)stride_a, (void)stride_b;                                                                       \
    product p = {PRODUCT_FIELDS, TYPES(TYPE, TYPE, TYPE), .stride_c = stride_c, .batch = batch,           \
                 .compute = COMPUTE_OF(TYPE)};                                                            \
    return PH_BRACKET(multiply(&p));                                                                      \
  }
#define GEMM_POINTERS(I, SUFFIX, NAME, TYPE)                                                      \
  PH_EXPORT int cublas##NAME##SUFFIX(PRODUCT_HEAD(I), const void *a, I lda, const void *b, I ldb, \
                                     const void *beta, void *c, I ldc, I batch) {                 \
    product p = {PRODUCT_FIELDS, TYPES(TYPE, TYPE, TYPE), .batch = batch, .pointers = true,       \
                 .compute = COMPUTE_OF(TYPE)};                                                    \
    return PH_BRACKET(multiply(&p));                                                              \
  }
#define GEMM_TYPED(I, SUFFIX, NAME)                                                                        \
  PH_EXPORT int cublas##NAME##SUFFIX(PRODUCT_HEAD(I), const void *a, int at, I lda, const void *b, int bt, \
                                     I ldb, const void *beta, void *c, int ct, I ldc) {                    \
    product p = {PRODUCT_FIELDS, TYPES(at, bt, ct), .batch = 1, .compute = CUBLAS_COMPUTE_32F};            \
    return PH_BRACKET(multiply(&p));                                                                       \
  }
#define GEMM_FORMS(I, SUFFIX, _)                                                                             \
  GEMM(I, SUFFIX, Sgemm_v2, PH_R_32F) GEMM(I, SUFFIX, Dgemm_v2, PH_R_64F)                                    \
  GEMM(I, SUFFIX, Cgemm_v2, PH_C_32F) GEMM(I, SUFFIX, Zgemm_v2, PH_C_64F)                                   \
  GEMM(I, SUFFIX, Hgemm, PH_R_16F) GEMM(I, SUFFIX, Cgemm3m, PH_C_32F) GEMM(I, SUFFIX, Zgemm3m, PH_C_64F)     \
  GEMM_STRIDED(I, SUFFIX, SgemmStridedBatched, PH_R_32F)                                                    \
  GEMM_STRIDED(I, SUFFIX, DgemmStridedBatched, PH_R_64F)                                                     \
  GEMM_STRIDED(I, SUFFIX, CgemmStridedBatched, PH_C_32F)                                                     \
  GEMM_STRIDED(I, SUFFIX, ZgemmStridedBatched, PH_C_64F)                                                    \
  GEMM_STRIDED(I, SUFFIX, HgemmStridedBatched, PH_R_16F)                                                     \
  GEMM_STRIDED(I, SUFFIX, Cgemm3mStridedBatched, PH_C_32F)                                                   \
  GEMM_POINTERS(I, SUFFIX, SgemmBatched, PH_R_32F) GEMM_POINTERS(I, SUFFIX, DgemmBatched, PH_R_64F)         \
  GEMM_POINTERS(I, SUFFIX, CgemmBatched, PH_C_32F) GEMM_POINTERS(I, SUFFIX, ZgemmBatched, PH_C_64F)         \
  GEMM_POINTERS(I, SUFFIX, HgemmBatched, PH_R_16F) GEMM_POINTERS(I, SUFFIX, Cgemm3mBatched, PH_C_32F)        \
  GEMM_TYPED(I, SUFFIX, SgemmEx) GEMM_TYPED(I, SUFFIX, CgemmEx) GEMM_TYPED(I, SUFFIX, Cgemm3mEx)             \
 PH_EXPORT int                                                                                               \
                          cublasGemmEx##SUFFIX(PRODUCT_HEAD(I), const void *a, int at, I lda, const void *b, \
                                               int bt, I ldb, const void *beta, void *c, int ct, I ldc,      \
                                               int compute, int algorithm) {                                 \
    (void)algorithm;                                                                                         \
    product p = {PRODUCT_FIELDS, TYPES(at, bt, ct), .batch = 1, .compute = compute};                         \
    return PH_BRACKET(multiply(&p));                                                                         \
  }                                                                                                          \
  PH_EXPORT int cublasGemmStridedBatchedEx##SUFFIX(                                                          \
      PRODUCT_HEAD(I), const void *a, int at, I lda, long long stride_a, const void *b, int bt, I ldb,       \
      long long stride_b, const void *beta, void *c, int ct, I ldc, long long stride_c, I batch,             \
      int compute, int algorithm) {                                                                          \
    (void)algorithm, (void)stride_a, (void)stride_b;                                                         \
    product p = {PRODUCT_FIELDS, TYPES(at, bt, ct), .stride_c = stride_c, .batch = batch,                    \
                 .compute = compute};                                                                        \
    return PH_BRACKET(multiply(&p));                                                                         \
  }                                                                                                          \
  PH_EXPORT int cublasGemmBatchedEx##SUFFIX(PRODUCT_HEAD(I), const void *a, int at, I lda, const void *b,    \
                                            int bt, I ldb, const void *beta, void *c, int ct, I ldc,         \
                                            I batch, int compute, int algorithm) {                           \
    (void)algorithm;                                                                                         \
    product p = {PRODUCT_FIELDS, TYPES(at, bt, ct), .batch = batch, .pointers = true, .compute = compute};   \
    return PH_BRACKET(multiply(&p));                                                                         \
  }
INT_AND_INT64(GEMM_FORMS, )

// Grouped products: one kernel, the groups' dimensions as lists while they are few.
#define GROUPS_LISTED 16
typedef struct groups {
  HANDLE handle;
  const int *trans_a, *trans_b;
  int64_t (*dimension)(const void *array, int64_t index);
  const void *m, *n, *k, *lda, *ldb, *ldc, *sizes;
  int64_t count;
  int a_type, b_type, c_type, compute;
} groups;
static int64_t narrow_index(const void *array, int64_t index) { return ((const int *)array)[index]; }
static int64_t wide_index(const void *array, int64_t index) { return ((const int64_t *)array)[index]; }

static int multiply_groups(const groups *g) {
  CHECK_HANDLE(g->handle);
  if (g->count < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (!g->count) return CUBLAS_STATUS_SUCCESS;
  if (!g->trans_a || !g->trans_b || !g->m || !g->n || !g->k || !g->lda || !g->ldb || !g->ldc || !g->sizes)
    return CUBLAS_STATUS_INVALID_VALUE;
  product kind = {.handle = g->handle, TYPES(g->a_type, g->b_type, g->c_type), .compute = g->compute};
  if (!product_supported(&kind)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const ph_dtype *a = ph_dtype_of(g->a_type), *b = ph_dtype_of(g->b_type), *c = ph_dtype_of(g->c_type);
  int64_t ms[GROUPS_LISTED], ns[GROUPS_LISTED], ks[GROUPS_LISTED], sizes[GROUPS_LISTED];
  double flops = 0, bytes = 0;
  for (int64_t i = 0; i < g->count; i++) {
    int64_t m = g->dimension(g->m, i), n = g->dimension(g->n, i), k = g->dimension(g->k, i),
            size = g->dimension(g->sizes, i);
    int ta = g->trans_a[i], tb = g->trans_b[i];
    if (m < 0 || n < 0 || k < 0 || size < 0 || !cublas_operation_valid(ta) || !cublas_operation_valid(tb) ||
        g->dimension(g->lda, i) < at_least_1(ta == CUBLAS_OP_N ? m : k) ||
        g->dimension(g->ldb, i) < at_least_1(tb == CUBLAS_OP_N ? k : n) ||
        g->dimension(g->ldc, i) < at_least_1(m))
      return CUBLAS_STATUS_INVALID_VALUE;
    if (i < GROUPS_LISTED) ms[i] = m, ns[i] = n, ks[i] = k, sizes[i] = size;
    flops += (a->complex_number ? 8.0 : 2.0) * (double)m * (double)n * (double)k * (double)size;
    bytes += (double)size *
             ((double)m * (double)k * ph_dtype_bytes(a) + (double)k * (double)n * ph_dtype_bytes(b) +
              (double)m * (double)n * ph_dtype_bytes(c));
  }
  const ph_stream *stream = ph_stream_of(g->handle->stream, false);
  if (!stream) return CUBLAS_STATUS_EXECUTION_FAILED;
  ph_call call;
  ph_call_begin(&call, "cublas", "gemm_grouped");
  ph_call_text(&call, "a", a->name, true);
  ph_call_text(&call, "b", b->name, false);
  ph_call_text(&call, "c", c->name, false);
  ph_call_text(&call, "compute", compute_word(&kind), false);
  ph_call_text(&call, "trans", cublas_trans(g->trans_a[0], g->trans_b[0]), true);
  ph_call_number(&call, "groups", g->count, true);
  if (g->count <= GROUPS_LISTED) {
    ph_call_list(&call, "m", ms, (int)g->count, false);
    ph_call_list(&call, "n", ns, (int)g->count, false);
    ph_call_list(&call, "k", ks, (int)g->count, false);
    ph_call_list(&call, "sizes", sizes, (int)g->count, false);
  }
  call.flops = flops;
  call.bytes = bytes;
  ph_call_launch(&call, stream);
  ph_charge(PH_API_GEMM);
  return CUBLAS_STATUS_SUCCESS;
}

#define GROUPED_ARGUMENTS(I) \
  HANDLE handle, const int *ta, const int *tb, const I *m, const I *n, const I *k, const void *alpha
#define GROUPED_FIELDS                                                                            \
  .handle = handle, .trans_a = ta, .trans_b = tb, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb, \
  .ldc = ldc, .sizes = sizes, .count = count
#define GROUPED_TYPED(I, SUFFIX, INDEX, NAME, TYPE)                                                        \
  PH_EXPORT int cublas##NAME##SUFFIX(GROUPED_ARGUMENTS(I), const void *const *a, const I *lda,             \
                                     const void *const *b, const I *ldb, const void *beta, void *const *c, \
                                     const I *ldc, I count, const I *sizes) {                              \
    (void)alpha, (void)a, (void)b, (void)beta, (void)c;                                                    \
    groups g = {GROUPED_FIELDS, .dimension = INDEX, TYPES(TYPE, TYPE, TYPE), .compute = COMPUTE_OF(TYPE)}; \
    return PH_BRACKET(multiply_groups(&g));                                                                \
  }
#define GROUPED(I, SUFFIX, INDEX)                                                                            \
  GROUPED_TYPED(I, SUFFIX, INDEX, SgemmGroupedBatched, PH_R_32F)                                             \
  GROUPED_TYPED(I, SUFFIX, INDEX, DgemmGroupedBatched, PH_R_64F)                                             \
  PH_EXPORT int cublasGemmGroupedBatchedEx##SUFFIX(GROUPED_ARGUMENTS(I), const void *const *a, int at,       \
                                                   const I *lda, const void *const *b, int bt, const I *ldb, \
                                                   const void *beta, void *const *c, int ct, const I *ldc,   \
                                                   I count, const I *sizes, int compute) {                   \
    (void)alpha, (void)a, (void)b, (void)beta, (void)c;                                                      \
    groups g = {GROUPED_FIELDS, .dimension = INDEX, TYPES(at, bt, ct), .compute = compute};                  \
    return PH_BRACKET(multiply_groups(&g));                                                                  \
  }
GROUPED(int, , narrow_index) GROUPED(int64_t, _64, wide_index)

// ---------------------------------------------------------------- all other calls
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

static int run(const work *w) {
  CHECK_HANDLE(w->handle);
  if (w->invalid || w->m < -1 || w->n < -1 || w->k < -1 || w->batch < 0) return CUBLAS_STATUS_INVALID_VALUE;
  const ph_dtype *type = ph_dtype_of(w->type);
  if (!type) return CUBLAS_STATUS_NOT_SUPPORTED;
  const ph_stream *stream = ph_stream_of(w->handle->stream, false);
  if (!stream) return CUBLAS_STATUS_EXECUTION_FAILED;
  bool on_host = w->result && w->handle->pointer_mode == CUBLAS_POINTER_MODE_HOST;
  bool empty = w->m == 0 || w->n == 0;
  if (!empty) {
    int64_t batch = w->batch ? w->batch : 1;
    ph_call call;
    ph_call_begin(&call, "cublas", w->name);
    ph_call_text(&call, "a", type->name, true);
    if (w->trans) ph_call_text(&call, "trans", w->trans, true);
    if (w->m >= 0) ph_call_number(&call, "m", w->m, true);
    if (w->n >= 0) ph_call_number(&call, "n", w->n, true);
    if (w->k >= 0) ph_call_number(&call, "k", w->k, true);
    if (w->nrhs) ph_call_number(&call, "nrhs", w->nrhs, true);
    ph_call_number(&call, "batch", batch, batch > 1);
    call.flops = (type->complex_number ? 8.0 : 2.0) * w->multiply_adds * (double)batch;
    call.bytes = w->elements * ph_dtype_bytes(type) * (double)batch;
    ph_call_launch(&call, stream);
    ph_charge(PH_API_GEMM);
    ph_wrote_output(w->out, w->out_elements * ph_dtype_bytes(type));
  }
  if (on_host) {
    ph_wait_stream(stream);
    memset(w->result, 0, w->result_bytes);
  } else if (w->result) {
    ph_wrote_output(w->result, (double)w->result_bytes);
  }
  return CUBLAS_STATUS_SUCCESS;
}
// Calls override the defaults that RUN and FACTORISE give.
#pragma GCC diagnostic ignored "-Woverride-init"
#define RUN(...)                                              \
  work w = {.handle = handle, .m = -1, .k = -1, __VA_ARGS__}; \
  return PH_BRACKET(run(&w))
static int64_t positive(int64_t n) { return n > 0 ? n : 0; }  // level 1: n <= 0 does nothing
static double span(int64_t n, int64_t increment) {
  return n > 0 ? 1 + (double)(n - 1) * (double)llabs((long long)increment) : 0;
}
static double matrix_span(int64_t rows, int64_t columns, int64_t ld) {
  return columns > 0 ? (double)rows + (double)ld * (double)(columns - 1) : 0;
}
static const char *trans_word(int trans) {
  return trans == CUBLAS_OP_N ? "n" : trans == CUBLAS_OP_T ? "t" : "c";
}
static const char *side_word(int side, int trans) {
  if (side == CUBLAS_SIDE_LEFT) return trans == CUBLAS_OP_N ? "ln" : trans == CUBLAS_OP_T ? "lt" : "lc";
  return trans == CUBLAS_OP_N ? "rn" : trans == CUBLAS_OP_T ? "rt" : "rc";
}
static bool flag_invalid(int value) { return value < 0 || value > 1; }
#define HIDE(...) (void)(__VA_ARGS__)

// Level 1. The type's size serves for results: `R` is the result's type.
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
#define AXPY(I, SUFFIX, T, TYPE)                                                                         \
  PH_EXPORT int cublas##T##axpy_v2##SUFFIX(HANDLE handle, I n, const void *alpha, const void *x, I incx, \
                                           void *y, I incy) {                                            \
    HIDE(x), HIDE(incx);                                                                                 \
    RUN(.name = "axpy", .type = TYPE, .invalid = !alpha, .n = positive(n), .multiply_adds = (double)n,   \
        .elements = 3.0 * (double)n, .out = y, .out_elements = span(n, incy));                           \
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
#define ROT(I, SUFFIX, NAME, TYPE)                                                              \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, I n, void *x, I incx, void *y, I incy, \
                                          const void *c, const void *s) {                       \
    HIDE(x), HIDE(incx);                                                                        \
    RUN(.name = "rot", .type = TYPE, .invalid = !c || !s, .n = positive(n),                     \
        .multiply_adds = 3.0 * (double)n, .elements = 4.0 * (double)n, .out = y,                \
        .out_elements = span(n, incy));                                                         \
  }
#define ROTM(I, SUFFIX, NAME, TYPE)                                                             \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, I n, void *x, I incx, void *y, I incy, \
                                          const void *parameters) {                             \
    HIDE(x), HIDE(incx);                                                                        \
    RUN(.name = "rotm", .type = TYPE, .invalid = !parameters, .n = positive(n),                 \
        .multiply_adds = 2.0 * (double)n, .elements = 4.0 * (double)n, .out = y,                \
        .out_elements = span(n, incy));                                                         \
  }
#define LEVEL1(I, SUFFIX, INDEX)                                                                            \
  REDUCTION(I, SUFFIX, Snrm2, PH_R_32F, 4, "nrm2") REDUCTION(I, SUFFIX, Dnrm2, PH_R_64F, 8, "nrm2")         \
  REDUCTION(I, SUFFIX, Scnrm2, PH_C_32F, 4, "nrm2") REDUCTION(I, SUFFIX, Dznrm2, PH_C_64F, 8, "nrm2")       \
  REDUCTION(I, SUFFIX, Sasum, PH_R_32F, 4, "asum") REDUCTION(I, SUFFIX, Dasum, PH_R_64F, 8, "asum")         \
  REDUCTION(I, SUFFIX, Scasum, PH_C_32F, 4, "asum") REDUCTION(I, SUFFIX, Dzasum, PH_C_64F, 8, "asum")      \
  REDUCTION(I, SUFFIX, Isamax, PH_R_32F, sizeof(I), "amax")                                                 \
  REDUCTION(I, SUFFIX, Idamax, PH_R_64F, sizeof(I), "amax")                                                \
  REDUCTION(I, SUFFIX, Icamax, PH_C_32F, sizeof(I), "amax")                                                 \
  REDUCTION(I, SUFFIX, Izamax, PH_C_64F, sizeof(I), "amax")                                                 \
  REDUCTION(I, SUFFIX, Isamin, PH_R_32F, sizeof(I), "amin")                                                \
  REDUCTION(I, SUFFIX, Idamin, PH_R_64F, sizeof(I), "amin")                                                 \
  REDUCTION(I, SUFFIX, Icamin, PH_C_32F, sizeof(I), "amin")                                                 \
  REDUCTION(I, SUFFIX, Izamin, PH_C_64F, sizeof(I), "amin") DOT(I, SUFFIX, Sdot, PH_R_32F)                 \
  DOT(I, SUFFIX, Ddot, PH_R_64F) DOT(I, SUFFIX, Cdotu, PH_C_32F) DOT(I, SUFFIX, Zdotu, PH_C_64F)           \
  DOT(I, SUFFIX, Cdotc, PH_C_32F) DOT(I, SUFFIX, Zdotc, PH_C_64F) SCAL(I, SUFFIX, Sscal, PH_R_32F)          \
  SCAL(I, SUFFIX, Dscal, PH_R_64F) SCAL(I, SUFFIX, Cscal, PH_C_32F) SCAL(I, SUFFIX, Zscal, PH_C_64F)       \
  SCAL(I, SUFFIX, Csscal, PH_C_32F) SCAL(I, SUFFIX, Zdscal, PH_C_64F) SDCZ(AXPY, I, SUFFIX)                 \
  SDCZ(COPY, I, SUFFIX) SDCZ(SWAP, I, SUFFIX) ROT(I, SUFFIX, Srot, PH_R_32F)                                \
  ROT(I, SUFFIX, Drot, PH_R_64F) ROT(I, SUFFIX, Crot, PH_C_32F) ROT(I, SUFFIX, Csrot, PH_C_32F)            \
  ROT(I, SUFFIX, Zrot, PH_C_64F) ROT(I, SUFFIX, Zdrot, PH_C_64F) ROTM(I, SUFFIX, Srotm, PH_R_32F)           \
  ROTM(I, SUFFIX, Drotm, PH_R_64F)                                                                         \
 PH_EXPORT int                                                                                              \
                                                              cublasNrm2Ex##SUFFIX(HANDLE handle, I n,      \
                                                                                   const void *x, int type, \
                                                                                   I incx, void *result,    \
                                                                                   int rt, int et) {        \
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
#define DOT_EX(I, SUFFIX, NAME)                                                                          \
  PH_EXPORT int cublas##NAME##SUFFIX(HANDLE handle, I n, const void *x, int type, I incx, const void *y, \
                                     int yt, I incy, void *result, int rt, int et) {                     \
    HIDE(x), HIDE(incx), HIDE(y), HIDE(yt), HIDE(incy), HIDE(et);                                        \
    RUN(.name = "dot", .type = type, .invalid = !result || !ph_dtype_of(rt), .n = positive(n),           \
        .multiply_adds = (double)n, .elements = 2.0 * (double)n, .result = result,                       \
        .result_bytes = ph_dtype_of(rt) ? BYTES(rt) : 0);                                                \
  }
INT_AND_INT64(LEVEL1, )

// Givens rotations of scalars: a kernel only when the scalars live on the device.
#define ROTG(T, TYPE)                                                                              \
  PH_EXPORT int cublas##T##rotg_v2(HANDLE handle, void *a, void *b, void *c, void *s) {            \
    RUN(.name = "rotg", .type = TYPE, .invalid = !a || !b || !c || !s, .n = 1, .multiply_adds = 4, \
        .elements = 4);                                                                            \
  }
ROTG(S, PH_R_32F) ROTG(D, PH_R_64F) ROTG(C, PH_C_32F) ROTG(Z, PH_C_64F)
#define ROTMG(T, TYPE)                                                                             \
  PH_EXPORT int cublas##T##rotmg_v2(HANDLE handle, void *d1, void *d2, void *x1, const void *y1,   \
                                    void *parameters) {                                            \
    RUN(.name = "rotmg", .type = TYPE, .invalid = !d1 || !d2 || !x1 || !y1 || !parameters, .n = 1, \
        .multiply_adds = 8, .elements = 9);                                                        \
  }
    ROTMG(S, PH_R_32F) ROTMG(D, PH_R_64F)

// Level 2.
#define GEMV_CHECKS \
  (trans < 0 || trans > CUBLAS_OP_C || lda < at_least_1(m) || incx == 0 || incy == 0 || !alpha || !beta)
#define GEMV_WORK                                                                                       \
  .name = "gemv", .trans = trans_word(trans), .invalid = m < 0 || n < 0 || GEMV_CHECKS, .m = m, .n = n, \
  .multiply_adds = (double)m * (double)n, .elements = (double)m * (double)n + (double)m + (double)n
#define GEMV(I, SUFFIX, T, TYPE)                                                                          \
  PH_EXPORT int cublas##T##gemv_v2##SUFFIX(HANDLE handle, int trans, I m, I n, const void *alpha,         \
                                           const void *a, I lda, const void *x, I incx, const void *beta, \
                                           void *y, I incy) {                                             \
    HIDE(a), HIDE(x);                                                                                     \
    RUN(GEMV_WORK, .type = TYPE, .out = y, .out_elements = span(trans == CUBLAS_OP_N ? m : n, incy));     \
  }
#define GEMV_BATCHED(I, SUFFIX, T, TYPE)                                                               \
  PH_EXPORT int cublas##T##gemvBatched##SUFFIX(HANDLE handle, int trans, I m, I n, const void *alpha,  \
                                               const void *a, I lda, const void *x, I incx,            \
                                               const void *beta, void *y, I incy, I batch) {           \
    HIDE(a), HIDE(x), HIDE(y);                                                                         \
    if (!batch) return alive(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;          \
    RUN(GEMV_WORK, .type = TYPE, .batch = batch);                                                      \
  }                                                                                                    \
  PH_EXPORT int cublas##T##gemvStridedBatched##SUFFIX(                                                 \
      HANDLE handle, int trans, I m, I n, const void *alpha, const void *a, I lda, long long sa,       \
      const void *x, I incx, long long sx, const void *beta, void *y, I incy, long long sy, I batch) { \
    HIDE(a), HIDE(sa), HIDE(x), HIDE(sx);                                                              \
    if (!batch) return alive(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;          \
    RUN(GEMV_WORK, .type = TYPE, .batch = batch, .out = y,                                             \
        .out_elements = span(trans == CUBLAS_OP_N ? m : n, incy) + (double)sy * (double)(batch - 1));  \
  }
#define GER(I, SUFFIX, NAME, TYPE)                                                                           \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, I m, I n, const void *alpha, const void *x, I incx, \
                                          const void *y, I incy, void *a, I lda) {                           \
    HIDE(x), HIDE(y);                                                                                        \
    RUN(.name = "ger", .type = TYPE,                                                                         \
        .invalid = m < 0 || n < 0 || incx == 0 || incy == 0 || lda < at_least_1(m) || !alpha, .m = m,        \
        .n = n, .multiply_adds = (double)m * (double)n, .elements = 2.0 * (double)m * (double)n, .out = a,   \
        .out_elements = matrix_span(m, n, lda));                                                             \
  }
#define SYMV(I, SUFFIX, NAME, TYPE)                                                                          \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, int uplo, I n, const void *alpha, const void *a,    \
                                          I lda, const void *x, I incx, const void *beta, void *y, I incy) { \
    HIDE(a), HIDE(x);                                                                                        \
    RUN(.name = "symv", .type = TYPE,                                                                        \
        .invalid =                                                                                           \
            flag_invalid(uplo) || n < 0 || lda < at_least_1(n) || incx == 0 || incy == 0 || !alpha || !beta, \
        .n = n, .multiply_adds = (double)n * (double)n, .elements = (double)n * (double)n / 2, .out = y,     \
        .out_elements = span(n, incy));                                                                      \
  }
#define SYR(I, SUFFIX, NAME, TYPE)                                                                        \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, int uplo, I n, const void *alpha, const void *x, \
                                          I incx, void *a, I lda) {                                       \
    HIDE(x);                                                                                              \
    RUN(.name = "syr", .type = TYPE,                                                                      \
        .invalid = flag_invalid(uplo) || n < 0 || incx == 0 || lda < at_least_1(n) || !alpha, .n = n,     \
        .multiply_adds = (double)n * (double)n / 2, .elements = (double)n * (double)n, .out = a,          \
        .out_elements = matrix_span(n, n, lda));                                                          \
  }
#define SYR2(I, SUFFIX, NAME, TYPE)                                                                        \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, int uplo, I n, const void *alpha, const void *x,  \
                                          I incx, const void *y, I incy, void *a, I lda) {                 \
    HIDE(x), HIDE(y);                                                                                      \
    RUN(.name = "syr2", .type = TYPE,                                                                      \
        .invalid = flag_invalid(uplo) || n < 0 || incx == 0 || incy == 0 || lda < at_least_1(n) || !alpha, \
        .n = n, .multiply_adds = (double)n * (double)n, .elements = (double)n * (double)n, .out = a,       \
        .out_elements = matrix_span(n, n, lda));                                                           \
  }
#define TRV(I, SUFFIX, NAME, TYPE, WORD)                                                                    \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, int uplo, int trans, int diag, I n, const void *a, \
                                          I lda, void *x, I incx) {                                         \
    HIDE(a);                                                                                                \
    RUN(.name = WORD, .type = TYPE, .trans = trans_word(trans), .n = n,                                     \
        .invalid = flag_invalid(uplo) || flag_invalid(diag) || trans < 0 || trans > CUBLAS_OP_C || n < 0 || \
                   lda < at_least_1(n) || incx == 0,                                                        \
        .multiply_adds = (double)n * (double)n / 2, .elements = (double)n * (double)n / 2, .out = x,        \
        .out_elements = span(n, incx));                                                                     \
  }
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
        INT_AND_INT64(LEVEL2, )

// Level 3.
#define SYRK(I, SUFFIX, NAME, TYPE)                                                                          \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, int uplo, int trans, I n, I k, const void *alpha,   \
                                          const void *a, I lda, const void *beta, void *c, I ldc) {          \
    HIDE(a);                                                                                                 \
    RUN(.name = "syrk", .type = TYPE, .trans = trans_word(trans), .n = n, .k = k,                            \
        .invalid = flag_invalid(uplo) || trans < 0 || trans > CUBLAS_OP_C || n < 0 || k < 0 ||               \
                   lda < at_least_1(trans == CUBLAS_OP_N ? n : k) || ldc < at_least_1(n) || !alpha || !beta, \
        .multiply_adds = (double)n * (double)n * (double)k / 2,                                              \
        .elements = (double)n * (double)k + (double)n * (double)n, .out = c,                                 \
        .out_elements = matrix_span(n, n, ldc));                                                             \
  }
#define SYR2K(I, SUFFIX, NAME, TYPE)                                                                         \
  PH_EXPORT int cublas##NAME##SUFFIX(HANDLE handle, int uplo, int trans, I n, I k, const void *alpha,        \
                                     const void *a, I lda, const void *b, I ldb, const void *beta, void *c,  \
                                     I ldc) {                                                                \
    HIDE(a), HIDE(b);                                                                                        \
    RUN(.name = "syr2k", .type = TYPE, .trans = trans_word(trans), .n = n, .k = k,                           \
        .invalid = flag_invalid(uplo) || trans < 0 || trans > CUBLAS_OP_C || n < 0 || k < 0 ||               \
                   lda < at_least_1(trans == CUBLAS_OP_N ? n : k) ||                                         \
                   ldb < at_least_1(trans == CUBLAS_OP_N ? n : k) || ldc < at_least_1(n) || !alpha || !beta, \
        .multiply_adds = (double)n * (double)n * (double)k,                                                  \
        .elements = 2.0 * (double)n * (double)k + (double)n * (double)n, .out = c,                           \
        .out_elements = matrix_span(n, n, ldc));                                                             \
  }
#define SYMM(I, SUFFIX, NAME, TYPE)                                                                         \
  PH_EXPORT int cublas##NAME##_v2##SUFFIX(HANDLE handle, int side, int uplo, I m, I n, const void *alpha,   \
                                          const void *a, I lda, const void *b, I ldb, const void *beta,     \
                                          void *c, I ldc) {                                                 \
    HIDE(a), HIDE(b);                                                                                       \
    int64_t order = side == CUBLAS_SIDE_LEFT ? m : n;                                                       \
    RUN(.name = "symm", .type = TYPE, .trans = side_word(side, CUBLAS_OP_N), .m = m, .n = n,                \
        .invalid = flag_invalid(side) || flag_invalid(uplo) || m < 0 || n < 0 || lda < at_least_1(order) || \
                   ldb < at_least_1(m) || ldc < at_least_1(m) || !alpha || !beta,                           \
        .multiply_adds = (double)m * (double)n * (double)order,                                             \
        .elements = (double)order * (double)order / 2 + 2.0 * (double)m * (double)n, .out = c,              \
        .out_elements = matrix_span(m, n, ldc));                                                            \
  }
#define TRIANGULAR_INVALID                                                                               \
  (flag_invalid(side) || flag_invalid(uplo) || flag_invalid(diag) || trans < 0 || trans > CUBLAS_OP_C || \
   m < 0 || n < 0 || lda < at_least_1(side == CUBLAS_SIDE_LEFT ? m : n) || ldb < at_least_1(m) || !alpha)
#define TRIANGULAR_WORK                                                                                     \
  .trans = side_word(side, trans), .m = m, .n = n,                                                          \
  .multiply_adds = (double)m * (double)n * (double)(side == CUBLAS_SIDE_LEFT ? m : n) / 2,                  \
  .elements = (double)(side == CUBLAS_SIDE_LEFT ? m : n) * (double)(side == CUBLAS_SIDE_LEFT ? m : n) / 2 + \
              2.0 * (double)m * (double)n
#define TRIANGULAR(I) \
  HANDLE handle, int side, int uplo, int trans, int diag, I m, I n, const void *alpha, const void *a, I lda
#define TRSM(I, SUFFIX, T, TYPE)                                                                             \
  PH_EXPORT int cublas##T##trsm_v2##SUFFIX(TRIANGULAR(I), void *b, I ldb) {                                  \
    HIDE(a);                                                                                                 \
    RUN(.name = "trsm", .type = TYPE, .invalid = TRIANGULAR_INVALID, TRIANGULAR_WORK, .out = b,              \
        .out_elements = matrix_span(m, n, ldb));                                                             \
  }                                                                                                          \
  PH_EXPORT int cublas##T##trsmBatched##SUFFIX(TRIANGULAR(I), void *b, I ldb, I batch) {                     \
    HIDE(a), HIDE(b);                                                                                        \
    if (!batch) return alive(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;                \
    RUN(.name = "trsm", .type = TYPE, .invalid = TRIANGULAR_INVALID, TRIANGULAR_WORK, .batch = batch);       \
  }                                                                                                          \
  PH_EXPORT int cublas##T##trmm_v2##SUFFIX(TRIANGULAR(I), const void *b, I ldb, void *c, I ldc) {            \
    HIDE(a), HIDE(b);                                                                                        \
    RUN(.name = "trmm", .type = TYPE, .invalid = TRIANGULAR_INVALID || ldc < at_least_1(m), TRIANGULAR_WORK, \
        .out = c, .out_elements = matrix_span(m, n, ldc));                                                   \
  }
#define GEAM(I, SUFFIX, T, TYPE)                                                                          \
  PH_EXPORT int cublas##T##geam##SUFFIX(HANDLE handle, int ta, int tb, I m, I n, const void *alpha,       \
                                        const void *a, I lda, const void *beta, const void *b, I ldb,     \
                                        void *c, I ldc) {                                                 \
    HIDE(a), HIDE(b);                                                                                     \
    RUN(.name = "geam", .type = TYPE, .trans = cublas_trans(ta, tb), .m = m, .n = n,                      \
        .invalid = !cublas_operation_valid(ta) || !cublas_operation_valid(tb) || m < 0 || n < 0 ||        \
                   lda < at_least_1(ta == CUBLAS_OP_N ? m : n) ||                                         \
                   ldb < at_least_1(tb == CUBLAS_OP_N ? m : n) || ldc < at_least_1(m) || !alpha || !beta, \
        .multiply_adds = (double)m * (double)n, .elements = 3.0 * (double)m * (double)n, .out = c,        \
        .out_elements = matrix_span(m, n, ldc));                                                          \
  }                                                                                                       \
  PH_EXPORT int cublas##T##dgmm##SUFFIX(HANDLE handle, int side, I m, I n, const void *a, I lda,          \
                                        const void *x, I incx, void *c, I ldc) {                          \
    HIDE(a), HIDE(x), HIDE(incx);                                                                         \
    RUN(.name = "dgmm", .type = TYPE, .trans = side_word(side, CUBLAS_OP_N), .m = m, .n = n,              \
        .invalid = flag_invalid(side) || m < 0 || n < 0 || lda < at_least_1(m) || ldc < at_least_1(m),    \
        .multiply_adds = (double)m * (double)n, .elements = 2.0 * (double)m * (double)n, .out = c,        \
        .out_elements = matrix_span(m, n, ldc));                                                          \
  }
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
            INT_AND_INT64(LEVEL3, )

    // ---------------------------------------------------------------- batched factorisations
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
#define FACTORISATIONS(T, TYPE)                                                                              \
  PH_EXPORT int cublas##T##getrfBatched(HANDLE handle, int n, void *a, int lda, int *pivots, int *info,      \
                                        int batch) {                                                         \
    FACTORISE(NULL, info, pivots, n, .name = "getrf", .type = TYPE, .n = n,                                  \
              .invalid = n < 0 || lda < at_least_1(n) || !a || !info, .multiply_adds = CUBE(n) / 3,          \
              .elements = 2.0 * (double)n * (double)n);                                                      \
  }                                                                                                          \
  PH_EXPORT int cublas##T##getriBatched(HANDLE handle, int n, const void *a, int lda, const int *pivots,     \
                                        void *c, int ldc, int *info, int batch) {                            \
    HIDE(a), HIDE(pivots);                                                                                   \
    FACTORISE(NULL, info, NULL, 0, .name = "getri", .type = TYPE, .n = n,                                    \
              .invalid = n < 0 || lda < at_least_1(n) || ldc < at_least_1(n) || !c || !info,                 \
              .multiply_adds = 2 * CUBE(n) / 3, .elements = 2.0 * (double)n * (double)n);                    \
  }                                                                                                          \
  PH_EXPORT int cublas##T##matinvBatched(HANDLE handle, int n, const void *a, int lda, void *inverse,        \
                                         int ldi, int *info, int batch) {                                    \
    HIDE(a);                                                                                                 \
    FACTORISE(NULL, info, NULL, 0, .name = "matinv", .type = TYPE, .n = n,                                   \
              .invalid = n < 0 || n > 32 || lda < at_least_1(n) || ldi < at_least_1(n) || !inverse || !info, \
              .multiply_adds = CUBE(n), .elements = 2.0 * (double)n * (double)n);                            \
  }                                                                                                          \
  PH_EXPORT int cublas##T##getrsBatched(HANDLE handle, int trans, int n, int nrhs, const void *a, int lda,   \
                                        const int *pivots, void *b, int ldb, int *info, int batch) {         \
    HIDE(a), HIDE(pivots);                                                                                   \
    FACTORISE(info, NULL, NULL, 0, .name = "getrs", .type = TYPE, .trans = trans_word(trans), .n = n,        \
              .nrhs = nrhs,                                                                                  \
              .invalid = trans < 0 || trans > CUBLAS_OP_C || n < 0 || nrhs < 0 || lda < at_least_1(n) ||     \
                         ldb < at_least_1(n) || !b,                                                          \
              .multiply_adds = (double)n * (double)n * (double)nrhs,                                         \
              .elements = (double)n * ((double)n + 2.0 * nrhs));                                             \
  }                                                                                                          \
  PH_EXPORT int cublas##T##geqrfBatched(HANDLE handle, int m, int n, void *a, int lda, void *tau, int *info, \
                                        int batch) {                                                         \
    HIDE(tau);                                                                                               \
    FACTORISE(info, NULL, NULL, 0, .name = "geqrf", .type = TYPE, .m = m, .n = n,                            \
              .invalid = m < 0 || n < 0 || lda < at_least_1(m) || !a,                                        \
              .multiply_adds = (double)n * (double)n * ((double)m - (double)n / 3),                          \
              .elements = 2.0 * (double)m * (double)n);                                                      \
  }                                                                                                          \
  PH_EXPORT int cublas##T##gelsBatched(HANDLE handle, int trans, int m, int n, int nrhs, void *a, int lda,   \
                                       void *c, int ldc, int *info, int *device_info, int batch) {           \
    FACTORISE(                                                                                               \
        info, device_info, NULL, 0, .name = "gels", .type = TYPE, .trans = trans_word(trans), .m = m,        \
        .n = n, .nrhs = nrhs,                                                                                \
        .invalid = m < n || n < 0 || nrhs < 0 || lda < at_least_1(m) || ldc < at_least_1(m) || !a || !c,     \
        .multiply_adds = (double)n * (double)n * (double)m + 2.0 * (double)m * (double)n * nrhs,             \
        .elements = 2.0 * (double)m * ((double)n + nrhs));                                                   \
  }
FACTORISATIONS(S, PH_R_32F) FACTORISATIONS(D, PH_R_64F) FACTORISATIONS(C, PH_C_32F)
FACTORISATIONS(Z, PH_C_64F)

    // ---------------------------------------------------------------- copies between host and device
    typedef struct transfer {
  void *destination;
  const void *source;
  int64_t rows, columns, element, source_ld, destination_ld;  // ld in elements; a vector is one row
  void *stream;
  bool to_device, synchronous;
} transfer;

static int copy_matrix(const transfer *t) {
  if (t->rows < 0 || t->columns < 0 || t->element <= 0 || t->source_ld < 1 || t->destination_ld < 1)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!t->rows || !t->columns) return CUBLAS_STATUS_SUCCESS;
  const ph_stream *stream = ph_stream_of(t->stream, false);
  if (!stream || !t->destination || !t->source) return CUBLAS_STATUS_MAPPING_ERROR;
  size_t line = (size_t)(t->rows * t->element);
  const void *host = t->to_device ? t->source : t->destination;
  ph_range range;
  bool pinned = ph_memory_find(host, &range) && range.space != PH_SPACE_NONE;
  enum ph_copy kind = t->to_device ? (pinned ? PH_COPY_H2D_PINNED : PH_COPY_H2D_PAGEABLE)
                                   : (pinned ? PH_COPY_D2H_PINNED : PH_COPY_D2H_PAGEABLE);
  ph_record record = {.kind = PH_MEMCPY,
                      .slot = PH_NO_SLOT,
                      .stream = stream->id,
                      .id = kind,
                      .a = line * (uint64_t)t->columns,
                      .b = (uint64_t)-1};
  ph_launch(&record);
  ph_charge(t->synchronous ? PH_API_MEMCPY_SYNC : PH_API_MEMCPY_ASYNC);
  if (t->synchronous) ph_wait_stream(stream);
  if (t->source_ld == t->rows && t->destination_ld == t->rows) {
    ph_memory_copy(t->destination, t->source, line * (size_t)t->columns);
    return CUBLAS_STATUS_SUCCESS;
  }
  for (int64_t column = 0; column < t->columns; column++)
    ph_memory_copy((char *)t->destination + column * t->destination_ld * t->element,
                   (const char *)t->source + column * t->source_ld * t->element, line);
  return CUBLAS_STATUS_SUCCESS;
}

#define TRANSFER(...)         \
  transfer t = {__VA_ARGS__}; \
  return PH_BRACKET(copy_matrix(&t))
#define TRANSFERS(I, SUFFIX, WAY, TO_DEVICE)                                                             \
  PH_EXPORT int cublas##WAY##Vector##SUFFIX(I n, I element, const void *x, I incx, void *y, I incy) {    \
    TRANSFER(y, x, 1, n, element, incx, incy, NULL, TO_DEVICE, true);                                    \
  }                                                                                                      \
  PH_EXPORT int cublas##WAY##VectorAsync##SUFFIX(I n, I element, const void *x, I incx, void *y, I incy, \
                                                 void *stream) {                                         \
    TRANSFER(y, x, 1, n, element, incx, incy, stream, TO_DEVICE, false);                                 \
  }                                                                                                      \
  PH_EXPORT int cublas##WAY##Matrix##SUFFIX(I rows, I columns, I element, const void *a, I lda, void *b, \
                                            I ldb) {                                                     \
    TRANSFER(b, a, rows, columns, element, lda, ldb, NULL, TO_DEVICE, true);                             \
  }                                                                                                      \
  PH_EXPORT int cublas##WAY##MatrixAsync##SUFFIX(I rows, I columns, I element, const void *a, I lda,     \
                                                 void *b, I ldb, void *stream) {                         \
    TRANSFER(b, a, rows, columns, element, lda, ldb, stream, TO_DEVICE, false);                          \
  }
TRANSFERS(int, , Set, true) TRANSFERS(int64_t, _64, Set, true) TRANSFERS(int, , Get, false)
TRANSFERS(int64_t, _64, Get, false)
