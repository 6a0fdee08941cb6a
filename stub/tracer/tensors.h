// Tensors as ranges of simulated device memory, and whether their bytes are true.
#pragma once
#include "tracer/operators.h"

namespace tracer {

bool is_python(const Tensor &t);   // a wrapper in Python: what it wraps is not ours to see
bool has_sizes(const Tensor &t);
bool on_device(const Tensor &t);   // a CUDA tensor whose bytes can be looked at
char *bytes_of(const Tensor &t);
size_t extent_of(const Tensor &t); // from the tensor's first to its last byte
void clear(const Tensor &t);       // a kernel that is not computed wrote it: its bytes become zero
bool is_known(const Tensor &t);    // large, yet its bytes are true
void know(const Tensor &t);        // from now on
bool fits(const Tensor &t);        // operators on it can be computed

enum class Size { NO_TENSORS, SMALL, LARGE };
void measure(const IValue &v, Size *size);  // of all tensors that it saw: LARGE when one does not fit

template <typename F>
void each_tensor(const IValue &v, F visit) {
  if (v.isTensor()) {
    visit(v.toTensor());
  } else if (v.isList()) {
    for (const IValue &element : v.toListRef()) {
      if (!element.isTensor()) {
        if (element.isNone()) continue;
        return;
      }
      visit(element.toTensor());
    }
  }
}

}  // namespace tracer
