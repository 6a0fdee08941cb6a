// Convolutions, call by call.
#include "cudnn/operations.h"

PH_EXPORT int cudnnSetConvolutionNdDescriptor(convolution_descriptor *c, int count, const int *padding,
                                              const int *stride, const int *dilation, int mode, int compute) {
  NEED(c && padding && stride && dilation && count >= 1 && count <= CUDNN_DIM_MAX);
  for (int i = 0; i < count; i++) NEED(padding[i] >= 0 && stride[i] >= 1 && dilation[i] >= 1);
  size_t bytes = (size_t)count * sizeof *padding;
  int math = c->math, groups = c->groups ? c->groups : 1;
  *c = (convolution_descriptor){.dims = count, .mode = mode, .compute = compute, .math = math, .groups = groups};
  memcpy(c->padding, padding, bytes), memcpy(c->stride, stride, bytes), memcpy(c->dilation, dilation, bytes);
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnSetConvolution2dDescriptor(convolution_descriptor *c, int ph, int pw, int u, int v, int dh, int dw,
                                              int mode, int compute) {
  return cudnnSetConvolutionNdDescriptor(c, 2, (const int[]){ph, pw}, (const int[]){u, v}, (const int[]){dh, dw}, mode,
                                         compute);
}
#define CONVOLUTION_STATE(NAME, FIELD, LOW)                                        \
  PH_EXPORT int cudnnSetConvolution##NAME(convolution_descriptor *c, int value) {  \
    NEED(c && value >= LOW);                                                       \
    c->FIELD = value;                                                              \
    return CUDNN_STATUS_SUCCESS;                                                   \
  }                                                                                \
  PH_EXPORT int cudnnGetConvolution##NAME(convolution_descriptor *c, int *value) { \
    NEED(c && value);                                                              \
    *value = c->FIELD;                                                             \
    return CUDNN_STATUS_SUCCESS;                                                   \
  }
CONVOLUTION_STATE(MathType, math, 0)
CONVOLUTION_STATE(GroupCount, groups, 1)
CONVOLUTION_STATE(ReorderType, reorder, 0)

// Checks that the three shapes belong together.
static int check_convolution(const tensor_descriptor *x, const filter_descriptor *w, const convolution_descriptor *c,
                             const tensor_descriptor *y) {
  NEED(x && w && c && y && c->dims >= 1);
  NEED(x->dims == c->dims + 2 && w->dims == x->dims && y->dims == x->dims);
  NEED(x->dim[0] == y->dim[0] && y->dim[1] == w->dim[0] && x->dim[1] == w->dim[1] * (c->groups ? c->groups : 1));
  for (int i = 0; i < c->dims; i++) {
    int reach = c->dilation[i] * (w->dim[i + 2] - 1) + 1;
    NEED(y->dim[i + 2] == (x->dim[i + 2] + 2 * c->padding[i] - reach) / c->stride[i] + 1);
  }
  return CUDNN_STATUS_SUCCESS;
}
static int run_convolution(const handle *self, const char *name, const tensor_descriptor *x, const filter_descriptor *w,
                           const convolution_descriptor *c, const tensor_descriptor *y, int fused, void *out,
                           const tensor_descriptor *written) {
  CHECK_HANDLE(self);
  int status = check_convolution(x, w, c, y);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  NEED(out);
  ph_call call;
  ph_call_begin(&call, "cudnn", name);
  bool single = cudnn_dtype(x->type)->id == PH_R_32F;
  const char *compute = single && c->math != CUDNN_FMA_MATH ? "tf32" : ph_dtype_name(cudnn_dtype(c->compute));
  ph_call_text(&call, "a", legacy_type(x), true);
  ph_call_text(&call, "c", legacy_type(y), false);
  ph_call_text(&call, "compute", compute, !strcmp(compute, "tf32"));
  ph_call_text(&call, "layout", legacy_layout(x), true);
  ph_call_list32(&call, "x", x->dim, x->dims, true);
  ph_call_list32(&call, "w", w->dim, w->dims, true);
  ph_call_list32(&call, "y", y->dim, y->dims, false);
  ph_call_list32(&call, "stride", c->stride, c->dims, true);
  ph_call_list32(&call, "padding", c->padding, c->dims, false);
  ph_call_list32(&call, "dilation", c->dilation, c->dims, false);
  int groups = c->groups ? c->groups : 1;
  ph_call_number(&call, "groups", groups, groups > 1);
  if (fused) ph_call_number(&call, "fused", fused, true);
  call.flops = 2 * legacy_elements(y) * legacy_elements(w) / w->dim[0];
  call.bytes = legacy_bytes(x) + legacy_bytes(w) + legacy_bytes(y);
  status = launch(self, &call);
  ph_wrote_output(out, legacy_bytes(written));
  return status;
}
PH_EXPORT int cudnnConvolutionForward(handle *self, const void *alpha, const tensor_descriptor *xd, const void *x,
                                      const filter_descriptor *wd, const void *w, const convolution_descriptor *c,
                                      int algorithm, void *space, size_t bytes, const void *beta,
                                      const tensor_descriptor *yd, void *y) {
  (void)alpha, (void)x, (void)w, (void)algorithm, (void)space, (void)bytes, (void)beta;
  return PH_BRACKET(run_convolution(self, "conv_fwd", xd, wd, c, yd, 0, y, yd));
}
PH_EXPORT int cudnnConvolutionBackwardData(handle *self, const void *alpha, const filter_descriptor *wd, const void *w,
                                           const tensor_descriptor *dyd, const void *dy,
                                           const convolution_descriptor *c, int algorithm, void *space, size_t bytes,
                                           const void *beta, const tensor_descriptor *dxd, void *dx) {
  (void)alpha, (void)w, (void)dy, (void)algorithm, (void)space, (void)bytes, (void)beta;
  return PH_BRACKET(run_convolution(self, "conv_dgrad", dxd, wd, c, dyd, 0, dx, dxd));
}
PH_EXPORT int cudnnConvolutionBackwardFilter(handle *self, const void *alpha, const tensor_descriptor *xd,
                                             const void *x, const tensor_descriptor *dyd, const void *dy,
                                             const convolution_descriptor *c, int algorithm, void *space, size_t bytes,
                                             const void *beta, const filter_descriptor *dwd, void *dw) {
  (void)alpha, (void)x, (void)dy, (void)algorithm, (void)space, (void)bytes, (void)beta;
  return PH_BRACKET(run_convolution(self, "conv_wgrad", xd, dwd, c, dyd, 0, dw, dwd));
}
PH_EXPORT int cudnnConvolutionBiasActivationForward(handle *self, const void *alpha1, const tensor_descriptor *xd,
                                                    const void *x, const filter_descriptor *wd, const void *w,
                                                    const convolution_descriptor *c, int algorithm, void *space,
                                                    size_t bytes, const void *alpha2, const tensor_descriptor *zd,
                                                    const void *z, const tensor_descriptor *bd, const void *b,
                                                    const activation_descriptor *activation,
                                                    const tensor_descriptor *yd, void *y) {
  (void)alpha1, (void)x, (void)w, (void)algorithm, (void)space, (void)bytes, (void)alpha2, (void)zd, (void)z, (void)b;
  NEED(bd && activation);
  return PH_BRACKET(run_convolution(self, "conv_fwd", xd, wd, c, yd, 2, y, yd));
}
PH_EXPORT int cudnnConvolutionBackwardBias(handle *self, const void *alpha, const tensor_descriptor *dyd,
                                           const void *dy, const void *beta, const tensor_descriptor *dbd, void *db) {
  (void)alpha, (void)dy, (void)beta;
  CHECK_HANDLE(self);
  NEED(dyd && dbd && db);
  ph_call call;
  ph_call_begin(&call, "cudnn", "bias_grad");
  ph_call_text(&call, "a", legacy_type(dyd), true);
  ph_call_list32(&call, "x", dyd->dim, dyd->dims, true);
  call.flops = legacy_elements(dyd);
  call.bytes = legacy_bytes(dyd) + legacy_bytes(dbd);
  int status = launch(self, &call);
  ph_wrote_output(db, legacy_bytes(dbd));
  return status;
}

// The three searches have one answer: the implicit GEMM with precomputed offsets, without workspace.
typedef struct algorithm_result {
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
} algorithm_result;
static int search(const handle *self, const tensor_descriptor *x, const filter_descriptor *w,
                  const convolution_descriptor *c, const tensor_descriptor *y, int requested, int *returned,
                  algorithm_result *results) {
  CHECK_HANDLE(self);
  int status = check_convolution(x, w, c, y);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  NEED(returned && results && requested >= 1);
  *results = (algorithm_result){
      .algorithm = 1, .status = CUDNN_STATUS_SUCCESS, .time = -1, .determinism = CUDNN_DETERMINISTIC, .math = c->math};
  *returned = 1;
  ph_charge(PH_API_CUDNN_BUILD);
  return CUDNN_STATUS_SUCCESS;
}
static int no_workspace(const handle *self, const tensor_descriptor *x, const filter_descriptor *w,
                        const convolution_descriptor *c, const tensor_descriptor *y, size_t *size) {
  CHECK_HANDLE(self);
  int status = check_convolution(x, w, c, y);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  NEED(size);
  *size = 0;
  return CUDNN_STATUS_SUCCESS;
}
// Name, types of the three descriptors a, b, y in the order of the call, and which of them is x, w, y:
// forward takes (x, w, y), backward data (w, dy, dx), backward filter (x, dy, dw).
// clang-format off
#define CONVOLUTION_SEARCHES(X) \
  X(Forward, T, F, T, a, b, y) X(BackwardData, F, T, T, y, a, b) X(BackwardFilter, T, T, F, a, y, b)
// clang-format on
#define SEARCH(NAME, A, B, Y, XD, WD, YD)                                                                             \
  PH_EXPORT int cudnnGetConvolution##NAME##Algorithm_v7(handle *self, A a, B b, C c, Y y, int requested,              \
                                                        int *returned, algorithm_result *results) {                   \
    return PH_BRACKET(search(self, XD, WD, c, YD, requested, returned, results));                                     \
  }                                                                                                                   \
  PH_EXPORT int cudnnFindConvolution##NAME##Algorithm(handle *self, A a, B b, C c, Y y, int requested, int *returned, \
                                                      algorithm_result *results) {                                    \
    return PH_BRACKET(search(self, XD, WD, c, YD, requested, returned, results));                                     \
  }                                                                                                                   \
  PH_EXPORT int cudnnFindConvolution##NAME##AlgorithmEx(handle *self, A a, const void *pa, B b, const void *pb, C c,  \
                                                        Y y, void *py, int requested, int *returned,                  \
                                                        algorithm_result *results, void *space, size_t bytes) {       \
    (void)pa, (void)pb, (void)py, (void)space, (void)bytes;                                                           \
    return PH_BRACKET(search(self, XD, WD, c, YD, requested, returned, results));                                     \
  }                                                                                                                   \
  PH_EXPORT int cudnnGetConvolution##NAME##WorkspaceSize(handle *self, A a, B b, C c, Y y, int algorithm,             \
                                                         size_t *size) {                                              \
    (void)algorithm;                                                                                                  \
    return PH_BRACKET(no_workspace(self, XD, WD, c, YD, size));                                                       \
  }                                                                                                                   \
  PH_EXPORT int cudnnGetConvolution##NAME##AlgorithmMaxCount(handle *self, int *count) {                              \
    CHECK_HANDLE(self);                                                                                               \
    NEED(count);                                                                                                      \
    *count = 1;                                                                                                       \
    return CUDNN_STATUS_SUCCESS;                                                                                      \
  }
CONVOLUTION_SEARCHES(SEARCH)
