// Contexts.
#include "cuda/core/device.h"
#include "cuda/core/stream.h"
#include "cuda/core/table.h"
#include "cuda/driver/context.h"
#include "cuda/driver/entry.h"

#include <stdlib.h>

// A created context is one more name for its device.
static driver_context primaries[PH_MAX_DEVICES];
static phc_table *contexts;
static __thread driver_context *stack[16];  // stack[depth - 1] is what the driver calls made current
static __thread int depth;

driver_context *driver_primary(int device) {
  driver_context *c = &primaries[device % PH_MAX_DEVICES];
  if (!c->primary) {
    *c = (driver_context){device, true};
    phc_table_set(&contexts, (uintptr_t)c, c);
  }
  return c;
}
static driver_context *current(void) {
  int device = phc_context_device();
  if (device < 0) return NULL;
  return depth && stack[depth - 1] && stack[depth - 1]->device == device ? stack[depth - 1] : driver_primary(device);
}
static cudaError_t set_current(driver_context *c) {
  if (c && !phc_table_get(&contexts, (uintptr_t)c)) return cudaErrorDeviceUninitialized;
  if (!depth) depth = 1;
  stack[depth - 1] = c;
  phc_context_set(c ? c->device : -1);
  return 0;
}
static cudaError_t push(driver_context *c) {
  if (!c || !phc_table_get(&contexts, (uintptr_t)c)) return cudaErrorDeviceUninitialized;
  if (!depth) stack[depth++] = current();
  if (depth == (int)(sizeof stack / sizeof *stack)) return cudaErrorInvalidValue;
  stack[depth++] = NULL;
  return set_current(c);
}
static cudaError_t pop(driver_context **c) {
  driver_context *now = current();
  if (!now) return cudaErrorDeviceUninitialized;
  if (c) *c = now;
  if (depth) depth--;
  driver_context *below = depth ? stack[depth - 1] : NULL;
  phc_context_set(below ? below->device : -1);
  return 0;
}
static cudaError_t create(driver_context **c, unsigned flags, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!c || flags > 0x7f) return cudaErrorInvalidValue;
  driver_context *made = calloc(1, sizeof *made);
  if (!made) return cudaErrorMemoryAllocation;
  made->device = device;
  phc_table_set(&contexts, (uintptr_t)made, made);
  *c = made;
  return push(made);
}
static cudaError_t destroy(driver_context *c) {
  if (!c || !phc_table_get(&contexts, (uintptr_t)c) || c->primary) return cudaErrorDeviceUninitialized;
  if (current() == c) pop(NULL);
  phc_table_set(&contexts, (uintptr_t)c, NULL);
  return 0;
}
static cudaError_t retain(driver_context **c, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!c) return cudaErrorInvalidValue;
  *c = driver_primary(device);
  return 0;
}
static cudaError_t primary_state(int device, unsigned *flags, int *active) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!flags || !active) return cudaErrorInvalidValue;
  *flags = 0;
  *active = phc_primary_active(device);
  return 0;
}
cudaError_t driver_ready(void) { return phc_initialised() ? phc_ready() : cudaErrorInitializationError; }
cudaError_t driver_current(void) {
  cudaError_t error = driver_ready();
  return error ? error : phc_context_device() < 0 ? cudaErrorDeviceUninitialized : 0;
}

ENTRY(cuCtxGetCurrent, GET_DEVICE, driver_ready, (driver_context * *c), c ? (*c = current(), 0) : cudaErrorInvalidValue)
ENTRY(cuCtxSetCurrent, GET_DEVICE, driver_ready, (driver_context * c), set_current(c))
ENTRY(cuCtxPushCurrent_v2, GET_DEVICE, driver_ready, (driver_context * c), push(c))
ALSO(cuCtxPushCurrent_v2, cuCtxPushCurrent)
ENTRY(cuCtxPopCurrent_v2, GET_DEVICE, driver_ready, (driver_context * *c), pop(c))
ALSO(cuCtxPopCurrent_v2, cuCtxPopCurrent)
ENTRY(cuCtxCreate_v2, OTHER, driver_ready, (driver_context * *c, unsigned flags, int device), create(c, flags, device))
ALSO(cuCtxCreate_v2, cuCtxCreate)
ENTRY(cuCtxCreate_v4, OTHER, driver_ready, (driver_context * *c, void *parameters, unsigned flags, int device),
      parameters ? driver_unsupported("cuCtxCreate_v4 with parameters") : create(c, flags, device))
ENTRY(cuCtxDestroy_v2, OTHER, driver_ready, (driver_context * c), destroy(c))
ALSO(cuCtxDestroy_v2, cuCtxDestroy)
ENTRY(cuCtxGetDevice, GET_DEVICE, driver_current, (int *device), GIVE(device, int, phc_context_device()))
ENTRY(cuCtxGetFlags, GET_DEVICE, driver_current, (unsigned *flags), GIVE(flags, unsigned, 0))
ENTRY(cuCtxGetApiVersion, GET_DEVICE, driver_ready, (driver_context * c, unsigned *version),
      ((void)c, GIVE(version, unsigned, 3020)))
ENTRY(cuCtxGetId, GET_DEVICE, driver_ready, (driver_context * c, unsigned long long *id),
      !c && !current() ? cudaErrorDeviceUninitialized : GIVE(id, unsigned long long, (uintptr_t)(c ? c : current())))
ENTRY(cuCtxSynchronize, STREAM_SYNC, driver_current, (void), phc_device_sync())
ENTRY(cuCtxGetLimit, GET_DEVICE, driver_current, (size_t *value, int limit), phc_limit(limit, value))
ENTRY(cuCtxSetLimit, OTHER, driver_current, (int limit, size_t value), phc_set_limit(limit, value))
ENTRY(cuCtxGetCacheConfig, GET_DEVICE, driver_current, (int *config), GIVE(config, int, 0))
ENTRY(cuCtxSetCacheConfig, GET_DEVICE, driver_current, (int config),
      config < 0 || config > 3 ? cudaErrorInvalidValue : 0)
ENTRY(cuCtxGetStreamPriorityRange, GET_DEVICE, driver_current, (int *least, int *greatest),
      (least ? *least = 0 : 0, greatest ? *greatest = -5 : 0, 0))
ENTRY(cuCtxResetPersistingL2Cache, OTHER, driver_current, (void), 0)
ENTRY(cuCtxEnablePeerAccess, OTHER, driver_current, (driver_context * peer, unsigned flags),
      flags || !peer ? cudaErrorInvalidValue : phc_peer_access(ph_current_device(), peer->device, true))
ENTRY(cuCtxDisablePeerAccess, OTHER, driver_current, (driver_context * peer),
      !peer ? cudaErrorInvalidValue : phc_peer_access(ph_current_device(), peer->device, false))
ENTRY(cuDevicePrimaryCtxRetain, OTHER, driver_ready, (driver_context * *c, int device), retain(c, device))
ENTRY(cuDevicePrimaryCtxRelease_v2, OTHER, driver_ready, (int device), phc_device_check(device))
ALSO(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease)
ENTRY(cuDevicePrimaryCtxReset_v2, OTHER, driver_ready, (int device), phc_device_check(device))
ALSO(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset)
ENTRY(cuDevicePrimaryCtxSetFlags_v2, OTHER, driver_ready, (int device, unsigned flags),
      flags > 0x7f ? cudaErrorInvalidValue : phc_device_check(device))
ALSO(cuDevicePrimaryCtxSetFlags_v2, cuDevicePrimaryCtxSetFlags)
ENTRY(cuDevicePrimaryCtxGetState, GET_DEVICE, driver_ready, (int device, unsigned *flags, int *active),
      primary_state(device, flags, active))
ENTRY(cuProfilerStart, OTHER, driver_current, (void), 0)
ENTRY(cuProfilerStop, OTHER, driver_current, (void), 0)
