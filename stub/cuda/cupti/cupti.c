// libcupti: the activity interface, by which torch.profiler gets kernels, copies and runtime calls (activity.c), in
// virtual time. Callbacks and counters are accepted and never called.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "abi/export.h"
#include "abi/cuda_abi.h"
#include "cuda/cupti/activity.h"
#include "rank/rank.h"

enum { CUPTI_SUCCESS = 0, CUPTI_INVALID_PARAMETER = 1, CUPTI_MAX_LIMIT_REACHED = 12, CUPTI_QUEUE_EMPTY = 18 };
typedef int CUptiResult;
#define PH_CUPTI_VERSION (PH_CUDA_MAJOR == 13 ? 130001 : 26)

static CUptiResult give(void *to, const void *value, size_t size) {
  if (!to) return CUPTI_INVALID_PARAMETER;
  memcpy(to, value, size);
  return CUPTI_SUCCESS;
}
#define GIVE(to, type, value) give((to), &(type){value}, sizeof(type))
#define CALL(name, parameters, expression) \
  PH_EXPORT CUptiResult name parameters {  \
    ph_enter();                            \
    CUptiResult code = (expression);       \
    ph_leave();                            \
    return code;                           \
  }

PH_EXPORT CUptiResult cuptiGetResultString(CUptiResult code, const char **text) {
  static const struct {
    int code;
    const char *text;
  } texts[] = {{CUPTI_SUCCESS, "CUPTI_SUCCESS"},
               {CUPTI_INVALID_PARAMETER, "CUPTI_ERROR_INVALID_PARAMETER"},
               {CUPTI_MAX_LIMIT_REACHED, "CUPTI_ERROR_MAX_LIMIT_REACHED"},
               {CUPTI_QUEUE_EMPTY, "CUPTI_ERROR_QUEUE_EMPTY"}};
  if (!text) return CUPTI_INVALID_PARAMETER;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (texts[i].code == code) return *text = texts[i].text, CUPTI_SUCCESS;
  return *text = "CUPTI_ERROR_UNKNOWN", CUPTI_INVALID_PARAMETER;
}

// Subscribing, enabling and flushing: accepted.
// clang-format off
#define ACCEPTED(X)                                                                                     \
  X(cuptiActivityFlushPeriod, (uint32_t ms))                                                            \
  X(cuptiActivityEnableLatencyTimestamps, (uint8_t on))                                                 \
  X(cuptiActivityEnableLaunchAttributes, (uint8_t on)) X(cuptiActivityEnableDeviceGraph, (uint8_t on))  \
  X(cuptiActivityEnableHWTrace, (uint8_t on)) X(cuptiActivityEnableAllSyncRecords, (uint8_t on))        \
  X(cuptiActivityEnableCudaEventDeviceTimestamps, (uint8_t on)) X(cuptiEnableAllDomains, (uint32_t on)) \
  X(cuptiFinalize, (void)) X(cuptiSetThreadIdType, (int type))
// clang-format on
#define ACCEPT(name, parameters)                                                          \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wunused-parameter\"") \
      CALL(name, parameters, CUPTI_SUCCESS)                                               \
  _Pragma("GCC diagnostic pop")
ACCEPTED(ACCEPT)
ACCEPT(cuptiActivityEnableContext, (void *context, int kind))
ACCEPT(cuptiActivityDisableContext, (void *context, int kind))
ACCEPT(cuptiActivityEnableDriverApi, (uint32_t id, uint8_t on))
ACCEPT(cuptiActivityEnableRuntimeApi, (uint32_t id, uint8_t on))
ACCEPT(cuptiEnableCallback, (uint32_t on, void *subscriber, int domain, uint32_t id))
ACCEPT(cuptiEnableDomain, (uint32_t on, void *subscriber, int domain))
ACCEPT(cuptiUnsubscribe, (void *subscriber))
ACCEPT(cuptiActivitySetAttribute, (int attribute, size_t *size, void *value))

static CUptiResult subscribe(void **subscriber, void *callback) {
  static char the_one;
  return callback ? GIVE(subscriber, void *, &the_one) : CUPTI_INVALID_PARAMETER;
}
CALL(cuptiSubscribe, (void **subscriber, void *callback, void *data), ((void)data, subscribe(subscriber, callback)))
// Functions whose calls have records: those of the runtime.
static CUptiResult callback_name(int domain, uint32_t id, const char **name) {
  enum { RUNTIME = 2 };
  if (!name) return CUPTI_INVALID_PARAMETER;
  *name = domain == RUNTIME ? cupti_function_name(id) : NULL;
  return *name ? CUPTI_SUCCESS : CUPTI_INVALID_PARAMETER;
}
CALL(cuptiGetCallbackName, (int domain, uint32_t id, const char **name), callback_name(domain, id, name))
CALL(cuptiActivityEnable, (int kind), (cupti_enable(kind, true), CUPTI_SUCCESS))
CALL(cuptiActivityDisable, (int kind), (cupti_enable(kind, false), CUPTI_SUCCESS))
CALL(cuptiActivityFlushAll, (uint32_t flag), ((void)flag, cupti_flush(), CUPTI_SUCCESS))
CALL(cuptiActivityRegisterCallbacks, (cupti_request * request, cupti_complete *complete),
     request &&complete ? (cupti_callbacks(request, complete), CUPTI_SUCCESS) : CUPTI_INVALID_PARAMETER)
CALL(cuptiActivityRegisterTimestampCallback, (void *callback), callback ? CUPTI_SUCCESS : CUPTI_INVALID_PARAMETER)
static CUptiResult next_record(uint8_t *buffer, size_t bytes, cupti_record **record) {
  if (!buffer || !record) return CUPTI_INVALID_PARAMETER;
  *record = cupti_next(buffer, bytes, *record);
  return *record ? CUPTI_SUCCESS : CUPTI_MAX_LIMIT_REACHED;
}
CALL(cuptiActivityGetNextRecord, (uint8_t *buffer, size_t bytes, cupti_record **record),
     next_record(buffer, bytes, record))
CALL(cuptiActivityGetNumDroppedRecords, (void *context, uint32_t stream, size_t *dropped),
     ((void)context, (void)stream, GIVE(dropped, size_t, 0)))
CALL(cuptiActivityGetAttribute, (int attribute, size_t *size, void *value),
     ((void)attribute, size &&value ? (memset(value, 0, *size), CUPTI_SUCCESS) : CUPTI_INVALID_PARAMETER))

// External correlation ids: a stack per thread and kind, as the real library keeps.
enum { KINDS = CUPTI_EXTERNAL_KINDS, DEPTH = 1024 };
static __thread struct {
  uint64_t *ids;
  uint32_t used;
} correlations[KINDS];
static CUptiResult push(int kind, uint64_t id) {
  if (kind < 0 || kind >= KINDS) return CUPTI_INVALID_PARAMETER;
  if (!correlations[kind].ids && !(correlations[kind].ids = malloc(DEPTH * sizeof(uint64_t))))
    return CUPTI_INVALID_PARAMETER;
  uint32_t at = correlations[kind].used++;
  if (at < DEPTH) correlations[kind].ids[at] = id;  // deeper ones are counted, so that pops match
  return CUPTI_SUCCESS;
}
static CUptiResult pop(int kind, uint64_t *id) {
  if (kind < 0 || kind >= KINDS) return CUPTI_INVALID_PARAMETER;
  if (!correlations[kind].used) return CUPTI_QUEUE_EMPTY;
  uint32_t at = --correlations[kind].used;
  if (id) *id = at < DEPTH ? correlations[kind].ids[at] : 0;
  return CUPTI_SUCCESS;
}
uint64_t cupti_external_id(int kind) {
  uint32_t used = correlations[kind].used;
  return used && used <= DEPTH ? correlations[kind].ids[used - 1] : 0;
}
CALL(cuptiActivityPushExternalCorrelationId, (int kind, uint64_t id), push(kind, id))
CALL(cuptiActivityPopExternalCorrelationId, (int kind, uint64_t *id), pop(kind, id))

// Names of activities, fetched once and kept: records point to them.
const char *cupti_name(int32_t name) {
  enum { LONGEST = 4096 };
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static char **names;
  static int32_t known;
  if (name < 0) return "unknown";
  pthread_mutex_lock(&lock);
  if (name >= known) {
    char **grown = realloc(names, (size_t)(name + 1) * sizeof *names);
    if (!grown) abort();
    memset(grown + known, 0, (size_t)(name + 1 - known) * sizeof *names);
    names = grown;
    known = name + 1;
  }
  if (!names[name]) {
    char text[LONGEST];
    size_t length = ph_activity_name(name, text, sizeof text - 1);
    text[length] = 0;
    if (!(names[name] = strdup(text))) abort();
  }
  const char *found = names[name];
  pthread_mutex_unlock(&lock);
  return found;
}

CALL(cuptiGetVersion, (uint32_t *version), GIVE(version, uint32_t, PH_CUPTI_VERSION))
CALL(cuptiGetTimestamp, (uint64_t *time), GIVE(time, uint64_t, (uint64_t)ph_unix_ns()))
CALL(cuptiGetDeviceId, (void *context, uint32_t *device),
     ((void)context, GIVE(device, uint32_t, (uint32_t)ph_current_device())))
CALL(cuptiGetContextId, (void *context, uint32_t *id), ((void)context, GIVE(id, uint32_t, 1)))
static CUptiResult stream_id(void *handle, bool per_thread, uint32_t *id) {
  ph_stream *stream = ph_stream_of(handle, per_thread);
  return stream ? GIVE(id, uint32_t, stream->id) : CUPTI_INVALID_PARAMETER;
}
CALL(cuptiGetStreamId, (void *context, void *stream, uint32_t *id), ((void)context, stream_id(stream, false, id)))
CALL(cuptiGetStreamIdEx, (void *context, void *stream, uint8_t per_thread, uint32_t *id),
     ((void)context, stream_id(stream, per_thread, id)))
CALL(cuptiGetLastError, (void), CUPTI_SUCCESS)
