#include "tracer/values.h"

#include <cstring>

#include "tracer/host_calls.h"
#include "tracer/tensors.h"

namespace tracer {

constexpr size_t SNAPSHOT_BYTES = 1 << 16;

// Keeps the bytes of small tensors that the operator will change in place: operators below it may
// change them too, and the whole operator is computed from what it was given.
void take_snapshots(Frame &f) {
  f.snapshots.clear();
  f.saved.clear();
  for (size_t i = 0; i < f.args.size(); ++i) {
    if (!f.op->arguments[i].mutated || f.op->arguments[i].out) continue;
    bool small = true;
    each_tensor(f.args[i], [&](const Tensor &t) {
      small = small && fits(t);
      if (!small || !t.numel()) return;
      size_t extent = extent_of(t), offset = f.saved.size();
      if (extent > SNAPSHOT_BYTES) return;
      char *data = bytes_of(t);
      ph_touch(data, extent);
      f.saved.insert(f.saved.end(), data, data + extent);
      f.snapshots.push_back({data, offset, extent});
    });
  }
}

// What the CUDA form of a data-dependent operator reads back from the device in the middle, to size
// its result or as its result (docs/values.md). Large tensors count as zeros.
static int64_t answer_of(const Frame &f, const Tensor &input, bool small) {
  bool boolean = input.scalar_type() == at::kBool && is_one_of(f.op->name, {"aten::_unique", "aten::_unique2"});
  if (f.op->count == Count::EQUAL) {
    if (!small) return 1;
    torch::jit::Stack stack{alias(input), on_host(f.args[1].toTensor())};
    call_cpu_kernel(*f.op, stack);
    return stack[0].toBool();
  }
  if (!small) return f.op->count == Count::UNIQUE && !boolean && input.numel() ? 1 : 0;
  Tensor host = alias(input);
  if (boolean) return host.sum().item<int64_t>();  // these read the number of true elements
  if (f.op->count == Count::NONZERO) return host.count_nonzero().item<int64_t>();
  torch::jit::Stack stack{host};
  for (size_t i = 1; i < f.args.size(); ++i) stack.push_back(f.args[i]);
  call_cpu_kernel(*f.op, stack);
  bool by_dim = is_one_of(f.op->name, {"aten::unique_dim", "aten::unique_dim_consecutive"});
  return stack[0].toTensor().size(by_dim ? f.args[1].toInt() : 0);
}

void note_answer(Frame &f) {
  Size size = Size::NO_TENSORS;
  measure(f.args[0], &size);
  if (f.op->count == Count::EQUAL) measure(f.args[1], &size);
  if (size == Size::NO_TENSORS || !on_device(f.args[0].toTensor())) return;
  PlainCalls plain;
  try {
    f.ph.readback_value = answer_of(f, f.args[0].toTensor(), size == Size::SMALL);
    f.ph.readback = 1;
  } catch (const std::exception &) {
    // The CUDA operator will refuse the same arguments.
  }
}

// After an operator that launched kernels itself.
void settle(Frame &f, Values outputs) {
  Size size = Size::NO_TENSORS;
  bool known = false;  // what comes of known tensors is known, however large
  for (size_t i = 0; i < f.args.size(); ++i) {
    const Argument &argument = f.op->arguments[i];
    if (argument.out) continue;
    measure(f.args[i], &size);
    if (size == Size::LARGE) break;
    each_tensor(f.args[i], [&](const Tensor &t) {
      if (!t.defined() || !is_known(t)) return;
      known = true;
      if (argument.mutated) size = Size::LARGE;  // no snapshot was taken of it
    });
  }
  if (!known) {
    for (size_t i = 0; i < f.args.size(); ++i)
      if (f.op->arguments[i].out) measure(f.args[i], &size);
    for (const IValue &v : outputs) measure(v, &size);
  }
  if (size == Size::NO_TENSORS) return;
  bool finished = outputs.size() == f.op->returns_view.size();  // no when it threw
  if (size == Size::SMALL && finished) {
    if (f.below_launched)
      for (const Snapshot &s : f.snapshots) memcpy(s.data, f.saved.data() + s.offset, s.bytes);
    if (compute(f, outputs)) {
      if (known)
        for (const IValue &v : outputs) each_tensor(v, know);
      return;
    }
  }
  for (size_t i = 0; i < f.args.size(); ++i)
    if (f.op->arguments[i].mutated && i != f.op->keeps) each_tensor(f.args[i], clear);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (i >= f.op->returns_view.size() || !f.op->returns_view[i]) each_tensor(outputs[i], clear);
}

}  // namespace tracer
