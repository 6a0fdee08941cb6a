// The host time of operators (docs/costs.md).
#pragma once
#include "tracer/frames.h"

namespace tracer {

size_t tensors_in_lists(Values values);
void charge(Thread &thread, Operator *op, Values inputs);

}  // namespace tracer
