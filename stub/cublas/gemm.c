// Products of matrices: every call checks its arguments as cuBLAS documents and becomes one kernel on the handle's
// stream. Matrices are column-major, m, n and k are cuBLAS's own.
#include "cublas/internal.h"

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
  call.bytes =
      batch * ((double)p->m * (double)p->k * ph_dtype_bytes(a) + (double)p->k * (double)p->n * ph_dtype_bytes(b) +
               (double)p->m * (double)p->n * ph_dtype_bytes(c));
  ph_call_launch(&call, stream);
  if (!p->pointers)
    ph_wrote_output(p->c, ((double)p->ldc * (double)(p->n - 1) + (double)p->m + (double)p->stride_c * (batch - 1)) *
                              ph_dtype_bytes(c));
  ph_charge(PH_API_GEMM);
  return CUBLAS_STATUS_SUCCESS;
}

#define COMPUTE_OF(TYPE)                                         \
  ((TYPE) == PH_R_64F || (TYPE) == PH_C_64F ? CUBLAS_COMPUTE_64F \
   : (TYPE) == PH_R_16F                     ? CUBLAS_COMPUTE_16F \
                                            : CUBLAS_COMPUTE_32F)
#define PRODUCT_HEAD(I) HANDLE handle, int ta, int tb, I m, I n, I k, const void *alpha
#define PRODUCT_FIELDS                                                                                          \
  .handle = handle, .trans_a = ta, .trans_b = tb, .m = m, .n = n, .k = k, .alpha = alpha, .beta = beta, .a = a, \
  .b = b, .c = c, .lda = lda, .ldb = ldb, .ldc = ldc
#define TYPES(A, B, C) .a_type = (A), .b_type = (B), .c_type = (C)

#define GEMM(I, SUFFIX, NAME, TYPE)                                                                                 \
  PH_EXPORT int cublas##NAME##SUFFIX(PRODUCT_HEAD(I), const void *a, I lda, const void *b, I ldb, const void *beta, \
                                     void *c, I ldc) {                                                              \
    product p = {PRODUCT_FIELDS, TYPES(TYPE, TYPE, TYPE), .batch = 1, .compute = COMPUTE_OF(TYPE)};                 \
    return PH_BRACKET(multiply(&p));                                                                                \
  }
#define GEMM_STRIDED(I, SUFFIX, NAME, TYPE)                                                                           \
  PH_EXPORT int cublas##NAME##SUFFIX(PRODUCT_HEAD(I), const void *a, I lda, long long stride_a, const void *b, I ldb, \
                                     long long stride_b, const void *beta, void *c, I ldc, long long stride_c,        \
                                     I batch) {                                                                       \
    (void)stride_a, (void)stride_b;                                                                                   \
    product p = {PRODUCT_FIELDS, TYPES(TYPE, TYPE, TYPE), .stride_c = stride_c, .batch = batch,                       \
                 .compute = COMPUTE_OF(TYPE)};                                                                        \
    return PH_BRACKET(multiply(&p));                                                                                  \
  }
#define GEMM_POINTERS(I, SUFFIX, NAME, TYPE)                                                                        \
  PH_EXPORT int cublas##NAME##SUFFIX(PRODUCT_HEAD(I), const void *a, I lda, const void *b, I ldb, const void *beta, \
                                     void *c, I ldc, I batch) {                                                     \
    product p = {PRODUCT_FIELDS, TYPES(TYPE, TYPE, TYPE), .batch = batch, .pointers = true,                         \
                 .compute = COMPUTE_OF(TYPE)};                                                                      \
    return PH_BRACKET(multiply(&p));                                                                                \
  }
#define GEMM_TYPED(I, SUFFIX, NAME)                                                                               \
  PH_EXPORT int cublas##NAME##SUFFIX(PRODUCT_HEAD(I), const void *a, int at, I lda, const void *b, int bt, I ldb, \
                                     const void *beta, void *c, int ct, I ldc) {                                  \
    product p = {PRODUCT_FIELDS, TYPES(at, bt, ct), .batch = 1, .compute = CUBLAS_COMPUTE_32F};                   \
    return PH_BRACKET(multiply(&p));                                                                              \
  }
// clang-format off
#define GEMM_FORMS(I, SUFFIX, _)                                                                           \
  GEMM(I, SUFFIX, Sgemm_v2, PH_R_32F) GEMM(I, SUFFIX, Dgemm_v2, PH_R_64F)                                  \
  GEMM(I, SUFFIX, Cgemm_v2, PH_C_32F) GEMM(I, SUFFIX, Zgemm_v2, PH_C_64F)                                  \
  GEMM(I, SUFFIX, Hgemm, PH_R_16F) GEMM(I, SUFFIX, Cgemm3m, PH_C_32F) GEMM(I, SUFFIX, Zgemm3m, PH_C_64F)   \
  GEMM_STRIDED(I, SUFFIX, SgemmStridedBatched, PH_R_32F)                                                   \
  GEMM_STRIDED(I, SUFFIX, DgemmStridedBatched, PH_R_64F)                                                   \
  GEMM_STRIDED(I, SUFFIX, CgemmStridedBatched, PH_C_32F)                                                   \
  GEMM_STRIDED(I, SUFFIX, ZgemmStridedBatched, PH_C_64F)                                                   \
  GEMM_STRIDED(I, SUFFIX, HgemmStridedBatched, PH_R_16F)                                                   \
  GEMM_STRIDED(I, SUFFIX, Cgemm3mStridedBatched, PH_C_32F)                                                 \
  GEMM_POINTERS(I, SUFFIX, SgemmBatched, PH_R_32F) GEMM_POINTERS(I, SUFFIX, DgemmBatched, PH_R_64F)        \
  GEMM_POINTERS(I, SUFFIX, CgemmBatched, PH_C_32F) GEMM_POINTERS(I, SUFFIX, ZgemmBatched, PH_C_64F)        \
  GEMM_POINTERS(I, SUFFIX, HgemmBatched, PH_R_16F) GEMM_POINTERS(I, SUFFIX, Cgemm3mBatched, PH_C_32F)      \
  GEMM_TYPED(I, SUFFIX, SgemmEx) GEMM_TYPED(I, SUFFIX, CgemmEx) GEMM_TYPED(I, SUFFIX, Cgemm3mEx)           \
  PH_EXPORT int cublasGemmEx##SUFFIX(PRODUCT_HEAD(I), const void *a, int at, I lda, const void *b,         \
      int bt, I ldb, const void *beta, void *c, int ct, I ldc,                                             \
      int compute, int algorithm) {                                                                        \
    (void)algorithm;                                                                                       \
    product p = {PRODUCT_FIELDS, TYPES(at, bt, ct), .batch = 1, .compute = compute};                       \
    return PH_BRACKET(multiply(&p));                                                                       \
  }                                                                                                        \
  PH_EXPORT int cublasGemmStridedBatchedEx##SUFFIX(                                                        \
      PRODUCT_HEAD(I), const void *a, int at, I lda, long long stride_a, const void *b, int bt, I ldb,     \
      long long stride_b, const void *beta, void *c, int ct, I ldc, long long stride_c, I batch,           \
      int compute, int algorithm) {                                                                        \
    (void)algorithm, (void)stride_a, (void)stride_b;                                                       \
    product p = {PRODUCT_FIELDS, TYPES(at, bt, ct), .stride_c = stride_c, .batch = batch,                  \
                 .compute = compute};                                                                      \
    return PH_BRACKET(multiply(&p));                                                                       \
  }                                                                                                        \
  PH_EXPORT int cublasGemmBatchedEx##SUFFIX(PRODUCT_HEAD(I), const void *a, int at, I lda, const void *b,  \
                                            int bt, I ldb, const void *beta, void *c, int ct, I ldc,       \
                                            I batch, int compute, int algorithm) {                         \
    (void)algorithm;                                                                                       \
    product p = {PRODUCT_FIELDS, TYPES(at, bt, ct), .batch = batch, .pointers = true, .compute = compute}; \
    return PH_BRACKET(multiply(&p));                                                                       \
  }
// clang-format on
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
        g->dimension(g->ldb, i) < at_least_1(tb == CUBLAS_OP_N ? k : n) || g->dimension(g->ldc, i) < at_least_1(m))
      return CUBLAS_STATUS_INVALID_VALUE;
    if (i < GROUPS_LISTED) ms[i] = m, ns[i] = n, ks[i] = k, sizes[i] = size;
    flops += (a->complex_number ? 8.0 : 2.0) * (double)m * (double)n * (double)k * (double)size;
    bytes += (double)size * ((double)m * (double)k * ph_dtype_bytes(a) + (double)k * (double)n * ph_dtype_bytes(b) +
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
#define GROUPED_FIELDS                                                                                        \
  .handle = handle, .trans_a = ta, .trans_b = tb, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb, .ldc = ldc, \
  .sizes = sizes, .count = count
#define GROUPED_TYPED(I, SUFFIX, INDEX, NAME, TYPE)                                                                  \
  PH_EXPORT int cublas##NAME##SUFFIX(GROUPED_ARGUMENTS(I), const void *const *a, const I *lda, const void *const *b, \
                                     const I *ldb, const void *beta, void *const *c, const I *ldc, I count,          \
                                     const I *sizes) {                                                               \
    (void)alpha, (void)a, (void)b, (void)beta, (void)c;                                                              \
    groups g = {GROUPED_FIELDS, .dimension = INDEX, TYPES(TYPE, TYPE, TYPE), .compute = COMPUTE_OF(TYPE)};           \
    return PH_BRACKET(multiply_groups(&g));                                                                          \
  }
#define GROUPED(I, SUFFIX, INDEX)                                                                                   \
  GROUPED_TYPED(I, SUFFIX, INDEX, SgemmGroupedBatched, PH_R_32F)                                                    \
  GROUPED_TYPED(I, SUFFIX, INDEX, DgemmGroupedBatched, PH_R_64F)                                                    \
  PH_EXPORT int cublasGemmGroupedBatchedEx##SUFFIX(                                                                 \
      GROUPED_ARGUMENTS(I), const void *const *a, int at, const I *lda, const void *const *b, int bt, const I *ldb, \
      const void *beta, void *const *c, int ct, const I *ldc, I count, const I *sizes, int compute) {               \
    (void)alpha, (void)a, (void)b, (void)beta, (void)c;                                                             \
    groups g = {GROUPED_FIELDS, .dimension = INDEX, TYPES(at, bt, ct), .compute = compute};                         \
    return PH_BRACKET(multiply_groups(&g));                                                                         \
  }
GROUPED(int, , narrow_index)
GROUPED(int64_t, _64, wide_index)
