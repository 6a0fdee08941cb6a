// Sequences of tokens that a program generates, and where they end (`--assume length`, docs/values.md).
#pragma once
#include "tracer/frames.h"

namespace tracer {

void assume_lengths(const std::string &length, const std::string &end);  // as phantora/rank/assume.py checked them
void note_lookup(const Frame &f);  // an embedding reads the tokens of prompts, or the last token of each sequence
void note_comparison(const Frame &f);  // tokens are compared with the number that ends a sequence
// The operator samples a token for each row from unknown numbers: `result` becomes those tokens. False: it does not.
bool sample(const Frame &f, const Tensor &result);

}  // namespace tracer
