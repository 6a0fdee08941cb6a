// Pooling, activation and dropout.
#include "cudnn/operations.h"

static int set_pooling(pooling_descriptor *p, int mode, int nan, int count, const int *window, const int *padding,
                       const int *stride) {
  NEED(p && window && padding && stride && count >= 1 && count <= CUDNN_DIM_MAX && mode >= 0 && mode <= 3);
  *p = (pooling_descriptor){.mode = mode, .nan = nan, .dims = count};
  size_t bytes = (size_t)count * sizeof *window;
  memcpy(p->window, window, bytes), memcpy(p->padding, padding, bytes), memcpy(p->stride, stride, bytes);
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnSetPoolingNdDescriptor(pooling_descriptor *p, int mode, int nan, int count, const int *window,
                                          const int *padding, const int *stride) {
  return set_pooling(p, mode, nan, count, window, padding, stride);
}
PH_EXPORT int cudnnSetPooling2dDescriptor(pooling_descriptor *p, int mode, int nan, int wh, int ww, int vp, int hp,
                                          int vs, int hs) {
  return set_pooling(p, mode, nan, 2, (const int[]){wh, ww}, (const int[]){vp, hp}, (const int[]){vs, hs});
}
static int run_pooling(const handle *self, const char *name, const pooling_descriptor *p, const tensor_descriptor *x,
                       const tensor_descriptor *y, double passes, void *out, const tensor_descriptor *written) {
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
                                   const void *dy, const tensor_descriptor *xd, const void *x, const void *beta,
                                   const tensor_descriptor *dxd, void *dx) {
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
static int set_dropout(dropout_descriptor *d, const handle *self, float probability, void *states, size_t bytes,
                       unsigned long long seed, bool initialise) {
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
PH_EXPORT int cudnnRestoreDropoutDescriptor(dropout_descriptor *d, handle *self, float probability, void *states,
                                            size_t bytes, unsigned long long seed) {
  return PH_BRACKET(set_dropout(d, self, probability, states, bytes, seed, false));
}
PH_EXPORT int cudnnGetDropoutDescriptor(dropout_descriptor *d, handle *self, float *probability, void **states,
                                        unsigned long long *seed) {
  CHECK_HANDLE(self);
  NEED(d);
  if (probability) *probability = d->probability;
  if (states) *states = d->states;
  if (seed) *seed = d->seed;
  return CUDNN_STATUS_SUCCESS;
}
