// The host time of operators (docs/costs.md).
#pragma once
#include "tracer/frames.h"

namespace tracer {

size_t tensors_in_lists(Values values);
// After an operator on CPU tensors: the time of the bytes that it read and wrote. False: it is none, or they are few.
bool charge_memory(const Frame &f, Values outputs);
void charge_copied(const Frame &f);  // after a copy from a GPU: the pages of new memory
void charge(Thread &thread, Operator *op, Values inputs);

}  // namespace tracer
