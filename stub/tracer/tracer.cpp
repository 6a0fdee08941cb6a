// The operator tracer: sees every ATen operator of a rank through torch's own observer interface
// (at::addGlobalCallback), and so gives kernels their operator, operators their host cost, user
// annotations their row, and small tensors their true bytes.
//
// A frame is pushed per operator and its arguments are kept (reference counts only). Nothing else
// happens unless the operator launches something itself: then begin_frame() computes the
// signature, and op_end() settles what the device memory of its results reads as (docs/values.md).
#include <cstring>

#include "tracer/allocator.h"
#include "tracer/annotations.h"
#include "tracer/assumptions.h"
#include "tracer/bounds.h"
#include "tracer/deferred.h"
#include "tracer/finite.h"
#include "tracer/host_calls.h"
#include "tracer/host_cost.h"
#include "tracer/host_tensors.h"
#include "tracer/modules.h"
#include "tracer/operands.h"
#include "tracer/races.h"
#include "tracer/sequences.h"
#include "tracer/signatures.h"
#include "tracer/values.h"

namespace tracer {

// Slot of an operator: the first of those in which it may be.
static size_t slot_of(const void *name, const void *overload) {
  uint64_t h = reinterpret_cast<uint64_t>(name) * PH_GOLDEN ^ reinterpret_cast<uint64_t>(overload);
  return (h * PH_GOLDEN) >> (64 - OPERATOR_BITS);
}

// The operator of an observed function; null for functions without schema (RECORD_FUNCTION("...")).
static Operator *operator_of(Thread &thread, const at::RecordFunction &fn) {
  const char *name = fn.name(), *overload = fn.overload_name();
  OperatorSlot *first = &thread.operators[slot_of(name, overload)], *slot = first;
  while (slot < first + OPERATOR_WAYS && slot->op && (slot->name != name || slot->overload != overload)) ++slot;
  bool kept = slot < first + OPERATOR_WAYS && slot->op;
  if (C10_LIKELY(kept) && (slot->op->permanent || (slot->op->name == name && slot->op->overload == overload)))
    return slot->op;
  std::optional<c10::OperatorName> full = fn.operator_name();
  Operator *op = full ? find_operator(*full) : nullptr;
  if (op) *(slot < first + OPERATOR_WAYS ? slot : first) = {name, overload, op};
  return op;
}

// First launch in a frame (called by the runtime).
static void begin_frame(ph_frame *ph) {
  auto &f = *static_cast<Frame *>(ph->data);
  if (f.op) f.signature = signature_of(this_thread(), f);
  ph->instance = ph_next_instance();
  ph->signature = f.signature;
  ph->flags = f.backward ? PH_F_BACKWARD : 0;
  ph_record record{};
  record.kind = PH_OP_BEGIN;
  record.flags = ph->flags;
  record.id = f.signature;
  record.op = ph->instance;
  record.op_begin.start = f.start;
  ph_emit(&record);
}

// A frame for the thread's next operator; not known to the runtime until it is pushed.
static Frame &open_frame(Thread &thread, const at::RecordFunction *owner, Operator *op, Values inputs) {
  attach_allocator();
  if (thread.depth == thread.frames.size()) thread.frames.push_back(std::make_unique<Frame>());
  Frame &f = *thread.frames[thread.depth];
  f.owner = owner;
  f.op = op;
  f.pushed = f.carried = f.unsaved = f.below_accessed = false;
  f.moved_host = f.large = false;
  f.below_launched = f.unsettled = f.below_unsettled = f.below_mutated = false;
  f.start = ph_now();
  charge(thread, op, inputs);
  f.python = ph_charged(PH_API_PY_FRAME);
  ++thread.depth;
  f.backward = thread.nodes > 0;
  f.mark = ph_capture_mark();
  f.snapshots.clear();
  f.made.clear();
  f.operands.clear();
  f.device = -1;
  f.early.clear();  // of an operator that asked and then had nothing to launch
  f.made_kernels = 0;
  f.ph = ph_frame{};
  f.ph.begin = begin_frame;
  f.ph.timed = f.start;
  f.ph.own_copies = f.op && f.op->own_copies;
  f.ph.data = &f;
  return f;
}

static void start_operator(Thread &thread, const at::RecordFunction &fn) {
  Operator *op = operator_of(thread, fn);
  if (!op) {
    if (strcmp(fn.name(), "PythonSubclass") == 0) {
      ph_charge(PH_API_OP_PYTHON);
      if (size_t tensors = tensors_in_lists(fn.inputs())) ph_charge_times(PH_API_OP_LIST_PYTHON, tensors);
    }
    note_function(fn);
    return;
  }
  Values inputs = fn.inputs();  // a boxed call shows its whole stack: the arguments are its end
  size_t count = std::min(inputs.size(), op->arguments.size());
  inputs = Values(inputs.end() - count, count);
  note_module(fn);
  if (thread.depth) forget_made(*thread.frames[thread.depth - 1]);
  Frame &f = open_frame(thread, &fn, op, inputs);
  if (op->cost != Cost::COMPUTE && op->cost != Cost::READ) return;
  f.args.assign(inputs.begin(), inputs.end());
  if (count == op->arguments.size()) {
    if (op->in_place) take_snapshots(f);
    if (op->count != Count::NONE) note_answer(f);
    if (op->copies) note_copy(f);
    if (op->reads) note_read(f);
    if (op->tokens == Tokens::LOOKS_UP) note_lookup(f);
  }
  f.pushed = true;
  ph_push_frame(&f.ph);
}

// Ends the innermost frame; `outputs` are the operator's.
static void close_frame(Thread &thread, c10::ArrayRef<IValue> outputs) {
  Frame &f = *thread.frames[--thread.depth];
  bool launched = f.below_launched;
  if (f.pushed && f.op && !launched && !f.ph.instance && !f.moved_host) f.moved_host = charge_memory(f, outputs);
  if (f.pushed && f.op && f.op->copies) charge_copied(f);
  if (f.moved_host && thread.depth) thread.frames[thread.depth - 1]->moved_host = true;
  if (f.pushed) {
    if (f.ph.instance) {
      launched = true;
      ph_record record{};
      record.kind = PH_OP_END;
      record.op = f.ph.instance;
      if (f.op && !f.op->permanent) record.id = signature_with(f, outputs);
      touch_operands(f, outputs, record);
      ph_emit(&record);
    }
    ph_pop_frame(&f.ph);
    if (f.op && f.op->indices && f.ph.kernels && !f.ph.captured) check_indices(f);
    if ((f.ph.kernels || f.below_unsettled) && f.op && f.op->values) {
      size_t count = std::min(outputs.size(), f.op->returns_view.size());
      Values results(outputs.end() - count, count);
      if (f.ph.captured)
        settle_later(f, results);
      else
        settle(thread, f, results);
    } else if (f.carried && !f.ph.captured) {
      settle_copy(f);
    } else if (f.op && launched && !f.ph.captured) {
      settle_empty(f, outputs);
    }
    if (f.op && f.op->holds && launched) settle_test(f, outputs);
    if (C10_UNLIKELY(checks_races)) note_accesses(f, outputs, launched);
    f.args.clear();
  } else {
    if (f.op && f.op->allocates)
      for (const IValue &v : outputs) each_tensor(v, mark_fresh);
    f.unsettled = f.below_unsettled;
  }
  if (f.op && f.op->lists) {
    if (size_t tensors = tensors_in_lists(outputs)) ph_charge_times(PH_API_OP_LIST_OUT, tensors);
  }
  if (launched && thread.depth) thread.frames[thread.depth - 1]->below_launched = true;
  if (f.op && thread.depth) note_made(*thread.frames[thread.depth - 1], outputs);
  if (f.unsettled && thread.depth) thread.frames[thread.depth - 1]->below_unsettled = true;
  if (thread.allocated >= 0) f.large |= flush_pending(thread);
  if (f.large && thread.depth) thread.frames[thread.depth - 1]->large = true;
}

static void end_operator(Thread &thread, const at::RecordFunction &fn) {
  if (!thread.depth || thread.frames[thread.depth - 1]->owner != &fn) return;  // began before the rank did
  const Frame &f = *thread.frames[thread.depth - 1];
  bool native_backward = thread.native_nodes > 0;
  close_frame(thread, fn.outputs());
  if (f.large && !native_backward) note_place(fn, thread.place);
}

// Observers must not throw into torch: it would print a warning per operator. What can fail
// (a CPU form of an operator) is caught where it is called.
static std::unique_ptr<at::ObserverContext> op_start(const at::RecordFunction &fn) {
  if (!active()) return nullptr;
  Thread &thread = this_thread();
  if (thread.silent) return nullptr;
  ph_enter();
  start_operator(thread, fn);
  ph_leave();
  return nullptr;
}

static void op_end(const at::RecordFunction &fn, at::ObserverContext *) {
  if (!active()) return;
  Thread &thread = this_thread();
  if (thread.silent) return;
  ph_enter();
  end_operator(thread, fn);
  ph_leave();
}

}  // namespace tracer

using namespace tracer;

// A kernel that torch.compile generated, for which torch has no operator: what is launched until
// phantora_fused_end is the operator that `text` describes as signature_text does. Returns whether it began.
extern "C" __attribute__((visibility("default"))) int phantora_fused_begin(const char *text, size_t length) {
  if (!active()) return 0;
  Thread &thread = this_thread();
  if (thread.silent) return 0;
  ph_enter();
  Frame &f = open_frame(thread, nullptr, nullptr, {});
  uint64_t hash = ph_hash(text, length, 0);
  if (!ph_name_known(hash, &f.signature)) f.signature = ph_define(hash, PH_DEFINE_SIGNATURE, text, length);
  f.pushed = true;
  ph_push_frame(&f.ph);
  ph_leave();
  return 1;
}

// Address, bytes and whether it is changed, alternately, of the `count` tensors that it touches.
extern "C" __attribute__((visibility("default"))) void phantora_fused_operands(const char *packed, size_t count) {
  Thread &thread = this_thread();
  ph_enter();
  for (size_t i = 0; i < count; ++i) {
    uint64_t one[3];
    memcpy(one, packed + i * sizeof one, sizeof one);
    note_operand(*thread.frames[thread.depth - 1], reinterpret_cast<const void *>(one[0]), one[1], one[2] != 0);
  }
  ph_leave();
}

extern "C" __attribute__((visibility("default"))) void phantora_fused_end(void) {
  Thread &thread = this_thread();
  ph_enter();
  close_frame(thread, {});
  ph_leave();
}

// Called once in the fork server, after `import torch`. Returns 0.
extern "C" __attribute__((visibility("default"))) int phantora_tracer_install(void) {
  using at::RecordFunctionCallback;
  using at::RecordScope;
  at::addGlobalCallback(
      RecordFunctionCallback(op_start, op_end).needsInputs(true).needsOutputs(true).scopes({RecordScope::FUNCTION}));
  at::addGlobalCallback(RecordFunctionCallback(node_start, node_end).scopes({RecordScope::BACKWARD_FUNCTION}));
  at::addGlobalCallback(RecordFunctionCallback(annotation_start, annotation_end).scopes({RecordScope::USER_SCOPE}));
  ph_take_imports();
  install_deferred();
  install_sites();
  watch_host_tensors();
  return 0;
}
