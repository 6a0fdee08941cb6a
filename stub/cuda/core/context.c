// Use of CUDA in this process and thread: connection, current context, sticky error.
#include "cuda/core/device.h"

#include <stdatomic.h>
#include <unistd.h>

static _Atomic bool initialised;
static pid_t connected_process;  // a forked child inherits it and finds that it is another
static _Atomic cudaError_t sticky;  // the error that ended the context
static _Atomic bool primary_active[PH_MAX_DEVICES];
static __thread int context_device = -1;
static _Atomic int chosen = -1;  // the first GPU that the process set while it was no rank yet

bool phc_initialised(void) { return atomic_load_explicit(&initialised, memory_order_relaxed); }

cudaError_t phc_ready(void) {
  if (!phc_initialised()) atomic_store(&initialised, true);
  if (!ph_connected()) {
    // A rank that has said its last goes on without being recorded: objects are destroyed at exit.
    if (connected_process) return connected_process == getpid() ? 0 : cudaErrorInitializationError;
    if (!ph_attached()) return cudaErrorNoDevice;
    phc_see(ph_devices());
    return phc_devices() ? 0 : cudaErrorNoDevice;
  }
  if (!connected_process) {
    phc_see(ph_devices());
    connected_process = getpid();
  }
  return phc_devices() ? 0 : cudaErrorNoDevice;
}

cudaError_t phc_context(void) {
  cudaError_t error = phc_ready();
  if (!error) error = atomic_load_explicit(&sticky, memory_order_relaxed);
  if (error) return error;
  int device = ph_current_device();
  if (ph_attached()) {
    int own = atomic_load(&chosen);  // it opens the memory of another GPU's process before it uses its own GPU
    bool taken = own >= 0 && !ph_has_place(phc_physical(device));
    if (ph_join(phc_physical(taken ? own : device))) return cudaErrorDevicesUnavailable;
    error = phc_ready();
    if (error) return error;
  }
  if (context_device != device) phc_context_set(device);
  return 0;
}

bool phc_use(void) { return !phc_context(); }

cudaError_t phc_device_check(int device) {
  cudaError_t error = phc_ready();
  return error ? error : device >= 0 && device < phc_devices() ? 0 : cudaErrorInvalidDevice;
}

int phc_context_device(void) { return context_device; }

// The context's bytes are seen from now on.
static void begin(int device) {
  if (ph_connected() && ph_shares() && phc_physical(device) == ph_home() && device != ph_home()) {
    ph_record record = {.kind = PH_HOME, .id = (uint32_t)device};
    ph_emit(&record);
  }
  ph_memory_charge(device, 0);
}

void phc_context_set(int device) {
  context_device = device;
  if (device < 0) return;
  int none = -1;
  if (ph_attached()) atomic_compare_exchange_strong(&chosen, &none, device);
  if (device < PH_MAX_DEVICES && !atomic_exchange(&primary_active[device], true)) begin(device);
  ph_set_current_device(device);
}

bool phc_primary_active(int device) { return device >= 0 && device < PH_MAX_DEVICES && primary_active[device]; }

cudaError_t phc_request_failed(void) {
  atomic_store(&sticky, cudaErrorLaunchFailure);
  return cudaErrorLaunchFailure;
}

cudaError_t phc_assertion(void) {
  if (ph_failed_assertion()) atomic_store(&sticky, cudaErrorAssert);
  return atomic_load_explicit(&sticky, memory_order_relaxed);
}

uint8_t phc_helper_flag(void) { return ph_moves_clock() ? 0 : PH_F_HELPER; }
