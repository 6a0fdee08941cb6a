// cublasLt: descriptors with real storage, one heuristic answer, and matmul as one kernel on the
// given stream. The descriptors keep within the sizes of the public header's opaque structures,
// because callers may hold them by value (the `_internal` init forms).
#include "abi/cublas_abi.h"

// cublasLtEpilogue_t: bits that combine.
enum {
  EPILOGUE_DEFAULT = 1,
  EPILOGUE_RELU = 2,
  EPILOGUE_BIAS = 4,
  EPILOGUE_DRELU = 8,
  EPILOGUE_BGRAD = 16,
  EPILOGUE_GELU = 32,
  EPILOGUE_DGELU = 64,
  EPILOGUE_AUX = 128,
  EPILOGUE_BGRADA = 256,
  EPILOGUE_BGRADB = 512,
};
enum { ORDER_COL = 0, ORDER_ROW = 1, ORDER_LAST = 4 };
// cublasLtMatmulMatrixScale_t
enum {
  SCALE_TENSOR = 0,
  SCALE_VEC16 = 1,
  SCALE_VEC32 = 2,
  SCALE_ROW = 3,
  SCALE_VEC128 = 4,
  SCALE_BLK128 = 5,
  SCALE_END = 6
};

// ---------------------------------------------------------------- descriptors
// Attributes: number, type, field, default. One list per descriptor makes the storage, the table of
// offsets and sizes, and the defaults. Eight-byte fields come first so that nothing is padded.
// clang-format off
#define MATMUL_ATTRIBUTES(X)                                                                             \
  X(8, void *, bias, NULL) X(10, int64_t, bias_batch_stride, 0) X(11, void *, aux, NULL)                 \
  X(12, int64_t, aux_ld, 0) X(13, int64_t, aux_batch_stride, 0) X(14, int64_t, alpha_batch_stride, 0)    \
  X(17, void *, a_scale, NULL) X(18, void *, b_scale, NULL) X(19, void *, c_scale, NULL)                 \
  X(20, void *, d_scale, NULL) X(21, void *, amax_d, NULL) X(23, void *, aux_scale, NULL)                \
  X(24, void *, aux_amax, NULL) X(29, void *, sync_in, NULL) X(30, void *, sync_out, NULL)              \
  X(36, void *, d_out_scale, NULL) X(38, void *, emulation, NULL)                                        \
  X(0, int32_t, compute, CUBLAS_COMPUTE_32F) X(1, int32_t, scale_type, PH_R_32F)                        \
  X(2, int32_t, pointer_mode, 0) X(3, int32_t, trans_a, CUBLAS_OP_N) X(4, int32_t, trans_b, CUBLAS_OP_N) \
  X(5, int32_t, trans_c, CUBLAS_OP_N) X(6, int32_t, fill_mode, CUBLAS_FILL_MODE_FULL)                   \
  X(7, uint32_t, epilogue, EPILOGUE_DEFAULT) X(15, int32_t, sm_count_target, 0)                          \
  X(22, int32_t, aux_type, -1) X(26, int32_t, bias_type, -1) X(27, int32_t, sync_rows, 0)                \
  X(28, int32_t, sync_columns, 0) X(31, int32_t, a_scale_mode, 0) X(32, int32_t, b_scale_mode, 0)        \
  X(33, int32_t, c_scale_mode, 0) X(34, int32_t, d_scale_mode, 0) X(35, int32_t, aux_scale_mode, 0)      \
  X(37, int32_t, d_out_scale_mode, 0) X(25, int8_t, fast_accumulation, 0)
#define LAYOUT_ATTRIBUTES(X)                                                                             \
  X(2, uint64_t, rows, 0) X(3, uint64_t, columns, 0) X(4, int64_t, ld, 0) X(6, int64_t, batch_stride, 0) \
  X(7, int64_t, plane_offset, 0) X(0, uint32_t, type, 0) X(1, int32_t, order, ORDER_COL)                 \
  X(5, int32_t, batch, 1)
// clang-format on
// BATCH_MODE (8) came with CUDA 13; it shares the word that a layout's `magic` leaves.
// clang-format off
#define PREFERENCE_ATTRIBUTES(X)                                                                     \
  X(1, uint64_t, workspace_bytes, 0) X(12, uint64_t, implementation_mask, UINT64_MAX)                \
  X(0, uint32_t, search_mode, 0) X(3, uint32_t, reduction_mask, 7) X(5, uint32_t, alignment_a, 256)  \
  X(6, uint32_t, alignment_b, 256) X(7, uint32_t, alignment_c, 256) X(8, uint32_t, alignment_d, 256) \
  X(9, float, waves, 0)
#define TRANSFORM_ATTRIBUTES(X)                                                                          \
  X(0, int32_t, scale_type, PH_R_32F) X(1, int32_t, pointer_mode, 0) X(2, int32_t, trans_a, CUBLAS_OP_N) \
  X(3, int32_t, trans_b, CUBLAS_OP_N)
#define EMULATION_ATTRIBUTES(X)                                                                            \
  X(5, int32_t *, mantissa_bits_pointer, NULL) X(0, int32_t, strategy, 0)                                  \
  X(1, int32_t, special_values, 0xFFFF) X(2, int32_t, mantissa_control, 0) X(3, int32_t, mantissa_bits, 0) \
  X(4, int32_t, mantissa_offset, 0)
#define ALGO_ATTRIBUTES(X)                                                                            \
  X(0, int32_t, id, 0) X(1, uint32_t, tile, 0) X(2, int32_t, split_k, 1) X(3, uint32_t, reduction, 0) \
  X(4, uint32_t, swizzle, 0) X(5, uint32_t, custom, 0) X(6, uint32_t, stages, 0)                      \
  X(7, uint16_t, inner_shape, 0) X(8, uint16_t, cluster, 0)
// clang-format on

typedef struct attribute {
  int number;
  uint16_t offset, size;
} attribute;

#define FIELD(NUMBER, TYPE, NAME, DEFAULT) TYPE NAME;
#define ENTRY(NUMBER, TYPE, NAME, DEFAULT) {NUMBER, offsetof(DESCRIPTOR, NAME), sizeof(TYPE)},
#define SET_DEFAULT(NUMBER, TYPE, NAME, DEFAULT) self->NAME = DEFAULT;
#define DESCRIPTOR_TYPE(TYPE, LIST, WORDS, MAGIC)                                         \
  typedef struct TYPE {                                                                   \
    uint32_t magic, extra;                                                                \
    LIST(FIELD)                                                                           \
  } TYPE;                                                                                 \
  enum { TYPE##_magic = MAGIC };                                                          \
  _Static_assert(sizeof(TYPE) <= (WORDS) * 8, "larger than the public opaque structure"); \
  static void TYPE##_defaults(TYPE *self) {                                               \
    memset(self, 0, sizeof *self);                                                        \
    self->magic = MAGIC;                                                                  \
    LIST(SET_DEFAULT)                                                                     \
  }                                                                                       \
  static bool TYPE##_alive(const TYPE *self) { return self && self->magic == MAGIC; }
DESCRIPTOR_TYPE(matmul, MATMUL_ATTRIBUTES, 32, 0x6c746d6d)
DESCRIPTOR_TYPE(layout, LAYOUT_ATTRIBUTES, 8, 0x6c746c79)
DESCRIPTOR_TYPE(preference, PREFERENCE_ATTRIBUTES, 8, 0x6c747072)
DESCRIPTOR_TYPE(transform, TRANSFORM_ATTRIBUTES, 8, 0x6c747466)
DESCRIPTOR_TYPE(emulation, EMULATION_ATTRIBUTES, 8, 0x6c74656d)
DESCRIPTOR_TYPE(algorithm, ALGO_ATTRIBUTES, 8, 0x6c74616c)

#define DESCRIPTOR matmul
static const attribute matmul_table[] = {MATMUL_ATTRIBUTES(ENTRY){-1, 0, 0}};
#undef DESCRIPTOR
#define DESCRIPTOR layout
static const attribute layout_table[] = {LAYOUT_ATTRIBUTES(ENTRY){8, offsetof(layout, extra), 4}, {-1, 0, 0}};
#undef DESCRIPTOR
#define DESCRIPTOR preference
static const attribute preference_table[] = {PREFERENCE_ATTRIBUTES(ENTRY){-1, 0, 0}};
#undef DESCRIPTOR
#define DESCRIPTOR transform
static const attribute transform_table[] = {TRANSFORM_ATTRIBUTES(ENTRY){-1, 0, 0}};
#undef DESCRIPTOR
#define DESCRIPTOR emulation
static const attribute emulation_table[] = {EMULATION_ATTRIBUTES(ENTRY){-1, 0, 0}};
#undef DESCRIPTOR
#define DESCRIPTOR algorithm
static const attribute algorithm_table[] = {ALGO_ATTRIBUTES(ENTRY){-1, 0, 0}};
#undef DESCRIPTOR

static const attribute *find_attribute(const attribute *table, int number) {
  for (; table->number >= 0; table++)
    if (table->number == number) return table;
  return NULL;
}
static int set_attribute(void *self, bool alive, const attribute *table, int number, const void *buffer, size_t size) {
  const attribute *entry = find_attribute(table, number);
  if (!alive || !entry || !buffer || size != entry->size) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy((char *)self + entry->offset, buffer, size);
  return CUBLAS_STATUS_SUCCESS;
}
static int get_attribute(const void *self, bool alive, const attribute *table, int number, void *buffer, size_t size,
                         size_t *written) {
  const attribute *entry = find_attribute(table, number);
  if (!alive || !entry || (!size && !written) || (size && (!buffer || size != entry->size)))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (size) memcpy(buffer, (const char *)self + entry->offset, size);
  if (written) *written = entry->size;
  return CUBLAS_STATUS_SUCCESS;
}

#define ACCESSORS(NAME, TYPE)                                                                           \
  PH_EXPORT int cublasLt##NAME##SetAttribute(TYPE *self, int number, const void *buffer, size_t size) { \
    return set_attribute(self, TYPE##_alive(self), TYPE##_table, number, buffer, size);                 \
  }                                                                                                     \
  PH_EXPORT int cublasLt##NAME##GetAttribute(const TYPE *self, int number, void *buffer, size_t size,   \
                                             size_t *written) {                                         \
    return get_attribute(self, TYPE##_alive(self), TYPE##_table, number, buffer, size, written);        \
  }                                                                                                     \
  PH_EXPORT int cublasLt##NAME##Destroy(TYPE *self) {                                                   \
    if (self && !TYPE##_alive(self)) return CUBLAS_STATUS_INVALID_VALUE;                                \
    if (self) self->magic = 0;                                                                          \
    free(self);                                                                                         \
    return CUBLAS_STATUS_SUCCESS;                                                                       \
  }
ACCESSORS(MatmulDesc, matmul)
ACCESSORS(MatrixLayout, layout)
ACCESSORS(MatmulPreference, preference)
ACCESSORS(MatrixTransformDesc, transform)
ACCESSORS(EmulationDesc, emulation)
// A failed `initialise` frees what was allocated.
#define CREATE(TYPE, OUT, INITIALISE)              \
  if (!(OUT)) return CUBLAS_STATUS_INVALID_VALUE;  \
  TYPE *created = malloc(sizeof *created);         \
  if (!created) return CUBLAS_STATUS_ALLOC_FAILED; \
  int status = INITIALISE;                         \
  if (status != CUBLAS_STATUS_SUCCESS) {           \
    free(created);                                 \
    return status;                                 \
  }                                                \
  *(OUT) = created;                                \
  return CUBLAS_STATUS_SUCCESS

PH_EXPORT
int cublasLtMatmulDescInit_internal(matmul *self, size_t size, int compute, int scale_type) {
  if (!self || size < sizeof *self || !cublas_compute_name(compute) || !ph_dtype_of(scale_type))
    return CUBLAS_STATUS_INVALID_VALUE;
  matmul_defaults(self);
  self->compute = compute;
  self->scale_type = scale_type;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasLtMatmulDescCreate(matmul **out, int compute, int scale_type) {
  CREATE(matmul, out, cublasLtMatmulDescInit_internal(created, sizeof *created, compute, scale_type));
}
PH_EXPORT int cublasLtMatrixLayoutInit_internal(layout *self, size_t size, int type, uint64_t rows, uint64_t columns,
                                                int64_t ld) {
  if (!self || size < sizeof *self || !ph_dtype_of(type)) return CUBLAS_STATUS_INVALID_VALUE;
  layout_defaults(self);
  self->type = (uint32_t)type;
  self->rows = rows;
  self->columns = columns;
  self->ld = ld;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasLtMatrixLayoutCreate(layout **out, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  CREATE(layout, out, cublasLtMatrixLayoutInit_internal(created, sizeof *created, type, rows, columns, ld));
}
PH_EXPORT int cublasLtMatmulPreferenceInit_internal(preference *self, size_t size) {
  if (!self || size < sizeof *self) return CUBLAS_STATUS_INVALID_VALUE;
  preference_defaults(self);
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasLtMatmulPreferenceCreate(preference **out) {
  CREATE(preference, out, cublasLtMatmulPreferenceInit_internal(created, sizeof *created));
}
PH_EXPORT int cublasLtMatrixTransformDescInit_internal(transform *self, size_t size, int scale_type) {
  if (!self || size < sizeof *self || !ph_dtype_of(scale_type)) return CUBLAS_STATUS_INVALID_VALUE;
  transform_defaults(self);
  self->scale_type = scale_type;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasLtMatrixTransformDescCreate(transform **out, int scale_type) {
  CREATE(transform, out, cublasLtMatrixTransformDescInit_internal(created, sizeof *created, scale_type));
}
PH_EXPORT int cublasLtEmulationDescInit_internal(emulation *self, size_t size) {
  if (!self || size < sizeof *self) return CUBLAS_STATUS_INVALID_VALUE;
  emulation_defaults(self);
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasLtEmulationDescCreate(emulation **out) {
  CREATE(emulation, out, cublasLtEmulationDescInit_internal(created, sizeof *created));
}

// ---------------------------------------------------------------- handle and library
typedef struct handle {
  uint64_t magic;  // PH_CUBLAS_MAGIC, also of a cuBLAS handle
} handle;
static bool alive(const handle *self) { return self && self->magic == PH_CUBLAS_MAGIC; }

PH_EXPORT int cublasLtCreate(handle **out) {
  if (!out) return CUBLAS_STATUS_INVALID_VALUE;
  if (ph_devices() < 1) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle *created = calloc(1, sizeof *created);
  if (!created) return CUBLAS_STATUS_ALLOC_FAILED;
  created->magic = PH_CUBLAS_MAGIC;
  *out = created;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasLtDestroy(handle *self) {
  if (!alive(self)) return CUBLAS_STATUS_NOT_INITIALIZED;
  self->magic = 0;
  free(self);
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT size_t cublasLtGetVersion(void) { return PH_CUBLAS_VERSION; }
PH_EXPORT size_t cublasLtGetCudartVersion(void) { return PH_CUDA_MAJOR * 1000; }
PH_EXPORT int cublasLtGetProperty(int property, int *value) {
  if (!value || property < LIBRARY_MAJOR || property > LIBRARY_PATCH) return CUBLAS_STATUS_INVALID_VALUE;
  const int parts[] = {PH_CUBLAS_VERSION / 10000, PH_CUBLAS_VERSION / 100 % 100, PH_CUBLAS_VERSION % 100};
  *value = parts[property];
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT const char *cublasLtGetStatusName(int status) {
  CUBLAS_STATUSES(CUBLAS_STATUS_NAME)
  return "CUBLAS_STATUS_UNKNOWN";
}
PH_EXPORT const char *cublasLtGetStatusString(int status) {
  CUBLAS_STATUSES(CUBLAS_STATUS_TEXT)
  return "unknown cuBLAS status";
}
static size_t heuristics_capacity = 8192;
PH_EXPORT int cublasLtHeuristicsCacheGetCapacity(size_t *capacity) {
  if (!capacity) return CUBLAS_STATUS_INVALID_VALUE;
  *capacity = heuristics_capacity;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasLtHeuristicsCacheSetCapacity(size_t capacity) {
  heuristics_capacity = capacity;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT unsigned cublasLtDisableCpuInstructionsSetMask(unsigned mask) { return (void)mask, 0; }
// The library's own logging has nothing to say here: the simulator's log holds every call.
PH_EXPORT int cublasLtLoggerSetCallback(void *callback) { return (void)callback, CUBLAS_STATUS_SUCCESS; }
PH_EXPORT int cublasLtLoggerSetFile(void *file) { return (void)file, CUBLAS_STATUS_SUCCESS; }
PH_EXPORT int cublasLtLoggerOpenFile(const char *path) { return (void)path, CUBLAS_STATUS_SUCCESS; }
PH_EXPORT int cublasLtLoggerSetLevel(int level) { return (void)level, CUBLAS_STATUS_SUCCESS; }
PH_EXPORT int cublasLtLoggerSetMask(int mask) { return (void)mask, CUBLAS_STATUS_SUCCESS; }
PH_EXPORT int cublasLtLoggerForceDisable(void) { return CUBLAS_STATUS_SUCCESS; }

// ---------------------------------------------------------------- a problem and its checks
typedef struct problem {
  const matmul *operation;
  const layout *a, *b, *c, *d;
  int64_t m, n, k, batch;
} problem;

static bool is_fp8(uint32_t type) { return type == PH_R_8F_E4M3 || type == PH_R_8F_E5M2; }
static bool is_fp4(uint32_t type) { return type == PH_R_4F_E2M1; }

static bool leading_dimension_fits(const layout *matrix) {
  if (matrix->order > ORDER_ROW) return matrix->ld > 0;
  uint64_t needed = matrix->order == ORDER_COL ? matrix->rows : matrix->columns;
  return matrix->ld >= 0 && (uint64_t)matrix->ld >= needed;
}

// Eight-bit and four-bit floats: the conditions that the public documentation states.
static int check_narrow(const problem *p) {
  const ph_device *gpu = ph_gpu();
  uint32_t a = p->a->type, b = p->b->type;
  int capability = gpu->major * 10 + gpu->minor;
  if (is_fp4(a) || is_fp4(b)) {
    if (capability < 100 || a != b) return CUBLAS_STATUS_NOT_SUPPORTED;
  } else if (capability < 89 || !is_fp8(b) || (a == PH_R_8F_E5M2 && b == PH_R_8F_E5M2)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (p->operation->compute != CUBLAS_COMPUTE_32F || p->operation->scale_type != PH_R_32F)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  // Before data-center Blackwell only A transposed, B as it is; dimensions in steps of 16 bytes.
  bool any_layout = capability >= 100 && capability < 120;
  if (!any_layout && (p->operation->trans_a == CUBLAS_OP_N || p->operation->trans_b != CUBLAS_OP_N))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p->k % 16 || p->m % 16) return CUBLAS_STATUS_NOT_SUPPORTED;
  const int modes[] = {p->operation->a_scale_mode, p->operation->b_scale_mode};
  for (int i = 0; i < 2; i++) {
    if (modes[i] < SCALE_TENSOR || modes[i] >= SCALE_END) return CUBLAS_STATUS_INVALID_VALUE;
    if ((modes[i] == SCALE_VEC16 || modes[i] == SCALE_VEC32) && capability < 100) return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((modes[i] == SCALE_VEC128 || modes[i] == SCALE_BLK128) && capability != 90) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  uint32_t d = p->d->type;
  bool wide = d == PH_R_16BF || d == PH_R_16F || d == PH_R_32F;
  return wide || is_fp8(d) || is_fp4(d) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static int check_problem(problem *p) {
  if (!matmul_alive(p->operation) || !layout_alive(p->a) || !layout_alive(p->b) || !layout_alive(p->c) ||
      !layout_alive(p->d))
    return CUBLAS_STATUS_INVALID_VALUE;
  int ta = p->operation->trans_a, tb = p->operation->trans_b;
  if (!cublas_operation_valid(ta) || !cublas_operation_valid(tb)) return CUBLAS_STATUS_INVALID_VALUE;
  p->m = (int64_t)(ta == CUBLAS_OP_N ? p->a->rows : p->a->columns);
  p->k = (int64_t)(ta == CUBLAS_OP_N ? p->a->columns : p->a->rows);
  p->n = (int64_t)(tb == CUBLAS_OP_N ? p->b->columns : p->b->rows);
  int64_t k_of_b = (int64_t)(tb == CUBLAS_OP_N ? p->b->rows : p->b->columns);
  if (k_of_b != p->k || (int64_t)p->d->rows != p->m || (int64_t)p->d->columns != p->n || p->c->rows != p->d->rows ||
      p->c->columns != p->d->columns)
    return CUBLAS_STATUS_INVALID_VALUE;
  const layout *const all[] = {p->a, p->b, p->c, p->d};
  p->batch = p->d->batch;
  for (int i = 0; i < 4; i++) {
    if (all[i]->order < ORDER_COL || all[i]->order > ORDER_LAST || !leading_dimension_fits(all[i]) ||
        all[i]->batch != p->batch)
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (p->batch < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (is_fp8(p->a->type) || is_fp4(p->a->type)) return check_narrow(p);
  int a = (int)p->a->type, b = (int)p->b->type, d = (int)p->d->type;
  bool integers_to_8_bits =
      (p->operation->compute == CUBLAS_COMPUTE_32I && a == PH_R_8I && b == PH_R_8I && d == PH_R_8I);
  if (!integers_to_8_bits && !cublas_types_supported(p->operation->compute, a, b, d))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return p->c->type == p->d->type ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// ---------------------------------------------------------------- algorithms
typedef struct heuristic_result {
  union {
    algorithm algo;
    uint64_t opaque[8];
  };
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
} heuristic_result;
_Static_assert(sizeof(heuristic_result) == 96, "cublasLtMatmulHeuristicResult_t");

enum { ALGORITHM_ID = 66 };

static void fill_result(heuristic_result *result, const problem *p) {
  memset(result, 0, sizeof *result);
  algorithm_defaults(&result->algo);
  result->algo.id = ALGORITHM_ID;
  result->state = CUBLAS_STATUS_SUCCESS;
  // Tiles of 128 by 256, one per multiprocessor at a time.
  double tiles = (double)((p->m + 127) / 128) * (double)((p->n + 255) / 256) * (double)p->batch;
  result->waves = (float)(tiles / (ph_gpu()->sms > 0 ? ph_gpu()->sms : 1));
}

static int heuristic(const handle *self, problem *p, const preference *wish, int requested, heuristic_result *results,
                     int *returned) {
  if (!alive(self)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!returned || !results || requested < 1 || !preference_alive(wish)) return CUBLAS_STATUS_INVALID_VALUE;
  *returned = 0;
  int status = check_problem(p);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  fill_result(results, p);
  *returned = 1;
  ph_charge(PH_API_GEMM_HEURISTIC);
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasLtMatmulAlgoGetHeuristic(handle *self, matmul *operation, layout *a, layout *b, layout *c,
                                             layout *d, preference *wish, int requested, heuristic_result *results,
                                             int *returned) {
  problem p = {operation, a, b, c, d, 0, 0, 0, 0};
  return PH_BRACKET(heuristic(self, &p, wish, requested, results, returned));
}
PH_EXPORT int cublasLtMatmulAlgoGetIds(handle *self, int compute, int scale, int a, int b, int c, int d, int requested,
                                       int *ids, int *returned) {
  (void)scale, (void)a, (void)b, (void)c, (void)d;
  if (!alive(self)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!ids || !returned || requested < 1 || !cublas_compute_name(compute)) return CUBLAS_STATUS_INVALID_VALUE;
  ids[0] = ALGORITHM_ID;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasLtMatmulAlgoInit(handle *self, int compute, int scale, int a, int b, int c, int d, int id,
                                     algorithm *algo) {
  (void)scale, (void)a, (void)b, (void)c, (void)d;
  if (!alive(self)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algo || id != ALGORITHM_ID || !cublas_compute_name(compute)) return CUBLAS_STATUS_INVALID_VALUE;
  algorithm_defaults(algo);
  algo->id = id;
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasLtMatmulAlgoCheck(handle *self, matmul *operation, layout *a, layout *b, layout *c, layout *d,
                                      const algorithm *algo, heuristic_result *result) {
  if (!alive(self)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algorithm_alive(algo) || !result) return CUBLAS_STATUS_INVALID_VALUE;
  problem p = {operation, a, b, c, d, 0, 0, 0, 0};
  int status = check_problem(&p);
  if (status == CUBLAS_STATUS_SUCCESS) fill_result(result, &p);
  return status;
}
PH_EXPORT int cublasLtMatmulAlgoConfigSetAttribute(algorithm *self, int number, const void *buffer, size_t size) {
  return set_attribute(self, algorithm_alive(self), algorithm_table, number, buffer, size);
}
PH_EXPORT int cublasLtMatmulAlgoConfigGetAttribute(const algorithm *self, int number, void *buffer, size_t size,
                                                   size_t *written) {
  return get_attribute(self, algorithm_alive(self), algorithm_table, number, buffer, size, written);
}
PH_EXPORT int cublasLtMatmulAlgoCapGetAttribute(const algorithm *self, int number, void *buffer, size_t size,
                                                size_t *written) {
  static const struct {
    int number;
    uint16_t size;
    uint64_t value;
  } capabilities[] = {
      {0, 4, 1},   {1, 4, 7},   {2, 4, 1},   {3, 4, 1},      {4, 4, 1},  {5, 4, 0},  {6, 4, 0},
      {7, 4, 0},   {10, 4, 0},  {11, 4, 31}, {12, 4, 0x3ff}, {13, 4, 0}, {14, 4, 0}, {15, 8, 0},
      {16, 4, 16}, {17, 4, 16}, {18, 4, 16}, {19, 4, 16},    {21, 4, 0}, {22, 4, 0},
  };
  if (!algorithm_alive(self) || (!size && !written) || (size && !buffer)) return CUBLAS_STATUS_INVALID_VALUE;
  for (size_t i = 0; i < sizeof capabilities / sizeof *capabilities; i++) {
    if (capabilities[i].number != number) continue;
    if (size && size < capabilities[i].size) return CUBLAS_STATUS_INVALID_VALUE;
    if (size) memcpy(buffer, &capabilities[i].value, capabilities[i].size);
    if (written) *written = capabilities[i].size;
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

// ---------------------------------------------------------------- matmul
static const char *epilogue_word(uint32_t epilogue) {
  bool bias = epilogue & EPILOGUE_BIAS, bgrad = epilogue & EPILOGUE_BGRAD;
  if (epilogue & EPILOGUE_GELU) return bias ? "gelu_bias" : "gelu";
  if (epilogue & EPILOGUE_RELU) return bias ? "relu_bias" : "relu";
  if (epilogue & EPILOGUE_DGELU) return bgrad ? "dgelu_bgrad" : "dgelu";
  if (epilogue & EPILOGUE_DRELU) return bgrad ? "drelu_bgrad" : "drelu";
  if (epilogue & EPILOGUE_BGRADA) return "bgrada";
  if (epilogue & EPILOGUE_BGRADB) return "bgradb";
  return bias ? "bias" : NULL;
}
static const char *scale_word(int mode) {
  static const char *const words[SCALE_END] = {"tensor", "vec16", "vec32", "row", "vec128", "blk128x128"};
  return words[mode];
}
// Bytes that the epilogue reads or writes in addition to the matrices.
static double epilogue_bytes(const problem *p) {
  const matmul *operation = p->operation;
  double element = ph_dtype_bytes(ph_dtype_of((int)p->d->type)), bytes = 0;
  uint32_t epilogue = operation->epilogue;
  if (epilogue & (EPILOGUE_BIAS | EPILOGUE_BGRAD | EPILOGUE_BGRADA)) bytes += (double)p->m * element;
  if (epilogue & EPILOGUE_BGRADB) bytes += (double)p->n * element;
  if (epilogue & EPILOGUE_AUX) {
    bool mask = epilogue & (EPILOGUE_RELU | EPILOGUE_DRELU);
    bytes += (double)p->m * (double)p->n * (mask ? 1.0 / 8 : element);
  }
  return bytes;
}

static int multiply(const handle *self, problem *p, const void *alpha, const void *a, const void *b, const void *beta,
                    void *d, const algorithm *algo, void *stream_handle) {
  if (!alive(self)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!alpha || !beta || (algo && !algorithm_alive(algo))) return CUBLAS_STATUS_INVALID_VALUE;
  int status = check_problem(p);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (!p->m || !p->n) return CUBLAS_STATUS_SUCCESS;
  if (!a || !b || !d) return CUBLAS_STATUS_INVALID_VALUE;
  const ph_stream *stream = ph_stream_of(stream_handle, false);
  if (!stream) return CUBLAS_STATUS_EXECUTION_FAILED;
  const matmul *operation = p->operation;
  const ph_dtype *at = ph_dtype_of((int)p->a->type), *bt = ph_dtype_of((int)p->b->type),
                 *dt = ph_dtype_of((int)p->d->type);
  const char *compute = cublas_compute_name(operation->compute), *epilogue = epilogue_word(operation->epilogue);
  bool narrow = is_fp8(p->a->type) || is_fp4(p->a->type);
  ph_call call;
  ph_call_begin(&call, "cublaslt", "gemm");
  ph_call_text(&call, "a", at->name, true);
  ph_call_text(&call, "b", bt->name, at != bt);
  ph_call_text(&call, "c", dt->name, false);
  ph_call_text(&call, "compute", compute, operation->compute == CUBLAS_COMPUTE_32F_FAST_TF32);
  ph_call_text(&call, "trans", cublas_trans(operation->trans_a, operation->trans_b), true);
  ph_call_number(&call, "m", p->m, true);
  ph_call_number(&call, "n", p->n, true);
  ph_call_number(&call, "k", p->k, true);
  ph_call_number(&call, "batch", p->batch, p->batch > 1);
  if (p->d->order != ORDER_COL) ph_call_text(&call, "order", p->d->order == ORDER_ROW ? "row" : "tiled", false);
  if (epilogue) ph_call_text(&call, "epilogue", epilogue, true);
  if (narrow) {
    ph_call_text(&call, "scale_a", scale_word(operation->a_scale_mode), operation->a_scale_mode != SCALE_TENSOR);
    ph_call_text(&call, "scale_b", scale_word(operation->b_scale_mode), false);
    ph_call_number(&call, "fast_accumulation", operation->fast_accumulation, false);
  }
  if (operation->sm_count_target) ph_call_number(&call, "sms", operation->sm_count_target, false);
  double m = (double)p->m, n = (double)p->n, k = (double)p->k, batch = (double)p->batch;
  call.flops = (at->complex_number ? 8.0 : 2.0) * m * n * k * batch;
  call.bytes = batch * (m * k * ph_dtype_bytes(at) + k * n * ph_dtype_bytes(bt) + m * n * ph_dtype_bytes(dt) +
                        epilogue_bytes(p));
  ph_call_launch(&call, stream);
  double lines = p->d->order == ORDER_ROW ? m : n, line = p->d->order == ORDER_ROW ? n : m;
  ph_wrote_output(
      d, ((double)p->d->ld * (lines - 1) + line + (double)p->d->batch_stride * (batch - 1)) * ph_dtype_bytes(dt));
  ph_charge(PH_API_GEMM_LT);
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasLtMatmul(handle *self, matmul *operation, const void *alpha, const void *a, layout *a_layout,
                             const void *b, layout *b_layout, const void *beta, const void *c, layout *c_layout,
                             void *d, layout *d_layout, const algorithm *algo, void *workspace, size_t workspace_bytes,
                             void *stream) {
  (void)c, (void)workspace, (void)workspace_bytes;
  problem p = {operation, a_layout, b_layout, c_layout, d_layout, 0, 0, 0, 0};
  return PH_BRACKET(multiply(self, &p, alpha, a, b, beta, d, algo, stream));
}

// ---------------------------------------------------------------- transformation of layouts
static int convert(const handle *self, const transform *operation, const layout *a, const layout *b, void *c,
                   const layout *to, void *stream_handle) {
  if (!alive(self)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!transform_alive(operation) || !layout_alive(a) || !layout_alive(to) || (b && !layout_alive(b)) || !c)
    return CUBLAS_STATUS_INVALID_VALUE;
  bool turned = operation->trans_a != CUBLAS_OP_N;
  if ((turned ? a->columns : a->rows) != to->rows || (turned ? a->rows : a->columns) != to->columns)
    return CUBLAS_STATUS_INVALID_VALUE;
  const ph_stream *stream = ph_stream_of(stream_handle, false);
  if (!stream) return CUBLAS_STATUS_EXECUTION_FAILED;
  const ph_dtype *from_type = ph_dtype_of((int)a->type), *to_type = ph_dtype_of((int)to->type);
  double elements = (double)to->rows * (double)to->columns * (double)to->batch;
  ph_call call;
  ph_call_begin(&call, "cublaslt", "transform");
  ph_call_text(&call, "a", from_type->name, true);
  ph_call_text(&call, "c", to_type->name, true);
  ph_call_number(&call, "m", (int64_t)to->rows, true);
  ph_call_number(&call, "n", (int64_t)to->columns, true);
  ph_call_number(&call, "batch", to->batch, to->batch > 1);
  call.flops = 2 * elements;
  call.bytes = elements * (ph_dtype_bytes(from_type) * (b ? 2 : 1) + ph_dtype_bytes(to_type));
  ph_call_launch(&call, stream);
  ph_wrote_output(c, elements * ph_dtype_bytes(to_type));
  ph_charge(PH_API_GEMM_LT);
  return CUBLAS_STATUS_SUCCESS;
}
PH_EXPORT int cublasLtMatrixTransform(handle *self, transform *operation, const void *alpha, const void *a,
                                      layout *a_layout, const void *beta, const void *b, layout *b_layout, void *c,
                                      layout *c_layout, void *stream) {
  (void)alpha, (void)a, (void)beta;
  return PH_BRACKET(convert(self, operation, a_layout, b ? b_layout : NULL, c, c_layout, stream));
}
