// Large known values are computed when something reads them (docs/values.md). An operator with known tensors is
// kept with what it was given, and its results await its bytes (stub/rank/memory/payload.c).
#pragma once
#include "tracer/frames.h"
#include "tracer/tensors.h"

namespace tracer {

bool is_deferred(const Tensor &t);   // some of its bytes are still to be computed
bool has_deferred(const IValue &v);  // the same of any tensor among `v`
// Its bytes on the CPU, computed if need be; to be read only.
Tensor seen(const Tensor &t);
double cost_to_see(const Tensor &t);  // ns that computing them takes; infinite if other ranks are to send some
void await_senders(const Tensor &t);  // with their bytes comes what they know of them
// Keeps the operator for later. NOW: it cannot be kept and may be computed at once. NEVER: it costs too much, or no CPU
// form takes its arguments; the results are unknown.
enum class Deferral { LATER, NOW, NEVER };
Deferral defer(const Frame &f, Values outputs, bool unknown);
// Results that are computed already (of operators that read their number back) become those of the operator.
void bind(const Tensor &real, Tensor host);
// A copy of the host's tensor `from` becomes what `to` holds. False: there is no memory for it.
bool defer_copy(const Tensor &to, const Tensor &from);
void install_deferred();

}  // namespace tracer
