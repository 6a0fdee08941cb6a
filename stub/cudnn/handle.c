// cuDNN's handles, versions and messages.
#include "cudnn/handle.h"

#include <stdarg.h>

static _Thread_local char last_error[512];

int fail(int status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return status;
}

PH_EXPORT size_t cudnnGetVersion(void) { return PH_CUDNN_VERSION; }
PH_EXPORT size_t cudnnGetMaxDeviceVersion(void) { return 1210; }
PH_EXPORT size_t cudnnGetCudartVersion(void) { return PH_CUDA_MAJOR * 1000; }
PH_EXPORT int cudnnGetProperty(int property, int *value) {
  const int parts[] = {PH_CUDNN_VERSION / 10000, PH_CUDNN_VERSION / 100 % 100, PH_CUDNN_VERSION % 100};
  if (!value || property < 0 || property > 2)
    return fail(CUDNN_STATUS_INVALID_VALUE, "cudnnGetProperty: property %d", property);
  *value = parts[property];
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT const char *cudnnGetErrorString(int status) {
#define NAME(STATUS, VALUE) \
  case VALUE:               \
    return "CUDNN_STATUS_" #STATUS;
  switch (status) { CUDNN_STATUSES(NAME) }
  return "CUDNN_STATUS_UNKNOWN";
}
PH_EXPORT void cudnnGetLastErrorString(char *message, size_t size) {
  if (message && size) snprintf(message, size, "%s", last_error);
  last_error[0] = 0;
}
PH_EXPORT int cudnnQueryRuntimeError(handle *self, int *status, int mode, void *tag) {
  (void)mode, (void)tag;
  CHECK_HANDLE(self);
  if (!status) return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnQueryRuntimeError: rstatus");
  *status = CUDNN_STATUS_SUCCESS;
  return CUDNN_STATUS_SUCCESS;
}
#define VERSION_CHECKS(X) X(Graph) X(Ops) X(Cnn) X(Adv)
#define VERSION_CHECK(NAME) \
  PH_EXPORT int cudnn##NAME##VersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
VERSION_CHECKS(VERSION_CHECK)

PH_EXPORT int cudnnCreate(handle **out) {
  if (!out) return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnCreate: handle");
  if (ph_devices() < 1) return fail(CUDNN_STATUS_NOT_INITIALIZED, "cudnnCreate: no device");
  handle *created = calloc(1, sizeof *created);
  if (!created) return fail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnCreate");
  created->magic = HANDLE_MAGIC;
  static int first = 1;
  if (__atomic_exchange_n(&first, 0, __ATOMIC_RELAXED)) {
    if (!ph_memory_charge(ph_current_device(), (int64_t)ph_gpu()->cudnn_bytes)) {
      free(created);
      return fail(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "cudnnCreate: no device memory");
    }
    ph_charge(PH_API_CUDNN_CREATE);
  }
  *out = created;
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnDestroy(handle *self) {
  CHECK_HANDLE(self);
  self->magic = 0;
  free(self);
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnSetStream(handle *self, void *stream) {
  CHECK_HANDLE(self);
  self->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnGetStream(handle *self, void **stream) {
  CHECK_HANDLE(self);
  if (!stream) return fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnGetStream: stream");
  *stream = self->stream;
  return CUDNN_STATUS_SUCCESS;
}
// cuDNN's own logging has nothing to say here: the simulator's log holds every call.
PH_EXPORT int cudnnSetCallback(unsigned mask, void *user, void *callback) {
  return (void)mask, (void)user, (void)callback, CUDNN_STATUS_SUCCESS;
}
PH_EXPORT int cudnnGetCallback(unsigned *mask, void **user, void **callback) {
  if (mask) *mask = 0;
  if (user) *user = NULL;
  if (callback) *callback = NULL;
  return CUDNN_STATUS_SUCCESS;
}

int launch(const handle *self, const ph_call *call) {
  const ph_stream *stream = ph_stream_of(self->stream, false);
  if (!stream) return fail(CUDNN_STATUS_EXECUTION_FAILED, "%s: the handle's stream has been destroyed", call->call);
  ph_call_launch(call, stream);
  ph_charge(PH_API_CUDNN_EXECUTE);
  return CUDNN_STATUS_SUCCESS;
}
