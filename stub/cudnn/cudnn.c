// cuDNN 9. The graph interface is a typed store of descriptors and attributes: finalising an
// execution plan condenses its operation graph into one description, and executing the plan is one
// kernel with that description. The older calls per operation follow in cudnn_legacy.h.
//
// Graphs in single precision are offered two engines, one on tensor cores (TF32) and one without,
// as cuDNN does, so that a framework's filter on numerical notes decides what the kernel runs in.
#include <stdarg.h>
#include <stdatomic.h>
#include "abi/cudnn_abi.h"

static _Thread_local char last_error[512];

// Remembers why a call failed (cudnnGetLastErrorString) and returns the status.
__attribute__((format(printf, 2, 3))) static int fail(int status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return status;
}

// ---------------------------------------------------------------- library and handle
#define HANDLE_MAGIC 0x7068646e6e683031ULL
typedef struct handle {
  uint64_t magic;
  void *stream;
} handle;
static bool alive(const handle *self) { return self && self->magic == HANDLE_MAGIC; }
#define CHECK_HANDLE(self) \
  if (!alive(self)) return fail(CUDNN_STATUS_BAD_PARAM, "%s: not a cuDNN handle", __func__)

PH_EXPORT size_t cudnnGetVersion(void) { return PH_CUDNN_VERSION; }
PH_EXPORT size_t cudnnGetMaxDeviceVersion(void) { return 1210; }
PH_EXPORT size_t cudnnGetCudartVersion(void) { return PH_CUDA_MAJOR * 1000; }
PH_EXPORT int cudnnGetProperty(int property, int *value) {
  const int parts[] = {PH_CUDNN_VERSION / 10000, PH_CUDNN_VERSION / 100 % 100, PH_CUDNN_VERSION % 100};
  if (!value || property < 0 || property > 2)
    return fail(CUDNN_STATUS_INVALID_VALUE, "cudnnGetProperty: property %d", property);
  *value = parts[property];
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT const char *cudnnGetErrorString(int status) {
#define NAME(STATUS, VALUE) \
  case VALUE: return "CUDNN_STATUS_" #STATUS;
  switch (status) { CUDNN_STATUSES(NAME) }
  return "CUDNN_STATUS_UNKNOWN";
}
PH_EXPORT void cudnnGetLastErrorString(char *message, size_t size) {
  if (message && size) snprintf(message, size, "%s", last_error);
  last_error[0] = 0;
}
PH_EXPORT int cudnnQueryRuntimeError(handle *self, int *status, int mode, void *tag) {
  (void)mode, (void)tag;
  CHECK_HANDLE(self);
  if (!status) return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnQueryRuntimeError: rstatus");
  *status = CUDNN_STATUS_SUCCESS;
  return CUDNN_STATUS_SUCCESS;
}
#define VERSION_CHECKS(X) X(Graph) X(Ops) X(Cnn) X(Adv)
#define VERSION_CHECK(NAME) \
  PH_EXPORT int cudnn##NAME##VersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
VERSION_CHECKS(VERSION_CHECK)

// Device memory that the library's kernels take in a process, measured with its first convolutions on H100 and H200
// (benchmarks/device/memory.py).
#define LIBRARY_BYTES (10LL << 20)
PH_EXPORT int cudnnCreate(handle **out) {
  if (!out) return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnCreate: handle");
  if (ph_devices() < 1) return fail(CUDNN_STATUS_NOT_INITIALIZED, "cudnnCreate: no device");
  handle *created = calloc(1, sizeof *created);
  if (!created) return fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnCreate");
  created->magic = HANDLE_MAGIC;
  static int first = 1;
  if (__atomic_exchange_n(&first, 0, __ATOMIC_RELAXED)) {
    if (!ph_memory_charge(ph_current_device(), LIBRARY_BYTES)) {
      free(created);
      return fail(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "cudnnCreate: no device memory");
    }
    ph_charge(PH_API_CUDNN_CREATE);
  }
  *out = created;
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnDestroy(handle *self) {
  CHECK_HANDLE(self);
  self->magic = 0;
  free(self);
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnSetStream(handle *self, void *stream) {
  CHECK_HANDLE(self);
  self->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnGetStream(handle *self, void **stream) {
  CHECK_HANDLE(self);
  if (!stream) return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnGetStream: stream");
  *stream = self->stream;
  return CUDNN_STATUS_SUCCESS;
}
// cuDNN's own logging has nothing to say here: the simulator's log holds every call.
PH_EXPORT int cudnnSetCallback(unsigned mask, void *user, void *callback) {
  return (void)mask, (void)user, (void)callback, CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnGetCallback(unsigned *mask, void **user, void **callback) {
  if (mask) *mask = 0;
  if (user) *user = NULL;
  if (callback) *callback = NULL;
  return CUDNN_STATUS_SUCCESS;
}

// Ends every executing call: one kernel on the handle's stream.
static int launch(const handle *self, const ph_call *call) {
  const ph_stream *stream = ph_stream_of(self->stream, false);
  if (!stream)
    return fail(CUDNN_STATUS_EXECUTION_FAILED, "%s: the handle's stream has been destroyed", call->call);
  ph_call_launch(call, stream);
  ph_charge(PH_API_CUDNN_EXECUTE);
  return CUDNN_STATUS_SUCCESS;
}

// ---------------------------------------------------------------- descriptors and attributes
#define DESCRIPTOR_MAGIC 0x70686e64u

typedef struct entry {
  int name, type;
  int64_t count;
  void *data;
} entry;

typedef struct output {
  int64_t uid;
  double bytes;
} output;
#define MAX_OUTPUTS 12

// What a finalised execution plan does.
typedef struct summary {
  ph_call call;
  int outputs;
  output output[MAX_OUTPUTS];
  int64_t workspace;
  bool largest;  // of the plans that a caller may try
} summary;

typedef struct descriptor {
  uint32_t magic;
  int type;
  atomic_int references;  // the user's and those of descriptors that were given it
  bool finalised;
  int entries, room;
  entry *entry;
  summary *plan;
} descriptor;

typedef struct kind {
  int type;
  const char *name;
  int low, high, needed[4];
} kind;
static const kind *kind_of(int type) {
#define KIND(NUMBER, NAME, LOW, HIGH, A, B, C, D) {NUMBER, #NAME, LOW, HIGH, {A, B, C, D}},
  static const kind kinds[] = {CUDNN_DESCRIPTORS(KIND)};
  return type >= 0 && type < (int)(sizeof kinds / sizeof *kinds) ? &kinds[type] : NULL;
}
static size_t element_size(int type) {
#define SIZE(NAME, NUMBER, BYTES) \
  case NUMBER: return BYTES;
  switch (type) { CUDNN_ATTRIBUTE_TYPES(SIZE) }
  return 0;
}
static bool is_descriptor(const descriptor *self) { return self && self->magic == DESCRIPTOR_MAGIC; }

static void release(descriptor *self);
static void clear_entry(entry *e) {
  if (e->type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    for (int64_t i = 0; i < e->count; i++) release(((descriptor **)e->data)[i]);
  free(e->data);
}
static void clear(descriptor *self) {
  for (int i = 0; i < self->entries; i++) clear_entry(&self->entry[i]);
  free(self->entry);
  free(self->plan);
  self->entry = NULL;
  self->plan = NULL;
  self->entries = self->room = 0;
}
static void release(descriptor *self) {
  if (!self || atomic_fetch_sub(&self->references, 1) > 1) return;
  clear(self);
  self->magic = 0;
  free(self);
}
static entry *find(const descriptor *self, int name) {
  for (int i = 0; self && i < self->entries; i++)
    if (self->entry[i].name == name) return &self->entry[i];
  return NULL;
}
// Stores a copy of the elements; sub-descriptors are shared.
static bool store(descriptor *self, int name, int type, int64_t count, const void *elements) {
  size_t bytes = element_size(type) * (size_t)count;
  void *data = malloc(bytes ? bytes : 1);
  if (!data) return false;
  if (bytes) memcpy(data, elements, bytes);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    for (int64_t i = 0; i < count; i++)
      if (((descriptor **)data)[i]) atomic_fetch_add(&((descriptor **)data)[i]->references, 1);
  entry *e = find(self, name);
  if (e) {
    clear_entry(e);
  } else {
    if (self->entries == self->room) {
      int room = self->room ? 2 * self->room : 8;
      entry *grown = realloc(self->entry, (size_t)room * sizeof *grown);
      if (!grown) return free(data), false;
      self->entry = grown;
      self->room = room;
    }
    e = &self->entry[self->entries++];
  }
  *e = (entry){name, type, count, data};
  return true;
}
static bool copy_into(descriptor *to, const descriptor *from) {
  clear(to);
  to->finalised = from->finalised;
  for (int i = 0; i < from->entries; i++)
    if (!store(to, from->entry[i].name, from->entry[i].type, from->entry[i].count, from->entry[i].data))
      return false;
  return true;
}

// Reading attributes of known types; absent ones read as 0 or NULL.
static int64_t integer(const descriptor *self, int name) {
  const entry *e = find(self, name);
  if (!e || !e->count) return 0;
  switch (element_size(e->type)) {
    case 1: return *(const int8_t *)e->data;
    case 4: return *(const int32_t *)e->data;
    default: return *(const int64_t *)e->data;
  }
}
static const descriptor *child(const descriptor *self, int name) {
  const entry *e = find(self, name);
  return e && e->count && e->type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? ((descriptor **)e->data)[0] : NULL;
}
static int64_t list(const descriptor *self, int name, const int64_t **values) {
  const entry *e = find(self, name);
  *values = e && e->type == CUDNN_TYPE_INT64 ? e->data : NULL;
  return *values ? e->count : 0;
}

// ---------------------------------------------------------------- reading an operation graph
typedef struct tensor {
  const descriptor *self;
  int dims;
  int64_t dim[CUDNN_DIM_MAX], stride[CUDNN_DIM_MAX];
  const ph_dtype *type;
  bool resident;  // in device memory: neither virtual nor passed by value
  double elements, bytes;
} tensor;

static tensor tensor_of(const descriptor *self) {
  tensor t = {.self = self, .elements = 1};
  if (!self || self->type != CUDNN_BACKEND_TENSOR) return (tensor){0};
  const int64_t *dims, *strides;
  int64_t count = list(self, CUDNN_ATTR_TENSOR_DIMENSIONS, &dims),
          stride_count = list(self, CUDNN_ATTR_TENSOR_STRIDES, &strides);
  t.dims = count > CUDNN_DIM_MAX ? CUDNN_DIM_MAX : (int)count;
  for (int i = 0; i < t.dims; i++) {
    t.dim[i] = dims[i];
    t.stride[i] = i < stride_count ? strides[i] : 0;
    t.elements *= (double)dims[i];
  }
  t.type = cudnn_dtype(integer(self, CUDNN_ATTR_TENSOR_DATA_TYPE));
  t.resident = !integer(self, CUDNN_ATTR_TENSOR_IS_VIRTUAL) && !integer(self, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  t.bytes = t.elements * ph_dtype_bytes(t.type);
  return t;
}
static tensor tensor_at(const descriptor *operation, int name) { return tensor_of(child(operation, name)); }

static bool is_output(int name) {
  static const int names[] = {CUDNN_OUTPUT_ATTRIBUTES};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i] == name) return true;
  return false;
}

typedef struct graph {
  const descriptor *self;
  int64_t operations;
  descriptor *const *operation;
} graph;
static graph graph_of(const descriptor *self) {
  const entry *e = find(self, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  return e && e->type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? (graph){self, e->count, e->data}
                                                       : (graph){self, 0, NULL};
}
static int64_t count_operations(const graph *g, int type) {
  int64_t count = 0;
  for (int64_t i = 0; i < g->operations; i++) count += g->operation[i]->type == type;
  return count;
}
static const descriptor *first_operation(const graph *g, int type) {
  for (int64_t i = 0; i < g->operations; i++)
    if (g->operation[i]->type == type) return g->operation[i];
  return NULL;
}
static bool has_pointwise(const graph *g, int mode) {
  for (int64_t i = 0; i < g->operations; i++) {
    const descriptor *operation = g->operation[i];
    if (operation->type == CUDNN_BACKEND_OPERATION_POINTWISE &&
        integer(child(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR), CUDNN_ATTR_POINTWISE_MODE) ==
            mode)
      return true;
  }
  return false;
}

// Bytes of all tensors in device memory, each once, and the list of those written.
static void survey_tensors(const graph *g, summary *out) {
  enum { SEEN = 256 };
  int64_t seen[SEEN];
  int count = 0;
  for (int64_t i = 0; i < g->operations; i++) {
    const descriptor *operation = g->operation[i];
    for (int j = 0; j < operation->entries; j++) {
      const entry *e = &operation->entry[j];
      for (int64_t k = 0; e->type == CUDNN_TYPE_BACKEND_DESCRIPTOR && k < e->count; k++) {
        tensor t = tensor_of(((descriptor **)e->data)[k]);
        if (!t.self || !t.resident) continue;
        int64_t uid = integer(t.self, CUDNN_ATTR_TENSOR_UNIQUE_ID);
        int at = 0;
        while (at < count && seen[at] != uid) at++;
        if (at == count && count < SEEN) {
          seen[count++] = uid;
          out->call.bytes += t.bytes;
        }
        if (is_output(e->name) && out->outputs < MAX_OUTPUTS)
          out->output[out->outputs++] = (output){uid, t.bytes};
      }
    }
  }
}

static const char *layout_word(const tensor *t) {
  if (t->dims < 3 || t->stride[1] != 1) return "nchw";
  for (int i = 2; i < t->dims; i++)
    if (t->dim[i] > 1) return "nhwc";
  return t->dim[1] > 1 ? "nhwc" : "nchw";
}
static double product(const tensor *t, int from) {
  double result = 1;
  for (int i = from; i < t->dims; i++) result *= (double)t->dim[i];
  return result;
}
static void add_list(ph_call *call, const char *key, const descriptor *self, int name, bool named) {
  const int64_t *values;
  int64_t count = list(self, name, &values);
  if (count > 0 && count <= CUDNN_DIM_MAX) ph_call_list(call, key, values, (int)count, named);
}
// Single precision on tensor cores or not; other types name their accumulator.
static const char *compute_word(const tensor *t, bool tensor_cores) {
  if (t->type && t->type->id == PH_R_32F) return tensor_cores ? "tf32" : "f32";
  return t->type && t->type->id == PH_R_64F ? "f64" : t->type && t->type->id == PH_R_8I ? "i32" : "f32";
}

typedef struct convolution {
  int operation;
  const char *call;
  int x, w, y, convolution;  // attributes of the operation
} convolution;
static const convolution convolutions[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD, "conv_fwd", 704, 703, 705, 702},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA, "conv_dgrad", 710, 709, 711, 708},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER, "conv_wgrad", 716, 715, 717, 714},
};

#include "cudnn/cudnn_workspace.h"

static void copy_list(int64_t *to, const descriptor *self, int name) {
  const int64_t *values;
  int64_t count = list(self, name, &values);
  if (count > 0 && count <= CUDNN_DIM_MAX) memcpy(to, values, (size_t)count * sizeof *to);
}

static convolution_problem problem_of(const convolution *form, const descriptor *operation, bool tensor_cores) {
  tensor x = tensor_at(operation, form->x), w = tensor_at(operation, form->w), y = tensor_at(operation, form->y);
  convolution_problem p = {.form = (int)(form - convolutions),  // listed in the order of FORM_
                           .type = TYPE_other,
                           .layout = strcmp(layout_word(&x), "nhwc") ? LAYOUT_nchw : LAYOUT_nhwc,
                           .dims = x.dims,
                           .x_bytes = (int64_t)x.bytes,
                           .w_bytes = (int64_t)w.bytes,
                           .y_bytes = (int64_t)y.bytes};
  switch (x.type ? (int)x.type->id : -1) {
    case PH_R_32F: p.type = tensor_cores ? TYPE_tf32 : TYPE_f32; break;
    case PH_R_16BF: p.type = TYPE_bf16; break;
    case PH_R_16F: p.type = TYPE_f16; break;
  }
  memcpy(p.x, x.dim, sizeof p.x);
  memcpy(p.w, w.dim, sizeof p.w);
  memcpy(p.y, y.dim, sizeof p.y);
  const descriptor *parameters = child(operation, form->convolution);
  copy_list(p.stride, parameters, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  copy_list(p.padding, parameters, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  copy_list(p.dilation, parameters, CUDNN_ATTR_CONVOLUTION_DILATIONS);
  return p;
}

static void describe_convolution(const graph *g, const convolution *form, const descriptor *operation,
                                 bool tensor_cores, ph_call *call) {
  tensor x = tensor_at(operation, form->x), w = tensor_at(operation, form->w),
         y = tensor_at(operation, form->y);
  const descriptor *parameters = child(operation, form->convolution);
  ph_call_begin(call, "cudnn", form->call);
  const char *compute = compute_word(&x, tensor_cores);
  ph_call_text(call, "a", ph_dtype_name(x.type), true);
  ph_call_text(call, "c", ph_dtype_name(y.type), false);
  ph_call_text(call, "compute", compute, !strcmp(compute, "tf32"));
  ph_call_text(call, "layout", layout_word(&x), true);
  ph_call_list(call, "x", x.dim, x.dims, true);
  ph_call_list(call, "w", w.dim, w.dims, true);
  ph_call_list(call, "y", y.dim, y.dims, false);
  add_list(call, "stride", parameters, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, true);
  add_list(call, "padding", parameters, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, false);
  add_list(call, "dilation", parameters, CUDNN_ATTR_CONVOLUTION_DILATIONS, false);
  int64_t groups = x.dims > 1 && w.dims > 1 && w.dim[1] > 0 ? x.dim[1] / w.dim[1] : 1;
  ph_call_number(call, "groups", groups, groups > 1);
  if (g->operations > 1) ph_call_number(call, "fused", g->operations - 1, true);
  call->flops = 2 * y.elements * product(&w, 1);
}

static double matmul_flops(const graph *g) {
  double flops = 0;
  for (int64_t i = 0; i < g->operations; i++) {
    if (g->operation[i]->type != CUDNN_BACKEND_OPERATION_MATMUL) continue;
    tensor a = tensor_at(g->operation[i], CUDNN_ATTR_OPERATION_MATMUL_ADESC),
           c = tensor_at(g->operation[i], CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    if (a.dims) flops += 2 * c.elements * (double)a.dim[a.dims - 1];
  }
  return flops;
}

static void describe_attention(ph_call *call, bool backward, const tensor *q, int64_t kv_heads,
                               int64_t kv_length, int64_t v_dim) {
  int64_t heads = q->dim[1], length = q->dim[2], dim = q->dim[3];
  ph_call_begin(call, "cudnn", backward ? "sdpa_bwd" : "sdpa_fwd");
  ph_call_text(call, "a", ph_dtype_name(q->type), true);
  ph_call_number(call, "b", q->dim[0], true);
  ph_call_number(call, "h", heads, true);
  ph_call_number(call, "hkv", kv_heads, kv_heads != heads);
  ph_call_number(call, "sq", length, true);
  ph_call_number(call, "skv", kv_length, true);
  ph_call_number(call, "d", dim, true);
  ph_call_number(call, "dv", v_dim, v_dim != dim);
  // Two products forward; backward five: the scores again, dV, dP, dQ, dK.
  double square = 2.0 * (double)q->dim[0] * (double)heads * (double)length * (double)kv_length;
  call->flops =
      backward ? square * (3.0 * (double)dim + 2.0 * (double)v_dim) : square * ((double)dim + (double)v_dim);
}

// Attention written out: queries times transposed keys, softmax, times values.
static void describe_written_attention(const graph *g, bool backward, ph_call *call) {
  const descriptor *scores = first_operation(g, CUDNN_BACKEND_OPERATION_MATMUL);
  tensor q = tensor_at(scores, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
         k = tensor_at(scores, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
  int64_t v_dim = q.dim[3];
  for (int64_t i = 0; i < g->operations; i++) {
    const descriptor *operation = g->operation[i];
    if (operation->type != CUDNN_BACKEND_OPERATION_MATMUL || operation == scores) continue;
    tensor a = tensor_at(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
           b = tensor_at(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    // Forward: P times V. Backward: dO times transposed V.
    if (!backward && b.dims == 4) v_dim = b.dim[3];
    if (backward && a.resident && a.dims == 4 && a.dim[2] == q.dim[2]) v_dim = a.dim[3];
  }
  describe_attention(call, backward, &q, k.dim[1], k.dim[3], v_dim);
  bool masked_by_index = has_pointwise(g, CUDNN_POINTWISE_GEN_INDEX);
  bool causal = masked_by_index &&
                (has_pointwise(g, CUDNN_POINTWISE_CMP_GE) || has_pointwise(g, CUDNN_POINTWISE_CMP_LE));
  ph_call_number(call, "causal", causal, causal);
  ph_call_number(call, "dropout", first_operation(g, CUDNN_BACKEND_OPERATION_RNG) != NULL, false);
}

static void describe_fused_attention(const descriptor *operation, bool backward, ph_call *call) {
  tensor q = tensor_at(operation,
                       backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC : CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC);
  tensor k = tensor_at(operation,
                       backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC : CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC);
  tensor v = tensor_at(operation,
                       backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC : CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC);
  // Keys may be given transposed: the dimension that is not the queries' is the length.
  int64_t length = k.dim[2] == q.dim[3] && k.dim[3] != q.dim[3] ? k.dim[3] : k.dim[2];
  describe_attention(call, backward, &q, k.dim[1], length, v.dim[3]);
}

static void describe_matmul(const graph *g, const descriptor *operation, bool tensor_cores, ph_call *call) {
  tensor a = tensor_at(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
         b = tensor_at(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
  tensor c = tensor_at(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
  int64_t m = c.dims > 1 ? c.dim[c.dims - 2] : 1, n = c.dims ? c.dim[c.dims - 1] : 1,
          k = a.dims ? a.dim[a.dims - 1] : 1;
  ph_call_begin(call, "cudnn", "matmul");
  ph_call_text(call, "a", ph_dtype_name(a.type), true);
  ph_call_text(call, "b", ph_dtype_name(b.type), false);
  ph_call_text(call, "c", ph_dtype_name(c.type), false);
  ph_call_text(call, "compute", compute_word(&a, tensor_cores), false);
  ph_call_number(call, "m", m, true);
  ph_call_number(call, "n", n, true);
  ph_call_number(call, "k", k, true);
  int64_t batch = m && n ? (int64_t)(c.elements / ((double)m * (double)n)) : 0;
  ph_call_number(call, "batch", batch, batch > 1);
  if (g->operations > 1) ph_call_number(call, "fused", g->operations - 1, true);
  call->flops = matmul_flops(g);
}

// Anything else: its kind by the leading operation, and the tensors in device memory.
static void describe_rest(const graph *g, ph_call *call) {
  static const struct {
    int operation;
    const char *call;
  } kinds[] = {
      {CUDNN_BACKEND_OPERATION_NORM_FORWARD, "norm_fwd"},
      {CUDNN_BACKEND_OPERATION_NORM_BACKWARD, "norm_bwd"},
      {CUDNN_BACKEND_OPERATION_RESAMPLE_FWD, "pool_fwd"},
      {CUDNN_BACKEND_OPERATION_RESAMPLE_BWD, "pool_bwd"},
      {CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL, "moe_gemm"},
      {CUDNN_BACKEND_OPERATION_REDUCTION, "reduction"},
      {CUDNN_BACKEND_OPERATION_POINTWISE, "pointwise"},
  };
  const char *name = "graph";
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (!first_operation(g, kinds[i].operation)) continue;
    name = kinds[i].call;
    break;
  }
  ph_call_begin(call, "cudnn", name);
  ph_call_number(call, "operations", g->operations, false);
  static const char *const keys[] = {"t0", "t1", "t2", "t3", "t4", "t5"};
  size_t listed = 0;
  double largest = 0;
  for (int64_t i = 0; i < g->operations; i++) {
    for (int j = 0; j < g->operation[i]->entries; j++) {
      const entry *e = &g->operation[i]->entry[j];
      if (e->type != CUDNN_TYPE_BACKEND_DESCRIPTOR || !e->count) continue;
      tensor t = tensor_of(((descriptor **)e->data)[0]);
      if (!t.self || !t.resident) continue;
      if (!listed) ph_call_text(call, "a", ph_dtype_name(t.type), true);
      if (listed < sizeof keys / sizeof *keys)
        ph_call_list(call, keys[listed], t.dim, t.dims, !listed), listed++;
      if (t.elements > largest) largest = t.elements;
    }
  }
  call->flops = largest * (double)g->operations + matmul_flops(g);
}

// What a graph's engines differ in: single precision has them with and without tensor cores. Convolutions have each
// twice, as the heuristics would have it first and as the one that asks for most memory, which callers meet that time
// them all (torch.backends.cudnn.benchmark): it is slower, and never kept.
typedef struct engines {
  int64_t precisions, ranks;
} engines;
static engines engines_of(const graph *g) {
  engines result = {1, 1};
  int type = -1;
  const descriptor *matmul = first_operation(g, CUDNN_BACKEND_OPERATION_MATMUL);
  if (matmul) type = (int)integer(child(matmul, CUDNN_ATTR_OPERATION_MATMUL_ADESC), CUDNN_ATTR_TENSOR_DATA_TYPE);
  for (size_t i = 0; i < sizeof convolutions / sizeof *convolutions; i++) {
    const descriptor *operation = first_operation(g, convolutions[i].operation);
    if (!operation) continue;
    type = (int)integer(child(operation, convolutions[i].x), CUDNN_ATTR_TENSOR_DATA_TYPE);
    result.ranks = 2;
    break;
  }
  if (type == CUDNN_DATA_FLOAT) result.precisions = 2;
  return result;
}
static int64_t engine_count(const descriptor *operation_graph) {
  graph g = graph_of(operation_graph);
  engines offered = engines_of(&g);
  return offered.precisions * offered.ranks;
}
static bool on_tensor_cores(const graph *g, int64_t engine) { return engine % engines_of(g).precisions == 0; }

static void describe(const graph *g, int64_t engine, summary *out) {
  ph_call *call = &out->call;
  bool tensor_cores = on_tensor_cores(g, engine);
  out->largest = engine >= engines_of(g).precisions;
  bool done = false;
  for (size_t i = 0; !done && i < sizeof convolutions / sizeof *convolutions; i++) {
    const descriptor *operation = first_operation(g, convolutions[i].operation);
    if (!operation) continue;
    describe_convolution(g, &convolutions[i], operation, tensor_cores, call);
    convolution_problem problem = problem_of(&convolutions[i], operation, tensor_cores);
    if (problem.dims > 2 && problem.x_bytes && problem.y_bytes)
      out->workspace = convolution_workspace(&problem, out->largest);
    done = true;
  }
  const descriptor *forward = first_operation(g, CUDNN_BACKEND_OPERATION_SDPA_FWD),
                   *backward = first_operation(g, CUDNN_BACKEND_OPERATION_SDPA_BWD);
  int64_t products = count_operations(g, CUDNN_BACKEND_OPERATION_MATMUL);
  const descriptor *first = first_operation(g, CUDNN_BACKEND_OPERATION_MATMUL);
  bool four = first && tensor_at(first, CUDNN_ATTR_OPERATION_MATMUL_ADESC).dims == 4 &&
              tensor_at(first, CUDNN_ATTR_OPERATION_MATMUL_BDESC).dims == 4;
  if (done) {
  } else if (forward || backward) {
    describe_fused_attention(forward ? forward : backward, !forward, call);
  } else if (four && (products == 2 || products >= 4)) {
    describe_written_attention(g, products >= 4, call);
  } else if (products == 1) {
    describe_matmul(g, first, tensor_cores, call);
  } else {
    describe_rest(g, call);
  }
  survey_tensors(g, out);
}

// ---------------------------------------------------------------- the backend calls
static descriptor *new_descriptor(int type) {
  descriptor *created = calloc(1, sizeof *created);
  if (!created) return NULL;
  created->magic = DESCRIPTOR_MAGIC;
  created->type = type;
  atomic_init(&created->references, 1);
  return created;
}

PH_EXPORT int cudnnBackendCreateDescriptor(int type, descriptor **out) {
  if (!out) return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnBackendCreateDescriptor: descriptor");
  *out = NULL;
  if (!kind_of(type))
    return fail(CUDNN_STATUS_NOT_SUPPORTED,
                "cudnnBackendCreateDescriptor: descriptor type %d is not known to the simulated cuDNN", type);
  *out = new_descriptor(type);
  return *out ? CUDNN_STATUS_SUCCESS
              : fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnBackendCreateDescriptor");
}
PH_EXPORT int cudnnBackendDestroyDescriptor(descriptor *self) {
  if (self && !is_descriptor(self))
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendDestroyDescriptor: not a descriptor");
  release(self);
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnBackendInitialize(descriptor *self) {
  if (!is_descriptor(self)) return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendInitialize: not a descriptor");
  clear(self);
  self->finalised = false;
  return CUDNN_STATUS_SUCCESS;
}

static int set_attribute(descriptor *self, int name, int type, int64_t count, const void *elements) {
  if (!is_descriptor(self)) return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendSetAttribute: not a descriptor");
  const kind *k = kind_of(self->type);
  if (self->finalised)
    return fail(CUDNN_STATUS_NOT_INITIALIZED, "cudnnBackendSetAttribute: %s is finalised", k->name);
  if (name < k->low || name > k->high)
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendSetAttribute: %s has no attribute %d", k->name, name);
  if (!element_size(type))
    return fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "cudnnBackendSetAttribute: attribute type %d of %d",
                type, name);
  if (count < 0 || (count && !elements))
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendSetAttribute: %lld elements of attribute %d",
                (long long)count, name);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < count; i++) {
      const descriptor *given = ((descriptor *const *)elements)[i];
      if (given && !is_descriptor(given))
        return fail(CUDNN_STATUS_BAD_PARAM,
                    "cudnnBackendSetAttribute: element %lld of %d is not a descriptor", (long long)i, name);
      if (given && !given->finalised)
        return fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                    "cudnnBackendSetAttribute: element %lld of %d is not finalised", (long long)i, name);
    }
  }
  return store(self, name, type, count, elements)
             ? CUDNN_STATUS_SUCCESS
             : fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnBackendSetAttribute");
}
PH_EXPORT int cudnnBackendSetAttribute(descriptor *self, int name, int type, int64_t count,
                                       const void *elements) {
  return PH_BRACKET(set_attribute(self, name, type, count, elements));
}

static int finalise_plan(descriptor *self) {
  const descriptor *engine =
      child(child(self, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), CUDNN_ATTR_ENGINECFG_ENGINE);
  const descriptor *operation_graph = child(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  if (!operation_graph)
    return fail(CUDNN_STATUS_BAD_PARAM,
                "cudnnBackendFinalize: EXECUTION_PLAN's engine has no operation graph");
  self->plan = calloc(1, sizeof *self->plan);
  if (!self->plan) return fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnBackendFinalize");
  ph_charge(PH_API_CUDNN_PLAN);
  graph g = graph_of(operation_graph);
  describe(&g, integer(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX), self->plan);
  return CUDNN_STATUS_SUCCESS;
}
static int finalise(descriptor *self) {
  if (!is_descriptor(self)) return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendFinalize: not a descriptor");
  if (self->finalised) return CUDNN_STATUS_SUCCESS;
  const kind *k = kind_of(self->type);
  for (int i = 0; i < 4; i++)
    if (k->needed[i] >= 0 && !find(self, k->needed[i]))
      return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendFinalize: %s lacks attribute %d", k->name,
                  k->needed[i]);
  int status = CUDNN_STATUS_SUCCESS;
  if (self->type == CUDNN_BACKEND_VARIANT_PACK &&
      find(self, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->count !=
          find(self, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->count)
    status = fail(CUDNN_STATUS_BAD_PARAM,
                  "cudnnBackendFinalize: VARIANT_PACK has unequal numbers of ids and pointers");
  if (self->type == CUDNN_BACKEND_ENGINE && (integer(self, CUDNN_ATTR_ENGINE_GLOBAL_INDEX) < 0 ||
                                             integer(self, CUDNN_ATTR_ENGINE_GLOBAL_INDEX) >=
                                                 engine_count(child(self, CUDNN_ATTR_ENGINE_OPERATION_GRAPH))))
    status = fail(CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendFinalize: no engine %lld for this graph",
                  (long long)integer(self, CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
  if (self->type == CUDNN_BACKEND_EXECUTION_PLAN) status = finalise_plan(self);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  self->finalised = true;
  ph_charge(PH_API_CUDNN_BUILD);
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnBackendFinalize(descriptor *self) { return PH_BRACKET(finalise(self)); }

// Makes `config` the configuration of engine `index` for the heuristics' graph.
static int fill_configuration(descriptor *config, const descriptor *heuristics, int64_t index) {
  if (!is_descriptor(config) || config->type != CUDNN_BACKEND_ENGINECFG)
    return fail(CUDNN_STATUS_BAD_PARAM,
                "cudnnBackendGetAttribute: results of ENGINEHEUR need ENGINECFG descriptors");
  const entry *operation_graph = find(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  descriptor *engine = new_descriptor(CUDNN_BACKEND_ENGINE);
  if (!engine) return fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnBackendGetAttribute");
  clear(config);
  bool stored = store(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                      operation_graph->data) &&
                store(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
  engine->finalised = true;
  stored = stored && store(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
  config->finalised = true;
  release(engine);  // the configuration holds it now
  return stored ? CUDNN_STATUS_SUCCESS
                : fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnBackendGetAttribute");
}

// Answers that are not stored: `value` is the only element, or the list is empty.
typedef struct answer {
  int name, type;
  int64_t count, value;
} answer;
static const answer *computed_answer(const descriptor *self, int name, answer *scratch) {
  static const answer fixed[] = {
      {CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 0},
      {CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 0},
      {CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, 0},
      {CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED, CUDNN_TYPE_INT32, 1, 49152},
      {CUDNN_ATTR_EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS, CUDNN_TYPE_INT64, 0, 0},
      {CUDNN_ATTR_ENGINE_KNOB_INFO, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 0},
      {CUDNN_ATTR_ENGINE_LAYOUT_INFO, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, 0},
      {CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, 0, 0},
      {CUDNN_ATTR_KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED, CUDNN_TYPE_BOOLEAN, 1, 0},
  };
  if (name == CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT) {
    *scratch = (answer){name, CUDNN_TYPE_INT64, 1, engine_count(self)};
    return scratch;
  }
  if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
    graph g = graph_of(child(self, CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
    bool noted = on_tensor_cores(&g, integer(self, CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
    *scratch = (answer){name, CUDNN_TYPE_NUMERICAL_NOTE, noted, CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
    return scratch;
  }
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    *scratch = (answer){name, CUDNN_TYPE_INT64, 1, self->plan ? self->plan->workspace : 0};
    return scratch;
  }
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
    if (fixed[i].name == name) return &fixed[i];
  return NULL;
}

static int get_attribute(const descriptor *self, int name, int type, int64_t requested, int64_t *count,
                         void *elements) {
  if (!is_descriptor(self)) return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendGetAttribute: not a descriptor");
  const kind *k = kind_of(self->type);
  if (!self->finalised)
    return fail(CUDNN_STATUS_NOT_INITIALIZED, "cudnnBackendGetAttribute: %s is not finalised", k->name);
  if (name < k->low || name > k->high)
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendGetAttribute: %s has no attribute %d", k->name, name);
  if (requested < 0)
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendGetAttribute: %lld elements asked for",
                (long long)requested);
  if (self->type == CUDNN_BACKEND_ENGINEHEUR && name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR)
      return fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "cudnnBackendGetAttribute: type %d of %d", type,
                  name);
    int64_t offered = engine_count(child(self, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
    if (count) *count = elements && requested < offered ? requested : offered;
    for (int64_t i = 0; elements && i < requested && i < offered; i++) {
      int status = fill_configuration(((descriptor **)elements)[i], self, i);
      if (status != CUDNN_STATUS_SUCCESS) return status;
    }
    return CUDNN_STATUS_SUCCESS;
  }
  const entry *e = find(self, name);
  if (!e) {
    answer scratch;
    const answer *computed = computed_answer(self, name, &scratch);
    if (!computed)
      return fail(CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendGetAttribute: attribute %d of %s is not set", name,
                  k->name);
    if (computed->type != type)
      return fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "cudnnBackendGetAttribute: type %d of %d", type,
                  name);
    if (count) *count = computed->count;
    if (elements && requested > 0 && computed->count) memcpy(elements, &computed->value, element_size(type));
    return CUDNN_STATUS_SUCCESS;
  }
  if (e->type != type)
    return fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "cudnnBackendGetAttribute: type %d of %d", type, name);
  if (count) *count = e->count;
  int64_t copied = requested < e->count ? requested : e->count;
  if (!elements) return CUDNN_STATUS_SUCCESS;
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    memcpy(elements, e->data, (size_t)copied * element_size(type));
    return CUDNN_STATUS_SUCCESS;
  }
  for (int64_t i = 0; i < copied; i++) {
    descriptor *to = ((descriptor **)elements)[i];
    const descriptor *from = ((descriptor **)e->data)[i];
    if (!is_descriptor(to) || !from || to->type != from->type)
      return fail(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                  "cudnnBackendGetAttribute: element %lld of %d does not take a descriptor", (long long)i,
                  name);
    if (to != from && !copy_into(to, from))
      return fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnBackendGetAttribute");
  }
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnBackendGetAttribute(const descriptor *self, int name, int type, int64_t requested,
                                       int64_t *count, void *elements) {
  return PH_BRACKET(get_attribute(self, name, type, requested, count, elements));
}

static int execute(const handle *self, const descriptor *plan, const descriptor *pack) {
  CHECK_HANDLE(self);
  if (!is_descriptor(plan) || plan->type != CUDNN_BACKEND_EXECUTION_PLAN || !is_descriptor(pack) ||
      pack->type != CUDNN_BACKEND_VARIANT_PACK)
    return fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendExecute: needs an EXECUTION_PLAN and a VARIANT_PACK");
  if (!plan->finalised || !pack->finalised)
    return fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "cudnnBackendExecute: plan or pack is not finalised");
  const entry *uids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
              *pointers = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (int i = 0; i < plan->plan->outputs; i++) {
    int64_t at = 0;
    while (at < uids->count && ((const int64_t *)uids->data)[at] != plan->plan->output[i].uid) at++;
    if (at == uids->count)
      return fail(CUDNN_STATUS_BAD_PARAM,
                  "cudnnBackendExecute: no pointer for tensor %lld, which the plan writes",
                  (long long)plan->plan->output[i].uid);
  }
  int status = launch(self, &plan->plan->call);
  if (status == CUDNN_STATUS_SUCCESS && plan->plan->largest) status = launch(self, &plan->plan->call);
  for (int i = 0; status == CUDNN_STATUS_SUCCESS && i < plan->plan->outputs; i++)
    for (int64_t at = 0; at < uids->count; at++)
      if (((const int64_t *)uids->data)[at] == plan->plan->output[i].uid)
        ph_wrote_output(((void **)pointers->data)[at], plan->plan->output[i].bytes);
  return status;
}
PH_EXPORT int cudnnBackendExecute(handle *self, descriptor *plan, descriptor *pack) {
  return PH_BRACKET(execute(self, plan, pack));
}

#include "cudnn/cudnn_legacy.h"
