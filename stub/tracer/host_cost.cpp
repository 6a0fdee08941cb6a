#include "tracer/host_cost.h"

#include "tracer/assumptions.h"
#include "tracer/host_tensors.h"
#include "tracer/places.h"
#include "tracer/tensors.h"
#include "tracer/values.h"

#include <cmath>
#include <utility>

namespace tracer {

// The innermost operator has run Python since it began: a hook's, as of tensors that are kept on the host.
static bool in_python(const Thread &thread) {
  return thread.depth && thread.frames[thread.depth - 1]->python != ph_charged(PH_API_PY_FRAME);
}

// Pinned memory that aten::empty is asked for. An operator that allocates it for itself fills it: FSDP2's _chunk_cat
// writes an index per block of its kernel, which takes a millisecond for a layer of 8 B on one GPU.
static size_t pinned_bytes(const Operator &op, Values inputs) {
  enum { SIZE, DTYPE, LAYOUT, DEVICE, PINNED, ARGUMENTS };
  if (!op.empties || inputs.size() < ARGUMENTS) return 0;
  if (!inputs[PINNED].isBool() || !inputs[PINNED].toBool() || !inputs[DTYPE].isInt()) return 0;
  int64_t bytes = static_cast<int64_t>(c10::elementSize(inputs[DTYPE].toScalarType()));
  for (int64_t n : inputs[SIZE].toIntVector()) bytes *= n;
  return static_cast<size_t>(bytes);
}

size_t tensors_in_lists(Values values) {
  size_t tensors = 0;
  for (const IValue &value : values)
    if (value.isTensorList()) tensors += value.toListRef().size();
  return tensors;
}

// An operator on the host's own memory. A list operator calls one for each of an optimizer's step counts, and is
// charged for its tensors (OP_LIST).
static bool on_host(Values inputs) {
  return !inputs.empty() && inputs[0].isTensor() && inputs[0].toTensor().defined() && inputs[0].toTensor().is_cpu();
}

constexpr size_t LEAST_MOVED = 64 << 10;  // bytes: less is in caches, and in the price of a call

constexpr size_t NOTED = 16 << 20;        // bytes of an operator with a given number of threads

// OMP_NUM_THREADS of the user or of torchrun, or torch.set_num_threads, 0 without: the ranks' own is 1, and MKL limits
// torch's number to the processors of this machine.
static int given_threads;
static bool of_torchrun;
extern "C" __attribute__((visibility("default"))) void phantora_host_threads(int threads, bool torchrun) {
  given_threads = threads;
  of_torchrun = torchrun;
}

static bool is_host(const Tensor &t) {
  return t.defined() && !is_python(t) && t.is_cpu() && t.layout() == at::kStrided;
}
static size_t size_of(const Tensor &t) { return static_cast<size_t>(t.numel()) * t.itemsize(); }

constexpr int64_t LEAST_NOTED = 100000;  // ns of an operator on the CPU that has a row in the log

// Annotates the time of `op` on the CPU since `start` with its line.
static void note_memory(const Operator &op, int64_t start) {
  if (ph_now() - start < LEAST_NOTED || !ph_connected()) return;
  const std::string bare = op.name.substr(op.name.rfind(':') + 1);
  const std::string name =
      "phantora: CPU operators at " + place() + " (" + bare + ")";  // CPU_OPERATORS of phantora/wire/names.py
  ph_record record{};
  record.kind = PH_ANNOTATION;
  record.id = ph_name(ph_hash(name.data(), name.size(), 0), name.data(), name.size());
  record.span.start = start;
  ph_emit(&record);
}

constexpr double NOTED_PRODUCTS = 1e9;  // multiplications of an operator, which take some 10 ms of a core

// About the multiplications of a matrix product or a convolution on the CPU: mkn from the sizes mk, kn and mn.
static double multiplications(const Frame &f, Values outputs) {
  if (!is_one_of(f.op->name, {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::matmul", "aten::linear",
                              "aten::convolution", "aten::conv1d", "aten::conv2d", "aten::conv3d"}))
    return 0;
  double sizes[2] = {0, 0};  // of the two largest operands
  for (const IValue &arg : f.args)
    each_tensor(arg, [&](const Tensor &t) {
      double size = t.defined() ? static_cast<double>(t.numel()) : 0;
      if (size > sizes[0]) std::swap(sizes[0], size);
      if (size > sizes[1]) sizes[1] = size;
    });
  double out = 0;
  for (const IValue &value : outputs)
    each_tensor(value, [&](const Tensor &t) { out += t.defined() ? static_cast<double>(t.numel()) : 0; });
  return std::sqrt(sizes[0] * sizes[1] * out);
}

bool charge_memory(const Frame &f, Values outputs) {
  size_t read = 0, written = 0, fresh = 0;
  size_t filled = 0;  // written but not read: the caches read what they are about to write, unless its pages are new
  bool host = true;
  for (size_t i = 0; i < f.args.size() && host; ++i)
    each_tensor(f.args[i], [&](const Tensor &t) {
      host = host && (!t.defined() || is_host(t));
      if (host && t.defined() && !f.op->arguments[i].out) read += size_of(t);
    });
  if (!host) return false;
  for (size_t i = 0; i < f.args.size(); ++i)
    if (f.op->arguments[i].mutated)
      each_tensor(f.args[i], [&](const Tensor &t) {
        if (!t.defined()) return;
        size_t made = take_new(t);
        written += size_of(t);
        fresh += made;
        if (f.op->arguments[i].out && !is_read(f, t)) filled += size_of(t) - made;
      });
  bool changes = written > 0;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!changes && (i >= f.op->returns_view.size() || !f.op->returns_view[i]))
      each_tensor(outputs[i], [&](const Tensor &t) {
        if (!is_host(t)) return;
        size_t made = take_new(t);
        written += size_of(t);
        fresh += made;
        filled += size_of(t) - made;
      });
  // These read as much of their first tensor as they write.
  if (is_one_of(f.op->name, {"aten::index", "aten::index_select", "aten::gather", "aten::take", "aten::embedding"}))
    read = written;
  if (read + written < LEAST_MOVED) return false;
  if (ph_connected() && ph_moves_clock() && multiplications(f, outputs) >= NOTED_PRODUCTS)
    note_assumption("products on the CPU take the time of their memory only");
  if ((!given_threads || of_torchrun) && read + written >= NOTED && ph_connected() && ph_moves_clock())
    note_assumption(of_torchrun ? "CPU operators run on 1 thread, as torchrun sets OMP_NUM_THREADS"
                                : "CPU operators run on 16 threads of each rank (OMP_NUM_THREADS sets them)");
  bool serial = f.op->name == "aten::linalg_vector_norm" && outputs.size() == 1 && outputs[0].isTensor() &&
                outputs[0].toTensor().numel() == 1;
  const int64_t start = ph_now();
  ph_charge_memory(read + written + filled, fresh,
                   serial ? 1 : given_threads);  // torch's norm of all elements is one loop
  note_memory(*f.op, start);
  return true;
}

void charge_copied(const Frame &f) {
  if (f.args.size() < 2 || !f.args[0].isTensor() || !f.args[1].isTensor()) return;
  const Tensor &to = f.args[0].toTensor(), &from = f.args[1].toTensor();
  if (!is_host(to) || !from.defined() || !from.is_cuda()) return;
  size_t fresh = take_new(to);
  ph_range pinned;  // its pages were made when it was pinned
  if (fresh && !ph_memory_find(to.const_data_ptr(), &pinned)) ph_charge_bytes(PH_API_HOST_FAULT_GIB, fresh);
}

// torch.tensor() of a Python list makes an empty tensor on the CPU, writes number after number to it and calls
// lift_fresh.
static void charge_list(Thread &thread, const Operator &op, Values inputs) {
  enum { SIZE, DTYPE, LAYOUT, DEVICE };
  if (op.empties) {
    bool here = inputs.size() > DEVICE && (!inputs[DEVICE].isDevice() || inputs[DEVICE].toDevice().is_cpu());
    thread.list = here ? c10::multiply_integers(inputs[SIZE].toIntVector()) : 0;
  } else if (op.lifts && !inputs.empty() && inputs[0].isTensor()) {
    if (inputs[0].toTensor().numel() == thread.list)
      ph_charge_times(PH_API_PY_ELEMENT, static_cast<size_t>(thread.list));
    thread.list = 0;
  }
}

// The host time of an operator (docs/costs.md): by what it does, its caller, how many tensors it
// takes in lists, and whether autograd notes it.
void charge(Thread &thread, Operator *op, Values inputs) {
  bool nested = thread.depth > 0 || thread.native_nodes > 0;
  if (op && thread.depth == 0) ph_charge_cold(PH_API_OP_COLD, &op->last, 1);
  if (op && !nested) charge_list(thread, *op, inputs);
  switch (op ? op->cost : Cost::COMPUTE) {
    case Cost::COMPUTE:
      if (thread.depth > 0 && on_host(inputs)) break;
      if (!nested) ph_called_from_python();
      ph_charge(thread.depth > 0 ? PH_API_OP_NESTED : thread.native_nodes > 0 ? PH_API_OP_NODE : PH_API_OP_TOP);
      break;
    case Cost::VIEW:
    case Cost::READ:
      ph_charge(nested ? PH_API_OP_VIEW_NESTED : PH_API_OP_VIEW);
      break;
    case Cost::ALLOC:
      ph_charge(nested ? PH_API_OP_ALLOC_NESTED : PH_API_OP_ALLOC);
      if (nested && !in_python(thread)) ph_charge_bytes(PH_API_HOST_FILL_GIB, pinned_bytes(*op, inputs));
      break;
    case Cost::ANNOTATION:
      return ph_charge(PH_API_OP_TOP);
  }
  if (op && op->lists) {
    if (size_t tensors = tensors_in_lists(inputs)) ph_charge_times(PH_API_OP_LIST, tensors);
    if (op->parameters && !nested && !inputs.empty() && inputs[0].isTensorList())
      ph_charge_cold(PH_API_LIST_COLD, &thread.listed, inputs[0].toListRef().size());
    if (thread.optimizing && !nested && !inputs.empty() && inputs[0].isTensorList())
      thread.lists[op] += inputs[0].toListRef().size();
  }
  if (!at::GradMode::is_enabled() || c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradCUDA)) return;
  for (const IValue &value : inputs)
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad())
      return ph_charge(PH_API_OP_GRAD);
}

}  // namespace tracer
