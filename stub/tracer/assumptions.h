// Assumed values in place of unknown ones (docs/values.md), and rows for those that a program reads.
#pragma once
#include "tracer/frames.h"

namespace tracer {

// A row of the log: "assumed: WHAT at FILE:LINE", of the Python code that runs.
void note_assumption(const std::string &what);
std::string short_name(const Operator &op);  // nonzero, of aten::nonzero

// The operator's unknown results are cleared: gives those that stand for a choice or a loss what is assumed of them.
void assume_results(const Frame &f, Values outputs);
void assume_sample(const Frame &f, Values outputs);  // a token that is sampled from unknown values
bool assume_comparison(const Frame &f, const Tensor &result);  // of unknown values; false: as they are
void assume_true(const Tensor &t);
int64_t assumed_count(const Tensor &mask);   // true elements of an unknown mask
bool assumes_masks();                         // the user gives the share of their true elements
bool assume_overflow();                       // of unknown gradients that are scaled
void scaled_step_ended();                     // the next one may not overflow
int64_t assumed_kept(int64_t boxes);          // boxes that nms keeps of unknown ones
void step_ended();                           // an optimizer's: assumed losses move on
void note_read(const Frame &f);              // an operator brings numbers to the host
void note_unknown_read();    // the host reads an unknown integer
bool host_read_unknown();                         // since it learned one, its own numbers may follow from it

}  // namespace tracer
