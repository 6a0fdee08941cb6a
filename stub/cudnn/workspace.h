// Device memory that execution plans of convolutions ask for in addition to their tensors, which a framework takes from
// its own allocator, so that its peak and its fragmentation depend on it.
#pragma once
#include "abi/cudnn_abi.h"

enum { CONV_OTHER_TYPE = -1 };  // a data type without measurements

typedef struct convolution_problem {
  enum ph_conv_form form;
  int type;  // enum ph_conv_type or CONV_OTHER_TYPE
  enum ph_conv_layout layout;
  int dims;
  int64_t x[CUDNN_DIM_MAX], w[CUDNN_DIM_MAX], y[CUDNN_DIM_MAX];
  int64_t stride[CUDNN_DIM_MAX], padding[CUDNN_DIM_MAX], dilation[CUDNN_DIM_MAX];
  int64_t x_bytes, w_bytes, y_bytes;
} convolution_problem;

// Bytes of the plan that the heuristics put first, or of the one that asks for most.
int64_t convolution_workspace(const convolution_problem *p, bool largest);
