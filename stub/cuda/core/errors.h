// Names and texts of CUDA's error codes, which the runtime and the driver share.
#pragma once
#include <stdbool.h>
#include "abi/cuda_abi.h"

#pragma GCC visibility push(default)

bool phc_is_sticky(cudaError_t code);                 // it ends the context: later calls return it too
const char *phc_error_name(int code, bool driver);    // NULL when unknown
const char *phc_error_text(int code, bool driver);

#pragma GCC visibility pop
