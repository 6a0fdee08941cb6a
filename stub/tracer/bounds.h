// Indices that a kernel finds out of range end the context, as the device-side asserts of torch's kernels do.
#pragma once
#include "tracer/frames.h"

namespace tracer {

struct IndexRule;
const IndexRule *index_rule(const std::string &name);  // of the operator's CUDA kernel; null: it takes no indices
void check_indices(const Frame &f);  // of an operator that launched its kernel; those that are known

}  // namespace tracer
