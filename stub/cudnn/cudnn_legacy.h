// cuDNN's calls per operation (part of cudnn.c): descriptors with real storage, one kernel for each
// executing call. torch uses them for recurrent networks, batch normalisation, pooling, grid
// sampling and CTC, and for convolutions when the graph interface is switched off.

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

#define LEGACY_DESCRIPTORS(X)                                                                        \
  X(Tensor, tensor_descriptor) X(Filter, filter_descriptor) X(Convolution, convolution_descriptor)   \
  X(Pooling, pooling_descriptor) X(Activation, activation_descriptor) X(Dropout, dropout_descriptor) \
  X(RNN, rnn_descriptor) X(RNNData, rnn_data_descriptor) X(CTCLoss, ctc_descriptor)                  \
  X(SpatialTransformer, sampler_descriptor)
#define LEGACY_LIFE(NAME, TYPE)                                                                              \
  PH_EXPORT int cudnnCreate##NAME##Descriptor(TYPE **out) {                                                  \
    if (!out) return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnCreate" #NAME "Descriptor");            \
    *out = calloc(1, sizeof **out);                                                                          \
    return *out                                                                                              \
               ? CUDNN_STATUS_SUCCESS                                                                        \
               : fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnCreate" #NAME "Descriptor"); \
  }                                                                                                          \
  PH_EXPORT int cudnnDestroy##NAME##Descriptor(TYPE *self) {                                                 \
    free(self);                                                                                              \
    return CUDNN_STATUS_SUCCESS;                                                                             \
  }
LEGACY_DESCRIPTORS(LEGACY_LIFE)

#define NEED(CONDITION) \
  if (!(CONDITION)) return fail(CUDNN_STATUS_BAD_PARAM, "%s: %s does not hold", __func__, #CONDITION)

static double legacy_elements(const tensor_descriptor *t) {
  double count = 1;
  for (int i = 0; i < t->dims; i++) count *= t->dim[i];
  return t->dims ? count : 0;
}
static double legacy_bytes(const tensor_descriptor *t) {
  return legacy_elements(t) * ph_dtype_bytes(cudnn_dtype(t->type));
}
static const char *legacy_type(const tensor_descriptor *t) { return ph_dtype_name(cudnn_dtype(t->type)); }
static const char *legacy_layout(const tensor_descriptor *t) {
  return t->dims > 2 && t->stride[1] == 1 && t->dim[1] > 1 ? "nhwc" : "nchw";
}

// Packed strides of the format: channels innermost for NHWC.
static void pack(tensor_descriptor *t) {
  if (t->format == CUDNN_TENSOR_NHWC && t->dims > 1) {
    t->stride[1] = 1;
    int next = t->dim[1];
    for (int i = t->dims - 1; i >= 2; i--) t->stride[i] = next, next *= t->dim[i];
    t->stride[0] = next;
    return;
  }
  int next = 1;
  for (int i = t->dims - 1; i >= 0; i--) t->stride[i] = next, next *= t->dim[i];
}
static int set_dims(tensor_descriptor *t, int type, int format, int count, const int *dim,
                    const int *stride) {
  if (!t || !dim || count < 1 || count > CUDNN_DIM_MAX)
    return fail(CUDNN_STATUS_BAD_PARAM, "tensor descriptor with %d dimensions", count);
  if (!cudnn_dtype(type)) return fail(CUDNN_STATUS_NOT_SUPPORTED, "tensor descriptor of data type %d", type);
  for (int i = 0; i < count; i++)
    if (dim[i] < 1) return fail(CUDNN_STATUS_BAD_PARAM, "tensor descriptor: dimension %d is %d", i, dim[i]);
  *t = (tensor_descriptor){.type = type, .format = format, .dims = count};
  memcpy(t->dim, dim, (size_t)count * sizeof *dim);
  if (stride)
    memcpy(t->stride, stride, (size_t)count * sizeof *stride);
  else
    pack(t);
  return CUDNN_STATUS_SUCCESS;
}

PH_EXPORT int cudnnSetTensorNdDescriptor(tensor_descriptor *t, int type, int count, const int *dim,
                                         const int *stride) {
  NEED(stride);
  return set_dims(t, type, CUDNN_TENSOR_NCHW, count, dim, stride);
}
PH_EXPORT int cudnnSetTensorNdDescriptorEx(tensor_descriptor *t, int format, int type, int count,
                                           const int *dim) {
  return set_dims(t, type, format, count, dim, NULL);
}
PH_EXPORT int cudnnSetTensor4dDescriptor(tensor_descriptor *t, int format, int type, int n, int c, int h,
                                         int w) {
  return set_dims(t, type, format, 4, (const int[]){n, c, h, w}, NULL);
}
PH_EXPORT int cudnnSetTensor4dDescriptorEx(tensor_descriptor *t, int type, int n, int c, int h, int w, int sn,
                                           int sc, int sh, int sw) {
  return set_dims(t, type, CUDNN_TENSOR_NCHW, 4, (const int[]){n, c, h, w}, (const int[]){sn, sc, sh, sw});
}
PH_EXPORT int cudnnGetTensorNdDescriptor(const tensor_descriptor *t, int asked, int *type, int *count,
                                         int *dim, int *stride) {
  NEED(t && asked >= 0);
  if (type) *type = t->type;
  if (count) *count = t->dims;
  for (int i = 0; i < asked && i < t->dims; i++) {
    if (dim) dim[i] = t->dim[i];
    if (stride) stride[i] = t->stride[i];
  }
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnGetTensor4dDescriptor(const tensor_descriptor *t, int *type, int *n, int *c, int *h,
                                         int *w, int *sn, int *sc, int *sh, int *sw) {
  NEED(t && t->dims == 4);
  int *const out[] = {n, c, h, w, sn, sc, sh, sw};
  for (int i = 0; i < 8; i++)
    if (out[i]) *out[i] = i < 4 ? t->dim[i] : t->stride[i - 4];
  if (type) *type = t->type;
  return CUDNN_STATUS_SUCCESS;
}
static int size_in_bytes(const tensor_descriptor *t, size_t *size) {
  NEED(t && size);
  double last = 0;
  for (int i = 0; i < t->dims; i++) last += (double)(t->dim[i] - 1) * t->stride[i];
  *size = t->dims ? (size_t)((last + 1) * ph_dtype_bytes(cudnn_dtype(t->type))) : 0;
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnGetTensorSizeInBytes(const tensor_descriptor *t, size_t *size) {
  return size_in_bytes(t, size);
}

PH_EXPORT int cudnnSetFilterNdDescriptor(filter_descriptor *t, int type, int format, int count,
                                         const int *dim) {
  return set_dims(t, type, format, count, dim, NULL);
}
PH_EXPORT int cudnnSetFilter4dDescriptor(filter_descriptor *t, int type, int format, int k, int c, int h,
                                         int w) {
  return set_dims(t, type, format, 4, (const int[]){k, c, h, w}, NULL);
}
PH_EXPORT int cudnnGetFilterNdDescriptor(const filter_descriptor *t, int asked, int *type, int *format,
                                         int *count, int *dim) {
  NEED(t && asked >= 0);
  if (type) *type = t->type;
  if (format) *format = t->format;
  if (count) *count = t->dims;
  for (int i = 0; dim && i < asked && i < t->dims; i++) dim[i] = t->dim[i];
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnGetFilterSizeInBytes(const filter_descriptor *t, size_t *size) {
  return size_in_bytes(t, size);
}

// ---------------------------------------------------------------- convolution
PH_EXPORT int cudnnSetConvolutionNdDescriptor(convolution_descriptor *c, int count, const int *padding,
                                              const int *stride, const int *dilation, int mode, int compute) {
  NEED(c && padding && stride && dilation && count >= 1 && count <= CUDNN_DIM_MAX);
  for (int i = 0; i < count; i++) NEED(padding[i] >= 0 && stride[i] >= 1 && dilation[i] >= 1);
  size_t bytes = (size_t)count * sizeof *padding;
  int math = c->math, groups = c->groups ? c->groups : 1;
  *c = (convolution_descriptor){
      .dims = count, .mode = mode, .compute = compute, .math = math, .groups = groups};
  memcpy(c->padding, padding, bytes), memcpy(c->stride, stride, bytes), memcpy(c->dilation, dilation, bytes);
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnSetConvolution2dDescriptor(convolution_descriptor *c, int ph, int pw, int u, int v, int dh,
                                              int dw, int mode, int compute) {
  return cudnnSetConvolutionNdDescriptor(c, 2, (const int[]){ph, pw}, (const int[]){u, v},
                                         (const int[]){dh, dw}, mode, compute);
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
CONVOLUTION_STATE(MathType, math, 0) CONVOLUTION_STATE(GroupCount, groups, 1)
CONVOLUTION_STATE(ReorderType, reorder, 0)

    // Checks that the three shapes belong together.
    static int check_convolution(const tensor_descriptor *x, const filter_descriptor *w,
                                 const convolution_descriptor *c, const tensor_descriptor *y) {
  NEED(x && w && c && y && c->dims >= 1);
  NEED(x->dims == c->dims + 2 && w->dims == x->dims && y->dims == x->dims);
  NEED(x->dim[0] == y->dim[0] && y->dim[1] == w->dim[0] &&
       x->dim[1] == w->dim[1] * (c->groups ? c->groups : 1));
  for (int i = 0; i < c->dims; i++) {
    int reach = c->dilation[i] * (w->dim[i + 2] - 1) + 1;
    NEED(y->dim[i + 2] == (x->dim[i + 2] + 2 * c->padding[i] - reach) / c->stride[i] + 1);
  }
  return CUDNN_STATUS_SUCCESS;
}
static int run_convolution(const handle *self, const char *name, const tensor_descriptor *x,
                           const filter_descriptor *w, const convolution_descriptor *c,
                           const tensor_descriptor *y, int fused, void *out,
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
PH_EXPORT int cudnnConvolutionForward(handle *self, const void *alpha, const tensor_descriptor *xd,
                                      const void *x, const filter_descriptor *wd, const void *w,
                                      const convolution_descriptor *c, int algorithm, void *space,
                                      size_t bytes, const void *beta, const tensor_descriptor *yd, void *y) {
  (void)alpha, (void)x, (void)w, (void)algorithm, (void)space, (void)bytes, (void)beta;
  return PH_BRACKET(run_convolution(self, "conv_fwd", xd, wd, c, yd, 0, y, yd));
}
PH_EXPORT int cudnnConvolutionBackwardData(handle *self, const void *alpha, const filter_descriptor *wd,
                                           const void *w, const tensor_descriptor *dyd, const void *dy,
                                           const convolution_descriptor *c, int algorithm, void *space,
                                           size_t bytes, const void *beta, const tensor_descriptor *dxd,
                                           void *dx) {
  (void)alpha, (void)w, (void)dy, (void)algorithm, (void)space, (void)bytes, (void)beta;
  return PH_BRACKET(run_convolution(self, "conv_dgrad", dxd, wd, c, dyd, 0, dx, dxd));
}
PH_EXPORT int cudnnConvolutionBackwardFilter(handle *self, const void *alpha, const tensor_descriptor *xd,
                                             const void *x, const tensor_descriptor *dyd, const void *dy,
                                             const convolution_descriptor *c, int algorithm, void *space,
                                             size_t bytes, const void *beta, const filter_descriptor *dwd,
                                             void *dw) {
  (void)alpha, (void)x, (void)dy, (void)algorithm, (void)space, (void)bytes, (void)beta;
  return PH_BRACKET(run_convolution(self, "conv_wgrad", xd, dwd, c, dyd, 0, dw, dwd));
}
PH_EXPORT int cudnnConvolutionBiasActivationForward(
    handle *self, const void *alpha1, const tensor_descriptor *xd, const void *x, const filter_descriptor *wd,
    const void *w, const convolution_descriptor *c, int algorithm, void *space, size_t bytes,
    const void *alpha2, const tensor_descriptor *zd, const void *z, const tensor_descriptor *bd,
    const void *b, const activation_descriptor *activation, const tensor_descriptor *yd, void *y) {
  (void)alpha1, (void)x, (void)w, (void)algorithm, (void)space, (void)bytes, (void)alpha2, (void)zd, (void)z,
      (void)b;
  NEED(bd && activation);
  return PH_BRACKET(run_convolution(self, "conv_fwd", xd, wd, c, yd, 2, y, yd));
}
PH_EXPORT int cudnnConvolutionBackwardBias(handle *self, const void *alpha, const tensor_descriptor *dyd,
                                           const void *dy, const void *beta, const tensor_descriptor *dbd,
                                           void *db) {
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
  *results = (algorithm_result){.algorithm = 1,
                                .status = CUDNN_STATUS_SUCCESS,
                                .time = -1,
                                .determinism = CUDNN_DETERMINISTIC,
                                .math = c->math};
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
typedef const tensor_descriptor *T;
typedef const filter_descriptor *F;
typedef const convolution_descriptor *C;
// Name, types of the three descriptors a, b, y in the order of the call, and which of them is x, w, y:
// forward takes (x, w, y), backward data (w, dy, dx), backward filter (x, dy, dw).
#define CONVOLUTION_SEARCHES(X) \
  X(Forward, T, F, T, a, b, y) X(BackwardData, F, T, T, y, a, b) X(BackwardFilter, T, T, F, a, y, b)
#define SEARCH(NAME, A, B, Y, XD, WD, YD)                                                                 \
  PH_EXPORT int cudnnGetConvolution##NAME##Algorithm_v7(handle *self, A a, B b, C c, Y y, int requested,  \
                                                        int *returned, algorithm_result *results) {       \
    return PH_BRACKET(search(self, XD, WD, c, YD, requested, returned, results));                         \
  }                                                                                                       \
  PH_EXPORT int cudnnFindConvolution##NAME##Algorithm(handle *self, A a, B b, C c, Y y, int requested,    \
                                                      int *returned, algorithm_result *results) {         \
    return PH_BRACKET(search(self, XD, WD, c, YD, requested, returned, results));                         \
  }                                                                                                       \
  PH_EXPORT int cudnnFindConvolution##NAME##AlgorithmEx(                                                  \
      handle *self, A a, const void *pa, B b, const void *pb, C c, Y y, void *py, int requested,          \
      int *returned, algorithm_result *results, void *space, size_t bytes) {                              \
    (void)pa, (void)pb, (void)py, (void)space, (void)bytes;                                               \
    return PH_BRACKET(search(self, XD, WD, c, YD, requested, returned, results));                         \
  }                                                                                                       \
  PH_EXPORT int cudnnGetConvolution##NAME##WorkspaceSize(handle *self, A a, B b, C c, Y y, int algorithm, \
                                                         size_t *size) {                                  \
    (void)algorithm;                                                                                      \
    return PH_BRACKET(no_workspace(self, XD, WD, c, YD, size));                                           \
  }                                                                                                       \
  PH_EXPORT int cudnnGetConvolution##NAME##AlgorithmMaxCount(handle *self, int *count) {                  \
    CHECK_HANDLE(self);                                                                                   \
    NEED(count);                                                                                          \
    *count = 1;                                                                                           \
    return CUDNN_STATUS_SUCCESS;                                                                          \
  }
CONVOLUTION_SEARCHES(SEARCH)

// ---------------------------------------------------------------- pooling, activation, dropout
static int set_pooling(pooling_descriptor *p, int mode, int nan, int count, const int *window,
                       const int *padding, const int *stride) {
  NEED(p && window && padding && stride && count >= 1 && count <= CUDNN_DIM_MAX && mode >= 0 && mode <= 3);
  *p = (pooling_descriptor){.mode = mode, .nan = nan, .dims = count};
  size_t bytes = (size_t)count * sizeof *window;
  memcpy(p->window, window, bytes), memcpy(p->padding, padding, bytes), memcpy(p->stride, stride, bytes);
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnSetPoolingNdDescriptor(pooling_descriptor *p, int mode, int nan, int count,
                                          const int *window, const int *padding, const int *stride) {
  return set_pooling(p, mode, nan, count, window, padding, stride);
}
PH_EXPORT int cudnnSetPooling2dDescriptor(pooling_descriptor *p, int mode, int nan, int wh, int ww, int vp,
                                          int hp, int vs, int hs) {
  return set_pooling(p, mode, nan, 2, (const int[]){wh, ww}, (const int[]){vp, hp}, (const int[]){vs, hs});
}
static int run_pooling(const handle *self, const char *name, const pooling_descriptor *p,
                       const tensor_descriptor *x, const tensor_descriptor *y, double passes, void *out,
                       const tensor_descriptor *written) {
  CHECK_HANDLE(self);
  NEED(p && x && y && out && x->dims == p->dims + 2);
  ph_call call;
  ph_call_begin(&call, "cudnn", name);
  ph_call_text(&call, "a", legacy_type(x), true);
  ph_call_text(&call, "layout", legacy_layout(x), true);
  ph_call_list32(&call, "x", x->dim, x->dims, true);
  ph_call_list32(&call, "window", p->window, p->dims, true);
  ph_call_list32(&call, "stride", p->stride, p->dims, false);
  ph_call_list32(&call, "padding", p->padding, p->dims, false);
  call.flops = legacy_elements(y);
  for (int i = 0; i < p->dims; i++) call.flops *= p->window[i];
  call.bytes = passes * (legacy_bytes(x) + legacy_bytes(y));
  int status = launch(self, &call);
  ph_wrote_output(out, legacy_bytes(written));
  return status;
}
PH_EXPORT int cudnnPoolingForward(handle *self, const pooling_descriptor *p, const void *alpha,
                                  const tensor_descriptor *xd, const void *x, const void *beta,
                                  const tensor_descriptor *yd, void *y) {
  (void)alpha, (void)x, (void)beta;
  return PH_BRACKET(run_pooling(self, "pool_fwd", p, xd, yd, 1, y, yd));
}
PH_EXPORT int cudnnPoolingBackward(handle *self, const pooling_descriptor *p, const void *alpha,
                                   const tensor_descriptor *yd, const void *y, const tensor_descriptor *dyd,
                                   const void *dy, const tensor_descriptor *xd, const void *x,
                                   const void *beta, const tensor_descriptor *dxd, void *dx) {
  (void)alpha, (void)y, (void)dyd, (void)dy, (void)x, (void)beta;
  return PH_BRACKET(run_pooling(self, "pool_bwd", p, xd, yd, 2, dx, dxd));
}
PH_EXPORT int cudnnSetActivationDescriptor(activation_descriptor *a, int mode, int nan, double coefficient) {
  NEED(a && mode >= 0 && mode <= 6);
  *a = (activation_descriptor){.mode = mode, .nan = nan, .coefficient = coefficient, .swish_beta = 1};
  return CUDNN_STATUS_SUCCESS;
}

// The generator's state: 12 bytes for each resident thread of the GPU.
PH_EXPORT int cudnnDropoutGetStatesSize(handle *self, size_t *size) {
  CHECK_HANDLE(self);
  NEED(size);
  *size = (size_t)ph_gpu()->sms * (size_t)ph_gpu()->max_threads_per_sm * 12;
  return CUDNN_STATUS_SUCCESS;
}
static int set_dropout(dropout_descriptor *d, const handle *self, float probability, void *states,
                       size_t bytes, unsigned long long seed, bool initialise) {
  CHECK_HANDLE(self);
  NEED(d && probability >= 0 && probability <= 1);
  size_t needed;
  cudnnDropoutGetStatesSize((handle *)self, &needed);
  if (states && bytes < needed)
    return fail(CUDNN_STATUS_INVALID_VALUE, "dropout states take %zu bytes, %zu were given", needed, bytes);
  *d = (dropout_descriptor){probability, states, bytes, seed};
  if (!states || !initialise) return CUDNN_STATUS_SUCCESS;
  ph_call call;
  ph_call_begin(&call, "cudnn", "dropout_init");
  ph_call_number(&call, "size", (int64_t)needed, false);
  call.flops = call.bytes = (double)needed;
  return launch(self, &call);
}
PH_EXPORT int cudnnSetDropoutDescriptor(dropout_descriptor *d, handle *self, float probability, void *states,
                                        size_t bytes, unsigned long long seed) {
  return PH_BRACKET(set_dropout(d, self, probability, states, bytes, seed, true));
}
PH_EXPORT int cudnnRestoreDropoutDescriptor(dropout_descriptor *d, handle *self, float probability,
                                            void *states, size_t bytes, unsigned long long seed) {
  return PH_BRACKET(set_dropout(d, self, probability, states, bytes, seed, false));
}
PH_EXPORT int cudnnGetDropoutDescriptor(dropout_descriptor *d, handle *self, float *probability,
                                        void **states, unsigned long long *seed) {
  CHECK_HANDLE(self);
  NEED(d);
  if (probability) *probability = d->probability;
  if (states) *states = d->states;
  if (seed) *seed = d->seed;
  return CUDNN_STATUS_SUCCESS;
}

// ---------------------------------------------------------------- batch normalisation
static int run_batch_norm(const handle *self, const char *name, const tensor_descriptor *x,
                          const tensor_descriptor *parameters, int operations, double passes, void *out,
                          const tensor_descriptor *written) {
  CHECK_HANDLE(self);
  NEED(x && parameters && out && written && x->dims >= 2 && operations >= 0 && operations <= 2);
  ph_call call;
  ph_call_begin(&call, "cudnn", name);
  ph_call_text(&call, "a", legacy_type(x), true);
  ph_call_text(&call, "layout", legacy_layout(x), true);
  ph_call_list32(&call, "x", x->dim, x->dims, true);
  if (operations) ph_call_number(&call, "fused", operations, true);
  call.flops = 4 * passes * legacy_elements(x);
  call.bytes = passes * legacy_bytes(x) + 4 * legacy_bytes(parameters);
  int status = launch(self, &call);
  ph_wrote_output(out, legacy_bytes(written));
  return status;
}
PH_EXPORT int cudnnBatchNormalizationForwardInference(handle *self, int mode, const void *alpha,
                                                      const void *beta, T xd, const void *x, T yd, void *y,
                                                      T pd, const void *scale, const void *bias,
                                                      const void *mean, const void *variance,
                                                      double epsilon) {
  (void)mode, (void)alpha, (void)beta, (void)x, (void)scale, (void)bias, (void)mean, (void)variance,
      (void)epsilon;
  return PH_BRACKET(run_batch_norm(self, "batch_norm_inference", xd, pd, 0, 2, y, yd));
}
PH_EXPORT int cudnnBatchNormalizationForwardTrainingEx(
    handle *self, int mode, int operations, const void *alpha, const void *beta, T xd, const void *x, T zd,
    const void *z, T yd, void *y, T pd, const void *scale, const void *bias, double factor,
    void *running_mean, void *running_variance, double epsilon, void *mean, void *inverse,
    const activation_descriptor *activation, void *space, size_t bytes, void *reserve, size_t reserve_bytes) {
  (void)mode, (void)alpha, (void)beta, (void)x, (void)zd, (void)z, (void)scale, (void)bias, (void)factor,
      (void)epsilon, (void)activation, (void)space, (void)bytes, (void)reserve, (void)reserve_bytes;
  // Statistics read the input once, normalising reads and writes it.
  int status = PH_BRACKET(run_batch_norm(self, "batch_norm_fwd", xd, pd, operations, 3, y, yd));
  void *const results[] = {running_mean, running_variance, mean, inverse};
  for (int i = 0; status == CUDNN_STATUS_SUCCESS && i < 4; i++) ph_wrote_output(results[i], legacy_bytes(pd));
  return status;
}
PH_EXPORT int cudnnBatchNormalizationForwardTraining(handle *self, int mode, const void *alpha,
                                                     const void *beta, T xd, const void *x, T yd, void *y,
                                                     T pd, const void *scale, const void *bias, double factor,
                                                     void *running_mean, void *running_variance,
                                                     double epsilon, void *mean, void *inverse) {
  return cudnnBatchNormalizationForwardTrainingEx(self, mode, 0, alpha, beta, xd, x, NULL, NULL, yd, y, pd,
                                                  scale, bias, factor, running_mean, running_variance,
                                                  epsilon, mean, inverse, NULL, NULL, 0, NULL, 0);
}
PH_EXPORT int cudnnBatchNormalizationBackwardEx(handle *self, int mode, int operations, const void *alpha,
                                                const void *beta, const void *alpha2, const void *beta2, T xd,
                                                const void *x, T yd, const void *y, T dyd, const void *dy,
                                                T dzd, void *dz, T dxd, void *dx, T pd, const void *scale,
                                                const void *bias, void *dscale, void *dbias, double epsilon,
                                                const void *mean, const void *inverse,
                                                const activation_descriptor *activation, void *space,
                                                size_t bytes, void *reserve, size_t reserve_bytes) {
  (void)mode, (void)alpha, (void)beta, (void)alpha2, (void)beta2, (void)x, (void)yd, (void)y, (void)dyd,
      (void)dy, (void)dzd, (void)dz, (void)scale, (void)bias, (void)epsilon, (void)mean, (void)inverse,
      (void)activation, (void)space, (void)bytes, (void)reserve, (void)reserve_bytes;
  // Sums read input and gradient, the gradient of the input reads both again and is written.
  int status = PH_BRACKET(run_batch_norm(self, "batch_norm_bwd", xd, pd, operations, 5, dx, dxd));
  if (status == CUDNN_STATUS_SUCCESS)
    ph_wrote_output(dscale, legacy_bytes(pd)), ph_wrote_output(dbias, legacy_bytes(pd));
  return status;
}
PH_EXPORT int cudnnBatchNormalizationBackward(handle *self, int mode, const void *alpha, const void *beta,
                                              const void *alpha2, const void *beta2, T xd, const void *x,
                                              T dyd, const void *dy, T dxd, void *dx, T pd, const void *scale,
                                              void *dscale, void *dbias, double epsilon, const void *mean,
                                              const void *inverse) {
  return cudnnBatchNormalizationBackwardEx(self, mode, 0, alpha, beta, alpha2, beta2, xd, x, NULL, NULL, dyd,
                                           dy, NULL, NULL, dxd, dx, pd, scale, NULL, dscale, dbias, epsilon,
                                           mean, inverse, NULL, NULL, 0, NULL, 0);
}
// Partial sums of two values per channel and multiprocessor.
static int norm_workspace(const handle *self, T x, size_t *size) {
  CHECK_HANDLE(self);
  NEED(x && size && x->dims >= 2);
  *size = (size_t)x->dim[1] * 2 * sizeof(float) * (size_t)ph_gpu()->sms;
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    handle *self, int mode, int operations, T x, T z, T y, T p, const activation_descriptor *activation,
    size_t *size) {
  (void)mode, (void)operations, (void)z, (void)y, (void)p, (void)activation;
  return norm_workspace(self, x, size);
}
PH_EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(handle *self, int mode, int operations, T x,
                                                                T y, T dy, T dz, T dx, T p,
                                                                const activation_descriptor *activation,
                                                                size_t *size) {
  (void)mode, (void)operations, (void)y, (void)dy, (void)dz, (void)dx, (void)p, (void)activation;
  return norm_workspace(self, x, size);
}
// A bit per element remembers the activation; plain normalisation keeps nothing.
PH_EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle *self, int mode, int operations,
                                                                   const activation_descriptor *activation,
                                                                   T x, size_t *size) {
  (void)mode, (void)activation;
  CHECK_HANDLE(self);
  NEED(x && size);
  *size = operations ? (size_t)(legacy_elements(x) / 8) + 1 : 0;
  return CUDNN_STATUS_SUCCESS;
}

// ---------------------------------------------------------------- recurrent networks
PH_EXPORT int cudnnSetRNNDescriptor_v8(rnn_descriptor *r, int algorithm, int mode, int bias, int direction,
                                       int input_mode, int type, int precision, int math, int32_t input,
                                       int32_t hidden, int32_t projection, int32_t layers,
                                       dropout_descriptor *dropout, uint32_t flags) {
  NEED(r && mode >= CUDNN_RNN_RELU && mode <= CUDNN_GRU && input > 0 && hidden > 0 && layers > 0 &&
       cudnn_dtype(type));
  NEED(projection >= 0 && projection <= hidden);
  *r = (rnn_descriptor){.algorithm = algorithm,
                        .mode = mode,
                        .bias = bias,
                        .direction = direction,
                        .input_mode = input_mode,
                        .type = type,
                        .precision = precision,
                        .math = math,
                        .input = input,
                        .hidden = hidden,
                        .projection = projection,
                        .layers = layers,
                        .dropout = dropout,
                        .flags = flags};
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnRNNSetClip_v9(rnn_descriptor *r, int mode, double low, double high) {
  NEED(r);
  r->clip_mode = mode, r->clip_low = low, r->clip_high = high;
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnRNNSetClip_v8(rnn_descriptor *r, int mode, int nan, double low, double high) {
  (void)nan;
  return cudnnRNNSetClip_v9(r, mode, low, high);
}
PH_EXPORT int cudnnBuildRNNDynamic(handle *self, rnn_descriptor *r, int batch) {
  CHECK_HANDLE(self);
  NEED(r && batch > 0);
  return CUDNN_STATUS_SUCCESS;
}
static int gates(const rnn_descriptor *r) { return r->mode == CUDNN_LSTM ? 4 : r->mode == CUDNN_GRU ? 3 : 1; }
static int directions(const rnn_descriptor *r) { return r->direction == CUDNN_BIDIRECTIONAL ? 2 : 1; }
static bool projected(const rnn_descriptor *r) { return r->projection && r->projection != r->hidden; }
static int64_t recurrent_width(const rnn_descriptor *r) { return projected(r) ? r->projection : r->hidden; }
static int64_t input_width(const rnn_descriptor *r, int layer) {
  return layer == 0 ? (r->input_mode == CUDNN_SKIP_INPUT ? 0 : r->input) : recurrent_width(r) * directions(r);
}
static int bias_vectors(const rnn_descriptor *r) {
  return r->bias == CUDNN_RNN_NO_BIAS ? 0 : r->bias == CUDNN_RNN_DOUBLE_BIAS ? 2 : 1;
}
// Weights of one pseudo layer, in elements: input matrices, recurrent matrices, the projection.
static int64_t layer_weights(const rnn_descriptor *r, int layer) {
  int64_t count = (int64_t)gates(r) * r->hidden * (input_width(r, layer) + recurrent_width(r));
  return count + (projected(r) ? (int64_t)r->hidden * r->projection : 0);
}
static int64_t layer_biases(const rnn_descriptor *r) {
  return (int64_t)bias_vectors(r) * gates(r) * r->hidden;
}
static int64_t all_weights(const rnn_descriptor *r) {
  int64_t count = 0;
  for (int layer = 0; layer < r->layers; layer++)
    count += directions(r) * (layer_weights(r, layer) + layer_biases(r));
  return count;
}
static size_t rnn_element(const rnn_descriptor *r) { return (size_t)ph_dtype_bytes(cudnn_dtype(r->type)); }

PH_EXPORT int cudnnGetRNNWeightSpaceSize(handle *self, rnn_descriptor *r, size_t *size) {
  CHECK_HANDLE(self);
  NEED(r && size && r->layers > 0);
  *size = (size_t)all_weights(r) * rnn_element(r);
  return CUDNN_STATUS_SUCCESS;
}
// All matrices come first, layer by layer, then all biases. Of one layer, the matrices that act on
// the input stand before those that act on the state.
PH_EXPORT int cudnnGetRNNWeightParams(handle *self, rnn_descriptor *r, int32_t pseudo_layer, size_t bytes,
                                      const void *space, int32_t matrix, tensor_descriptor *md, void **m,
                                      tensor_descriptor *bd, void **b) {
  CHECK_HANDLE(self);
  NEED(r && space && pseudo_layer >= 0 && pseudo_layer < r->layers * directions(r));
  bool is_projection = projected(r) && matrix == 2 * gates(r);
  NEED(matrix >= 0 && (matrix < 2 * gates(r) || is_projection));
  if (bytes < (size_t)all_weights(r) * rnn_element(r))
    return fail(CUDNN_STATUS_INVALID_VALUE, "cudnnGetRNNWeightParams: the weight space is too small");
  int layer = pseudo_layer / directions(r);
  int64_t matrices = 0, offset = 0;
  for (int i = 0; i < r->layers; i++) matrices += directions(r) * layer_weights(r, i);
  for (int i = 0; i < pseudo_layer; i++) offset += layer_weights(r, i / directions(r));
  int64_t input = input_width(r, layer), state = recurrent_width(r);
  bool on_input = matrix < gates(r);
  int index = on_input ? matrix : matrix - gates(r);
  if (on_input)
    offset += (int64_t)index * r->hidden * input;
  else
    offset += (int64_t)gates(r) * r->hidden * input +
              (int64_t)(is_projection ? gates(r) : index) * r->hidden * state;
  int rows = is_projection ? r->projection : r->hidden;
  int64_t columns = is_projection ? r->hidden : on_input ? input : state;
  char *base = (char *)(uintptr_t)space;
  // A caller may leave out what it does not want to know.
  if (m) *m = columns ? base + (size_t)offset * rnn_element(r) : NULL;
  if (md) md->dims = 0;
  if (md && columns) {
    int status = set_dims(md, r->type, CUDNN_TENSOR_NCHW, 3, (const int[]){1, rows, (int)columns}, NULL);
    if (status != CUDNN_STATUS_SUCCESS) return status;
  }
  if (b) *b = NULL;
  if (bd) bd->dims = 0;
  int vectors = bias_vectors(r);
  if (!vectors || is_projection || (vectors == 1 && !on_input)) return CUDNN_STATUS_SUCCESS;
  int64_t bias =
      matrices + pseudo_layer * layer_biases(r) + ((int64_t)(on_input ? 0 : gates(r)) + index) * r->hidden;
  if (b) *b = base + (size_t)bias * rnn_element(r);
  return !bd ? CUDNN_STATUS_SUCCESS
             : set_dims(bd, r->type, CUDNN_TENSOR_NCHW, 3, (const int[]){1, r->hidden, 1}, NULL);
}

PH_EXPORT int cudnnSetRNNDataDescriptor(rnn_data_descriptor *d, int type, int layout, int length, int batch,
                                        int vector, const int *lengths, void *padding) {
  (void)padding;
  NEED(d && cudnn_dtype(type) && length > 0 && batch > 0 && vector > 0 && lengths && layout >= 0 &&
       layout <= 2);
  *d = (rnn_data_descriptor){type, layout, length, batch, vector, 0};
  for (int i = 0; i < batch; i++) {
    NEED(lengths[i] >= 0 && lengths[i] <= length);
    d->tokens += lengths[i];
  }
  return CUDNN_STATUS_SUCCESS;
}
// Training keeps gates, cell states and outputs of every step; the workspace holds the gates of one
// pass over the input.
PH_EXPORT int cudnnGetRNNTempSpaceSizes(handle *self, rnn_descriptor *r, int mode, rnn_data_descriptor *x,
                                        size_t *workspace, size_t *reserve) {
  CHECK_HANDLE(self);
  NEED(r && x && x->batch > 0);
  size_t step =
      (size_t)x->length * (size_t)x->batch * (size_t)r->hidden * (size_t)directions(r) * rnn_element(r);
  if (workspace) *workspace = step * (size_t)(gates(r) + 1);
  if (reserve)
    *reserve = mode == CUDNN_FWD_MODE_TRAINING ? step * (size_t)r->layers * (size_t)(gates(r) + 2) : 0;
  return CUDNN_STATUS_SUCCESS;
}

// The host launches kernels for every step of every layer, unless one kernel keeps the weights on chip: torch asks
// for that, or the weights are few. Host times of LSTMs of 8 to 48 steps on H100 (benchmarks/device/recurrent.py).
enum { STEP_LAUNCHES = 3, STEP_BACKWARD_LAUNCHES = 5, FUSED_WEIGHTS = 1 << 16 };
static size_t step_launches(const rnn_descriptor *r, const rnn_data_descriptor *x, bool backward) {
  if (r->algorithm != 0 || (int64_t)gates(r) * r->hidden * r->hidden <= FUSED_WEIGHTS) return 0;
  size_t cells = (size_t)x->length * (size_t)r->layers * (size_t)directions(r);
  return cells * (backward ? STEP_BACKWARD_LAUNCHES : STEP_LAUNCHES);
}

static int run_rnn(const handle *self, const char *name, const rnn_descriptor *r,
                   const rnn_data_descriptor *x, double passes, bool weights_only) {
  CHECK_HANDLE(self);
  NEED(r && x && r->layers > 0 && x->batch > 0);
  static const char *const cells[] = {"relu", "tanh", "lstm", "gru"};
  ph_call call;
  ph_call_begin(&call, "cudnn", name);
  ph_call_text(&call, "cell", cells[r->mode], true);
  ph_call_text(&call, "a", ph_dtype_name(cudnn_dtype(r->type)), true);
  ph_call_number(&call, "length", x->length, true);
  ph_call_number(&call, "batch", x->batch, true);
  ph_call_number(&call, "input", r->input, false);
  ph_call_number(&call, "hidden", r->hidden, true);
  ph_call_number(&call, "projection", projected(r) ? r->projection : 0, false);
  ph_call_number(&call, "layers", r->layers, true);
  ph_call_number(&call, "directions", directions(r), false);
  ph_call_number(&call, "tokens", x->tokens, false);
  double weights = (double)all_weights(r), element = (double)rnn_element(r);
  call.flops = 2 * passes * weights * (double)x->tokens;
  double states = (double)x->tokens * (double)r->hidden * directions(r) * r->layers * (gates(r) + 2);
  // Without a persistent kernel the recurrent weights are read again at every step.
  call.bytes = element * (weights * (weights_only ? 2 : (double)x->length) + passes * states);
  int status = launch(self, &call);
  if (!weights_only) ph_charge_times(PH_API_LAUNCH, step_launches(r, x, strcmp(name, "rnn_fwd") != 0));
  return status;
}
// `shape` is the descriptor of the states, present where a state is.
static void wrote_states(const tensor_descriptor *shape, void *state) {
  if (shape) ph_wrote_output(state, legacy_bytes(shape));
}
static double sequence_bytes(const rnn_data_descriptor *d) {
  int64_t tokens = d->layout == 1 ? d->tokens : (int64_t)d->length * d->batch;
  return (double)tokens * d->vector * ph_dtype_bytes(cudnn_dtype(d->type));
}
PH_EXPORT int cudnnRNNForward(handle *self, rnn_descriptor *r, int mode, const int32_t *lengths,
                              rnn_data_descriptor *xd, const void *x, rnn_data_descriptor *yd, void *y,
                              tensor_descriptor *hd, const void *hx, void *hy, tensor_descriptor *cd,
                              const void *cx, void *cy, size_t weight_bytes, const void *weights,
                              size_t space_bytes, void *space, size_t reserve_bytes, void *reserve) {
  (void)mode, (void)lengths, (void)x, (void)hx, (void)cx, (void)weight_bytes, (void)weights,
      (void)space_bytes, (void)space, (void)reserve_bytes, (void)reserve;
  int status = PH_BRACKET(run_rnn(self, "rnn_fwd", r, xd, 1, false));
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (yd) ph_wrote_output(y, sequence_bytes(yd));
  wrote_states(hd, hy), wrote_states(cd, cy);
  return status;
}
PH_EXPORT int cudnnRNNBackwardData_v8(handle *self, rnn_descriptor *r, const int32_t *lengths,
                                      rnn_data_descriptor *yd, const void *y, const void *dy,
                                      rnn_data_descriptor *xd, void *dx, tensor_descriptor *hd,
                                      const void *hx, const void *dhy, void *dhx, tensor_descriptor *cd,
                                      const void *cx, const void *dcy, void *dcx, size_t weight_bytes,
                                      const void *weights, size_t space_bytes, void *space,
                                      size_t reserve_bytes, void *reserve) {
  (void)lengths, (void)yd, (void)y, (void)dy, (void)hx, (void)dhy, (void)cx, (void)dcy, (void)weight_bytes,
      (void)weights, (void)space_bytes, (void)space, (void)reserve_bytes, (void)reserve;
  int status = PH_BRACKET(run_rnn(self, "rnn_dgrad", r, xd, 1, false));
  if (status != CUDNN_STATUS_SUCCESS) return status;
  ph_wrote_output(dx, sequence_bytes(xd));
  wrote_states(hd, dhx), wrote_states(cd, dcx);
  return status;
}
PH_EXPORT int cudnnRNNBackwardWeights_v8(handle *self, rnn_descriptor *r, int add, const int32_t *lengths,
                                         rnn_data_descriptor *xd, const void *x, tensor_descriptor *hd,
                                         const void *hx, rnn_data_descriptor *yd, const void *y,
                                         size_t weight_bytes, void *dweights, size_t space_bytes, void *space,
                                         size_t reserve_bytes, void *reserve) {
  (void)add, (void)lengths, (void)x, (void)hd, (void)hx, (void)yd, (void)y, (void)space_bytes, (void)space,
      (void)reserve_bytes, (void)reserve;
  int status = PH_BRACKET(run_rnn(self, "rnn_wgrad", r, xd, 1, true));
  if (status == CUDNN_STATUS_SUCCESS) ph_wrote_output(dweights, (double)weight_bytes);
  return status;
}

// ---------------------------------------------------------------- connectionist temporal classification
static int set_ctc(ctc_descriptor *d, int type, int normalisation, int gradient, int longest) {
  NEED(d && cudnn_dtype(type) && longest >= 0);
  *d = (ctc_descriptor){type, normalisation, gradient, longest};
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnSetCTCLossDescriptor(ctc_descriptor *d, int type) { return set_ctc(d, type, 0, 0, 0); }
PH_EXPORT int cudnnSetCTCLossDescriptorEx(ctc_descriptor *d, int type, int normalisation, int gradient) {
  return set_ctc(d, type, normalisation, gradient, 0);
}
PH_EXPORT int cudnnSetCTCLossDescriptor_v8(ctc_descriptor *d, int type, int normalisation, int gradient,
                                           int longest) {
  return set_ctc(d, type, normalisation, gradient, longest);
}
PH_EXPORT int cudnnSetCTCLossDescriptor_v9(ctc_descriptor *d, int type, int normalisation, int gradient,
                                           int longest) {
  return set_ctc(d, type, normalisation, gradient, longest);
}
static int run_ctc(const handle *self, const ctc_descriptor *d, T probabilities, void *costs, T gd,
                   void *gradients) {
  CHECK_HANDLE(self);
  NEED(d && probabilities && costs && probabilities->dims >= 3);
  ph_call call;
  ph_call_begin(&call, "cudnn", "ctc_loss");
  ph_call_text(&call, "a", legacy_type(probabilities), true);
  ph_call_list32(&call, "x", probabilities->dim, probabilities->dims, true);
  call.flops = 10 * legacy_elements(probabilities);
  call.bytes = 2 * legacy_bytes(probabilities);
  int status = launch(self, &call);
  ph_wrote_output(costs, (double)probabilities->dim[1] * ph_dtype_bytes(cudnn_dtype(d->type)));
  if (gd) ph_wrote_output(gradients, legacy_bytes(gd));
  return status;
}
PH_EXPORT int cudnnCTCLoss(handle *self, T pd, const void *p, const int *labels, const int *label_lengths,
                           const int *input_lengths, void *costs, T gd, void *gradients, int algorithm,
                           ctc_descriptor *d, void *space, size_t bytes) {
  (void)p, (void)labels, (void)label_lengths, (void)input_lengths, (void)algorithm, (void)space, (void)bytes;
  return PH_BRACKET(run_ctc(self, d, pd, costs, gd, gradients));
}
PH_EXPORT int cudnnCTCLoss_v8(handle *self, int algorithm, ctc_descriptor *d, T pd, const void *p,
                              const int *labels, const int *label_lengths, const int *input_lengths,
                              void *costs, T gd, void *gradients, size_t bytes, void *space) {
  (void)p, (void)labels, (void)label_lengths, (void)input_lengths, (void)algorithm, (void)space, (void)bytes;
  return PH_BRACKET(run_ctc(self, d, pd, costs, gd, gradients));
}
// The alphas and betas of a lattice as long as the labels with blanks (at most 256 without v8's limit).
static int ctc_workspace(const handle *self, const ctc_descriptor *d, T p, size_t *size) {
  CHECK_HANDLE(self);
  NEED(d && p && size && p->dims >= 3);
  size_t lattice = 2 * (size_t)(d->longest_label ? d->longest_label : 256) + 1;
  *size = 2 * lattice * (size_t)p->dim[0] * (size_t)p->dim[1] * sizeof(float);
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnGetCTCLossWorkspaceSize(handle *self, T pd, T gd, const int *labels,
                                           const int *label_lengths, const int *input_lengths, int algorithm,
                                           ctc_descriptor *d, size_t *size) {
  (void)gd, (void)labels, (void)label_lengths, (void)input_lengths, (void)algorithm;
  return ctc_workspace(self, d, pd, size);
}
PH_EXPORT int cudnnGetCTCLossWorkspaceSize_v8(handle *self, int algorithm, ctc_descriptor *d, T pd, T gd,
                                              size_t *size) {
  (void)gd, (void)algorithm;
  return ctc_workspace(self, d, pd, size);
}

// ---------------------------------------------------------------- grid sampling
PH_EXPORT int cudnnSetSpatialTransformerNdDescriptor(sampler_descriptor *s, int sampler, int type, int count,
                                                     const int *dim) {
  NEED(s && dim && count >= 1 && count <= CUDNN_DIM_MAX && cudnn_dtype(type));
  *s = (sampler_descriptor){.sampler = sampler, .type = type, .dims = count};
  memcpy(s->dim, dim, (size_t)count * sizeof *dim);
  return CUDNN_STATUS_SUCCESS;
}
static int run_sampler(const handle *self, const char *name, const sampler_descriptor *s, double flops,
                       double bytes, void *out, double written) {
  CHECK_HANDLE(self);
  NEED(s && s->dims && out);
  ph_call call;
  ph_call_begin(&call, "cudnn", name);
  ph_call_text(&call, "a", ph_dtype_name(cudnn_dtype(s->type)), true);
  ph_call_list32(&call, "x", s->dim, s->dims, true);
  call.flops = flops;
  call.bytes = bytes;
  int status = launch(self, &call);
  ph_wrote_output(out, written);
  return status;
}
// A grid has two coordinates for each output pixel: n, h, w of the descriptor.
static double grid_bytes(const sampler_descriptor *s) {
  return s && s->dims == 4 ? 2.0 * s->dim[0] * s->dim[2] * s->dim[3] * ph_dtype_bytes(cudnn_dtype(s->type))
                           : 0;
}
static double theta_bytes(const sampler_descriptor *s) {
  return s && s->dims ? 6.0 * s->dim[0] * ph_dtype_bytes(cudnn_dtype(s->type)) : 0;
}
PH_EXPORT int cudnnSpatialTfGridGeneratorForward(handle *self, const sampler_descriptor *s, const void *theta,
                                                 void *grid) {
  (void)theta;
  return PH_BRACKET(run_sampler(self, "grid_fwd", s, 2 * grid_bytes(s), grid_bytes(s), grid, grid_bytes(s)));
}
PH_EXPORT int cudnnSpatialTfGridGeneratorBackward(handle *self, const sampler_descriptor *s,
                                                  const void *dgrid, void *dtheta) {
  (void)dgrid;
  return PH_BRACKET(
      run_sampler(self, "grid_bwd", s, 2 * grid_bytes(s), grid_bytes(s), dtheta, theta_bytes(s)));
}
PH_EXPORT int cudnnSpatialTfSamplerForward(handle *self, sampler_descriptor *s, const void *alpha, T xd,
                                           const void *x, const void *grid, const void *beta,
                                           tensor_descriptor *yd, void *y) {
  (void)alpha, (void)x, (void)grid, (void)beta;
  NEED(xd && yd);
  return PH_BRACKET(run_sampler(self, "sampler_fwd", s, 8 * legacy_elements(yd),
                                legacy_bytes(xd) + legacy_bytes(yd) + grid_bytes(s), y, legacy_bytes(yd)));
}
PH_EXPORT int cudnnSpatialTfSamplerBackward(handle *self, sampler_descriptor *s, const void *alpha, T xd,
                                            const void *x, const void *beta, T dxd, void *dx,
                                            const void *alpha_grid, T dyd, const void *dy, const void *grid,
                                            const void *beta_grid, void *dgrid) {
  (void)alpha, (void)x, (void)beta, (void)alpha_grid, (void)dy, (void)grid, (void)beta_grid;
  NEED(xd && dxd && dyd);
  int status = PH_BRACKET(run_sampler(self, "sampler_bwd", s, 16 * legacy_elements(dyd),
                                      2 * (legacy_bytes(xd) + legacy_bytes(dyd) + grid_bytes(s)), dx,
                                      legacy_bytes(dxd)));
  if (status == CUDNN_STATUS_SUCCESS) ph_wrote_output(dgrid, grid_bytes(s));
  return status;
}
