// Looking up calls by name.
#define _GNU_SOURCE
#include "cuda/driver/entry.h"

#include <dlfcn.h>
#include <stdio.h>

// A plain name stands for the newest version of the call that the caller's CUDA knew. Versions whose
// interface differs from the newest are listed; all others share it and the newest is right.
typedef struct version {
  const char *name;
  int since;
  const char *symbol;
} version;
static const version versions[] = {
    {"cuCtxCreate", 13000, "cuCtxCreate_v4"},
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 0, "cuStreamGetCaptureInfo_v2"},
};

static void *find_call(const char *name, int version, uint64_t flags) {
  static void *self;
  char text[128];
  if (!self) {
    Dl_info info;  // this library, by its own address: another one may lie before it
    if (dladdr((void *)find_call, &info)) self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (!self) return NULL;
  }
  for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
    if (!strcmp(versions[i].name, name) && version >= versions[i].since) return dlsym(self, versions[i].symbol);
  static const char *const tails[] = {"_v2", "", "_v3"};
  for (int twin = flags & 2 ? 0 : 2; twin < 3; twin++) {
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
      snprintf(text, sizeof text, "%s%s%s", name, tails[i], twin == 0 ? "_ptsz" : twin == 1 ? "_ptds" : "");
      void *found = dlsym(self, text);
      if (found) return found;
    }
  }
  return NULL;
}

PH_EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  if (!name || !function || flags > 2) return cudaErrorInvalidValue;
  *function = find_call(name, version, flags);
  if (status) *status = *function ? 0 : 1;  // CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
  return *function || status ? 0 : cudaErrorSymbolNotFound;
}
PH_EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
