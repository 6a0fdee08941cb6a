// Unknown reals are finite.
#pragma once
#include "tracer/frames.h"

namespace tracer {

// After an operator that was computed from unknown values: what is not finite in its results becomes zero, unless
// something that it was given was not finite.
void stay_finite(const Frame &f, Values outputs);

bool all_finite(at::ScalarType type, const char *bytes, size_t extent);
void make_finite(at::ScalarType type, char *bytes, size_t extent);  // what is not becomes zero

// True if there is an infinity or a NaN in the tensors of `v` with true bytes.
bool holds_infinity(const IValue &v);

// Selections that unknown masks left empty: from the first on, what is computed of empty tensors is unknown (their mean
// would be NaN).
void note_empty();
bool is_empty_unknown(const Tensor &t);
void settle_empty(const Frame &f, Values outputs);  // after an operator without kernels of its own

}  // namespace tracer
