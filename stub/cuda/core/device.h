// A process's GPUs: which it sees, how they are named, their attributes and limits, its contexts, errors.
#pragma once
#include <stdbool.h>
#include "abi/cuda_abi.h"
#include "rank/rank.h"

#pragma GCC visibility push(default)

// ---- visible.c: which of its host's GPUs a process sees.
void phc_see(int devices);     // of the host's, those that CUDA_VISIBLE_DEVICES names
bool phc_use(void);            // the current GPU is about to be used: a process that is no rank yet becomes one
int phc_devices(void);         // that this process sees; once phc_ready() has been called
int phc_physical(int device);  // the host's number of one that is seen

// ---- identity.c: how a host's GPUs are distinguished. All take the host's number of a GPU.
#define PHC_UUID_TEXT 41
int phc_pci_bus(int device);  // bus number; domain 0, device 0, function 0
void phc_device_uuid(int device, unsigned char uuid[16]);
void phc_uuid_text(int device, char text[PHC_UUID_TEXT]);  // GPU-xxxxxxxx-...

// ---- context.c: whether CUDA can be used in this process and thread.
// Is there a device? 0, cudaErrorNoDevice (not connected) or cudaErrorInitializationError (a child
// forked by a rank that had used CUDA).
cudaError_t phc_ready(void);
bool phc_initialised(void);  // has phc_ready been called?
// The same for calls that create or need a context: makes the current device's primary context
// current in this thread, or gives the sticky error that ended it.
cudaError_t phc_context(void);
cudaError_t phc_device_check(int device);  // cudaErrorInvalidDevice for a bad ordinal
int phc_context_device(void);              // device of this thread's current context, -1 none
void phc_context_set(int device);          // -1: no context is current
bool phc_primary_active(int device);
// A request's negative status means that the simulation cannot go on: the context is lost, as after
// a device fault. Returns the error that calls have from now on.
cudaError_t phc_request_failed(void);
// The host has waited for the GPU: cudaErrorAssert, from now on, if a kernel's assertion failed.
cudaError_t phc_assertion(void);
uint8_t phc_helper_flag(void);  // of a request: PH_F_HELPER in a thread that does not move the clock

// ---- device.c: attributes, limits and peers of devices.
#define PHC_SHARED_DEFAULT (48 * 1024)   // bytes of shared memory a kernel may use without asking

// CUdevice_attribute and cudaDeviceAttr share their numbers. false: no such attribute.
bool phc_attribute(int attribute, int device, int *value);
cudaError_t phc_limit(int limit, size_t *value);
cudaError_t phc_set_limit(int limit, size_t value);
cudaError_t phc_can_access_peer(int *can, int device, int peer);
cudaError_t phc_peer_access(int device, int peer, bool enable);
cudaError_t phc_p2p_attribute(int *value, int attribute, int source, int destination);

// ---- errors.c: names and texts of CUDA's error codes, which the runtime and the driver share.
bool phc_is_sticky(cudaError_t code);                 // it ends the context: later calls return it too
const char *phc_error_name(int code, bool driver);    // NULL when unknown
const char *phc_error_text(int code, bool driver);

#pragma GCC visibility pop
