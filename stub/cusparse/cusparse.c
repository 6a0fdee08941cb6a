// cuSPARSE: handles and descriptors with real storage, products and triangular solves as one kernel.
// Calls whose results decide shapes (the number of non-zeros of a sparse product or sum) are left
// to traps: the simulator does not know the values.
#include "abi/cusparse_abi.h"
#include "rank/library_handle.h"

enum { COO = 3, CSR = 1 };

PH_LIBRARY_HANDLE(cusparse, 0x7068737072733031ULL, int pointer_mode;)
typedef handle *HANDLE;

PH_EXPORT int cusparseSetPointerMode(HANDLE self, int mode) {
  if (!alive(self)) return NOT_INITIALIZED;
  if (mode < 0 || mode > 1) return INVALID_VALUE;
  self->pointer_mode = mode;
  return SUCCESS;
}
PH_EXPORT const char *cusparseGetErrorString(int status) {
#define TEXT(NAME, VALUE, WORDS) \
  case VALUE:                    \
    return WORDS;
  switch (status) { CUSPARSE_STATUSES(TEXT) }
  return "unknown error";
}
PH_EXPORT const char *cusparseGetErrorName(int status) {
#define NAME(NAME, VALUE, WORDS) \
  case VALUE:                    \
    return "CUSPARSE_STATUS_" #NAME;
  switch (status) { CUSPARSE_STATUSES(NAME) }
  return "CUSPARSE_STATUS_UNKNOWN";
}

// ---------------------------------------------------------------- descriptors
typedef struct matrix_descriptor {
  int type, fill, diagonal, base;
} matrix_descriptor;
typedef struct sparse {
  int format, type, index_type, batch;
  int64_t rows, columns, nnz;
  void *offsets, *indices, *values;
  int fill, diagonal;
} sparse;
typedef struct dense {
  int64_t rows, columns, ld, batch_stride;
  void *values;
  int type, order, batch;
} dense;
typedef struct info {
  int analysed;
} info;

#define LIVES(X) X(MatDescr, matrix_descriptor) X(Bsrsv2Info, info) X(Bsrsm2Info, info)
#define LIFE(NAME, TYPE)                            \
  PH_EXPORT int cusparseCreate##NAME(TYPE **out) {  \
    if (!out) return INVALID_VALUE;                 \
    *out = calloc(1, sizeof **out);                 \
    return *out ? SUCCESS : ALLOC_FAILED;           \
  }                                                 \
  PH_EXPORT int cusparseDestroy##NAME(TYPE *self) { \
    free(self);                                     \
    return SUCCESS;                                 \
  }
LIVES(LIFE)
#define SOLVE_LIVES(X) X(SpSV) X(SpSM)
#define SOLVE_LIFE(NAME)                                    \
  PH_EXPORT int cusparse##NAME##_createDescr(info **out) {  \
    if (!out) return INVALID_VALUE;                         \
    *out = calloc(1, sizeof **out);                         \
    return *out ? SUCCESS : ALLOC_FAILED;                   \
  }                                                         \
  PH_EXPORT int cusparse##NAME##_destroyDescr(info *self) { \
    free(self);                                             \
    return SUCCESS;                                         \
  }
SOLVE_LIVES(SOLVE_LIFE)
// clang-format off
#define MATRIX_STATES(X) \
  X(MatType, type, 3) X(MatFillMode, fill, 1) X(MatDiagType, diagonal, 1) X(MatIndexBase, base, 1)
// clang-format on
#define MATRIX_STATE(NAME, FIELD, HIGHEST)                              \
  PH_EXPORT int cusparseSet##NAME(matrix_descriptor *self, int value) { \
    if (!self || value < 0 || value > HIGHEST) return INVALID_VALUE;    \
    self->FIELD = value;                                                \
    return SUCCESS;                                                     \
  }
MATRIX_STATES(MATRIX_STATE)

static int make_sparse(sparse **out, sparse value) {
  if (!out || value.rows < 0 || value.columns < 0 || value.nnz < 0) return INVALID_VALUE;
  if (!ph_dtype_of(value.type)) return NOT_SUPPORTED;
  *out = malloc(sizeof **out);
  if (!*out) return ALLOC_FAILED;
  **out = value;
  return SUCCESS;
}
PH_EXPORT int cusparseCreateCsr(sparse **out, int64_t rows, int64_t columns, int64_t nnz, void *offsets, void *indices,
                                void *values, int offset_type, int index_type, int base, int type) {
  (void)offset_type, (void)base;
  return make_sparse(out, (sparse){CSR, type, index_type, 1, rows, columns, nnz, offsets, indices, values, 0, 0});
}
PH_EXPORT int cusparseCreateCoo(sparse **out, int64_t rows, int64_t columns, int64_t nnz, void *row_indices,
                                void *indices, void *values, int index_type, int base, int type) {
  (void)base;
  return make_sparse(out, (sparse){COO, type, index_type, 1, rows, columns, nnz, row_indices, indices, values, 0, 0});
}
PH_EXPORT int cusparseDestroySpMat(sparse *self) {
  free(self);
  return SUCCESS;
}
PH_EXPORT int cusparseSpMatGetSize(const sparse *self, int64_t *rows, int64_t *columns, int64_t *nnz) {
  if (!self || !rows || !columns || !nnz) return INVALID_VALUE;
  *rows = self->rows, *columns = self->columns, *nnz = self->nnz;
  return SUCCESS;
}
PH_EXPORT int cusparseCsrSetStridedBatch(sparse *self, int batch, int64_t offsets, int64_t values) {
  (void)offsets, (void)values;
  if (!self || batch < 1) return INVALID_VALUE;
  self->batch = batch;
  return SUCCESS;
}
PH_EXPORT int cusparseCsrSetPointers(sparse *self, void *offsets, void *indices, void *values) {
  if (!self) return INVALID_VALUE;
  self->offsets = offsets, self->indices = indices, self->values = values;
  return SUCCESS;
}
PH_EXPORT int cusparseSpMatSetAttribute(sparse *self, int attribute, void *data, size_t size) {
  if (!self || !data || size != sizeof(int) || attribute < 0 || attribute > 1) return INVALID_VALUE;
  *(attribute == 0 ? &self->fill : &self->diagonal) = *(int *)data;
  return SUCCESS;
}
static int make_dense(dense **out, dense value) {
  if (!out || value.rows < 0 || value.columns < 0) return INVALID_VALUE;
  if (!ph_dtype_of(value.type)) return NOT_SUPPORTED;
  *out = malloc(sizeof **out);
  if (!*out) return ALLOC_FAILED;
  **out = value;
  return SUCCESS;
}
PH_EXPORT int cusparseCreateDnMat(dense **out, int64_t rows, int64_t columns, int64_t ld, void *values, int type,
                                  int order) {
  if (ld < (order == 1 ? rows : columns)) return INVALID_VALUE;
  return make_dense(out, (dense){rows, columns, ld, 0, values, type, order, 1});
}
PH_EXPORT int cusparseDestroyDnMat(dense *self) {
  free(self);
  return SUCCESS;
}
PH_EXPORT int cusparseDnMatSetStridedBatch(dense *self, int batch, int64_t stride) {
  if (!self || batch < 1) return INVALID_VALUE;
  self->batch = batch, self->batch_stride = stride;
  return SUCCESS;
}
PH_EXPORT int cusparseCreateDnVec(dense **out, int64_t size, void *values, int type) {
  return make_dense(out, (dense){size, 1, size, 0, values, type, 1, 1});
}
PH_EXPORT int cusparseDestroyDnVec(dense *self) {
  free(self);
  return SUCCESS;
}

// ---------------------------------------------------------------- work
typedef struct work {
  HANDLE handle;
  const char *name;
  int type;
  bool invalid;
  int64_t m, n, inner, nnz, batch;
  double multiply_adds, elements, indices;  // elements and indices moved
  void *out;
  double out_elements;
} work;
static int run(const work *w) {
  if (!alive(w->handle)) return NOT_INITIALIZED;
  const ph_dtype *type = ph_dtype_of(w->type);
  if (w->invalid || w->m < 0 || w->n < 0 || w->inner < 0 || w->nnz < 0) return INVALID_VALUE;
  if (!type) return NOT_SUPPORTED;
  const ph_stream *stream = ph_stream_of(w->handle->stream, false);
  if (!stream) return EXECUTION_FAILED;
  ph_call call;
  ph_call_begin(&call, "cusparse", w->name);
  ph_call_text(&call, "a", type->name, true);
  ph_call_number(&call, "m", w->m, true);
  ph_call_number(&call, "n", w->n, true);
  if (w->inner) ph_call_number(&call, "inner", w->inner, true);
  ph_call_number(&call, "nnz", w->nnz, true);
  ph_call_number(&call, "batch", w->batch, w->batch > 1);
  double batch = (double)w->batch;
  call.flops = (type->complex_number ? 8.0 : 2.0) * w->multiply_adds * batch;
  call.bytes = (w->elements * ph_dtype_bytes(type) + w->indices * 4) * batch;
  ph_call_launch(&call, stream);
  ph_charge(PH_API_GEMM);
  ph_wrote_output(w->out, w->out_elements * ph_dtype_bytes(type));
  return SUCCESS;
}
static int no_buffer(HANDLE handle, bool valid, size_t *size) {
  if (!alive(handle)) return NOT_INITIALIZED;
  if (!valid || !size) return INVALID_VALUE;
  *size = 0;
  return SUCCESS;
}
static double spread(const dense *d) { return d ? (double)d->rows * (double)d->columns : 0; }

// Sparse times dense. The analysis of solves costs a pass over the structure.
static int product(HANDLE handle, const char *name, const sparse *a, const dense *b, const dense *c) {
  if (!a || !b || !c) return INVALID_VALUE;
  work w = {.handle = handle,
            .name = name,
            .type = a->type,
            .m = c->rows,
            .n = c->columns,
            .inner = a->columns,
            .nnz = a->nnz,
            .batch = c->batch,
            .multiply_adds = (double)a->nnz * (double)c->columns,
            .elements = (double)a->nnz + spread(b) + spread(c),
            .indices = (double)a->nnz + (double)a->rows,
            .out = c->values,
            .out_elements = spread(c)};
  return run(&w);
}
static int analysis(HANDLE handle, const char *name, const sparse *a) {
  if (!a) return INVALID_VALUE;
  work w = {.handle = handle,
            .name = name,
            .type = a->type,
            .m = a->rows,
            .n = a->columns,
            .nnz = a->nnz,
            .batch = 1,
            .elements = (double)a->nnz,
            .indices = (double)a->nnz + (double)a->rows};
  return run(&w);
}
PH_EXPORT int cusparseSpMV_bufferSize(HANDLE h, int op, const void *alpha, const sparse *a, const dense *x,
                                      const void *beta, dense *y, int type, int algorithm, size_t *size) {
  (void)op, (void)alpha, (void)beta, (void)type, (void)algorithm;
  return no_buffer(h, a && x && y, size);
}
PH_EXPORT int cusparseSpMV(HANDLE h, int op, const void *alpha, const sparse *a, const dense *x, const void *beta,
                           dense *y, int type, int algorithm, void *space) {
  (void)op, (void)alpha, (void)beta, (void)type, (void)algorithm, (void)space;
  return PH_BRACKET(product(h, "spmv", a, x, y));
}
PH_EXPORT int cusparseSpMM_bufferSize(HANDLE h, int opa, int opb, const void *alpha, const sparse *a, const dense *b,
                                      const void *beta, dense *c, int type, int algorithm, size_t *size) {
  (void)opa, (void)opb, (void)alpha, (void)beta, (void)type, (void)algorithm;
  return no_buffer(h, a && b && c, size);
}
PH_EXPORT int cusparseSpMM(HANDLE h, int opa, int opb, const void *alpha, const sparse *a, const dense *b,
                           const void *beta, dense *c, int type, int algorithm, void *space) {
  (void)opa, (void)opb, (void)alpha, (void)beta, (void)type, (void)algorithm, (void)space;
  return PH_BRACKET(product(h, "spmm", a, b, c));
}
static int sampled_product(HANDLE handle, const dense *a, const dense *b, const sparse *c, int op) {
  if (!a || !b || !c) return INVALID_VALUE;
  int64_t k = op == 0 ? a->columns : a->rows;
  work w = {.handle = handle,
            .name = "sddmm",
            .type = c->type,
            .m = c->rows,
            .n = c->columns,
            .inner = k,
            .nnz = c->nnz,
            .batch = a->batch,
            .multiply_adds = (double)c->nnz * (double)k,
            .elements = spread(a) + spread(b) + 2.0 * (double)c->nnz,
            .indices = (double)c->nnz + (double)c->rows,
            .out = c->values,
            .out_elements = (double)c->nnz};
  return run(&w);
}
PH_EXPORT int cusparseSDDMM_bufferSize(HANDLE h, int opa, int opb, const void *alpha, const dense *a, const dense *b,
                                       const void *beta, sparse *c, int type, int algorithm, size_t *size) {
  (void)opa, (void)opb, (void)alpha, (void)beta, (void)type, (void)algorithm;
  return no_buffer(h, a && b && c, size);
}
PH_EXPORT int cusparseSDDMM_preprocess(HANDLE h, int opa, int opb, const void *alpha, const dense *a, const dense *b,
                                       const void *beta, sparse *c, int type, int algorithm, void *space) {
  (void)opa, (void)opb, (void)alpha, (void)a, (void)b, (void)beta, (void)type, (void)algorithm, (void)space;
  return PH_BRACKET(analysis(h, "sddmm_preprocess", c));
}
PH_EXPORT int cusparseSDDMM(HANDLE h, int opa, int opb, const void *alpha, const dense *a, const dense *b,
                            const void *beta, sparse *c, int type, int algorithm, void *space) {
  (void)opb, (void)alpha, (void)beta, (void)type, (void)algorithm, (void)space;
  return PH_BRACKET(sampled_product(h, a, b, c, opa));
}

// Triangular solves with one vector and with several.
PH_EXPORT int cusparseSpSV_bufferSize(HANDLE h, int op, const void *alpha, const sparse *a, const dense *x, dense *y,
                                      int type, int algorithm, info *i, size_t *size) {
  (void)op, (void)alpha, (void)type, (void)algorithm;
  return no_buffer(h, a && x && y && i, size);
}
PH_EXPORT int cusparseSpSV_analysis(HANDLE h, int op, const void *alpha, const sparse *a, const dense *x, dense *y,
                                    int type, int algorithm, info *i, void *space) {
  (void)op, (void)alpha, (void)x, (void)y, (void)type, (void)algorithm, (void)space;
  if (!i) return INVALID_VALUE;
  i->analysed = 1;
  return PH_BRACKET(analysis(h, "spsv_analysis", a));
}
PH_EXPORT int cusparseSpSV_solve(HANDLE h, int op, const void *alpha, const sparse *a, const dense *x, dense *y,
                                 int type, int algorithm, info *i) {
  (void)op, (void)alpha, (void)type, (void)algorithm;
  if (!i || !i->analysed) return INVALID_VALUE;
  return PH_BRACKET(product(h, "spsv", a, x, y));
}
PH_EXPORT int cusparseSpSM_bufferSize(HANDLE h, int opa, int opb, const void *alpha, const sparse *a, const dense *b,
                                      dense *c, int type, int algorithm, info *i, size_t *size) {
  (void)opa, (void)opb, (void)alpha, (void)type, (void)algorithm;
  return no_buffer(h, a && b && c && i, size);
}
PH_EXPORT int cusparseSpSM_analysis(HANDLE h, int opa, int opb, const void *alpha, const sparse *a, const dense *b,
                                    dense *c, int type, int algorithm, info *i, void *space) {
  (void)opa, (void)opb, (void)alpha, (void)b, (void)c, (void)type, (void)algorithm, (void)space;
  if (!i) return INVALID_VALUE;
  i->analysed = 1;
  return PH_BRACKET(analysis(h, "spsm_analysis", a));
}
PH_EXPORT int cusparseSpSM_solve(HANDLE h, int opa, int opb, const void *alpha, const sparse *a, const dense *b,
                                 dense *c, int type, int algorithm, info *i) {
  (void)opa, (void)opb, (void)alpha, (void)type, (void)algorithm;
  if (!i || !i->analysed) return INVALID_VALUE;
  return PH_BRACKET(product(h, "spsm", a, b, c));
}

// Block rows.
#define BLOCKS(T, TYPE)                                                                                               \
  PH_EXPORT int cusparse##T##bsrmv(HANDLE h, int dir, int op, int mb, int nb, int nnzb, const void *alpha,            \
                                   const matrix_descriptor *d, const void *values, const int *offsets,                \
                                   const int *indices, int block, const void *x, const void *beta, void *y) {         \
    (void)dir, (void)op, (void)alpha, (void)values, (void)offsets, (void)indices, (void)x, (void)beta;                \
    double stored = (double)nnzb * block * block;                                                                     \
    work w = {.handle = h,                                                                                            \
              .name = "bsrmv",                                                                                        \
              .type = TYPE,                                                                                           \
              .invalid = !d || block < 1,                                                                             \
              .m = (int64_t)mb * block,                                                                               \
              .n = 1,                                                                                                 \
              .inner = (int64_t)nb * block,                                                                           \
              .nnz = (int64_t)stored,                                                                                 \
              .batch = 1,                                                                                             \
              .multiply_adds = stored,                                                                                \
              .elements = stored + (double)(mb + nb) * block,                                                         \
              .indices = (double)nnzb + mb,                                                                           \
              .out = y,                                                                                               \
              .out_elements = (double)mb * block};                                                                    \
    return PH_BRACKET(run(&w));                                                                                       \
  }                                                                                                                   \
  PH_EXPORT int cusparse##T##bsrmm(HANDLE h, int dir, int opa, int opb, int mb, int n, int kb, int nnzb,              \
                                   const void *alpha, const matrix_descriptor *d, const void *values,                 \
                                   const int *offsets, const int *indices, int block, const void *b, int ldb,         \
                                   const void *beta, void *c, int ldc) {                                              \
    (void)dir, (void)opa, (void)opb, (void)alpha, (void)values, (void)offsets, (void)indices, (void)b, (void)ldb,     \
        (void)beta;                                                                                                   \
    double stored = (double)nnzb * block * block;                                                                     \
    work w = {.handle = h,                                                                                            \
              .name = "bsrmm",                                                                                        \
              .type = TYPE,                                                                                           \
              .invalid = !d || block < 1,                                                                             \
              .m = (int64_t)mb * block,                                                                               \
              .n = n,                                                                                                 \
              .inner = (int64_t)kb * block,                                                                           \
              .nnz = (int64_t)stored,                                                                                 \
              .batch = 1,                                                                                             \
              .multiply_adds = stored * n,                                                                            \
              .elements = stored + (double)(mb + kb) * block * n,                                                     \
              .indices = (double)nnzb + mb,                                                                           \
              .out = c,                                                                                               \
              .out_elements = (double)ldc * n};                                                                       \
    return PH_BRACKET(run(&w));                                                                                       \
  }                                                                                                                   \
  PH_EXPORT int cusparse##T##bsrsv2_bufferSize(HANDLE h, int dir, int op, int mb, int nnzb,                           \
                                               const matrix_descriptor *d, void *values, const int *offsets,          \
                                               const int *indices, int block, info *i, int *size) {                   \
    (void)dir, (void)op, (void)mb, (void)nnzb, (void)values, (void)offsets, (void)indices, (void)block;               \
    if (!alive(h)) return NOT_INITIALIZED;                                                                            \
    return d && i && size ? (*size = 0, SUCCESS) : INVALID_VALUE;                                                     \
  }                                                                                                                   \
  PH_EXPORT int cusparse##T##bsrsv2_analysis(HANDLE h, int dir, int op, int mb, int nnzb, const matrix_descriptor *d, \
                                             const void *values, const int *offsets, const int *indices, int block,   \
                                             info *i, int policy, void *space) {                                      \
    (void)dir, (void)op, (void)values, (void)offsets, (void)indices, (void)policy, (void)space;                       \
    return PH_BRACKET(block_solve(h, "bsrsv_analysis", TYPE, d, i, mb, 0, nnzb, block, NULL, 0));                     \
  }                                                                                                                   \
  PH_EXPORT int cusparse##T##bsrsv2_solve(                                                                            \
      HANDLE h, int dir, int op, int mb, int nnzb, const void *alpha, const matrix_descriptor *d, const void *values, \
      const int *offsets, const int *indices, int block, info *i, const void *f, void *x, int policy, void *space) {  \
    (void)dir, (void)op, (void)alpha, (void)values, (void)offsets, (void)indices, (void)f, (void)policy, (void)space; \
    return PH_BRACKET(block_solve(h, "bsrsv", TYPE, d, i, mb, 1, nnzb, block, x, (double)mb * block));                \
  }                                                                                                                   \
  PH_EXPORT int cusparse##T##bsrsm2_bufferSize(HANDLE h, int dir, int opa, int opx, int mb, int n, int nnzb,          \
                                               const matrix_descriptor *d, void *values, const int *offsets,          \
                                               const int *indices, int block, info *i, int *size) {                   \
    (void)dir, (void)opa, (void)opx, (void)mb, (void)n, (void)nnzb, (void)values, (void)offsets, (void)indices,       \
        (void)block;                                                                                                  \
    if (!alive(h)) return NOT_INITIALIZED;                                                                            \
    return d && i && size ? (*size = 0, SUCCESS) : INVALID_VALUE;                                                     \
  }                                                                                                                   \
  PH_EXPORT int cusparse##T##bsrsm2_analysis(HANDLE h, int dir, int opa, int opx, int mb, int n, int nnzb,            \
                                             const matrix_descriptor *d, const void *values, const int *offsets,      \
                                             const int *indices, int block, info *i, int policy, void *space) {       \
    (void)dir, (void)opa, (void)opx, (void)n, (void)values, (void)offsets, (void)indices, (void)policy, (void)space;  \
    return PH_BRACKET(block_solve(h, "bsrsm_analysis", TYPE, d, i, mb, 0, nnzb, block, NULL, 0));                     \
  }                                                                                                                   \
  PH_EXPORT int cusparse##T##bsrsm2_solve(HANDLE h, int dir, int opa, int opx, int mb, int n, int nnzb,               \
                                          const void *alpha, const matrix_descriptor *d, const void *values,          \
                                          const int *offsets, const int *indices, int block, info *i, const void *b,  \
                                          int ldb, void *x, int ldx, int policy, void *space) {                       \
    (void)dir, (void)opa, (void)opx, (void)alpha, (void)values, (void)offsets, (void)indices, (void)b, (void)ldb,     \
        (void)policy, (void)space;                                                                                    \
    return PH_BRACKET(block_solve(h, "bsrsm", TYPE, d, i, mb, n, nnzb, block, x, (double)ldx * n));                   \
  }
// `columns` 0: the analysis, a pass over the structure.
static int block_solve(HANDLE handle, const char *name, int type, const matrix_descriptor *d, info *i, int mb,
                       int columns, int nnzb, int block, void *out, double out_elements) {
  if (!d || !i || block < 1 || (columns && !i->analysed)) return INVALID_VALUE;
  i->analysed = 1;
  double stored = (double)nnzb * block * block;
  work w = {.handle = handle,
            .name = name,
            .type = type,
            .m = (int64_t)mb * block,
            .n = columns,
            .nnz = (int64_t)stored,
            .batch = 1,
            .multiply_adds = stored * columns,
            .elements = stored + 2.0 * mb * block * columns,
            .indices = (double)nnzb + mb,
            .out = out,
            .out_elements = out_elements};
  return run(&w);
}
BLOCKS(S, PH_R_32F)
BLOCKS(D, PH_R_64F)
BLOCKS(C, PH_C_32F)
BLOCKS(Z, PH_C_64F)
#define ZERO_PIVOTS(X) X(bsrsv2) X(bsrsm2)
#define ZERO_PIVOT(NAME)                                                        \
  PH_EXPORT int cusparseX##NAME##_zeroPivot(HANDLE h, info *i, int *position) { \
    if (!alive(h)) return NOT_INITIALIZED;                                      \
    if (!i || !position) return INVALID_VALUE;                                  \
    *position = -1; /* none */                                                  \
    return SUCCESS;                                                             \
  }
ZERO_PIVOTS(ZERO_PIVOT)

// ---------------------------------------------------------------- orders and conversions of indices
static int move_indices(HANDLE handle, const char *name, int m, int n, int nnz, double passes, int *out,
                        int64_t count) {
  work w = {.handle = handle,
            .name = name,
            .type = PH_R_32I,
            .invalid = !out && count > 0,
            .m = m,
            .n = n,
            .nnz = nnz,
            .batch = 1,
            .indices = passes * nnz,
            .out = out,
            .out_elements = (double)count};
  return run(&w);
}
PH_EXPORT int cusparseXcoo2csr(HANDLE h, const int *rows, int nnz, int m, int *offsets, int base) {
  (void)rows, (void)base;
  return PH_BRACKET(move_indices(h, "coo2csr", m, 0, nnz, 2, offsets, (int64_t)m + 1));
}
PH_EXPORT int cusparseCreateIdentityPermutation(HANDLE h, int n, int *p) {
  return PH_BRACKET(move_indices(h, "identity", n, 0, n, 1, p, n));
}
PH_EXPORT int cusparseXcoosort_bufferSizeExt(HANDLE h, int m, int n, int nnz, const int *rows, const int *columns,
                                             size_t *size) {
  (void)rows, (void)columns;
  int status = no_buffer(h, m >= 0 && n >= 0 && nnz >= 0, size);
  if (status == SUCCESS) *size = 2 * (size_t)nnz * sizeof(int64_t);  // keys of a radix sort, twice
  return status;
}
PH_EXPORT int cusparseXcsrsort_bufferSizeExt(HANDLE h, int m, int n, int nnz, const int *rows, const int *columns,
                                             size_t *size) {
  return cusparseXcoosort_bufferSizeExt(h, m, n, nnz, rows, columns, size);
}
PH_EXPORT int cusparseXcoosortByRow(HANDLE h, int m, int n, int nnz, int *rows, int *columns, int *p, void *space) {
  (void)columns, (void)p, (void)space;
  return PH_BRACKET(move_indices(h, "coosort", m, n, nnz, 16, rows, nnz));
}
PH_EXPORT int cusparseXcsrsort(HANDLE h, int m, int n, int nnz, const matrix_descriptor *d, const int *rows,
                               int *columns, int *p, void *space) {
  (void)d, (void)rows, (void)p, (void)space;
  return PH_BRACKET(move_indices(h, "csrsort", m, n, nnz, 16, columns, nnz));
}
