// Work of an execution plan: the engines that a graph is offered, and the description of each.
#pragma once
#include "cudnn/graph.h"

// Graphs in single precision are offered two engines, one on tensor cores (TF32) and one without, as cuDNN does, so
// that a framework's filter on numerical notes decides what the kernel runs in.
int64_t engine_count(const descriptor *operation_graph);
// Engines that a caller may name by index: cudnn-frontend asks for engine 5 or 17 of attention's backward pass on
// Blackwell (override_heuristics_query), which the heuristics do not offer here.
int64_t engine_indices(const descriptor *operation_graph);
bool on_tensor_cores(const graph *g, int64_t engine);
// Condenses the graph, run by `engine`, into one kernel's description, the tensors it writes and its workspace.
bool describe(const graph *g, int64_t engine, summary *out);  // false: no memory of the host
