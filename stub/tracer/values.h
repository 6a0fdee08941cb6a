// Values of the device memory of an operator's results (docs/values.md).
#pragma once
#include "tracer/frames.h"

namespace tracer {

void take_snapshots(Frame &f);  // of what the operator will change in place
bool is_read(const Frame &f,
             const Tensor &out);  // an out= argument that the operator reads as well, under another name
void note_answer(Frame &f);     // what a data-dependent operator will read back from the device
void note_copy(Frame &f);       // whether a copy to the device carries its bytes
void settle(Thread &thread, Frame &f, Values outputs);  // after an operator that launched kernels itself
void settle_copy(const Frame &f);                       // after a copy that took no kernel
void settle_test(const Frame &f, Values outputs);       // after one with a result that zeros make true
void settle_later(const Frame &f, Values outputs);      // after one that was captured: at each launch of the graph
// An extension's kernels write tensors that operators below it made, unseen by them (torchvision's nms its mask).
void note_made(Frame &f, Values results);  // an operator below `f` has ended
void forget_made(Frame &f);  // another begins: what `f` launched itself since may have written all of them

}  // namespace tracer
