// The handle of a math library: made, given a stream, asked for it, freed. A file that uses it has the library's codes
// SUCCESS, NOT_INITIALIZED, ALLOC_FAILED and INVALID_VALUE.
#pragma once
#include "rank/library.h"

// Defines the type `handle`, alive(), and the entry points PREFIXCreate, Destroy, SetStream and GetStream. What follows
// `number`, which distinguishes a live handle of this library from other memory, are the library's own fields.
#define PH_LIBRARY_HANDLE(PREFIX, number, ...)                                      \
  typedef struct handle {                                                           \
    uint64_t magic;                                                                 \
    void *stream;                                                                   \
    __VA_ARGS__                                                                     \
  } handle;                                                                         \
  static bool alive(const handle *self) { return self && self->magic == (number); } \
  PH_EXPORT int PREFIX##Create(handle **out) {                                      \
    if (!out) return INVALID_VALUE;                                                 \
    if (ph_devices() < 1) return NOT_INITIALIZED;                                   \
    handle *created = calloc(1, sizeof *created);                                   \
    if (!created) return ALLOC_FAILED;                                              \
    created->magic = (number);                                                      \
    *out = created;                                                                 \
    return SUCCESS;                                                                 \
  }                                                                                 \
  PH_EXPORT int PREFIX##Destroy(handle *self) {                                     \
    if (!alive(self)) return NOT_INITIALIZED;                                       \
    self->magic = 0;                                                                \
    free(self);                                                                     \
    return SUCCESS;                                                                 \
  }                                                                                 \
  PH_EXPORT int PREFIX##SetStream(handle *self, void *stream) {                     \
    if (!alive(self)) return NOT_INITIALIZED;                                       \
    self->stream = stream;                                                          \
    return SUCCESS;                                                                 \
  }                                                                                 \
  PH_EXPORT int PREFIX##GetStream(handle *self, void **stream) {                    \
    if (!alive(self)) return NOT_INITIALIZED;                                       \
    if (!stream) return INVALID_VALUE;                                              \
    *stream = self->stream;                                                         \
    return SUCCESS;                                                                 \
  }
