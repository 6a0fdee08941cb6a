// Signatures: an operator with its arguments, as text that the cost models read (phantora/cost/parse.py).
#pragma once
#include "tracer/frames.h"

namespace tracer {

struct Hash {
  uint64_t h;
  void add(uint64_t v) {
    __uint128_t m = static_cast<__uint128_t>(h ^ v ^ PH_HASH_0) * PH_HASH_1;
    h = static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
  }
};

// True for x * x, of one tensor or one list of tensors: its kernel reads it once.
bool is_square(const Frame &f);
uint64_t signature_hash(const Frame &f);
// The id of the frame's signature; sends DEFINE_SIGNATURE when it is new.
uint32_t signature_of(Thread &thread, const Frame &f);
// The same with what the operator returned, the only information about the work of one of an extension.
uint32_t signature_with(const Frame &f, c10::ArrayRef<IValue> outputs);

}  // namespace tracer
