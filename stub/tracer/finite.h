// Unknown reals are finite.
#pragma once
#include "tracer/frames.h"

namespace tracer {

// After an operator that was computed from guesses: what is not finite in its results becomes zero, unless something that
// it was given was not finite.
void stay_finite(const Frame &f, Values outputs);

}  // namespace tracer
