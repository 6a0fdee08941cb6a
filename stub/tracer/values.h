// What the device memory of an operator's results reads as (docs/values.md).
#pragma once
#include "tracer/frames.h"

namespace tracer {

void take_snapshots(Frame &f);  // of what the operator will change in place
void note_answer(Frame &f);     // what a data-dependent operator will read back from the device
void note_copy(Frame &f);       // whether a copy to the device carries its bytes
void settle(Thread &thread, Frame &f, Values outputs);  // after an operator that launched kernels itself
void settle_copy(const Frame &f);                       // after a copy that took no kernel
void settle_later(const Frame &f, Values outputs);      // after one that was captured: at each launch of the graph

}  // namespace tracer
