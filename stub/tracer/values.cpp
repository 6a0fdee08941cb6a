#include "tracer/values.h"

#include <cmath>
#include <cstring>

#include "tracer/assumptions.h"
#include "tracer/deferred.h"
#include "tracer/finite.h"
#include "tracer/host_calls.h"
#include "tracer/sequences.h"
#include "tracer/sparse.h"
#include "tracer/tensors.h"

namespace tracer {

constexpr size_t SNAPSHOT_BYTES = 1 << 16;
constexpr int64_t COPIED_REALS = 1 << 22;  // elements of a copy from the host that are kept
constexpr int64_t KNOWN_REALS =
    PH_SMALL_ELEMENTS > 1 << 16 ? PH_SMALL_ELEMENTS : 1 << 16;  // that follow from parameters

bool is_read(const Frame &f, const Tensor &out) {
  bool read = false;
  for (size_t i = 0; i < f.args.size() && !read; ++i)
    if (!f.op->arguments[i].mutated)
      each_tensor(f.args[i], [&](const Tensor &t) {
        read |= t.defined() && !is_python(t) && t.has_storage() && t.is_alias_of(out);
      });
  return read;
}

// Keeps the bytes of small tensors that the operator will change in place: operators below it may
// change them too, and the whole operator is computed from what it was given.
void take_snapshots(Frame &f) {
  f.snapshots.clear();
  f.saved.clear();
  f.unsaved = false;
  for (size_t i = 0; i < f.args.size(); ++i) {
    if (!f.op->arguments[i].mutated) continue;
    bool small = true;
    each_tensor(f.args[i], [&](const Tensor &t) {
      small = small && on_device(t) && !is_large(t) && fits(t);
      if (!small || !t.numel() || (f.op->arguments[i].out && !is_read(f, t))) return;
      size_t extent = extent_of(t), offset = f.saved.size();
      if (extent > SNAPSHOT_BYTES) return;
      if (is_deferred(t)) {
        f.unsaved = true;
        return;
      }
      char *data = bytes_of(t);
      ph_touch(data, extent);
      f.saved.insert(f.saved.end(), data, data + extent);
      f.snapshots.push_back({data, offset, extent});
    });
  }
}

// ---------------------------------------------------------------- answers
static bool counts_true_elements(const Frame &f) {  // these read back how many elements of a mask are true
  return is_one_of(f.op->name, {"aten::_unique", "aten::_unique2"}) && f.args[0].toTensor().scalar_type() == at::kBool;
}

// The operator's own results tell what its CUDA form reads back in the middle.
static int64_t known_answer(Frame &f, const Tensor &input) {
  torch::jit::Stack stack{seen(input)};
  if (f.op->count == Count::KEEPS) {
    stack.push_back(seen(f.args[1].toTensor()));
    stack.push_back(f.args[2]);
    call_cpu_kernel(*f.op, stack);
    f.early = stack;
    return stack[0].toTensor().numel();
  }
  if (f.op->text == "aten::nonzero.out") return stack[0].toTensor().count_nonzero().item<int64_t>();
  if (f.op->count == Count::EQUAL)
    stack.push_back(seen(f.args[1].toTensor()));
  else
    stack.insert(stack.end(), f.args.begin() + 1, f.args.end());
  call_cpu_kernel(*f.op, stack);
  if (f.op->count == Count::EQUAL) return stack[0].toBool();
  f.early = stack;
  if (counts_true_elements(f)) return seen(input).sum().item<int64_t>();
  bool by_dim = is_one_of(f.op->name, {"aten::unique_dim", "aten::unique_dim_consecutive"});
  return stack[0].toTensor().size(by_dim ? f.args[1].toInt() : 0);
}

// Values that the CUDA form of a data-dependent operator reads back from the device in the middle, to size
// its result or as its result (docs/values.md). Unknown tensors count as zeros.
static int64_t unknown_answer(const Frame &f, const Tensor &input) {
  if (f.op->count == Count::EQUAL) return 1;
  if (f.op->count == Count::NONZERO) return assumed_count(input);
  if (f.op->count == Count::KEEPS) return assumed_kept(input.size(0));
  return !counts_true_elements(f) && input.numel() ? 1 : 0;
}

static void say(const Frame &f, const Tensor &input) {
  std::string name = short_name(*f.op), value = std::to_string(f.ph.readback_value);
  note_assumption(f.op->count == Count::EQUAL
                      ? name + (f.ph.readback_value ? " is True" : " is False")
                      : name + " finds " + value + " in " + std::to_string(input.numel()) + " elements");
}

// The mask by which an operator around this one picks what it keeps: how many was said there.
static bool is_told_above() {
  for (ph_frame *frame = ph_top_frame(); frame; frame = frame->parent) {
    const Operator *op = static_cast<Frame *>(frame->data)->op;
    if (frame->readback && op && op->count == Count::KEEPS) return true;
  }
  return false;
}

// Unknown tensors count as absent: boxes of zeros would all be kept, and the user gives the share of a mask.
static bool is_assumed(const Frame &f) {
  return f.op->count == Count::KEEPS || (f.op->count == Count::NONZERO && assumes_masks() && f.args[0].isTensor() &&
                                         f.args[0].toTensor().scalar_type() == at::kBool);
}

void note_answer(Frame &f) {
  if (f.op->count == Count::COALESCE) return note_coalesced(f);
  f.early.clear();
  if (f.op->count == Count::FINDS) {  // a pair: found, and where
    f.ph.readback = 2;
    f.ph.readback_value = true;
    return;
  }
  if (is_told_above()) return;
  Sight sight;
  inspect(f.args[0], &sight);
  bool keeps = f.op->count == Count::KEEPS;
  const size_t tensors = keeps || f.op->count == Count::EQUAL ? 2 : 1;
  for (size_t i = 1; i < tensors; ++i) inspect(f.args[i], &sight);
  for (size_t i = 0; i < tensors && !sight.absent; ++i) await_senders(f.args[i].toTensor());
  for (size_t i = 0; i < tensors; ++i) inspect_values(f.args[i], &sight);
  if (!sight.tensors || !on_device(f.args[0].toTensor())) return;
  if (sight.absent || sight.unknown) note_unknown_read();
  sight.absent |= sight.unknown && is_assumed(f);
  if (f.op->name == "aten::allclose" && !sight.absent) return;  // the operators below it find out
  PlainCalls plain;
  try {
    const Tensor &input = f.args[0].toTensor();
    f.ph.readback_value = sight.absent ? unknown_answer(f, input) : known_answer(f, input);
    f.ph.readback = 1;
    if (input.numel() && (sight.absent || sight.unknown) && !f.ph.readback_value && f.op->count != Count::EQUAL)
      note_empty();
    if (input.numel() && !keeps && (sight.absent || sight.unknown)) say(f, input);
  } catch (const std::exception &) {
    // The CUDA operator will refuse the same arguments.
  }
}

// ---------------------------------------------------------------- copies from the host
template <typename T>
static bool all_whole(const Tensor &t) {
  const T *at = t.const_data_ptr<T>(), *end = at + t.numel();
  for (; at < end; ++at) {
    auto x = static_cast<double>(*at);
    if (std::nearbyint(x) != x) return false;
  }
  return true;
}

// Masks and counts are often kept as real numbers.
static bool holds_integers(const Tensor &t) {
  if (c10::isIntegralType(t.scalar_type(), /*includeBool=*/true)) return true;
  if (!t.is_contiguous()) return false;
  switch (t.scalar_type()) {
    case at::kFloat:
      return all_whole<float>(t);
    case at::kDouble:
      return all_whole<double>(t);
    case at::kHalf:
      return all_whole<at::Half>(t);
    case at::kBFloat16:
      return all_whole<at::BFloat16>(t);
    default:
      return false;
  }
}

static bool from_host(const Frame &f) {
  if (!f.args[0].isTensor() || !f.args[1].isTensor() || !on_device(f.args[0].toTensor())) return false;
  const Tensor &from = f.args[1].toTensor();
  return !is_python(from) && from.is_cpu() && from.layout() == at::kStrided;
}

void note_copy(Frame &f) {
  if (!from_host(f) || ph_read_by_kernels_only()) return;
  const Tensor &to = f.args[0].toTensor(), &from = f.args[1].toTensor();
  if (!is_large(to) && !is_part_of_large(to)) return;
  bool trained = is_trained(to) || is_trained(from);
  f.carried = c10::isIntegralType(from.scalar_type(), /*includeBool=*/true) ||
              (trained ? to.numel() <= KNOWN_REALS && holds_integers(from) : to.numel() <= COPIED_REALS);
}

void settle_copy(const Frame &f) {
  const Tensor &to = f.args[0].toTensor();
  if (!is_large(to) || defer_copy(to, f.args[1].toTensor())) mark(to, false);
}

// ---------------------------------------------------------------- results
// Random numbers that a program asks for are known; those that parameters are initialised with are not.
static bool draws(const Thread &thread, const Operator &op) {
  const Operator *above = thread.depth ? thread.frames[thread.depth - 1]->op : nullptr;
  return !op.in_place_only ||
         (above && is_one_of(above->name, {"aten::rand", "aten::randn", "aten::rand_like", "aten::randn_like"}));
}

// Whether the operator may give `t` true bytes: large reals that follow from parameters, and gradients, are unknown,
// but for few numbers that descend from integers.
static bool may_hold(const Thread &thread, const Frame &f, const Sight &inputs, const IValue &v) {
  bool fine = true;
  each_tensor(v, [&](const Tensor &t) {
    if (!fine || !t.defined() || (!is_python(t) && !t.is_cuda())) return;
    fine = on_device(t) && !t._is_zerotensor();
    if (!fine || !is_large(t) || c10::isIntegralType(t.scalar_type(), /*includeBool=*/true)) return;
    if (t.numel() <= KNOWN_REALS && (inputs.large || (!inputs.tensors && !f.op->random))) return;
    fine = !inputs.trained && !is_trained(t) && !f.backward && (!f.op->random || draws(thread, *f.op));
  });
  return fine;
}

// Operators around this one that change the same tensor were given other bytes than it now holds.
static void tell_outer(Thread &thread, const Tensor &t) {
  for (size_t i = 0; i < thread.depth; ++i) {
    Frame &outer = *thread.frames[i];
    if (!outer.pushed || !outer.op || !outer.op->in_place) continue;
    for (size_t j = 0; j < outer.args.size() && j < outer.op->arguments.size(); ++j)
      if (outer.op->arguments[j].mutated)
        each_tensor(outer.args[j], [&](const Tensor &o) {
          if (on_device(o) && o.is_alias_of(t)) outer.below_mutated = true;
        });
  }
}

// Zeros need no memory: what is cleared reads as zero.
static bool writes_zeros(const Frame &f) {
  return f.op->zeroes && (f.args.size() < 2 || (f.args[1].isScalar() && f.args[1].toScalar().equal(0)));
}

static void mark_results(Thread &thread, const Frame &f, Values outputs, bool unknown) {
  for (const IValue &v : outputs) each_tensor(v, [&](const Tensor &t) { mark(t, unknown); });
  for (size_t i = 0; i < f.args.size(); ++i)
    if (f.op->arguments[i].mutated)
      each_tensor(f.args[i], [&](const Tensor &t) {
        mark(t, unknown);
        if (thread.depth && on_device(t) && is_large(t)) tell_outer(thread, t);
      });
}

static bool changed_below(const Frame &f, size_t argument) {
  if (!f.op->arguments[argument].mutated || f.op->arguments[argument].out || !f.below_mutated) return false;
  bool large = false;  // no snapshot was taken of it
  each_tensor(f.args[argument], [&](const Tensor &t) { large |= on_device(t) && is_large(t); });
  return large;
}

static bool is_put_off(const IValue &v) {  // a conjugate or negative that is not made yet cannot be written to
  bool found = false;
  each_tensor(v, [&](const Tensor &t) { found |= t.defined() && (t.is_conj() || t.is_neg()); });
  return found;
}

// Large values, and what follows from values that are still to be computed.
static bool is_for_later(const Frame &f, Values outputs) {
  bool later = false;
  auto inspect = [&](const Tensor &t) { later = later || (on_device(t) && (is_large(t) || is_deferred(t))); };
  for (const IValue &v : f.args) each_tensor(v, inspect);
  for (const IValue &v : outputs) each_tensor(v, inspect);
  return later;
}

// Results that were computed to answer what the operator reads back.
static Deferral bind_early(Frame &f, Values outputs) {
  if (f.early.size() != outputs.size()) return Deferral::NOW;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].isTensor() && f.early[i].isTensor()) bind(outputs[i].toTensor(), f.early[i].toTensor());
  f.early.clear();
  return Deferral::LATER;
}

static bool may_hold_all(const Thread &thread, const Frame &f, Values outputs, const Sight &inputs) {
  for (size_t i = 0; i < f.args.size(); ++i)
    if (f.op->arguments[i].mutated &&
        (!may_hold(thread, f, inputs, f.args[i]) || changed_below(f, i) || is_put_off(f.args[i])))
      return false;
  for (const IValue &v : outputs)
    if (!may_hold(thread, f, inputs, v)) return false;
  return true;
}

// The operator's tensors are true: so become its results, if they are not too many and a CPU form takes them.
static bool settle_known(Thread &thread, Frame &f, Values outputs, const Sight &inputs) {
  if (writes_zeros(f)) {
    each_tensor(f.args[0], clear);
    mark_results(thread, f, outputs, false);
    return true;
  }
  if (f.below_launched) {
    if (f.unsaved) return false;
    for (const Snapshot &s : f.snapshots) {
      ph_touch_drop(s.data, s.bytes);
      ph_memory_copy(s.data, f.saved.data() + s.offset, s.bytes);
    }
  }
  if (inputs.unknown && outputs.size() == 1 && outputs[0].isTensor() && assume_comparison(f, outputs[0].toTensor())) {
    mark_results(thread, f, outputs, true);
    return true;
  }
  if (is_for_later(f, outputs)) {
    Deferral deferral = f.early.empty() ? defer(f, outputs, inputs.unknown) : bind_early(f, outputs);
    if (deferral == Deferral::NEVER) return false;
    if (deferral == Deferral::LATER) {
      mark_results(thread, f, outputs, inputs.unknown);
      return true;
    }
  }
  f.unsettled = !compute(f, outputs);
  if (!f.unsettled && inputs.unknown) stay_finite(f, outputs);
  if (!f.unsettled && inputs.unknown && f.op->tokens == Tokens::SAMPLES) assume_sample(f, outputs);
  if (!f.unsettled) mark_results(thread, f, outputs, inputs.unknown);
  return !f.unsettled;
}

static void forget(const Tensor &t) {
  clear(t);
  if (on_device(t) && !is_large(t)) mark(t, true);
}

// These launch nothing themselves: the operators below them were settled, as comparisons of unknown numbers. By the
// last one torch.distributions tells whether parameters and samples are what they must be, which those of a real run
// are.
void settle_test(const Frame &f, Values outputs) {
  Sight inputs;
  for (const IValue &v : f.args) inspect(v, &inputs);
  for (const IValue &v : f.args) inspect_values(v, &inputs);
  bool rests = inputs.absent || (inputs.unknown && f.op->name == "aten::_is_all_true");
  if (rests && outputs.size() == 1 && outputs[0].isTensor()) assume_true(outputs[0].toTensor());
}

// Unknown gradients are finite, unless the user assumes else. What is known of the others decides.
static void settle_kept(const Frame &f) {
  const IValue &kept = f.args[f.op->keeps];
  if (!kept.isTensor() || !fits(kept.toTensor()) || !(assume_overflow() || holds_infinity(f.args[0]))) return;
  const float one = 1;
  ph_memory_give(bytes_of(kept.toTensor()), &one, sizeof one);
}

// A part of a large tensor with unknown other parts becomes what `t` is.
static void join(const Tensor &t, const Tensor &part) {
  if (is_trained(t) || !(is_object(t) || knows_some(t))) return;
  if (t.is_contiguous() && part.is_contiguous() && t.scalar_type() == part.scalar_type()) {
    ph_memory_copy(bytes_of(part), bytes_of(t), extent_of(t));
    if (!is_large(t)) mark(part, is_unknown(t));
  } else if (!is_large(t) && fits(t)) {
    store(on_host(t), part);
    mark(part, is_unknown(t));
  }
}

// Visits tensors that are joined, each with its part of the result.
template <typename F>
static void each_joined(const Frame &f, Values outputs, F visit) {
  if (outputs.size() != 1 || !outputs[0].isTensor() || !f.args[1].isInt()) return;
  const Tensor &to = outputs[0].toTensor();
  if (!has_room(to) || is_trained(to) || f.backward) return;
  PlainCalls plain;
  const int64_t dim = f.args[1].toInt() < 0 ? f.args[1].toInt() + to.dim() : f.args[1].toInt();
  int64_t at = 0;
  each_tensor(f.args[0], [&](const Tensor &t) {
    if (t.dim() != to.dim()) return;  // an empty one of one dimension
    if (on_device(t) && t.numel()) visit(t, to.narrow(dim, at, t.size(dim)));
    at += t.size(dim);
  });
}

// Tensors that are joined stay what they are, though some are unknown: DDP's buffers, the statistics of SyncBatchNorm
// with their count, pickled objects that are filled up with what lies in memory.
static void settle_joined(const Frame &f, Values outputs) { each_joined(f, outputs, join); }

// Marks the parts of tensors that all have bytes, of which some are unknown.
static void mark_joined(const Frame &f, Values outputs) {
  each_joined(f, outputs, [](const Tensor &t, const Tensor &part) { mark(part, seems_unknown(t)); });
}

void settle(Thread &thread, Frame &f, Values outputs) {
  if (f.op->count == Count::COALESCE && settle_coalesced(f, outputs)) return;
  if (f.op->tokens == Tokens::COMPARES) note_comparison(f);
  if (f.op->ends_scaled) scaled_step_ended();
  Sight inputs;
  for (size_t i = 0; i < f.args.size() && !inputs.absent; ++i)
    if (!f.op->arguments[i].out) inspect(f.args[i], &inputs, f.op->arguments[i].mutated);
  const bool finished = outputs.size() == f.op->returns_view.size();  // no when it threw
  // Bytes of other ranks are waited for only where the results may be true.
  const bool held = !inputs.absent && finished && may_hold_all(thread, f, outputs, inputs);
  for (size_t i = 0; i < f.args.size() && held && !inputs.absent; ++i)
    if (!f.op->arguments[i].out) inspect_values(f.args[i], &inputs, f.op->arguments[i].mutated);
  inputs.absent |= inputs.unknown && is_assumed(f);
  if (held && !inputs.absent && settle_known(thread, f, outputs, inputs)) {
    if (f.op->joins && inputs.unknown) mark_joined(f, outputs);
    return;
  }
  if (finished && f.op->keeps < f.args.size()) settle_kept(f);
  for (size_t i = 0; i < f.args.size(); ++i)
    if (f.op->arguments[i].mutated && i != f.op->keeps) each_tensor(f.args[i], forget);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (i >= f.op->returns_view.size() || !f.op->returns_view[i]) each_tensor(outputs[i], forget);
  if (inputs.absent && finished) assume_results(f, outputs);
  if (finished && f.op->joins) settle_joined(f, outputs);
}

static bool is_extension(const Frame &f) { return f.pushed && f.op && !f.op->permanent && f.op->values; }

void note_made(Frame &f, Values results) {
  if (!is_extension(f)) return;
  for (const IValue &v : results)
    each_tensor(v, [&](const Tensor &t) {
      if (on_device(t) && t.numel() && bytes_of(t)) f.made.push_back({bytes_of(t), extent_of(t), is_large(t)});
    });
}

void forget_made(Frame &f) {
  if (f.made_kernels == f.ph.kernels) return;
  f.made_kernels = f.ph.kernels;
  if (!is_extension(f) || f.ph.captured) return;
  for (const Made &made : f.made) {
    ph_memory_clear(made.data, made.bytes);
    if (!made.large) ph_memory_mark(made.data, made.bytes, PH_UNKNOWN);
  }
}

// A large operator of a graph: what its results read as after each launch.
struct Cleared {
  std::vector<std::pair<char *, size_t>> ranges;
};

static void clear_again(void *data, ph_stream *) {
  for (auto [pointer, bytes] : static_cast<Cleared *>(data)->ranges) ph_memory_clear(pointer, bytes);
}

// For tensors with gaps, all bytes from the first to the last: a graph's results lie in memory of its own.
static void note_range(const Tensor &t, Cleared *cleared) {
  if (on_device(t) && t.numel() && bytes_of(t)) cleared->ranges.emplace_back(bytes_of(t), extent_of(t));
}

static bool is_small(const IValue &v) {
  bool small = true;
  each_tensor(v, [&](const Tensor &t) {
    if (!small || !t.defined() || (!is_python(t) && !t.is_cuda())) return;
    small = on_device(t) && !is_large(t) && has_room(t) && !t.is_conj() && !t.is_neg() && !t._is_zerotensor();
  });
  return small;
}

void settle_later(const Frame &f, Values outputs) {
  bool small = outputs.size() == f.op->returns_view.size();  // no when it threw
  for (const IValue &v : f.args) small = small && is_small(v);
  for (const IValue &v : outputs) small = small && is_small(v);
  if (small && compute_later(f, outputs)) return;
  auto *cleared = new Cleared();
  for (size_t i = 0; i < f.args.size(); ++i)
    if (f.op->arguments[i].mutated && i != f.op->keeps)
      each_tensor(f.args[i], [&](const Tensor &t) { note_range(t, cleared); });
  for (size_t i = 0; i < outputs.size(); ++i)
    if (i >= f.op->returns_view.size() || !f.op->returns_view[i])
      each_tensor(outputs[i], [&](const Tensor &t) { note_range(t, cleared); });
  ph_capture_value(UINT64_MAX, clear_again, [](void *data) { delete static_cast<Cleared *>(data); }, cleared);
}

}  // namespace tracer
