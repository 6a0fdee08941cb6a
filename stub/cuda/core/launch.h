// Launches of kernels.
#pragma once
#include "cuda/core/module.h"

#pragma GCC visibility push(default)

enum { PHC_LAUNCH_DRIVER = 1, PHC_LAUNCH_COOP = 2, PHC_LAUNCH_PER_THREAD = 4 };
cudaError_t phc_launch(phc_kernel *kernel, dim3 grid, dim3 block, size_t shared, void *stream, int flags,
                       const cudaLaunchAttribute *attributes, unsigned count, void **arguments);

#pragma GCC visibility pop
