// The kernel of an operation graph: convolution, attention, product of matrices or anything else.
#include "cudnn/plan.h"

#include "cudnn/workspace.h"

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
  enum ph_conv_form form;
  const char *call;
  int x, w, y, convolution;  // attributes of the operation
} convolution;
static const convolution convolutions[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD, PH_CONV_FWD, "conv_fwd", 704, 703, 705, 702},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA, PH_CONV_DGRAD, "conv_dgrad", 710, 709, 711, 708},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER, PH_CONV_WGRAD, "conv_wgrad", 716, 715, 717, 714},
};

static void copy_list(int64_t *to, const descriptor *self, int name) {
  const int64_t *values;
  int64_t count = list(self, name, &values);
  if (count > 0 && count <= CUDNN_DIM_MAX) memcpy(to, values, (size_t)count * sizeof *to);
}

static convolution_problem problem_of(const convolution *form, const descriptor *operation, bool tensor_cores) {
  tensor x = tensor_at(operation, form->x), w = tensor_at(operation, form->w), y = tensor_at(operation, form->y);
  convolution_problem p = {.form = form->form,
                           .type = CONV_OTHER_TYPE,
                           .layout = strcmp(layout_word(&x), "nhwc") ? PH_CONV_NCHW : PH_CONV_NHWC,
                           .dims = x.dims,
                           .x_bytes = (int64_t)x.bytes,
                           .w_bytes = (int64_t)w.bytes,
                           .y_bytes = (int64_t)y.bytes};
  switch (x.type ? (int)x.type->id : -1) {
    case PH_R_32F:
      p.type = tensor_cores ? PH_CONV_TF32 : PH_CONV_F32;
      break;
    case PH_R_16BF:
      p.type = PH_CONV_BF16;
      break;
    case PH_R_16F:
      p.type = PH_CONV_F16;
      break;
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

// Kernels on tensor cores want channels last: others before and after them convert what has them first.
static bool converts(const convolution_problem *p) {
  bool dense = p->dims > 2 && p->x[1] == p->w[1];
  bool on_tensor_cores = p->type == PH_CONV_TF32 || p->type == PH_CONV_BF16 || p->type == PH_CONV_F16;
  return dense && on_tensor_cores && p->layout == PH_CONV_NCHW;
}

static void describe_convolution(const graph *g, const convolution *form, const descriptor *operation,
                                 bool tensor_cores, ph_call *call) {
  tensor x = tensor_at(operation, form->x), w = tensor_at(operation, form->w), y = tensor_at(operation, form->y);
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

static void describe_attention(ph_call *call, bool backward, const tensor *q, int64_t kv_heads, int64_t kv_length,
                               int64_t v_dim) {
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
  call->flops = backward ? square * (3.0 * (double)dim + 2.0 * (double)v_dim) : square * ((double)dim + (double)v_dim);
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
  bool causal =
      first_operation(g, CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK) ||  // since cuDNN 9.20
      (masked_by_index && (has_pointwise(g, CUDNN_POINTWISE_CMP_GE) || has_pointwise(g, CUDNN_POINTWISE_CMP_LE)));
  ph_call_number(call, "causal", causal, causal);
  ph_call_number(call, "dropout", first_operation(g, CUDNN_BACKEND_OPERATION_RNG) != NULL, false);
}

static void describe_fused_attention(const descriptor *operation, bool backward, ph_call *call) {
  tensor q = tensor_at(operation, backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC : CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC);
  tensor k = tensor_at(operation, backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC : CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC);
  tensor v = tensor_at(operation, backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC : CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC);
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
      {CUDNN_BACKEND_OPERATION_NORM_FORWARD, "norm_fwd"},       {CUDNN_BACKEND_OPERATION_NORM_BACKWARD, "norm_bwd"},
      {CUDNN_BACKEND_OPERATION_RESAMPLE_FWD, "pool_fwd"},       {CUDNN_BACKEND_OPERATION_RESAMPLE_BWD, "pool_bwd"},
      {CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL, "moe_gemm"}, {CUDNN_BACKEND_OPERATION_REDUCTION, "reduction"},
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
      if (listed < sizeof keys / sizeof *keys) ph_call_list(call, keys[listed], t.dim, t.dims, !listed), listed++;
      if (t.elements > largest) largest = t.elements;
    }
  }
  call->flops = largest * (double)g->operations + matmul_flops(g);
}

// Differences of a graph's engines: single precision has them with and without tensor cores. Convolutions have each
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
int64_t engine_count(const descriptor *operation_graph) {
  graph g = graph_of(operation_graph);
  engines offered = engines_of(&g);
  return offered.precisions * offered.ranks;
}
enum { ATTENTION_ENGINES = 18 };
static bool attends(const graph *g) {
  return first_operation(g, CUDNN_BACKEND_OPERATION_SDPA_FWD) || first_operation(g, CUDNN_BACKEND_OPERATION_SDPA_BWD) ||
         count_operations(g, CUDNN_BACKEND_OPERATION_MATMUL) >= 2;
}
int64_t engine_indices(const descriptor *operation_graph) {
  graph g = graph_of(operation_graph);
  return attends(&g) ? ATTENTION_ENGINES : engine_count(operation_graph);
}
bool on_tensor_cores(const graph *g, int64_t engine) { return engine % engines_of(g).precisions == 0; }

bool describe(const graph *g, int64_t engine, summary *out) {
  ph_call *call = &out->call;
  bool tensor_cores = on_tensor_cores(g, engine);
  out->largest = engine >= engines_of(g).precisions && engines_of(g).ranks > 1;
  bool done = false;
  for (size_t i = 0; !done && i < sizeof convolutions / sizeof *convolutions; i++) {
    const descriptor *operation = first_operation(g, convolutions[i].operation);
    if (!operation) continue;
    describe_convolution(g, &convolutions[i], operation, tensor_cores, call);
    convolution_problem problem = problem_of(&convolutions[i], operation, tensor_cores);
    out->converts = converts(&problem);
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
  return survey_tensors(g, out);
}
