// cuFile (GPUDirect Storage): the simulated host has none, as a machine without the nvidia-fs
// driver. Callers get the library's own answer for that and fall back to ordinary reads; data calls
// are left to traps.
#include "rank/library.h"

enum { CU_FILE_DRIVER_NOT_INITIALIZED = 5001 };
typedef struct cufile_error {
  int error, driver_error;
} cufile_error;

static cufile_error unavailable(const char *call) {
  ph_unsupported("libcufile", call, true);
  return (cufile_error){CU_FILE_DRIVER_NOT_INITIALIZED, 0};
}
PH_EXPORT cufile_error cuFileDriverOpen(void) { return unavailable(__func__); }
PH_EXPORT cufile_error cuFileDriverClose(void) { return (cufile_error){CU_FILE_DRIVER_NOT_INITIALIZED, 0}; }
PH_EXPORT long cuFileUseCount(void) { return 0; }
PH_EXPORT cufile_error cuFileHandleRegister(void **handle, void *description) {
  (void)description;
  if (handle) *handle = NULL;
  return unavailable(__func__);
}
PH_EXPORT void cuFileHandleDeregister(void *handle) { (void)handle; }
PH_EXPORT cufile_error cuFileBufRegister(const void *buffer, size_t length, int flags) {
  (void)buffer, (void)length, (void)flags;
  return unavailable(__func__);
}
PH_EXPORT cufile_error cuFileBufDeregister(const void *buffer) {
  (void)buffer;
  return (cufile_error){CU_FILE_DRIVER_NOT_INITIALIZED, 0};
}
