// cuDNN's calls per operation: descriptors with real storage, one kernel for each executing call. torch uses them for
// recurrent networks, batch normalisation, pooling, grid sampling and CTC, and for convolutions when the graph
// interface is switched off.
#pragma once
#include "cudnn/handle.h"

typedef struct tensor_descriptor {
  int type, format, dims;
  int dim[CUDNN_DIM_MAX], stride[CUDNN_DIM_MAX];
} tensor_descriptor;
typedef tensor_descriptor filter_descriptor;
typedef struct convolution_descriptor {
  int dims, mode, compute, math, groups, reorder;
  int padding[CUDNN_DIM_MAX], stride[CUDNN_DIM_MAX], dilation[CUDNN_DIM_MAX];
} convolution_descriptor;
typedef struct pooling_descriptor {
  int mode, nan, dims;
  int window[CUDNN_DIM_MAX], padding[CUDNN_DIM_MAX], stride[CUDNN_DIM_MAX];
} pooling_descriptor;
typedef struct activation_descriptor {
  int mode, nan;
  double coefficient, swish_beta;
} activation_descriptor;
typedef struct dropout_descriptor {
  float probability;
  void *states;
  size_t bytes;
  unsigned long long seed;
} dropout_descriptor;
typedef struct rnn_descriptor {
  int algorithm, mode, bias, direction, input_mode, type, precision, math;
  int32_t input, hidden, projection, layers;
  dropout_descriptor *dropout;
  uint32_t flags;
  int clip_mode;
  double clip_low, clip_high;
} rnn_descriptor;
typedef struct rnn_data_descriptor {
  int type, layout, length, batch, vector;
  int64_t tokens;  // of all sequences together
} rnn_data_descriptor;
typedef struct ctc_descriptor {
  int type, normalisation, gradient, longest_label;
} ctc_descriptor;
typedef struct sampler_descriptor {
  int sampler, type, dims;
  int dim[CUDNN_DIM_MAX];
} sampler_descriptor;

typedef const tensor_descriptor *T;
typedef const filter_descriptor *F;
typedef const convolution_descriptor *C;

// Checks and sets all of a tensor's descriptor. Packed strides of the format without `stride`.
int set_dims(tensor_descriptor *t, int type, int format, int count, const int *dim, const int *stride);
static inline double legacy_elements(const tensor_descriptor *t) {
  double count = 1;
  for (int i = 0; i < t->dims; i++) count *= t->dim[i];
  return t->dims ? count : 0;
}
static inline double legacy_bytes(const tensor_descriptor *t) {
  return legacy_elements(t) * ph_dtype_bytes(cudnn_dtype(t->type));
}
static inline const char *legacy_type(const tensor_descriptor *t) { return ph_dtype_name(cudnn_dtype(t->type)); }
static inline const char *legacy_layout(const tensor_descriptor *t) {
  return t->dims > 2 && t->stride[1] == 1 && t->dim[1] > 1 ? "nhwc" : "nchw";
}
