// NVSHMEM: only what a program asks to find out that it is not in use. Everything that would start
// it or move data is left to traps.
#include "rank/library.h"

enum { NVSHMEM_STATUS_NOT_INITIALIZED = 0 };

PH_EXPORT int nvshmemid_init_status(void) { return NVSHMEM_STATUS_NOT_INITIALIZED; }
// The version of the OpenSHMEM interface that NVSHMEM 3 follows.
PH_EXPORT void nvshmem_info_get_version(int *major, int *minor) {
  if (major) *major = 1;
  if (minor) *minor = 3;
}
