// Reading an operation graph.
#include "cudnn/graph.h"

tensor tensor_of(const descriptor *self) {
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
tensor tensor_at(const descriptor *operation, int name) { return tensor_of(child(operation, name)); }

static bool is_output(int name) {
  static const int names[] = {CUDNN_OUTPUT_ATTRIBUTES};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i] == name) return true;
  return false;
}

graph graph_of(const descriptor *self) {
  const entry *e = find(self, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  return e && e->type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? (graph){self, e->count, e->data} : (graph){self, 0, NULL};
}
int64_t count_operations(const graph *g, int type) {
  int64_t count = 0;
  for (int64_t i = 0; i < g->operations; i++) count += g->operation[i]->type == type;
  return count;
}
const descriptor *first_operation(const graph *g, int type) {
  for (int64_t i = 0; i < g->operations; i++)
    if (g->operation[i]->type == type) return g->operation[i];
  return NULL;
}
bool has_pointwise(const graph *g, int mode) {
  for (int64_t i = 0; i < g->operations; i++) {
    const descriptor *operation = g->operation[i];
    if (operation->type == CUDNN_BACKEND_OPERATION_POINTWISE &&
        integer(child(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR), CUDNN_ATTR_POINTWISE_MODE) == mode)
      return true;
  }
  return false;
}

// Tensors that operations name, one named twice counted twice.
static int64_t named_tensors(const graph *g) {
  int64_t count = 0;
  for (int64_t i = 0; i < g->operations; i++)
    for (int j = 0; j < g->operation[i]->entries; j++)
      if (g->operation[i]->entry[j].type == CUDNN_TYPE_BACKEND_DESCRIPTOR) count += g->operation[i]->entry[j].count;
  return count;
}

bool survey_tensors(const graph *g, summary *out) {
  size_t most = (size_t)named_tensors(g) + 1;
  int64_t *seen = calloc(most, sizeof *seen);
  out->output = calloc(most, sizeof *out->output);
  if (!seen || !out->output) return free(seen), false;
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
        if (at == count) {
          seen[count++] = uid;
          out->call.bytes += t.bytes;
        }
        if (is_output(e->name)) out->output[out->outputs++] = (output){uid, t.bytes};
      }
    }
  }
  free(seen);
  return true;
}

const char *layout_word(const tensor *t) {
  if (t->dims < 3 || t->stride[1] != 1) return "nchw";
  for (int i = 2; i < t->dims; i++)
    if (t->dim[i] > 1) return "nhwc";
  return t->dim[1] > 1 ? "nhwc" : "nchw";
}
double product(const tensor *t, int from) {
  double result = 1;
  for (int i = from; i < t->dims; i++) result *= (double)t->dim[i];
  return result;
}
