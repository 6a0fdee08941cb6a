// What an operator reads and writes of a GPU's memory, told to the model of its L2 (stub/rank/reuse.c).
#pragma once
#include "tracer/frames.h"

namespace tracer {

// Of an operator that has launched and returns `outputs`; `end` is its end. Says nothing there while it is captured:
// its operands are then touched by each launch of the graph.
void touch_operands(Frame &f, Values outputs, ph_record &end);
// An operand of an operator whose arguments torch does not tell: a Triton kernel.
void note_operand(Frame &f, const void *data, size_t bytes, bool changed);

}  // namespace tracer
