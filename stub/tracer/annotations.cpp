#include "tracer/annotations.h"

#include <cstring>

#include "tracer/allocator.h"
#include "tracer/assumptions.h"
#include "tracer/modules.h"
#include "tracer/uses.h"

namespace tracer {

// Nodes of the autograd graph. Those written in C++ are named MulBackward0 (a digit at the end),
// torch::autograd::AccumulateGrad and the like; Python's are named after their class.
static bool is_native_node(const char *name) {
  size_t length = strlen(name);
  return length && ((name[length - 1] >= '0' && name[length - 1] <= '9') || !strncmp(name, "torch::", 7));
}

std::unique_ptr<at::ObserverContext> node_start(const at::RecordFunction &fn) {
  if (!active()) return nullptr;
  ph_enter();
  Thread &thread = this_thread();
  bool native = is_native_node(fn.name()), leaf = !strcmp(fn.name(), "torch::autograd::AccumulateGrad");
  ph_charge_handover();
  ph_charge(leaf ? PH_API_OP_ACCUMULATE : native ? PH_API_OP_BACKWARD : PH_API_OP_BACKWARD_PYTHON);
  ++thread.nodes;
  if (native) ++thread.native_nodes;
  enter_node(thread, fn);
  ph_leave();
  return nullptr;
}

void node_end(const at::RecordFunction &fn, at::ObserverContext *) {
  if (!active()) return;
  Thread &thread = this_thread();
  ph_enter();
  leave_node(thread);
  ph_leave();
  if (thread.nodes) --thread.nodes;
  if (thread.native_nodes && is_native_node(fn.name())) --thread.native_nodes;
}

struct Annotation : at::ObserverContext {
  int64_t start;
  std::map<const Operator *, size_t> outer;  // the lists of an optimizer's call around this one
  bool optimizing = false;                   // inside of one
  std::string phase;                         // around this one
  explicit Annotation(int64_t at) : start(at) {}
};

static bool is_phase(const char *name) { return !strncmp(name, "FSDP::", 6); }

static bool is_optimizer_step(const char *name) { return !strncmp(name, "Optimizer.step#", 15); }

static bool walks_parameters(const char *name) {
  return is_optimizer_step(name) || !strncmp(name, "Optimizer.zero_grad#", 20);
}

// The Python of an optimizer's step runs through its parameters before it hands them over in lists, as zero_grad does
// (validation/probes/host_nested.py: 0.4 us each on the reference host, in addition to the list's).
// Every list operator sees them all, some more than once: the least is their number.
static size_t parameters_of(const std::map<const Operator *, size_t> &lists) {
  size_t least = 0;
  for (auto &[op, tensors] : lists)
    if (!least || tensors < least) least = tensors;
  return least;
}

std::unique_ptr<at::ObserverContext> annotation_start(const at::RecordFunction &fn) {
  if (!active()) return nullptr;
  ph_enter();
  auto context = std::make_unique<Annotation>(ph_now());
  ph_charge(PH_API_ANNOTATION);
  if (walks_parameters(fn.name())) {
    context->outer.swap(this_thread().lists);
    context->optimizing = this_thread().optimizing;
    this_thread().optimizing = true;
  }
  if (is_phase(fn.name())) {
    context->phase.swap(this_thread().phase);
    this_thread().phase = fn.name();
  }
  ph_leave();
  return context;
}

void annotation_end(const at::RecordFunction &fn, at::ObserverContext *context) {
  if (!active() || !context) return;
  ph_enter();
  const char *name = fn.name();
  size_t length = strlen(name);
  if (walks_parameters(name)) {
    Thread &thread = this_thread();
    if (size_t parameters = parameters_of(thread.lists)) ph_charge_times(PH_API_OPTIMIZER_PARAM, parameters);
    thread.lists.swap(static_cast<Annotation *>(context)->outer);
    thread.optimizing = static_cast<Annotation *>(context)->optimizing;
  }
  if (is_optimizer_step(name)) {
    step_ended();
    ph_unmodelled_step();
  }
  if (is_phase(name)) this_thread().phase.swap(static_cast<Annotation *>(context)->phase);
  ph_record record{};
  record.kind = PH_ANNOTATION;
  record.id = ph_name(ph_hash(name, length, 0), name, length);
  record.span.start = static_cast<Annotation *>(context)->start;
  ph_emit(&record);
  if (is_optimizer_step(name)) optimizer_stepped();
  ph_leave();
}

}  // namespace tracer

// The start of an annotation that costs no time, for phantora_span_end; -1 outside of a rank.
extern "C" __attribute__((visibility("default"))) int64_t phantora_span_begin(void) {
  if (!tracer::active()) return -1;
  ph_enter();
  int64_t start = ph_now();
  ph_leave();
  return start;
}

extern "C" __attribute__((visibility("default"))) void phantora_span_end(const char *name, int64_t start) {
  if (!tracer::active() || start < 0) return;
  size_t length = strlen(name);
  ph_enter();
  ph_record record{};
  record.kind = PH_ANNOTATION;
  record.id = ph_name(ph_hash(name, length, 0), name, length);
  record.span.start = start;
  ph_emit(&record);
  ph_leave();
}
