// Reading an operation graph: its operations and tensors.
#pragma once
#include "cudnn/descriptors.h"

typedef struct tensor {
  const descriptor *self;
  int dims;
  int64_t dim[CUDNN_DIM_MAX], stride[CUDNN_DIM_MAX];
  const ph_dtype *type;
  bool resident;  // in device memory: neither virtual nor passed by value
  double elements, bytes;
} tensor;

typedef struct graph {
  const descriptor *self;
  int64_t operations;
  descriptor *const *operation;
} graph;

tensor tensor_of(const descriptor *self);  // all zeros for what is not a tensor
tensor tensor_at(const descriptor *operation, int name);
const char *layout_word(const tensor *t);  // "nhwc": channels innermost, else "nchw"
double product(const tensor *t, int from);  // of the dimensions from `from` on

graph graph_of(const descriptor *self);
int64_t count_operations(const graph *g, int type);
const descriptor *first_operation(const graph *g, int type);  // NULL if there is none
bool has_pointwise(const graph *g, int mode);
// Bytes of all tensors in device memory, each once, and the list of those written.
bool survey_tensors(const graph *g, summary *out);
