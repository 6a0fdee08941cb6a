// Calls an operator's CPU form on tensors that alias simulated device memory.
#pragma once
#include <ATen/core/LegacyTypeDispatch.h>

#include "tracer/frames.h"

namespace tracer {

// Everything that stands between a boxed call on CPU tensors and its plain CPU kernel is off.
struct PlainCalls {
  PlainCalls();
  ~PlainCalls();
  at::AutoDispatchBelowADInplaceOrView autograd;
  c10::impl::ExcludeDispatchKeyGuard modes;
};

Tensor alias(const Tensor &t);    // the same bytes as a CPU tensor
Tensor on_host(const Tensor &t);  // the same for a CUDA tensor; others as they are
void store(const Tensor &returned, const Tensor &real);  // what a CPU operator returned becomes the CUDA operator's
uint64_t seed_of(const Frame &f);  // of the random numbers that the operator draws
void call_cpu_kernel(const Operator &op, torch::jit::Stack &stack);
// Computes it at each launch of the graph that is captured; false: no CPU form takes these arguments.
bool compute_later(const Frame &f, Values outputs);
bool compute(Frame &f, Values outputs);  // false: no CPU form takes these arguments

}  // namespace tracer
