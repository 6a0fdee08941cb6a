// Whether CUDA can be used in this process and thread.
#pragma once
#include "abi/cuda_abi.h"
#include "rank/rank.h"

#pragma GCC visibility push(default)


// Is there a device? 0, cudaErrorNoDevice (not connected), cudaErrorInitializationError (a child
// forked by a rank that had used CUDA), or the sticky error that ended the context.
cudaError_t phc_ready(void);
bool phc_initialised(void);  // has phc_ready been called?
// The same for calls that create or need a context: makes the current device's primary context
// current in this thread.
cudaError_t phc_context(void);
cudaError_t phc_device_check(int device);  // cudaErrorInvalidDevice for a bad ordinal
int phc_context_device(void);              // device of this thread's current context, -1 none
void phc_context_set(int device);          // -1: no context is current
bool phc_primary_active(int device);
// A request's negative status means that the simulation cannot go on: the context is lost, as after
// a device fault. Returns the error that calls have from now on.
cudaError_t phc_request_failed(void);
uint8_t phc_helper_flag(void);  // of a request: PH_F_HELPER in a thread that does not move the clock

#pragma GCC visibility pop
