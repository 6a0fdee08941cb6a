// Functions of the host that a stream calls.
#pragma once
#include "abi/cuda_abi.h"
#include "rank/rank.h"

#pragma GCC visibility push(default)

// Runs `function` on a helper thread once the stream's earlier work is done.
cudaError_t phc_host_function(void *stream, bool per_thread, cudaHostFn_t function, void *data);
// cudaStreamAddCallback: the same with the stream and a status as arguments.
cudaError_t phc_callback(void *stream, bool per_thread, cudaStreamCallback_t function, void *data,
                         unsigned flags);
// After a wait: whatever is due in virtual time must have run in real time too.
void phc_finish_host_calls(void);

#pragma GCC visibility pop
