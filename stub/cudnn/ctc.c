// Connectionist temporal classification.
#include "cudnn/operations.h"

static int set_ctc(ctc_descriptor *d, int type, int normalisation, int gradient, int longest) {
  NEED(d && cudnn_dtype(type) && longest >= 0);
  *d = (ctc_descriptor){type, normalisation, gradient, longest};
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnSetCTCLossDescriptor(ctc_descriptor *d, int type) { return set_ctc(d, type, 0, 0, 0); }
PH_EXPORT int cudnnSetCTCLossDescriptorEx(ctc_descriptor *d, int type, int normalisation, int gradient) {
  return set_ctc(d, type, normalisation, gradient, 0);
}
PH_EXPORT int cudnnSetCTCLossDescriptor_v8(ctc_descriptor *d, int type, int normalisation, int gradient, int longest) {
  return set_ctc(d, type, normalisation, gradient, longest);
}
PH_EXPORT int cudnnSetCTCLossDescriptor_v9(ctc_descriptor *d, int type, int normalisation, int gradient, int longest) {
  return set_ctc(d, type, normalisation, gradient, longest);
}
static int run_ctc(const handle *self, const ctc_descriptor *d, T probabilities, void *costs, T gd, void *gradients) {
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
PH_EXPORT int cudnnCTCLoss_v8(handle *self, int algorithm, ctc_descriptor *d, T pd, const void *p, const int *labels,
                              const int *label_lengths, const int *input_lengths, void *costs, T gd, void *gradients,
                              size_t bytes, void *space) {
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
PH_EXPORT int cudnnGetCTCLossWorkspaceSize(handle *self, T pd, T gd, const int *labels, const int *label_lengths,
                                           const int *input_lengths, int algorithm, ctc_descriptor *d, size_t *size) {
  (void)gd, (void)labels, (void)label_lengths, (void)input_lengths, (void)algorithm;
  return ctc_workspace(self, d, pd, size);
}
PH_EXPORT int cudnnGetCTCLossWorkspaceSize_v8(handle *self, int algorithm, ctc_descriptor *d, T pd, T gd,
                                              size_t *size) {
  (void)gd, (void)algorithm;
  return ctc_workspace(self, d, pd, size);
}
