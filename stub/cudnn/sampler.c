// Grid sampling.
#include "cudnn/operations.h"

PH_EXPORT int cudnnSetSpatialTransformerNdDescriptor(sampler_descriptor *s, int sampler, int type, int count,
                                                     const int *dim) {
  NEED(s && dim && count >= 1 && count <= CUDNN_DIM_MAX && cudnn_dtype(type));
  *s = (sampler_descriptor){.sampler = sampler, .type = type, .dims = count};
  memcpy(s->dim, dim, (size_t)count * sizeof *dim);
  return CUDNN_STATUS_SUCCESS;
}
static int run_sampler(const handle *self, const char *name, const sampler_descriptor *s, double flops, double bytes,
                       void *out, double written) {
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
  return s && s->dims == 4 ? 2.0 * s->dim[0] * s->dim[2] * s->dim[3] * ph_dtype_bytes(cudnn_dtype(s->type)) : 0;
}
static double theta_bytes(const sampler_descriptor *s) {
  return s && s->dims ? 6.0 * s->dim[0] * ph_dtype_bytes(cudnn_dtype(s->type)) : 0;
}
PH_EXPORT int cudnnSpatialTfGridGeneratorForward(handle *self, const sampler_descriptor *s, const void *theta,
                                                 void *grid) {
  (void)theta;
  return PH_BRACKET(run_sampler(self, "grid_fwd", s, 2 * grid_bytes(s), grid_bytes(s), grid, grid_bytes(s)));
}
PH_EXPORT int cudnnSpatialTfGridGeneratorBackward(handle *self, const sampler_descriptor *s, const void *dgrid,
                                                  void *dtheta) {
  (void)dgrid;
  return PH_BRACKET(run_sampler(self, "grid_bwd", s, 2 * grid_bytes(s), grid_bytes(s), dtheta, theta_bytes(s)));
}
PH_EXPORT int cudnnSpatialTfSamplerForward(handle *self, sampler_descriptor *s, const void *alpha, T xd, const void *x,
                                           const void *grid, const void *beta, tensor_descriptor *yd, void *y) {
  (void)alpha, (void)x, (void)grid, (void)beta;
  NEED(xd && yd);
  return PH_BRACKET(run_sampler(self, "sampler_fwd", s, 8 * legacy_elements(yd),
                                legacy_bytes(xd) + legacy_bytes(yd) + grid_bytes(s), y, legacy_bytes(yd)));
}
PH_EXPORT int cudnnSpatialTfSamplerBackward(handle *self, sampler_descriptor *s, const void *alpha, T xd, const void *x,
                                            const void *beta, T dxd, void *dx, const void *alpha_grid, T dyd,
                                            const void *dy, const void *grid, const void *beta_grid, void *dgrid) {
  (void)alpha, (void)x, (void)beta, (void)alpha_grid, (void)dy, (void)grid, (void)beta_grid;
  NEED(xd && dxd && dyd);
  int status =
      PH_BRACKET(run_sampler(self, "sampler_bwd", s, 16 * legacy_elements(dyd),
                             2 * (legacy_bytes(xd) + legacy_bytes(dyd) + grid_bytes(s)), dx, legacy_bytes(dxd)));
  if (status == CUDNN_STATUS_SUCCESS) ph_wrote_output(dgrid, grid_bytes(s));
  return status;
}
