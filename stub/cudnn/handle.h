// Common parts of the simulated cuDNN: its handle, how a call fails and how it becomes a kernel. The functions
// declared here are private to the library.
#pragma once
#include "abi/cudnn_abi.h"

#define HANDLE_MAGIC 0x7068646e6e683031ULL
typedef struct handle {
  uint64_t magic;
  void *stream;
} handle;
static inline bool alive(const handle *self) { return self && self->magic == HANDLE_MAGIC; }
#define CHECK_HANDLE(self) \
  if (!alive(self)) return fail(CUDNN_STATUS_BAD_PARAM, "%s: not a cuDNN handle", __func__)
#define NEED(CONDITION) \
  if (!(CONDITION)) return fail(CUDNN_STATUS_BAD_PARAM, "%s: %s does not hold", __func__, #CONDITION)

// Remembers why a call failed (cudnnGetLastErrorString) and returns the status.
__attribute__((format(printf, 2, 3))) int fail(int status, const char *format, ...);
// Ends every executing call: one kernel on the handle's stream.
int launch(const handle *self, const ph_call *call);
