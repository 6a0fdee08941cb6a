// What the device memory of an operator's results reads as (docs/values.md).
#pragma once
#include "tracer/frames.h"

namespace tracer {

void take_snapshots(Frame &f);  // of what the operator will change in place
void note_answer(Frame &f);     // what a data-dependent operator will read back from the device
void settle(Frame &f, Values outputs);  // after an operator that launched kernels itself

}  // namespace tracer
