// coalesce of sparse COO tensors with known indices: how many are left, and which (docs/values.md).
#pragma once
#include "tracer/frames.h"

namespace tracer {

void note_coalesced(Frame &f);                      // what coalesce will read back from the device
bool settle_coalesced(Frame &f, Values outputs);    // its results become true; false: they are not known

}  // namespace tracer
