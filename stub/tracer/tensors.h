// Tensors as ranges of simulated device memory, and whether their bytes are true.
#pragma once
#include "tracer/operators.h"

namespace tracer {

bool is_python(const Tensor &t);   // a wrapper in Python: what it wraps is not ours to see
bool has_sizes(const Tensor &t);
int64_t stored_in(const Tensor &t);  // elements that a sparse tensor (COO, CSR, CSC) holds; -1 for others
bool on_device(const Tensor &t);   // a CUDA tensor with readable bytes
char *bytes_of(const Tensor &t);
size_t extent_of(const Tensor &t); // from the tensor's first to its last byte
void clear(const Tensor &t);       // a kernel that is not computed wrote it: its bytes become zero
bool is_large(const Tensor &t);    // its bytes are only true if they are known to be
bool is_part_of_large(const Tensor &t);  // of a large tensor, or large
unsigned truths(const Tensor &t);  // PH_HOLDS, PH_EQUALS, PH_COMPARES: its elements count as true, though unknown
bool seems_unknown(const Tensor &t);  // the same before those bytes are here: what the sender may correct
bool is_unknown(const Tensor &t);  // its bytes follow from unknown values; blocks until bytes of other ranks are here
// Pickled objects and texts lie in rows of bytes; batches of images have more dimensions, and no program reads their
// pixels back.
bool is_object(const Tensor &t);
bool fits(const Tensor &t);  // its bytes are true
bool knows_some(const Tensor &t);  // parts of its bytes are true
bool has_room(const Tensor &t);  // true bytes may be written to it now
void mark(const Tensor &t, bool unknown);  // its bytes are true from now on
void mark_fresh(const Tensor &t);  // of memory that an operator handed out and did not write
bool is_trained(const Tensor &t);  // a parameter, or what follows from one

// What an operator's tensors on the GPU say of its results.
struct Sight {
  bool tensors = false;  // there are some
  bool absent = false;  // some have no true bytes
  bool unknown = false, large = false, trained = false;
};
// First for all tensors, then for known ones; changed: a fresh one counts as known.
void inspect(const IValue &v, Sight *sight, bool changed = false);
void inspect_values(const IValue &v, Sight *sight, bool changed = false);  // waits for bytes of other ranks

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
