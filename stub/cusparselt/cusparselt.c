// cuSPARSELt: products with 2:4 structured sparsity. Descriptors live in the callers' own opaque
// structures (512 bytes or more in every version), which here hold the fields below.
#include "abi/cusparse_abi.h"
#include "rank/library.h"

enum { HANDLE_MAGIC = 0x63736c68, MATRIX_MAGIC = 0x63736c6d, OPERATION_MAGIC = 0x63736c6f, PLAN_MAGIC = 0x63736c70 };
enum {
  ATTRIBUTES = 24,
  ATTRIBUTE_BYTES = 8,
  RELU = 0,
  GELU = 3,
  BIAS_POINTER = 8,
  ALG_ATTRIBUTES = 6,
  CONFIG_ID = 0,
  CONFIG_MAX_ID = 1
};

typedef struct handle {
  uint32_t magic;
} handle;
typedef struct matrix {
  uint32_t magic;
  int type, order, structured, batch;
  int64_t rows, columns, ld, batch_stride;
} matrix;
typedef struct operation {
  uint32_t magic;
  int op_a, op_b, compute;
  matrix a, b, d;
  uint64_t attribute[ATTRIBUTES];  // the first eight bytes of each
} operation;
typedef struct selection {
  uint32_t magic;
  int32_t attribute[ALG_ATTRIBUTES];
} selection;
typedef struct plan {
  uint32_t magic;
  operation what;
} plan;
_Static_assert(sizeof(plan) <= 512, "larger than the public opaque structure");

static bool is_handle(const handle *self) { return self && self->magic == HANDLE_MAGIC; }
static bool is_matrix(const matrix *self) { return self && self->magic == MATRIX_MAGIC; }

PH_EXPORT int cusparseLtInit(handle *self) {
  if (!self) return INVALID_VALUE;
  if (ph_devices() < 1) return NOT_INITIALIZED;
  if (ph_gpu()->major < 8) return NOT_SUPPORTED;
  self->magic = HANDLE_MAGIC;
  return SUCCESS;
}
PH_EXPORT int cusparseLtDestroy(handle *self) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  self->magic = 0;
  return SUCCESS;
}
PH_EXPORT int cusparseLtGetVersion(const handle *self, int *version) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!version) return INVALID_VALUE;
  *version = PH_CUDA_MAJOR >= 13 ? 800 : 701;
  return SUCCESS;
}

static int make_matrix(const handle *self, matrix *out, matrix value) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!out || value.rows < 1 || value.columns < 1 || value.ld < (value.order == 1 ? value.rows : value.columns))
    return INVALID_VALUE;
  const ph_dtype *type = ph_dtype_of(value.type);
  if (!type || type->complex_number || type->bits > 32) return NOT_SUPPORTED;
  // Tensor cores take whole tiles: 32 bytes of each dimension's elements.
  int64_t step = value.structured ? 256 / type->bits : 128 / type->bits;
  if (value.rows % step || value.columns % step) return NOT_SUPPORTED;
  *out = value;
  return SUCCESS;
}
PH_EXPORT int cusparseLtDenseDescriptorInit(const handle *self, matrix *out, int64_t rows, int64_t columns, int64_t ld,
                                            uint32_t alignment, int type, int order) {
  (void)alignment;
  return make_matrix(self, out, (matrix){MATRIX_MAGIC, type, order, 0, 1, rows, columns, ld, 0});
}
PH_EXPORT int cusparseLtStructuredDescriptorInit(const handle *self, matrix *out, int64_t rows, int64_t columns,
                                                 int64_t ld, uint32_t alignment, int type, int order, int sparsity) {
  (void)alignment;
  if (sparsity != 0) return INVALID_VALUE;
  return make_matrix(self, out, (matrix){MATRIX_MAGIC, type, order, 1, 1, rows, columns, ld, 0});
}
PH_EXPORT int cusparseLtMatDescriptorDestroy(const matrix *self) { return is_matrix(self) ? SUCCESS : INVALID_VALUE; }
PH_EXPORT int cusparseLtMatDescSetAttribute(const handle *self, matrix *m, int attribute, const void *data,
                                            size_t size) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!is_matrix(m) || !data) return INVALID_VALUE;
  if (attribute == 0 && size == sizeof m->batch)
    memcpy(&m->batch, data, size);
  else if (attribute == 1 && size == sizeof m->batch_stride)
    memcpy(&m->batch_stride, data, size);
  else
    return INVALID_VALUE;
  return SUCCESS;
}

PH_EXPORT int cusparseLtMatmulDescriptorInit(const handle *self, operation *out, int op_a, int op_b, const matrix *a,
                                             const matrix *b, const matrix *c, const matrix *d, int compute) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!out || !is_matrix(a) || !is_matrix(b) || !is_matrix(c) || !is_matrix(d) || op_a < 0 || op_a > 1 || op_b < 0 ||
      op_b > 1)
    return INVALID_VALUE;
  int64_t m = op_a ? a->columns : a->rows, k = op_a ? a->rows : a->columns, k_of_b = op_b ? b->columns : b->rows,
          n = op_b ? b->rows : b->columns;
  if (k != k_of_b || d->rows != m || d->columns != n || c->rows != m || c->columns != n ||
      a->structured == b->structured)
    return INVALID_VALUE;
  *out =
      (operation){.magic = OPERATION_MAGIC, .op_a = op_a, .op_b = op_b, .compute = compute, .a = *a, .b = *b, .d = *d};
  return SUCCESS;
}
PH_EXPORT int cusparseLtMatmulDescSetAttribute(const handle *self, operation *o, int attribute, const void *data,
                                               size_t size) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!o || o->magic != OPERATION_MAGIC || !data || attribute < 0 || attribute >= ATTRIBUTES || !size ||
      size > ATTRIBUTE_BYTES)
    return INVALID_VALUE;
  o->attribute[attribute] = 0;
  memcpy(&o->attribute[attribute], data, size);
  return SUCCESS;
}
PH_EXPORT int cusparseLtMatmulAlgSelectionInit(const handle *self, selection *out, const operation *o, int algorithm) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!out || !o || o->magic != OPERATION_MAGIC || algorithm != 0) return INVALID_VALUE;
  *out = (selection){.magic = OPERATION_MAGIC, .attribute = {[CONFIG_MAX_ID] = 1, 5, 1, 1, 0}};
  return SUCCESS;
}
PH_EXPORT int cusparseLtMatmulAlgSelectionDestroy(const selection *s) { return s ? SUCCESS : INVALID_VALUE; }
PH_EXPORT int cusparseLtMatmulAlgSetAttribute(const handle *self, selection *s, int attribute, const void *data,
                                              size_t size) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!s || !data || size != sizeof(int32_t) || attribute < 0 || attribute >= ALG_ATTRIBUTES ||
      attribute == CONFIG_MAX_ID)
    return INVALID_VALUE;
  if (attribute == CONFIG_ID && *(const int32_t *)data != 0) return INVALID_VALUE;  // there is one configuration
  memcpy(&s->attribute[attribute], data, size);
  return SUCCESS;
}
PH_EXPORT int cusparseLtMatmulAlgGetAttribute(const handle *self, const selection *s, int attribute, void *data,
                                              size_t size) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!s || !data || size != sizeof(int32_t) || attribute < 0 || attribute >= ALG_ATTRIBUTES) return INVALID_VALUE;
  memcpy(data, &s->attribute[attribute], size);
  return SUCCESS;
}
PH_EXPORT int cusparseLtMatmulPlanInit(const handle *self, plan *out, const operation *o, const selection *s) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!out || !o || o->magic != OPERATION_MAGIC || !s) return INVALID_VALUE;
  *out = (plan){PLAN_MAGIC, *o};
  return SUCCESS;
}
PH_EXPORT int cusparseLtMatmulPlanDestroy(const plan *p) {
  return p && p->magic == PLAN_MAGIC ? SUCCESS : INVALID_VALUE;
}
PH_EXPORT int cusparseLtMatmulGetWorkspace(const handle *self, const plan *p, size_t *size) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!p || p->magic != PLAN_MAGIC || !size) return INVALID_VALUE;
  *size = 0;
  return SUCCESS;
}

// Kept values and two bits for each of them: 9/16 of a 16-bit matrix, 10/16 of an 8-bit one.
static double compressed_bytes(const matrix *m) {
  const ph_dtype *type = ph_dtype_of(m->type);
  return (double)m->rows * (double)m->columns * ph_dtype_bytes(type) * (type->bits == 8 ? 10 : 9) / 16;
}

static int multiply(const handle *self, const plan *p, void *d, void *const *streams, int count) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!p || p->magic != PLAN_MAGIC || !d || count < 0 || (count && !streams)) return INVALID_VALUE;
  const ph_stream *stream = ph_stream_of(count ? streams[0] : NULL, false);
  if (!stream) return EXECUTION_FAILED;
  static const char *const trans[2][2] = {{"nn", "nt"}, {"tn", "tt"}};
  const operation *o = &p->what;
  int64_t m = o->d.rows, n = o->d.columns, k = o->op_a ? o->a.rows : o->a.columns;
  const ph_dtype *a = ph_dtype_of(o->a.type), *to = ph_dtype_of(o->d.type);
  const matrix *thin = o->a.structured ? &o->a : &o->b, *full = o->a.structured ? &o->b : &o->a;
  ph_call call;
  ph_call_begin(&call, "cusparselt", "gemm_sparse24");
  ph_call_text(&call, "a", a->name, true);
  ph_call_text(&call, "c", to->name, false);
  ph_call_text(&call, "trans", trans[o->op_a][o->op_b], true);
  ph_call_number(&call, "m", m, true);
  ph_call_number(&call, "n", n, true);
  ph_call_number(&call, "k", k, true);
  ph_call_number(&call, "batch", o->d.batch, o->d.batch > 1);
  if (o->attribute[RELU] || o->attribute[GELU])
    ph_call_text(&call, "epilogue", o->attribute[RELU] ? "relu" : "gelu", true);
  if (o->attribute[BIAS_POINTER]) ph_call_number(&call, "bias", 1, false);
  double batch = o->d.batch;
  call.flops = batch * (double)m * (double)n * (double)k;  // half of the dense product's
  call.bytes = batch * (compressed_bytes(thin) +
                        (double)full->rows * (double)full->columns * ph_dtype_bytes(ph_dtype_of(full->type)) +
                        (double)m * (double)n * ph_dtype_bytes(to));
  ph_call_launch(&call, stream);
  ph_charge(PH_API_GEMM_LT);
  ph_wrote_output(d, (double)m * (double)n * ph_dtype_bytes(to));
  return SUCCESS;
}
PH_EXPORT int cusparseLtMatmul(const handle *self, const plan *p, const void *alpha, const void *a, const void *b,
                               const void *beta, const void *c, void *d, void *space, void **streams, int32_t count) {
  (void)alpha, (void)a, (void)b, (void)beta, (void)c, (void)space;
  return PH_BRACKET(multiply(self, p, d, streams, count));
}
PH_EXPORT int cusparseLtMatmulSearch(const handle *self, plan *p, const void *alpha, const void *a, const void *b,
                                     const void *beta, const void *c, void *d, void *space, void **streams,
                                     int32_t count) {
  (void)alpha, (void)a, (void)b, (void)beta, (void)c, (void)space;
  return PH_BRACKET(multiply(self, p, d, streams, count));
}

PH_EXPORT int cusparseLtSpMMACompressedSize2(const handle *self, const matrix *m, size_t *size, size_t *buffer) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!is_matrix(m) || !m->structured || !size || !buffer) return INVALID_VALUE;
  *size = (size_t)compressed_bytes(m) * (size_t)m->batch;
  *buffer = 0;
  return SUCCESS;
}
static int compress(const handle *self, const matrix *m, void *out, void *stream_handle) {
  if (!is_handle(self)) return NOT_INITIALIZED;
  if (!is_matrix(m) || !m->structured || !out) return INVALID_VALUE;
  const ph_stream *stream = ph_stream_of(stream_handle, false);
  if (!stream) return EXECUTION_FAILED;
  const ph_dtype *type = ph_dtype_of(m->type);
  ph_call call;
  ph_call_begin(&call, "cusparselt", "compress");
  ph_call_text(&call, "a", type->name, true);
  ph_call_number(&call, "m", m->rows, true);
  ph_call_number(&call, "n", m->columns, true);
  double elements = (double)m->rows * (double)m->columns;
  call.flops = elements;
  call.bytes = elements * ph_dtype_bytes(type) + compressed_bytes(m);
  ph_call_launch(&call, stream);
  ph_charge(PH_API_LAUNCH);
  ph_wrote_output(out, compressed_bytes(m));
  return SUCCESS;
}
PH_EXPORT int cusparseLtSpMMACompress2(const handle *self, const matrix *m, int sparse_a, int op, const void *dense,
                                       void *out, void *buffer, void *stream) {
  (void)sparse_a, (void)op, (void)dense, (void)buffer;
  return PH_BRACKET(compress(self, m, out, stream));
}
