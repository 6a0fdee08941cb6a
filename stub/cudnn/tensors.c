// Descriptors of the calls per operation: their life, tensors and filters.
#include "cudnn/operations.h"

// clang-format off
#define LEGACY_DESCRIPTORS(X)                                                                        \
  X(Tensor, tensor_descriptor) X(Filter, filter_descriptor) X(Convolution, convolution_descriptor)   \
  X(Pooling, pooling_descriptor) X(Activation, activation_descriptor) X(Dropout, dropout_descriptor) \
  X(RNN, rnn_descriptor) X(RNNData, rnn_data_descriptor) X(CTCLoss, ctc_descriptor)                  \
  X(SpatialTransformer, sampler_descriptor)
// clang-format on
#define LEGACY_LIFE(NAME, TYPE)                                                                               \
  PH_EXPORT int cudnnCreate##NAME##Descriptor(TYPE **out) {                                                   \
    if (!out) return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnCreate" #NAME "Descriptor");             \
    *out = calloc(1, sizeof **out);                                                                           \
    return *out ? CUDNN_STATUS_SUCCESS                                                                        \
                : fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnCreate" #NAME "Descriptor"); \
  }                                                                                                           \
  PH_EXPORT int cudnnDestroy##NAME##Descriptor(TYPE *self) {                                                  \
    free(self);                                                                                               \
    return CUDNN_STATUS_SUCCESS;                                                                              \
  }
LEGACY_DESCRIPTORS(LEGACY_LIFE)

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
int set_dims(tensor_descriptor *t, int type, int format, int count, const int *dim, const int *stride) {
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

PH_EXPORT int cudnnSetTensorNdDescriptor(tensor_descriptor *t, int type, int count, const int *dim, const int *stride) {
  NEED(stride);
  return set_dims(t, type, CUDNN_TENSOR_NCHW, count, dim, stride);
}
PH_EXPORT int cudnnSetTensorNdDescriptorEx(tensor_descriptor *t, int format, int type, int count, const int *dim) {
  return set_dims(t, type, format, count, dim, NULL);
}
PH_EXPORT int cudnnSetTensor4dDescriptor(tensor_descriptor *t, int format, int type, int n, int c, int h, int w) {
  return set_dims(t, type, format, 4, (const int[]){n, c, h, w}, NULL);
}
PH_EXPORT int cudnnSetTensor4dDescriptorEx(tensor_descriptor *t, int type, int n, int c, int h, int w, int sn, int sc,
                                           int sh, int sw) {
  return set_dims(t, type, CUDNN_TENSOR_NCHW, 4, (const int[]){n, c, h, w}, (const int[]){sn, sc, sh, sw});
}
PH_EXPORT int cudnnGetTensorNdDescriptor(const tensor_descriptor *t, int asked, int *type, int *count, int *dim,
                                         int *stride) {
  NEED(t && asked >= 0);
  if (type) *type = t->type;
  if (count) *count = t->dims;
  for (int i = 0; i < asked && i < t->dims; i++) {
    if (dim) dim[i] = t->dim[i];
    if (stride) stride[i] = t->stride[i];
  }
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnGetTensor4dDescriptor(const tensor_descriptor *t, int *type, int *n, int *c, int *h, int *w, int *sn,
                                         int *sc, int *sh, int *sw) {
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
PH_EXPORT int cudnnGetTensorSizeInBytes(const tensor_descriptor *t, size_t *size) { return size_in_bytes(t, size); }

PH_EXPORT int cudnnSetFilterNdDescriptor(filter_descriptor *t, int type, int format, int count, const int *dim) {
  return set_dims(t, type, format, count, dim, NULL);
}
PH_EXPORT int cudnnSetFilter4dDescriptor(filter_descriptor *t, int type, int format, int k, int c, int h, int w) {
  return set_dims(t, type, format, 4, (const int[]){k, c, h, w}, NULL);
}
PH_EXPORT int cudnnGetFilterNdDescriptor(const filter_descriptor *t, int asked, int *type, int *format, int *count,
                                         int *dim) {
  NEED(t && asked >= 0);
  if (type) *type = t->type;
  if (format) *format = t->format;
  if (count) *count = t->dims;
  for (int i = 0; dim && i < asked && i < t->dims; i++) dim[i] = t->dim[i];
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnGetFilterSizeInBytes(const filter_descriptor *t, size_t *size) { return size_in_bytes(t, size); }
