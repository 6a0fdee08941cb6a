// The GPU memory that an operator reads and writes, for the model of L2 (stub/rank/memory/l2.c).
#pragma once
#include "tracer/frames.h"

namespace tracer {

// Of an operator that has launched and returns `outputs`: its hit share goes to `end`. A captured operator has none
// there; each launch of the graph touches its operands.
void touch_operands(Frame &f, Values outputs, ph_record &end);
// An operand of an operator without arguments in torch: a Triton kernel.
void note_operand(Frame &f, const void *data, size_t bytes, bool changed);

}  // namespace tracer
