// torch's headers take types and functions of the runtime; the rest of NVIDIA's file is for code that nvcc compiles.
#pragma once
#include <cuda_runtime_api.h>
