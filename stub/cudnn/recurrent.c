// Recurrent networks.
#include "cudnn/operations.h"

PH_EXPORT int cudnnSetRNNDescriptor_v8(rnn_descriptor *r, int algorithm, int mode, int bias, int direction,
                                       int input_mode, int type, int precision, int math, int32_t input, int32_t hidden,
                                       int32_t projection, int32_t layers, dropout_descriptor *dropout,
                                       uint32_t flags) {
  NEED(r && mode >= CUDNN_RNN_RELU && mode <= CUDNN_GRU && input > 0 && hidden > 0 && layers > 0 && cudnn_dtype(type));
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
static int64_t layer_biases(const rnn_descriptor *r) { return (int64_t)bias_vectors(r) * gates(r) * r->hidden; }
static int64_t all_weights(const rnn_descriptor *r) {
  int64_t count = 0;
  for (int layer = 0; layer < r->layers; layer++) count += directions(r) * (layer_weights(r, layer) + layer_biases(r));
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
    offset += (int64_t)gates(r) * r->hidden * input + (int64_t)(is_projection ? gates(r) : index) * r->hidden * state;
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
  int64_t bias = matrices + pseudo_layer * layer_biases(r) + ((int64_t)(on_input ? 0 : gates(r)) + index) * r->hidden;
  if (b) *b = base + (size_t)bias * rnn_element(r);
  return !bd ? CUDNN_STATUS_SUCCESS : set_dims(bd, r->type, CUDNN_TENSOR_NCHW, 3, (const int[]){1, r->hidden, 1}, NULL);
}

PH_EXPORT int cudnnSetRNNDataDescriptor(rnn_data_descriptor *d, int type, int layout, int length, int batch, int vector,
                                        const int *lengths, void *padding) {
  (void)padding;
  NEED(d && cudnn_dtype(type) && length > 0 && batch > 0 && vector > 0 && lengths && layout >= 0 && layout <= 2);
  *d = (rnn_data_descriptor){type, layout, length, batch, vector, 0};
  for (int i = 0; i < batch; i++) {
    NEED(lengths[i] >= 0 && lengths[i] <= length);
    d->tokens += lengths[i];
  }
  return CUDNN_STATUS_SUCCESS;
}
// Values that training keeps of a token for each hidden unit: of each layer the gates and what else its gradient needs,
// and between layers their outputs. Two layers of LSTM on an H200 come out to the byte with packed sequences, one of
// GRU within 0.1 % of the program's memory.
static int64_t kept_values(const rnn_descriptor *r) {
  int states = r->mode == CUDNN_LSTM ? 1 : r->mode == CUDNN_GRU ? 3 : 1;
  return r->layers * (gates(r) + states) + r->layers - 1;
}
// Masks of dropout between layers are of all steps, padded ones too.
static size_t dropout_masks(const rnn_descriptor *r, size_t units) {
  bool drops = r->layers > 1 && r->dropout && r->dropout->probability > 0;
  return drops ? units * (size_t)(r->layers - 1) / 4 + 256 : 0;
}
// The workspace contains the gates of one pass over the input.
PH_EXPORT int cudnnGetRNNTempSpaceSizes(handle *self, rnn_descriptor *r, int mode, rnn_data_descriptor *x,
                                        size_t *workspace, size_t *reserve) {
  CHECK_HANDLE(self);
  NEED(r && x && x->batch > 0);
  size_t width = (size_t)r->hidden * (size_t)directions(r), units = (size_t)x->length * (size_t)x->batch * width;
  if (workspace) *workspace = units * (size_t)(gates(r) + 1) * rnn_element(r);
  if (!reserve) return CUDNN_STATUS_SUCCESS;
  size_t kept = (size_t)x->tokens * width * (size_t)kept_values(r) * rnn_element(r);
  *reserve = mode == CUDNN_FWD_MODE_TRAINING ? kept + dropout_masks(r, units) : 0;
  return CUDNN_STATUS_SUCCESS;
}

// The host launches kernels for every step of every layer, unless one kernel keeps the weights on chip: torch asks
// for that, or the weights are few. Their number follows from host times of layers of 8 to 48 steps on two hosts with
// an H100 (validation/probes/recurrent.py): 3.1 a step forward, 3.4 for the gradients of the input.
enum { MATH_FMA = 3 };  // cudnnMathType_t: without it single precision goes to tensor cores
enum { STEP_LAUNCHES = 3 };
static size_t step_launches(const rnn_descriptor *r, const rnn_data_descriptor *x) {
  if (r->algorithm != 0 || (int64_t)gates(r) * r->hidden * r->hidden <= PH_FUSED_WEIGHTS) return 0;
  return STEP_LAUNCHES * (size_t)x->length * (size_t)r->layers * (size_t)directions(r);
}

static int run_rnn(const handle *self, const char *name, const rnn_descriptor *r, const rnn_data_descriptor *x,
                   double passes, bool weights_only) {
  CHECK_HANDLE(self);
  NEED(r && x && r->layers > 0 && x->batch > 0);
  static const char *const cells[] = {"relu", "tanh", "lstm", "gru"};
  ph_call call;
  ph_call_begin(&call, "cudnn", name);
  ph_call_text(&call, "cell", cells[r->mode], true);
  ph_call_text(&call, "a", ph_dtype_name(cudnn_dtype(r->type)), true);
  bool single = cudnn_dtype(r->type)->id == PH_R_32F;
  ph_call_text(&call, "compute", single && r->math != MATH_FMA ? "tf32" : "f32", false);
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
  ph_charge(PH_API_CUDNN_RNN);
  if (weights_only)
    ph_charge_times(PH_API_CUDNN_RNN_LAYER, (size_t)r->layers * (size_t)directions(r));
  else
    ph_charge_times(PH_API_LAUNCH, step_launches(r, x));
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
                              tensor_descriptor *hd, const void *hx, void *hy, tensor_descriptor *cd, const void *cx,
                              void *cy, size_t weight_bytes, const void *weights, size_t space_bytes, void *space,
                              size_t reserve_bytes, void *reserve) {
  (void)mode, (void)lengths, (void)x, (void)hx, (void)cx, (void)weight_bytes, (void)weights, (void)space_bytes,
      (void)space, (void)reserve_bytes, (void)reserve;
  int status = PH_BRACKET(run_rnn(self, "rnn_fwd", r, xd, 1, false));
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (yd) ph_wrote_output(y, sequence_bytes(yd));
  wrote_states(hd, hy), wrote_states(cd, cy);
  return status;
}
PH_EXPORT int cudnnRNNBackwardData_v8(handle *self, rnn_descriptor *r, const int32_t *lengths, rnn_data_descriptor *yd,
                                      const void *y, const void *dy, rnn_data_descriptor *xd, void *dx,
                                      tensor_descriptor *hd, const void *hx, const void *dhy, void *dhx,
                                      tensor_descriptor *cd, const void *cx, const void *dcy, void *dcx,
                                      size_t weight_bytes, const void *weights, size_t space_bytes, void *space,
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
                                         rnn_data_descriptor *xd, const void *x, tensor_descriptor *hd, const void *hx,
                                         rnn_data_descriptor *yd, const void *y, size_t weight_bytes, void *dweights,
                                         size_t space_bytes, void *space, size_t reserve_bytes, void *reserve) {
  (void)add, (void)lengths, (void)x, (void)hd, (void)hx, (void)yd, (void)y, (void)space_bytes, (void)space,
      (void)reserve_bytes, (void)reserve;
  int status = PH_BRACKET(run_rnn(self, "rnn_wgrad", r, xd, 1, true));
  if (status == CUDNN_STATUS_SUCCESS) ph_wrote_output(dweights, (double)weight_bytes);
  return status;
}
