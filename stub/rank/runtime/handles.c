// Streams and events: handles are pointers, ids travel in records.
#define _GNU_SOURCE
#include "rank/runtime/runtime.h"

#include <stdlib.h>
#include <string.h>

#define LEGACY ((void *)1)      // cudaStreamLegacy
#define PER_THREAD ((void *)2)  // cudaStreamPerThread
#define QUARANTINE 4096         // destroyed handles that are kept before their memory is used again

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ph_stream legacy[PH_MAX_DEVICES];
static ph_stream *streams;  // all that were created and live
static uint32_t last_stream;
static uint32_t last_event;

// A destroyed event stays readable for a while, so that using it is an error and not a crash.
static ph_event *buried[QUARANTINE];
static size_t burials;

void ph_handles_reset(int devices) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  for (int i = 0; i < PH_MAX_DEVICES; i++)
    legacy[i] = (ph_stream){.magic = PH_STREAM_MAGIC, .id = (uint32_t)i, .device = i};
  last_stream = (uint32_t)(devices > 0 ? devices : 1) - 1;
}

// Values of each device that the program asks for before CUDA begins.
static uint64_t queues(void) {
  const char *asked = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  int number = asked ? atoi(asked) : 0;
  return number >= 1 && number <= 32 ? (uint64_t)number : 0;
}

ph_stream *ph_stream_create(int device, unsigned flags, int priority) {
  ph_stream *stream = calloc(1, sizeof *stream);
  if (!stream) return NULL;
  stream->magic = PH_STREAM_MAGIC;
  stream->device = device;
  stream->flags = flags;
  stream->priority = priority;
  pthread_mutex_lock(&lock);
  stream->id = ++last_stream;
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&lock);
  ph_record record = {.kind = PH_STREAM_CREATE,
                      .flags = flags & 1 ? PH_F_NONBLOCKING : 0,
                      .stream = stream->id,
                      .stream_create = {.priority = priority, .device = (uint64_t)device, .queues = queues()}};
  ph_emit(&record);
  return stream;
}

// A stream's memory is never used again: programs make few, and a stale handle must stay one.
int ph_stream_destroy(ph_stream *stream) {
  if (!ph_stream_alive(stream) || (stream >= legacy && stream < legacy + PH_MAX_DEVICES)) return -1;
  pthread_mutex_lock(&lock);
  for (ph_stream **at = &streams; *at; at = &(*at)->next)
    if (*at == stream) {
      *at = stream->next;
      break;
    }
  stream->magic = 0;
  pthread_mutex_unlock(&lock);
  ph_record record = {.kind = PH_STREAM_DESTROY, .stream = stream->id};
  ph_emit(&record);
  return 0;
}

ph_stream_kind ph_kind_of_stream(uint32_t id) {
  if (id < (uint32_t)(ph_devices() > 0 ? ph_devices() : 1)) return PH_STREAM_LEGACY;
  ph_stream_kind kind = PH_STREAM_BLOCKS;
  pthread_mutex_lock(&lock);
  for (const ph_stream *stream = streams; stream; stream = stream->next)
    if (stream->id == id && stream->flags & 1) kind = PH_STREAM_FREE;
  pthread_mutex_unlock(&lock);
  return kind;
}

static bool plausible(const void *handle) { return (uintptr_t)handle > 4096 && (uintptr_t)handle % 8 == 0; }

bool ph_stream_alive(const ph_stream *stream) { return plausible(stream) && stream->magic == PH_STREAM_MAGIC; }

static ph_stream *own_stream(int device) {
  ph_thread *self = ph_this_thread();
  if (!self->own_streams) self->own_streams = calloc(PH_MAX_DEVICES, sizeof *self->own_streams);
  if (!self->own_streams) return NULL;
  ph_stream **own = &self->own_streams[device];
  if (!*own) *own = ph_stream_create(device, 0, 0);
  return *own;
}

ph_stream *ph_stream_of(void *handle, bool per_thread_default) {
  if (!handle) handle = per_thread_default ? PER_THREAD : LEGACY;
  if (handle != LEGACY && handle != PER_THREAD) return ph_stream_alive(handle) ? handle : NULL;
  int device = ph_current_device();
  if (device < 0 || device >= PH_MAX_DEVICES || !legacy[device].magic) return NULL;
  return handle == LEGACY ? &legacy[device] : own_stream(device);
}

ph_event *ph_event_create(int device, unsigned flags) {
  ph_event *event = calloc(1, sizeof *event);
  if (!event) return NULL;
  event->magic = PH_EVENT_MAGIC;
  event->device = device;
  event->flags = flags;
  event->done_at = -1;
  pthread_mutex_lock(&lock);
  event->id = ++last_event;
  pthread_mutex_unlock(&lock);
  return event;
}

int ph_event_destroy(ph_event *event) {
  if (!ph_event_alive(event)) return -1;
  if (event->recorded) {
    ph_record record = {.kind = PH_EVENT_DESTROY, .id = event->id};
    ph_emit(&record);
  }
  pthread_mutex_lock(&lock);
  event->magic = 0;
  ph_event **place = &buried[burials++ % QUARANTINE];
  free(*place);
  *place = event;
  pthread_mutex_unlock(&lock);
  return 0;
}

bool ph_event_alive(const ph_event *event) { return plausible(event) && event->magic == PH_EVENT_MAGIC; }
