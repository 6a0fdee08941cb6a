#include "tracer/host_calls.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <mutex>
#include <unordered_set>

#include "tracer/signatures.h"
#include "tracer/tensors.h"

namespace tracer {

PlainCalls::PlainCalls()
    : modes(c10::autocast_dispatch_keyset |
            c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                 c10::DispatchKey::PreDispatch, c10::DispatchKey::Functionalize,
                                 c10::DispatchKey::PythonDispatcher, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                 c10::DispatchKey::FuncTorchDynamicLayerBackMode})) {
  ++this_thread().silent;
}
PlainCalls::~PlainCalls() { --this_thread().silent; }

// Straight to the CPU kernel: no observer sees the operator itself.
void call_cpu_kernel(const Operator &op, torch::jit::Stack &stack) {
  // torch's boxing of several out= results refers to arguments that it has already dropped.
  torch::jit::Stack alive(stack);
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

struct Silence : c10::WarningHandler {
  void process(const c10::Warning &) override {}
};

Tensor alias(const Tensor &t) {
  char *data = bytes_of(t);
  if (size_t extent = extent_of(t)) ph_touch(data, extent);
  Tensor host =
      at::from_blob(data, t.sizes(), t.strides(), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
  // A number that was made a tensor has its own rule of type promotion.
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) host.unsafeGetTensorImpl()->set_wrapped_number(true);
  return host;
}

// Conjugates and negatives that were put off are made: CPU kernels below the dispatcher would not see them.
Tensor on_host(const Tensor &t) {
  if (!t.defined() || !t.is_cuda()) return t;
  Tensor host = alias(t);
  if (t.is_conj()) host = host.conj_physical();
  return t.is_neg() ? host.neg() : host;
}

// The argument as the CPU operator takes it: tensors become aliases of the same bytes.
static IValue translate(const IValue &v, const Argument &argument, const at::Generator &generator) {
  if (v.isTensor()) return on_host(v.toTensor());
  if (argument.role == Role::GENERATOR) return generator.defined() ? IValue(generator) : IValue();
  if (v.isDevice()) return v.toDevice().is_cuda() ? IValue(c10::Device(at::kCPU)) : v;
  if (v.isTensorList()) {
    c10::List<Tensor> list;
    list.reserve(v.toListRef().size());
    for (const IValue &element : v.toListRef()) list.push_back(on_host(element.toTensor()));
    return list;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const IValue &element : v.toListRef())
      list.push_back(element.isNone() ? std::optional<Tensor>() : std::optional<Tensor>(on_host(element.toTensor())));
    return list;
  }
  return v;
}

// The CPU operator's result becomes the CUDA operator's result. A result that only one of the
// two has (an optional one that was not asked for) stays zero.
void store(const Tensor &returned, const Tensor &real) {
  if (!on_device(real) || !real.numel()) return;
  if (!returned.defined() || returned.sizes() != real.sizes()) return clear(real);
  Tensor result = returned.resolve_conj().resolve_neg();
  char *to = bytes_of(real);
  size_t extent = extent_of(real);
  if (real.is_conj() || real.is_neg()) {
    Tensor stored = real.is_conj() ? result.conj_physical() : result;
    alias(real).copy_(real.is_neg() ? stored.neg() : stored);
    return ph_memory_wrote(to, extent);
  }
  if (result.const_data_ptr() == to) return;
  if (result.scalar_type() == real.scalar_type() && real.is_contiguous() && result.is_contiguous()) {
    ph_touch_drop(to, extent);
    memcpy(to, result.const_data_ptr(), extent);
  } else {
    alias(real).copy_(result);
  }
  ph_memory_wrote(to, extent);
}

static void store(const IValue &result, const IValue &real) {
  if (real.isTensor() && result.isTensor()) return store(result.toTensor(), real.toTensor());
  if (!real.isTensorList() || !result.isTensorList()) return;
  c10::ArrayRef<IValue> from = result.toListRef(), to = real.toListRef();
  for (size_t i = 0; i < to.size(); ++i) store(i < from.size() ? from[i].toTensor() : Tensor(), to[i].toTensor());
}

// The generator that an operator draws from: its argument, or the device's own.
static at::Generator generator_of(const Frame &f) {
  for (size_t i = 0; i < f.args.size(); ++i)
    if (f.op->arguments[i].role == Role::GENERATOR && f.args[i].isGenerator()) return f.args[i].toGenerator();
  return at::globalContext().defaultGenerator(
      c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(ph_current_device())));
}

// Numbers come from the generator's seed and its offset behind the operator's draw, through a CPU generator of their
// own: the program's CPU stream stays as it is. An operator that is asked before it draws stands where the one before
// it ended, so its name counts too.
static uint64_t seed_at(const Operator &op, uint64_t seed, uint64_t offset) {
  Hash hash{seed};
  hash.add(offset);
  for (char c : op.name) hash.add(static_cast<uint64_t>(c));
  return hash.h;
}

uint64_t seed_of(const Frame &f) {
  at::Generator generator = generator_of(f);
  if (!generator.device().is_cuda()) return 0;
  return seed_at(*f.op, generator.current_seed(), generator.get_offset());
}

// Calls the operator on CPU aliases. False when there is no such CPU operator.
static bool call_on_host(const Frame &f, torch::jit::Stack &stack) {
  at::Generator generator, shared;
  Tensor state;
  if (f.op->random && !f.op->random_hidden) generator = at::detail::createCPUGenerator(seed_of(f));
  if (f.op->random_hidden) {
    shared = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> guard(shared.mutex());
    state = shared.get_state();
    shared.set_current_seed(seed_of(f));
  }
  bool done = true;
  try {
    for (size_t i = 0; i < f.args.size(); ++i) stack.push_back(translate(f.args[i], f.op->arguments[i], generator));
    call_cpu_kernel(*f.op, stack);
  } catch (const std::exception &) { done = false; }
  if (f.op->random_hidden) {
    std::lock_guard<std::mutex> guard(shared.mutex());
    shared.set_state(state);
  }
  return done;
}

static std::unordered_set<uint64_t> *failed = new std::unordered_set<uint64_t>();  // signatures without CPU form
static std::mutex failed_lock;

static bool has_failed(const Frame &f) {
  std::lock_guard<std::mutex> guard(failed_lock);
  return !failed->empty() && failed->count(signature_hash(f));
}

bool compute(Frame &f, Values outputs) {
  if (!f.op->on_cpu || has_failed(f)) return false;
  PlainCalls plain;
  Silence silence;
  c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  torch::jit::Stack stack;
  stack.swap(f.early);
  if ((stack.empty() && !call_on_host(f, stack)) || stack.size() != outputs.size()) {
    std::lock_guard<std::mutex> guard(failed_lock);
    failed->insert(signature_hash(f));
    return false;
  }
  for (size_t i = 0; i < outputs.size(); ++i) store(stack[i], outputs[i]);
  for (size_t i = 0; i < f.args.size(); ++i)
    if (f.op->arguments[i].mutated)
      each_tensor(f.args[i], [](const Tensor &t) {
        if (on_device(t) && t.numel()) ph_memory_wrote(bytes_of(t), extent_of(t));
      });
  return true;
}

// An operator of a graph. It holds no CUDA tensors: their memory would then live longer than on a GPU, but CPU
// tensors over the same bytes.
using Ranges = std::vector<std::pair<char *, size_t>>;

struct Repeated {
  const Operator *op;
  Ranges read, written;
  torch::jit::Stack stack;
  std::vector<IValue> outputs;
  std::vector<size_t> generators;  // arguments that are one
  at::PhiloxCudaState
      random;      // of a random operator: where a launch finds seed and offset, and the offset within the graph
  bool failed = false;
};

static char *host_bytes(const Tensor &t) { return static_cast<char *>(const_cast<void *>(t.const_data_ptr())); }

// The bytes of the tensors on the GPU among `v`.
static void add_ranges(const IValue &v, Ranges *ranges) {
  each_tensor(v, [&](const Tensor &t) {
    if (t.defined() && on_device(t) && t.numel()) ranges->emplace_back(bytes_of(t), extent_of(t));
  });
}

static bool all_there(const Ranges &ranges) {
  ph_range range;
  for (auto [bytes, extent] : ranges)
    if (!ph_memory_find(bytes, &range)) return false;
  return true;
}

// Torch writes the generator's seed and offset to the GPU before each launch of a graph that draws numbers.
static uint64_t seed_now(const Repeated &r) {
  uint64_t offset = r.random.offset_intragraph_;
  if (!r.random.captured_) return seed_at(*r.op, r.random.seed_.val, r.random.offset_.val + offset);
  return seed_at(*r.op, static_cast<uint64_t>(*r.random.seed_.ptr),
                 static_cast<uint64_t>(*r.random.offset_.ptr) + offset);
}

static void store_again(const Tensor &result, const Tensor &to) {
  char *bytes = host_bytes(to);
  if (!to.numel() || (result.defined() && result.const_data_ptr() == bytes)) return;
  ph_touch_drop(bytes, extent_of(to));
  if (result.defined() && result.sizes() == to.sizes())
    const_cast<Tensor &>(to).copy_(result);
  else
    const_cast<Tensor &>(to).zero_();
}

static void store_again(const IValue &result, const IValue &to) {
  if (to.isTensor() && result.isTensor()) return store_again(result.toTensor(), to.toTensor());
  if (!to.isTensorList() || !result.isTensorList()) return;
  c10::ArrayRef<IValue> from = result.toListRef(), into = to.toListRef();
  for (size_t i = 0; i < into.size(); ++i)
    store_again(i < from.size() ? from[i].toTensor() : Tensor(), into[i].toTensor());
}

static void repeat(Repeated &r) {
  torch::jit::Stack stack(r.stack);
  at::Generator shared = at::detail::getDefaultCPUGenerator();
  Tensor state;
  if (r.op->random) {
    uint64_t seed = seed_now(r);
    for (size_t i : r.generators) stack[i] = IValue(at::detail::createCPUGenerator(seed));
    std::lock_guard<std::mutex> guard(shared.mutex());
    state = shared.get_state();
    if (r.op->random_hidden) shared.set_current_seed(seed);
  }
  try {
    call_cpu_kernel(*r.op, stack);
    r.failed = stack.size() != r.outputs.size();
    for (size_t i = 0; i < r.outputs.size() && !r.failed; ++i) store_again(stack[i], r.outputs[i]);
  } catch (const std::exception &) { r.failed = true; }
  if (!r.op->random) return;
  std::lock_guard<std::mutex> guard(shared.mutex());
  shared.set_state(state);
}

static void compute_again(void *data, ph_stream *) {
  auto &r = *static_cast<Repeated *>(data);
  PlainCalls plain;
  Silence silence;
  c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  // Memory that has been freed since then is a mistake of the program, and on a GPU a fault.
  if (!all_there(r.read) || !all_there(r.written)) return;
  for (auto [bytes, extent] : r.read) ph_touch(bytes, extent);
  if (!r.failed) repeat(r);
  for (auto [bytes, extent] : r.written) {
    if (r.failed)
      ph_memory_clear(bytes, extent);
    else
      ph_memory_wrote(bytes, extent);
  }
}

bool compute_later(const Frame &f, Values outputs) {
  if (!f.op->on_cpu || f.args.size() != f.op->arguments.size()) return false;
  PlainCalls plain;
  auto r = std::make_unique<Repeated>();
  r->op = f.op;
  try {
    at::Generator generator;
    if (f.op->random) generator = generator_of(f);
    if (generator.defined() && generator.device().is_cuda()) {
      r->random = at::check_generator<at::CUDAGeneratorImpl>(generator)->philox_cuda_state(0);
      if (r->random.captured_) {  // alive as long as what the operator reads
        r->read.emplace_back(reinterpret_cast<char *>(r->random.seed_.ptr), sizeof(int64_t));
        r->read.emplace_back(reinterpret_cast<char *>(r->random.offset_.ptr), sizeof(int64_t));
      }
    }
    for (size_t i = 0; i < f.args.size(); ++i) {
      const IValue &v = f.args[i];
      add_ranges(v, &r->read);
      if (f.op->arguments[i].mutated) add_ranges(v, &r->written);
      if (f.op->arguments[i].role == Role::GENERATOR) {
        r->generators.push_back(i);
        r->stack.emplace_back();
      } else if (v.isTensor() && v.toTensor().defined() && v.toTensor().is_cpu()) {
        r->stack.push_back(v.toTensor().clone());  // as it is now, like a kernel's argument
      } else {
        r->stack.push_back(translate(v, f.op->arguments[i], {}));
      }
    }
    for (const IValue &v : outputs) {
      add_ranges(v, &r->written);
      r->outputs.push_back(translate(v, Argument(), {}));
    }
  } catch (const std::exception &) { return false; }
  ph_capture_value(
      f.below_launched ? f.mark : UINT64_MAX, compute_again, [](void *data) { delete static_cast<Repeated *>(data); },
      r.release());
  return true;
}

}  // namespace tracer
