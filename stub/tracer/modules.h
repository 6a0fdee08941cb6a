// The module of the program that runs, forward and backward, by phantora/rank/patches/modules.py.
#pragma once
#include <ATen/record_function.h>

#include "tracer/frames.h"

namespace tracer {

void note_module(const at::RecordFunction &fn);  // a forward operator: its node's backward belongs to its module
void note_function(const at::RecordFunction &fn);  // an operator written in Python: its node's backward has its place
void note_place(const at::RecordFunction &fn, const std::string &place);  // an operator that made a large block

// A node of the autograd graph begins and ends.
void enter_node(Thread &thread, const at::RecordFunction &fn);
void leave_node(Thread &thread);
std::string module_of(const Thread &thread);  // the one that runs its pass; empty: unknown
std::string backward_place(const Thread &thread);  // of the node that is being applied

}  // namespace tracer
