// Batch normalisation.
#include "cudnn/operations.h"

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
PH_EXPORT int cudnnBatchNormalizationForwardInference(handle *self, int mode, const void *alpha, const void *beta, T xd,
                                                      const void *x, T yd, void *y, T pd, const void *scale,
                                                      const void *bias, const void *mean, const void *variance,
                                                      double epsilon) {
  (void)mode, (void)alpha, (void)beta, (void)x, (void)scale, (void)bias, (void)mean, (void)variance, (void)epsilon;
  return PH_BRACKET(run_batch_norm(self, "batch_norm_inference", xd, pd, 0, 2, y, yd));
}
PH_EXPORT int cudnnBatchNormalizationForwardTrainingEx(handle *self, int mode, int operations, const void *alpha,
                                                       const void *beta, T xd, const void *x, T zd, const void *z, T yd,
                                                       void *y, T pd, const void *scale, const void *bias,
                                                       double factor, void *running_mean, void *running_variance,
                                                       double epsilon, void *mean, void *inverse,
                                                       const activation_descriptor *activation, void *space,
                                                       size_t bytes, void *reserve, size_t reserve_bytes) {
  (void)mode, (void)alpha, (void)beta, (void)x, (void)zd, (void)z, (void)scale, (void)bias, (void)factor, (void)epsilon,
      (void)activation, (void)space, (void)bytes, (void)reserve, (void)reserve_bytes;
  // Statistics read the input once, normalising reads and writes it.
  int status = PH_BRACKET(run_batch_norm(self, "batch_norm_fwd", xd, pd, operations, 3, y, yd));
  void *const results[] = {running_mean, running_variance, mean, inverse};
  for (int i = 0; status == CUDNN_STATUS_SUCCESS && i < 4; i++) ph_wrote_output(results[i], legacy_bytes(pd));
  return status;
}
PH_EXPORT int cudnnBatchNormalizationForwardTraining(handle *self, int mode, const void *alpha, const void *beta, T xd,
                                                     const void *x, T yd, void *y, T pd, const void *scale,
                                                     const void *bias, double factor, void *running_mean,
                                                     void *running_variance, double epsilon, void *mean,
                                                     void *inverse) {
  return cudnnBatchNormalizationForwardTrainingEx(self, mode, 0, alpha, beta, xd, x, NULL, NULL, yd, y, pd, scale, bias,
                                                  factor, running_mean, running_variance, epsilon, mean, inverse, NULL,
                                                  NULL, 0, NULL, 0);
}
PH_EXPORT int cudnnBatchNormalizationBackwardEx(handle *self, int mode, int operations, const void *alpha,
                                                const void *beta, const void *alpha2, const void *beta2, T xd,
                                                const void *x, T yd, const void *y, T dyd, const void *dy, T dzd,
                                                void *dz, T dxd, void *dx, T pd, const void *scale, const void *bias,
                                                void *dscale, void *dbias, double epsilon, const void *mean,
                                                const void *inverse, const activation_descriptor *activation,
                                                void *space, size_t bytes, void *reserve, size_t reserve_bytes) {
  (void)mode, (void)alpha, (void)beta, (void)alpha2, (void)beta2, (void)x, (void)yd, (void)y, (void)dyd, (void)dy,
      (void)dzd, (void)dz, (void)scale, (void)bias, (void)epsilon, (void)mean, (void)inverse, (void)activation,
      (void)space, (void)bytes, (void)reserve, (void)reserve_bytes;
  // Sums read input and gradient, the gradient of the input reads both again and is written.
  int status = PH_BRACKET(run_batch_norm(self, "batch_norm_bwd", xd, pd, operations, 5, dx, dxd));
  if (status == CUDNN_STATUS_SUCCESS)
    ph_wrote_output(dscale, legacy_bytes(pd)), ph_wrote_output(dbias, legacy_bytes(pd));
  return status;
}
PH_EXPORT int cudnnBatchNormalizationBackward(handle *self, int mode, const void *alpha, const void *beta,
                                              const void *alpha2, const void *beta2, T xd, const void *x, T dyd,
                                              const void *dy, T dxd, void *dx, T pd, const void *scale, void *dscale,
                                              void *dbias, double epsilon, const void *mean, const void *inverse) {
  return cudnnBatchNormalizationBackwardEx(self, mode, 0, alpha, beta, alpha2, beta2, xd, x, NULL, NULL, dyd, dy, NULL,
                                           NULL, dxd, dx, pd, scale, NULL, dscale, dbias, epsilon, mean, inverse, NULL,
                                           NULL, 0, NULL, 0);
}
// Partial sums of two values per channel and multiprocessor.
static int norm_workspace(const handle *self, T x, size_t *size) {
  CHECK_HANDLE(self);
  NEED(x && size && x->dims >= 2);
  *size = (size_t)x->dim[1] * 2 * sizeof(float) * (size_t)ph_gpu()->sms;
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(handle *self, int mode, int operations, T x, T z,
                                                                       T y, T p,
                                                                       const activation_descriptor *activation,
                                                                       size_t *size) {
  (void)mode, (void)operations, (void)z, (void)y, (void)p, (void)activation;
  return norm_workspace(self, x, size);
}
PH_EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(handle *self, int mode, int operations, T x, T y, T dy,
                                                                T dz, T dx, T p,
                                                                const activation_descriptor *activation, size_t *size) {
  (void)mode, (void)operations, (void)y, (void)dy, (void)dz, (void)dx, (void)p, (void)activation;
  return norm_workspace(self, x, size);
}
// A bit per element remembers the activation; plain normalisation keeps nothing.
PH_EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle *self, int mode, int operations,
                                                                   const activation_descriptor *activation, T x,
                                                                   size_t *size) {
  (void)mode, (void)activation;
  CHECK_HANDLE(self);
  NEED(x && size);
  *size = operations ? (size_t)(legacy_elements(x) / 8) + 1 : 0;
  return CUDNN_STATUS_SUCCESS;
}
