// Results, messages and the version.
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

#include "nccl/internal.h"

#ifndef PH_NCCL_VERSION
#define PH_NCCL_VERSION 22809
#endif

static pthread_mutex_t error_lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[1024];

ncclResult_t fail(ncclResult_t result, const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  pthread_mutex_lock(&error_lock);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  pthread_mutex_unlock(&error_lock);
  say_error(format, again);
  va_end(again);
  va_end(arguments);
  return result;
}

ncclResult_t leave(ncclResult_t result) {
  ph_leave();
  return result;
}

ncclResult_t check_pointer(const void *pointer, const char *call, const char *argument) {
  return pointer ? ncclSuccess : fail(ncclInvalidArgument, "%s : %s argument is NULL", call, argument);
}

ncclResult_t check_comm(const struct ncclComm *comm, const char *call) {
  if (!comm) return fail(ncclInvalidArgument, "%s : comm argument is NULL", call);
  if (comm->magic != COMM_MAGIC)
    return fail(ncclInvalidArgument, "%s : corrupted comm object detected (destroyed or aborted)", call);
  return ncclSuccess;
}

NCCL_API(const char *, ncclGetErrorString, ncclResult_t result)
{
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

NCCL_API(const char *, ncclGetLastError, ncclComm_t comm)
{
  (void)comm;
  return last_error;
}

NCCL_API(ncclResult_t, ncclGetVersion, int *version)
{
  if (!version) return fail(ncclInvalidArgument, "GetVersion : version argument is NULL");
  *version = PH_NCCL_VERSION;
  return ncclSuccess;
}
