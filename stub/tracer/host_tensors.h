// Counts the large tensors on the CPU: the host's memory of a rank, and what of it is new.
#pragma once
#include "tracer/tensors.h"

namespace tracer {

void watch_host_tensors();  // once, after `import torch`
// Bytes of the tensor's memory on pages that the first operator that writes them makes. It asks once.
size_t take_new(const Tensor &t);

}  // namespace tracer
