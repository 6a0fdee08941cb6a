// The operator tracer: sees every ATen operator of a rank through torch's own observer interface
// (at::addGlobalCallback), and so gives kernels their operator, operators their host cost, user
// annotations their row, and small tensors their true bytes.
//
// A frame is pushed per operator and its arguments are kept (reference counts only). Nothing else
// happens unless the operator launches something itself: then begin_frame() computes the
// signature, and op_end() settles what the device memory of its results reads as (docs/values.md).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "abi/export.h"
#include "rank/rank.h"

namespace {

using c10::IValue;
using at::Tensor;
using Values = c10::ArrayRef<const IValue>;

constexpr size_t LONG_LIST = 64;      // longer lists are summarised in signatures
constexpr size_t LIST_HEAD = 8;       // by their first elements, count and size
constexpr int64_t EXACT_SCALAR = 16;  // numbers up to this stand in signatures as they are
constexpr int64_t CLEAR_RUNS = 64;    // dense pieces of a gapped tensor that are cleared one by one
constexpr size_t SNAPSHOT_BYTES = 1 << 16;

bool active() { return ph_connected() && !ph_null_mode(); }

// ---------------------------------------------------------------- operators

enum class Cost : uint8_t { COMPUTE, VIEW, ALLOC, ANNOTATION };
enum class Role : uint8_t { PLAIN, NUMBER, DTYPE, LAYOUT, MEMORY_FORMAT, GENERATOR };
enum class Count : uint8_t { NONE, NONZERO, UNIQUE, EQUAL };  // operators that read an answer back

struct Argument {
  Role role = Role::PLAIN;
  bool mutated = false;
  bool out = false;  // an out= argument and copy_'s: what it held before does not matter
};

// What is known of an operator from its schema; made once, never freed.
struct Operator {
  explicit Operator(const c10::OperatorHandle &h) : handle(h) {}
  c10::OperatorHandle handle;
  std::string name, overload, text;  // text = "aten::add.Tensor"
  uint64_t key = 0;
  int64_t last = 0;            // of ph_coldness
  Cost cost = Cost::COMPUTE;
  Count count = Count::NONE;
  bool permanent = false;      // of aten: its schema is never unregistered
  bool values = true;          // its kernels' results are settled here (not c10d's: NCCL's stub does)
  bool in_place = false;       // some argument is both read and written
  bool random = false;
  bool random_hidden = false;  // random without a generator argument
  bool on_cpu = false;
  bool lists = false;          // takes or returns lists of tensors
  size_t keeps = SIZE_MAX;     // mutated argument that zeros elsewhere leave as it is
  std::vector<Argument> arguments;
  std::vector<bool> returns_view;
};

bool is_tensor_list(const c10::Type &type) {
  return type.kind() == c10::TypeKind::ListType && type.containedType(0)->kind() == c10::TypeKind::TensorType;
}

const c10::Type &inner(const c10::Type &type) {
  if (type.kind() == c10::TypeKind::OptionalType || type.kind() == c10::TypeKind::ListType)
    return inner(*type.containedType(0));
  return type;
}

Role role_of(const c10::Argument &argument) {
  switch (inner(*argument.real_type()).kind()) {
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType: return Role::NUMBER;
    case c10::TypeKind::ScalarTypeType: return Role::DTYPE;
    case c10::TypeKind::LayoutType: return Role::LAYOUT;
    case c10::TypeKind::MemoryFormatType: return Role::MEMORY_FORMAT;
    case c10::TypeKind::GeneratorType: return Role::GENERATOR;
    default: return Role::PLAIN;
  }
}

bool starts_with(const std::string &text, const char *prefix) { return text.rfind(prefix, 0) == 0; }

bool is_one_of(const std::string &text, std::initializer_list<const char *> names) {
  for (const char *name : names)
    if (text == name) return true;
  return false;
}

Cost cost_of(const Operator &op, const c10::FunctionSchema &schema) {
  if (starts_with(op.name, "profiler::")) return Cost::ANNOTATION;
  if (starts_with(op.name, "aten::empty") || starts_with(op.name, "aten::new_empty")) return Cost::ALLOC;
  if (op.handle.hasTag(at::Tag::inplace_view) ||
      is_one_of(op.name, {"aten::record_stream", "aten::resize_", "aten::set_", "aten::requires_grad_",
                          "aten::detach_", "aten::retain_grad", "aten::_backward"}))
    return Cost::VIEW;
  bool tensors = false, view = false;
  for (const c10::Argument &result : schema.returns()) {
    if (inner(*result.type()).kind() == c10::TypeKind::TensorType) tensors = true;
    if (result.alias_info() && !result.alias_info()->isWrite()) view = true;
  }
  if (view) return Cost::VIEW;
  bool reads_tensors = false, mutates = false;
  for (const c10::Argument &argument : schema.arguments()) {
    if (inner(*argument.type()).kind() == c10::TypeKind::TensorType) reads_tensors = true;
    if (argument.alias_info() && argument.alias_info()->isWrite()) mutates = true;
  }
  bool query = op.permanent && reads_tensors && !tensors && !mutates &&
               !is_one_of(op.name, {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal",
                                    "aten::allclose", "aten::_assert_async"});
  return query ? Cost::VIEW : Cost::COMPUTE;
}

Operator *describe(const c10::OperatorHandle &handle) {
  const c10::FunctionSchema &schema = handle.schema();
  auto *op = new Operator(handle);
  op->name = schema.name();
  op->overload = schema.overload_name();
  op->text = op->overload.empty() ? op->name : op->name + "." + op->overload;
  op->key = ph_hash(op->text.data(), op->text.size(), 0);
  op->permanent = starts_with(op->name, "aten::");
  op->values = !starts_with(op->name, "c10d::") && !starts_with(op->name, "_c10d_functional::");
  op->random = handle.hasTag(at::Tag::nondeterministic_seeded);
  op->on_cpu = handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  bool generator = false;
  for (const c10::Argument &argument : schema.arguments()) {
    Argument a;
    a.role = role_of(argument);
    a.mutated = argument.alias_info() && argument.alias_info()->isWrite();
    a.out = a.mutated && (argument.kwarg_only() || op->name == "aten::copy_");
    generator |= a.role == Role::GENERATOR;
    op->in_place |= a.mutated && !a.out;
    op->lists |= is_tensor_list(*argument.type());
    op->arguments.push_back(a);
  }
  op->random_hidden = op->random && !generator;
  for (const c10::Argument &result : schema.returns()) {
    op->lists |= is_tensor_list(*result.type());
    op->returns_view.push_back(result.alias_info() && !result.alias_info()->isWrite());
  }
  if (is_one_of(op->text, {"aten::nonzero", "aten::nonzero.out"})) op->count = Count::NONZERO;
  if (is_one_of(op->text, {"aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
                           "aten::unique_dim_consecutive"}))
    op->count = Count::UNIQUE;
  if (op->text == "aten::equal") op->count = Count::EQUAL;
  // found_inf: an infinity seen earlier stays, and zeros are finite.
  if (op->name == "aten::_amp_foreach_non_finite_check_and_unscale_") op->keeps = 1;
  op->cost = cost_of(*op, schema);
  return op;
}

// ---------------------------------------------------------------- frames

struct Snapshot {
  char *data;
  size_t offset, bytes;
};

struct Frame {
  ph_frame ph{};
  const at::RecordFunction *owner = nullptr;
  Operator *op = nullptr;      // null: a kernel of torch.compile, whose signature is given
  bool pushed = false;         // known to the runtime: it may launch
  bool below_launched = false; // an operator below it launched something
  bool backward = false;
  uint32_t signature = 0;
  int64_t start = 0;
  uint64_t seed = 0;
  std::vector<IValue> args;
  std::vector<Snapshot> snapshots;
  std::vector<char> saved;
};

struct OperatorSlot {
  const char *name = nullptr, *overload = nullptr;
  Operator *op = nullptr;
};
struct SignatureSlot {
  uint64_t hash = 0;
  uint32_t id = 0;
};

struct Thread {
  std::vector<std::unique_ptr<Frame>> frames;  // a pool used as a stack
  size_t depth = 0;
  int nodes = 0;         // autograd nodes being applied
  int native_nodes = 0;  // of them, those written in C++: their operators have no Python between
  int allocated = -1;    // device on which this thread's last allocation awaits its record
  bool optimizing = false;                   // inside an optimizer's step
  std::map<const Operator *, size_t> lists;  // first lists that its operators took
  int silent = 0;        // operators that are called to compute values are not the program's
  OperatorSlot operators[512];
  SignatureSlot signatures[1024];
};

Thread &this_thread() {
  static thread_local Thread *thread = nullptr;
  static thread_local std::unique_ptr<Thread> owner;
  if (C10_UNLIKELY(!thread)) {
    owner = std::make_unique<Thread>();
    thread = owner.get();
  }
  return *thread;
}

std::mutex tables_lock;

size_t slot_of(const void *name, const void *overload) {
  uint64_t h = reinterpret_cast<uint64_t>(name) * 0x9e3779b97f4a7c15ULL ^ reinterpret_cast<uint64_t>(overload);
  return (h * 0x9e3779b97f4a7c15ULL) >> 55;
}

// The operator of an observed function; null for functions without schema (RECORD_FUNCTION("...")).
Operator *operator_of(Thread &thread, const at::RecordFunction &fn) {
  const char *name = fn.name(), *overload = fn.overload_name();
  OperatorSlot &slot = thread.operators[slot_of(name, overload)];
  if (C10_LIKELY(slot.name == name && slot.overload == overload) &&
      (slot.op->permanent || (slot.op->name == name && slot.op->overload == overload)))
    return slot.op;
  std::optional<c10::OperatorName> full = fn.operator_name();
  if (!full) return nullptr;
  static auto *table = new std::unordered_map<std::string, Operator *>();
  std::lock_guard<std::mutex> guard(tables_lock);
  Operator *&op = (*table)[full->name + "." + full->overload_name];
  if (!op) {
    std::optional<c10::OperatorHandle> handle = c10::Dispatcher::singleton().findSchema(*full);
    if (!handle) return nullptr;
    op = describe(*handle);
  }
  slot = {name, overload, op};
  return op;
}

// ---------------------------------------------------------------- signatures

struct Hash {
  uint64_t h;
  void add(uint64_t v) {
    __uint128_t m = static_cast<__uint128_t>(h ^ v ^ 0xa0761d6478bd642fULL) * 0xe7037ed1a0b428dbULL;
    h = static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
  }
};

// Numbers that change from step to step (learning rates, bias corrections) must not make a new
// signature each time: halves up to 16 stay as they are, others keep their first digit.
struct Rounded {
  bool exact;
  double value;
  int digit, exponent;
};
Rounded rounded(double x) {
  double twice = x * 2;
  if (!std::isfinite(x) || (std::abs(x) <= EXACT_SCALAR && twice == std::trunc(twice))) return {true, x, 0, 0};
  double magnitude = std::abs(x);
  int exponent = static_cast<int>(std::floor(std::log10(magnitude) + 1e-12));
  int digit = static_cast<int>(magnitude / std::pow(10.0, exponent) + 1e-9);
  if (digit < 1) digit = 1;
  if (digit > 9) digit = 9;
  return {false, x, x < 0 ? -digit : digit, exponent};
}

bool is_python(const Tensor &t) { return t.unsafeGetTensorImpl()->is_python_dispatch(); }
bool has_sizes(const Tensor &t) {
  return !t.is_nested() && !is_python(t) && !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

void hash_tensor(Hash &hash, const Tensor &t) {
  if (!t.defined()) return hash.add(1);
  if (is_python(t)) return hash.add(static_cast<uint64_t>(t.scalar_type()) << 32);
  hash.add(static_cast<uint64_t>(t.scalar_type()) << 16 | static_cast<uint64_t>(t.device().type()) << 8 |
           static_cast<uint64_t>(t.layout()));
  if (!has_sizes(t)) return;
  hash.add(static_cast<uint64_t>(t.dim()));
  for (int64_t size : t.sizes()) hash.add(static_cast<uint64_t>(size));
  if (t.layout() == at::kStrided)
    for (int64_t stride : t.strides()) hash.add(static_cast<uint64_t>(stride));
}

void hash_number(Hash &hash, double x, uint64_t tag) {
  Rounded r = rounded(x);
  uint64_t bits;
  memcpy(&bits, &r.value, sizeof bits);
  hash.add(tag);
  hash.add(r.exact ? bits : static_cast<uint64_t>(static_cast<int64_t>(r.exponent) * 32 + r.digit));
}

void totals(c10::ArrayRef<IValue> list, int64_t *numel, int64_t *bytes) {
  *numel = *bytes = 0;
  for (const IValue &v : list) {
    if (!v.isTensor() || !v.toTensor().defined() || !has_sizes(v.toTensor())) continue;
    int64_t n = v.toTensor().numel();
    *numel += n;
    *bytes += n * static_cast<int64_t>(v.toTensor().itemsize());
  }
}

void hash_value(Hash &hash, const IValue &v, Role role) {
  if (v.isTensor()) return hash_tensor(hash, v.toTensor());
  if (v.isNone()) return hash.add(2);
  if (v.isInt()) {
    if (role == Role::NUMBER) return hash_number(hash, static_cast<double>(v.toInt()), 3);
    hash.add(4);
    return hash.add(static_cast<uint64_t>(v.toInt()));
  }
  if (v.isDouble()) return hash_number(hash, v.toDouble(), 5);
  if (v.isBool()) return hash.add(v.toBool() ? 7 : 6);
  if (v.isList()) {
    c10::ArrayRef<IValue> list = v.toListRef();
    hash.add(list.size() << 8 | 8);
    bool tensors = !list.empty() && list[0].isTensor();
    size_t shown = list.size() > LONG_LIST ? LIST_HEAD : list.size();
    for (size_t i = 0; i < shown; ++i) hash_value(hash, list[i], role);
    if (shown == list.size() || !tensors) return;
    int64_t numel, bytes;
    totals(list, &numel, &bytes);
    hash.add(static_cast<uint64_t>(numel));
    return hash.add(static_cast<uint64_t>(bytes));
  }
  if (v.isString()) return hash.add(ph_hash(v.toStringRef().data(), v.toStringRef().size(), 9));
  if (v.isDevice()) return hash.add(static_cast<uint64_t>(v.toDevice().type()) << 8 | 10);
  if (v.isComplexDouble()) {
    hash_number(hash, v.toComplexDouble().real(), 11);
    return hash_number(hash, v.toComplexDouble().imag(), 11);
  }
  hash.add(12);
}

std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kByte: return "uint8";
    case at::kChar: return "int8";
    case at::kShort: return "int16";
    case at::kInt: return "int32";
    case at::kLong: return "int64";
    case at::kHalf: return "float16";
    case at::kFloat: return "float32";
    case at::kDouble: return "float64";
    case at::kComplexHalf: return "complex32";
    case at::kComplexFloat: return "complex64";
    case at::kComplexDouble: return "complex128";
    default: break;
  }
  std::string name = c10::toString(type);  // BFloat16, Bool, Float8_e4m3fn, UInt16, ...
  for (char &c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

std::string device_name(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

const char *layout_name(int64_t layout) {
  static const char *names[] = {"strided", "sparse_coo", "sparse_csr", "mkldnn", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"};
  return layout >= 0 && layout < 8 ? names[layout] : "other";
}

const char *memory_format_name(int64_t format) {
  static const char *names[] = {"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"};
  return format >= 0 && format < 4 ? names[format] : "other";
}

void write_string(std::string &out, const std::string &text) {
  out += '"';
  for (char c : text) {
    auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u < 0x20) {
      char escaped[8];
      snprintf(escaped, sizeof escaped, "\\u%04x", u);
      out += escaped;
    } else {
      out += c;
    }
  }
  out += '"';
}

void write_ints(std::string &out, c10::IntArrayRef values) {
  out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) out += ',';
    out += std::to_string(values[i]);
  }
  out += ']';
}

void write_number(std::string &out, double x, bool integer) {
  if (std::isnan(x)) {
    out += "\"nan\"";
  } else if (std::isinf(x)) {
    out += x < 0 ? "\"-inf\"" : "\"inf\"";
  } else {
    Rounded r = rounded(x);
    double value = r.exact ? r.value : std::strtod((std::to_string(r.digit) + "e" + std::to_string(r.exponent)).c_str(), nullptr);
    char text[40];
    snprintf(text, sizeof text, integer ? "%.0f" : "%.15g", value);
    out += text;
    if (!integer && !strpbrk(text, ".e")) out += ".0";
  }
}

void write_tensor(std::string &out, const Tensor &t) {
  if (!t.defined()) {
    out += "null";
    return;
  }
  out += "{\"t\":\"" + dtype_name(t.scalar_type()) + "\",\"s\":";
  bool python = is_python(t), sizes = has_sizes(t), strided = !python && t.layout() == at::kStrided;
  write_ints(out, sizes ? t.sizes() : c10::IntArrayRef());
  out += ",\"st\":";
  write_ints(out, sizes && strided ? t.strides() : c10::IntArrayRef());
  if (!strided && !python) out += std::string(",\"layout\":\"") + layout_name(static_cast<int64_t>(t.layout())) + "\"";
  if (!python && !t.device().is_cuda()) out += ",\"d\":\"" + device_name(t.device().type()) + "\"";
  out += '}';
}

void write_value(std::string &out, const IValue &v, Role role) {
  if (v.isTensor()) {
    write_tensor(out, v.toTensor());
  } else if (v.isNone()) {
    out += "null";
  } else if (v.isInt()) {
    int64_t i = v.toInt();
    if (role == Role::DTYPE) write_string(out, dtype_name(static_cast<at::ScalarType>(i)));
    else if (role == Role::LAYOUT) write_string(out, layout_name(i));
    else if (role == Role::MEMORY_FORMAT) write_string(out, memory_format_name(i));
    else if (role == Role::NUMBER) write_number(out, static_cast<double>(i), true);
    else out += std::to_string(i);
  } else if (v.isDouble()) {
    write_number(out, v.toDouble(), false);
  } else if (v.isBool()) {
    out += v.toBool() ? "true" : "false";
  } else if (v.isString()) {
    write_string(out, v.toStringRef());
  } else if (v.isDevice()) {
    write_string(out, device_name(v.toDevice().type()));
  } else if (v.isList()) {
    c10::ArrayRef<IValue> list = v.toListRef();
    bool tensors = role == Role::PLAIN && !list.empty() && list[0].isTensor();
    for (const IValue &element : list) tensors |= element.isTensor();
    bool wrap = tensors || list.size() > LONG_LIST;
    size_t shown = list.size() > LONG_LIST ? LIST_HEAD : list.size();
    out += wrap ? "{\"l\":[" : "[";
    for (size_t i = 0; i < shown; ++i) {
      if (i) out += ',';
      write_value(out, list[i], role);
    }
    out += ']';
    if (shown < list.size()) {
      out += ",\"n\":" + std::to_string(list.size());
      if (tensors) {
        int64_t numel, bytes;
        totals(list, &numel, &bytes);
        out += ",\"numel\":" + std::to_string(numel) + ",\"bytes\":" + std::to_string(bytes);
      }
    }
    if (wrap) out += '}';
  } else if (v.isComplexDouble()) {
    std::string text;
    write_number(text, v.toComplexDouble().real(), false);
    text += " ";
    write_number(text, v.toComplexDouble().imag(), false);
    write_string(out, text + "j");
  } else if (v.isGenerator()) {
    out += "\"generator\"";
  } else {
    write_string(out, v.tagKind());
  }
}

std::string signature_text(const Frame &f) {
  std::string out = "{\"op\":";
  write_string(out, f.op->text);
  out += ",\"args\":[";
  for (size_t i = 0; i < f.args.size(); ++i) {
    if (i) out += ',';
    write_value(out, f.args[i], f.op->arguments[i].role);
  }
  out += f.backward ? "],\"bwd\":true}" : "],\"bwd\":false}";
  return out;
}

// The id of the frame's signature; sends DEFINE_SIGNATURE when it is new.
uint32_t signature_of(Thread &thread, const Frame &f) {
  Hash hash{f.op->key ^ (f.backward ? 0x5bd1e995ULL : 0)};
  for (size_t i = 0; i < f.args.size(); ++i) hash_value(hash, f.args[i], f.op->arguments[i].role);
  SignatureSlot &slot = thread.signatures[hash.h >> 54];
  if (C10_LIKELY(slot.hash == hash.h && slot.id)) return slot.id;
  uint32_t id;
  if (!ph_name_known(hash.h, &id)) {
    std::string text = signature_text(f);
    id = ph_define(hash.h, PH_DEFINE_SIGNATURE, text.data(), text.size());
  }
  slot = {hash.h, id};
  return id;
}

// First launch in a frame (called by the runtime).
void begin_frame(ph_frame *ph) {
  auto &f = *static_cast<Frame *>(ph->data);
  if (f.op) f.signature = signature_of(this_thread(), f);
  ph->instance = ph_next_instance();
  ph_record record{};
  record.kind = PH_OP_BEGIN;
  record.flags = f.backward ? PH_F_BACKWARD : 0;
  record.id = f.signature;
  record.op = ph->instance;
  record.a = static_cast<uint64_t>(f.start);
  ph_emit(&record);
}

// ---------------------------------------------------------------- memory of tensors

// A CUDA tensor whose bytes can be looked at.
bool on_device(const Tensor &t) {
  return t.defined() && !is_python(t) && t.is_cuda() && t.layout() == at::kStrided && has_sizes(t) && t.has_storage() && !t.is_quantized();
}

char *bytes_of(const Tensor &t) {
  auto *base = static_cast<char *>(const_cast<void *>(t.storage().data()));
  return base ? base + t.storage_offset() * static_cast<int64_t>(t.itemsize()) : nullptr;
}

// From the tensor's first to its last byte.
size_t extent_of(const Tensor &t) {
  if (!t.numel()) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return static_cast<size_t>(last + 1) * t.itemsize();
}

template <typename F>
void each_tensor(const IValue &v, F visit) {
  if (v.isTensor()) {
    visit(v.toTensor());
  } else if (v.isList()) {
    for (const IValue &element : v.toListRef()) {
      if (!element.isTensor()) {
        if (element.isNone()) continue;
        return;
      }
      visit(element.toTensor());
    }
  }
}

// The tensor was written by a kernel that is not computed: its bytes become zero.
void clear(const Tensor &t) {
  if (!on_device(t) || !t.numel()) return;
  char *data = bytes_of(t);
  if (!data) return;
  if (t.is_non_overlapping_and_dense()) {
    ph_memory_clear(data, static_cast<size_t>(t.numel()) * t.itemsize());
    return;
  }
  // Gaps belong to others. Dense pieces: the innermost dimensions that lie without gap.
  int64_t inner_dims = t.dim(), run = 1;
  while (inner_dims > 0 && (t.size(inner_dims - 1) == 1 || t.stride(inner_dims - 1) == run)) run *= t.size(--inner_dims);
  int64_t runs = 1;
  for (int64_t d = 0; d < inner_dims; ++d) runs *= t.stride(d) ? t.size(d) : 1;
  if (runs > CLEAR_RUNS) {
    ph_memory_clear(data, extent_of(t));
    return;
  }
  std::vector<int64_t> at(static_cast<size_t>(inner_dims), 0);
  for (;;) {
    int64_t offset = 0;
    for (int64_t d = 0; d < inner_dims; ++d) offset += at[static_cast<size_t>(d)] * t.stride(d);
    ph_memory_clear(data + offset * static_cast<int64_t>(t.itemsize()), static_cast<size_t>(run) * t.itemsize());
    int64_t d = inner_dims - 1;
    for (; d >= 0; --d) {
      auto u = static_cast<size_t>(d);
      if (t.stride(d) && ++at[u] < t.size(d)) break;
      at[u] = 0;
    }
    if (d < 0) return;
  }
}

// Large, yet its bytes are true: given in place of a kernel's result, or computed from such.
bool is_known(const Tensor &t) {
  return t.numel() > PH_SMALL_ELEMENTS && on_device(t) && ph_memory_known(bytes_of(t), extent_of(t));
}

bool fits(const Tensor &t) {
  return on_device(t) && (t.numel() <= PH_SMALL_ELEMENTS || is_known(t)) && !t.is_conj() && !t.is_neg() && !t._is_zerotensor() &&
         !t.unsafeGetTensorImpl()->is_wrapped_number();
}

enum class Size { NO_TENSORS, SMALL, LARGE };

void measure(const IValue &v, Size *size) {
  if (*size == Size::LARGE) return;
  each_tensor(v, [&](const Tensor &t) {
    if (*size == Size::LARGE || !t.defined()) return;
    if (is_python(t)) *size = Size::LARGE;  // a wrapper: what it wraps is not ours to see
    else if (t.is_cuda()) *size = fits(t) ? Size::SMALL : Size::LARGE;
  });
}

// ---------------------------------------------------------------- small values

// Everything that stands between a boxed call on CPU tensors and its plain CPU kernel is off.
struct PlainCalls {
  at::AutoDispatchBelowADInplaceOrView autograd;
  c10::impl::ExcludeDispatchKeyGuard modes;
  PlainCalls()
      : modes(c10::autocast_dispatch_keyset |
              c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                   c10::DispatchKey::PreDispatch, c10::DispatchKey::Functionalize,
                                   c10::DispatchKey::PythonDispatcher, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                   c10::DispatchKey::FuncTorchDynamicLayerBackMode})) {
    ++this_thread().silent;
  }
  ~PlainCalls() { --this_thread().silent; }
};

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
  return at::from_blob(data, t.sizes(), t.strides(), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
}

Tensor on_host(const Tensor &t) { return t.defined() && t.is_cuda() ? alias(t) : t; }

// The argument as the CPU operator takes it: tensors become aliases of the same bytes.
IValue translate(const IValue &v, const Argument &argument, const at::Generator &generator) {
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

// What the CPU operator returned becomes the CUDA operator's result. A result that only one of the
// two has (an optional one that was not asked for) stays zero.
void store(const Tensor &result, const Tensor &real) {
  if (!on_device(real) || !real.numel()) return;
  if (!result.defined() || result.sizes() != real.sizes()) return clear(real);
  char *to = bytes_of(real);
  size_t extent = extent_of(real);
  if (result.const_data_ptr() == to) return;
  if (result.scalar_type() == real.scalar_type() && real.is_contiguous() && result.is_contiguous()) {
    ph_touch_drop(to, extent);
    memcpy(to, result.const_data_ptr(), extent);
  } else {
    alias(real).copy_(result);
  }
  ph_memory_wrote(to, extent);
}

void store(const IValue &result, const IValue &real) {
  if (real.isTensor() && result.isTensor()) return store(result.toTensor(), real.toTensor());
  if (!real.isTensorList() || !result.isTensorList()) return;
  c10::ArrayRef<IValue> from = result.toListRef(), to = real.toListRef();
  for (size_t i = 0; i < to.size(); ++i) store(i < from.size() ? from[i].toTensor() : Tensor(), to[i].toTensor());
}

// Numbers of an operator come from the generator's seed and offset at its start, through a CPU
// generator of their own: the program's CPU stream stays as it is.
void note_seed(Frame &f) {
  try {
    at::Generator generator;
    for (size_t i = 0; i < f.args.size(); ++i)
      if (f.op->arguments[i].role == Role::GENERATOR && f.args[i].isGenerator()) generator = f.args[i].toGenerator();
    if (!generator.defined())
      generator = at::globalContext().defaultGenerator(c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(ph_current_device())));
    if (!generator.device().is_cuda()) return;
    Hash hash{generator.current_seed()};
    hash.add(generator.get_offset());
    f.seed = hash.h;
  } catch (const std::exception &) {
    f.seed = 0;  // while a CUDA graph is captured the offset cannot be read
  }
}

// Calls the operator on CPU aliases. False when there is no such CPU operator.
bool call_on_host(const Frame &f, torch::jit::Stack &stack) {
  at::Generator generator, shared;
  Tensor state;
  if (f.op->random && !f.op->random_hidden) generator = at::detail::createCPUGenerator(f.seed);
  if (f.op->random_hidden) {
    shared = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> guard(shared.mutex());
    state = shared.get_state();
    shared.set_current_seed(f.seed);
  }
  bool done = true;
  try {
    for (size_t i = 0; i < f.args.size(); ++i) stack.push_back(translate(f.args[i], f.op->arguments[i], generator));
    call_cpu_kernel(*f.op, stack);
  } catch (const std::exception &) {
    done = false;
  }
  if (f.op->random_hidden) {
    std::lock_guard<std::mutex> guard(shared.mutex());
    shared.set_state(state);
  }
  return done;
}

std::unordered_set<uint32_t> *failed = new std::unordered_set<uint32_t>();  // signatures without CPU form
std::mutex failed_lock;

bool compute(const Frame &f, Values outputs) {
  if (!f.op->on_cpu) return false;
  {
    std::lock_guard<std::mutex> guard(failed_lock);
    if (!failed->empty() && failed->count(f.signature)) return false;
  }
  PlainCalls plain;
  Silence silence;
  c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  torch::jit::Stack stack;
  if (!call_on_host(f, stack) || stack.size() != outputs.size()) {
    std::lock_guard<std::mutex> guard(failed_lock);
    failed->insert(f.signature);
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
int64_t answer_of(const Frame &f, const Tensor &input, bool small) {
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

void know(const Tensor &t) {
  if (on_device(t) && t.numel() > PH_SMALL_ELEMENTS && t.is_non_overlapping_and_dense())
    ph_memory_know(bytes_of(t), extent_of(t));
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

// ---------------------------------------------------------------- the allocator

namespace cca = c10::cuda::CUDACachingAllocator;

// Allocated bytes come from the allocator's own statistics, so that the log agrees with
// torch.cuda.memory_allocated(). They already hold a free when it is reported but not yet an
// allocation: that one is recorded at the next event or at the end of the operator. How large its block is (larger
// than what was asked for, where a cached block was not worth splitting) tells the sum of all allocations ever made.
struct Allocator {
  std::mutex lock;
  int64_t allocated = 0, reserved = 0;
  int64_t made = 0;  // sum of all allocations that are recorded
  bool pending = false;
  uint64_t events = 0;
  uint64_t address = 0;
};
Allocator allocators[64];
std::atomic<bool> attached{false};

void emit_memory(int device, const Allocator &a, uint32_t what, int64_t change, uint64_t address) {
  ph_record record{};
  record.kind = PH_MEMORY;
  record.id = what;
  record.stream = static_cast<uint32_t>(device);
  record.a = static_cast<uint64_t>(a.allocated);
  record.b = static_cast<uint64_t>(a.reserved);
  record.c = static_cast<uint64_t>(change);
  record.d = address;
  ph_emit(&record);
}

c10::CachingAllocator::Stat statistics(int device) {
  return cca::getDeviceStats(static_cast<c10::DeviceIndex>(device)).allocated_bytes[0];
}

// With a.lock held; `now` includes the pending allocation, and perhaps a free after it.
void emit_pending(int device, Allocator &a, const c10::CachingAllocator::Stat &now) {
  a.pending = false;
  int64_t change = now.allocated >= a.made ? now.allocated - a.made : now.allocated;  // else the program set it to 0
  a.made = now.allocated;
  a.allocated += change;
  emit_memory(device, a, PH_MEM_ALLOC, change, a.address);
}

void on_trace(const cca::TraceEntry &entry) {
  if (entry.device_ < 0 || entry.device_ >= 64 || !active()) return;
  ph_enter();
  int device = entry.device_;
  Allocator &a = allocators[device];
  auto size = static_cast<int64_t>(entry.size_);
  {
    std::lock_guard<std::mutex> guard(a.lock);
    switch (entry.action_) {
      case cca::TraceEntry::ALLOC:
        if (a.pending) emit_pending(device, a, statistics(device));
        ph_memory_clear(reinterpret_cast<void *>(entry.addr_), entry.size_);
        a.pending = true;
        a.address = entry.addr_;
        this_thread().allocated = device;
        break;
      case cca::TraceEntry::FREE_REQUESTED: {
        ph_charge(PH_API_BLOCK_FREE);
        c10::CachingAllocator::Stat now = statistics(device);
        if (a.pending) emit_pending(device, a, now);
        int64_t change = now.current - a.allocated;
        a.allocated = now.current;
        emit_memory(device, a, PH_MEM_FREE, change, entry.addr_);
        break;
      }
      case cca::TraceEntry::SEGMENT_ALLOC:
      case cca::TraceEntry::SEGMENT_MAP:
      case cca::TraceEntry::SEGMENT_FREE:
      case cca::TraceEntry::SEGMENT_UNMAP: {
        if (a.pending) emit_pending(device, a, statistics(device));
        bool grows = entry.action_ == cca::TraceEntry::SEGMENT_ALLOC || entry.action_ == cca::TraceEntry::SEGMENT_MAP;
        a.reserved += grows ? size : -size;
        emit_memory(device, a, grows ? PH_MEM_SEGMENT_ALLOC : PH_MEM_SEGMENT_FREE, grows ? size : -size, entry.addr_);
        break;
      }
      case cca::TraceEntry::OOM:
        emit_memory(device, a, PH_MEM_OOM, size, entry.addr_);
        break;
      default:
        break;
    }
    ++a.events;
  }
  ph_leave();
}

void flush_pending(Thread &thread) {
  int device = thread.allocated;
  thread.allocated = -1;
  Allocator &a = allocators[device];
  uint64_t events;
  {
    std::lock_guard<std::mutex> guard(a.lock);
    if (!a.pending) return;
    events = a.events;
  }
  c10::CachingAllocator::Stat now = statistics(device);  // takes the allocator's lock: never under ours
  std::lock_guard<std::mutex> guard(a.lock);
  if (a.pending && a.events == events) emit_pending(device, a, now);
}

// torch initialises its allocator with CUDA; a rank attaches at its first operator after that.
void attach() {
  cca::CUDAAllocator *allocator = cca::allocator.load();
  if (!allocator || !allocator->initialized() || attached.exchange(true)) return;
  try {
    for (int device = 0; device < ph_devices() && device < 64; ++device) {
      c10::CachingDeviceAllocator::DeviceStats stats = cca::getDeviceStats(static_cast<c10::DeviceIndex>(device));
      allocators[device].allocated = stats.allocated_bytes[0].current;
      allocators[device].made = stats.allocated_bytes[0].allocated;
      allocators[device].reserved = stats.reserved_bytes[0].current;
    }
    cca::attachAllocatorTraceTracker(on_trace);
  } catch (const std::exception &) {
    // Another allocator backend (cudaMallocAsync, a pluggable one) reports no events.
  }
}

// ---------------------------------------------------------------- callbacks

// Pinned memory that aten::empty is asked for. An operator that allocates it for itself fills it: FSDP2's _chunk_cat
// writes an index per block of its kernel, which takes a millisecond for a layer of 8 B on one GPU.
size_t pinned_bytes(const Operator &op, Values inputs) {
  enum { SIZE, DTYPE, LAYOUT, DEVICE, PINNED, ARGUMENTS };
  if (op.text != "aten::empty.memory_format" || inputs.size() < ARGUMENTS) return 0;
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

// The host time of an operator (docs/costs.md): by what it does, who calls it, how many tensors it
// takes in lists, and whether autograd notes it.
void charge(Thread &thread, Operator *op, Values inputs) {
  bool nested = thread.depth > 0 || thread.native_nodes > 0;
  if (op && thread.depth == 0) ph_charge_cold(PH_API_OP_COLD, &op->last);
  switch (op ? op->cost : Cost::COMPUTE) {
    case Cost::COMPUTE: ph_charge(thread.depth > 0 ? PH_API_OP_NESTED : thread.native_nodes > 0 ? PH_API_OP_NODE : PH_API_OP_TOP); break;
    case Cost::VIEW: ph_charge(nested ? PH_API_OP_VIEW_NESTED : PH_API_OP_VIEW); break;
    case Cost::ALLOC:
      ph_charge(nested ? PH_API_OP_ALLOC_NESTED : PH_API_OP_ALLOC);
      if (nested) ph_charge_bytes(PH_API_HOST_FILL_GIB, pinned_bytes(*op, inputs));
      break;
    case Cost::ANNOTATION: return ph_charge(PH_API_OP_TOP);
  }
  if (op && op->lists) {
    if (size_t tensors = tensors_in_lists(inputs)) ph_charge_times(PH_API_OP_LIST, tensors);
    if (thread.optimizing && !nested && !inputs.empty() && inputs[0].isTensorList())
      thread.lists[op] += inputs[0].toListRef().size();
  }
  if (!at::GradMode::is_enabled() || c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradCUDA)) return;
  for (const IValue &value : inputs)
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad()) return ph_charge(PH_API_OP_GRAD);
}

// A frame for the thread's next operator; not known to the runtime until it is pushed.
Frame &open_frame(Thread &thread, const at::RecordFunction *owner, Operator *op, Values inputs) {
  if (C10_UNLIKELY(!attached.load(std::memory_order_relaxed))) attach();
  if (thread.depth == thread.frames.size()) thread.frames.push_back(std::make_unique<Frame>());
  Frame &f = *thread.frames[thread.depth];
  f.owner = owner;
  f.op = op;
  f.pushed = false;
  f.below_launched = false;
  f.start = ph_now();
  charge(thread, op, inputs);
  ++thread.depth;
  f.backward = thread.nodes > 0;
  f.seed = 0;
  f.snapshots.clear();
  f.ph = ph_frame{};
  f.ph.begin = begin_frame;
  f.ph.data = &f;
  return f;
}

void start_operator(Thread &thread, const at::RecordFunction &fn) {
  Operator *op = operator_of(thread, fn);
  if (!op) {
    if (strcmp(fn.name(), "PythonSubclass") == 0) {
      ph_charge(PH_API_OP_PYTHON);
      if (size_t tensors = tensors_in_lists(fn.inputs())) ph_charge_times(PH_API_OP_LIST_PYTHON, tensors);
    }
    return;
  }
  Values inputs = fn.inputs();  // a boxed call shows its whole stack: the arguments are its end
  size_t count = std::min(inputs.size(), op->arguments.size());
  inputs = Values(inputs.end() - count, count);
  Frame &f = open_frame(thread, &fn, op, inputs);
  if (op->cost != Cost::COMPUTE) return;
  f.args.assign(inputs.begin(), inputs.end());
  if (count == op->arguments.size()) {
    if (op->random) note_seed(f);
    if (op->in_place) take_snapshots(f);
    if (op->count != Count::NONE) note_answer(f);
  }
  f.pushed = true;
  ph_push_frame(&f.ph);
}

// Ends the innermost frame; `outputs` are the operator's.
void close_frame(Thread &thread, c10::ArrayRef<IValue> outputs) {
  Frame &f = *thread.frames[--thread.depth];
  bool launched = f.below_launched;
  if (f.pushed) {
    if (f.ph.instance) {
      launched = true;
      ph_record record{};
      record.kind = PH_OP_END;
      record.op = f.ph.instance;
      ph_emit(&record);
    }
    ph_pop_frame(&f.ph);
    if (f.ph.kernels && f.op && f.op->values) {
      size_t count = std::min(outputs.size(), f.op->returns_view.size());
      settle(f, Values(outputs.end() - count, count));
    }
    f.args.clear();
  }
  if (f.op && f.op->lists) {
    if (size_t tensors = tensors_in_lists(outputs)) ph_charge_times(PH_API_OP_LIST_OUT, tensors);
  }
  if (launched && thread.depth) thread.frames[thread.depth - 1]->below_launched = true;
  if (thread.allocated >= 0) flush_pending(thread);
}

void end_operator(Thread &thread, const at::RecordFunction &fn) {
  if (!thread.depth || thread.frames[thread.depth - 1]->owner != &fn) return;  // began before the rank did
  close_frame(thread, fn.outputs());
}

// Observers must not throw into torch: it would print a warning per operator. What can fail
// (a CPU form of an operator) is caught where it is called.
std::unique_ptr<at::ObserverContext> op_start(const at::RecordFunction &fn) {
  if (!active()) return nullptr;
  Thread &thread = this_thread();
  if (thread.silent) return nullptr;
  ph_enter();
  start_operator(thread, fn);
  ph_leave();
  return nullptr;
}

void op_end(const at::RecordFunction &fn, at::ObserverContext *) {
  if (!active()) return;
  Thread &thread = this_thread();
  if (thread.silent) return;
  ph_enter();
  end_operator(thread, fn);
  ph_leave();
}

// Nodes of the autograd graph. Those written in C++ are named MulBackward0 (a digit at the end),
// torch::autograd::AccumulateGrad and the like; Python's are named after their class.
bool is_native_node(const char *name) {
  size_t length = strlen(name);
  return length && ((name[length - 1] >= '0' && name[length - 1] <= '9') || !strncmp(name, "torch::", 7));
}

std::unique_ptr<at::ObserverContext> node_start(const at::RecordFunction &fn) {
  if (!active()) return nullptr;
  ph_enter();
  Thread &thread = this_thread();
  bool native = is_native_node(fn.name()), leaf = !strcmp(fn.name(), "torch::autograd::AccumulateGrad");
  ph_charge(leaf ? PH_API_OP_ACCUMULATE : native ? PH_API_OP_BACKWARD : PH_API_OP_BACKWARD_PYTHON);
  ++thread.nodes;
  if (native) ++thread.native_nodes;
  ph_leave();
  return nullptr;
}

void node_end(const at::RecordFunction &fn, at::ObserverContext *) {
  if (!active()) return;
  Thread &thread = this_thread();
  if (thread.nodes) --thread.nodes;
  if (thread.native_nodes && is_native_node(fn.name())) --thread.native_nodes;
}

struct Annotation : at::ObserverContext {
  int64_t start;
  std::map<const Operator *, size_t> outer;  // the lists of an optimizer step around this one
  explicit Annotation(int64_t at) : start(at) {}
};

bool is_optimizer_step(const char *name) { return !strncmp(name, "Optimizer.step#", 15); }

// The Python of an optimizer's step runs through its parameters before it hands them over in lists.
// Every list operator sees them all, some more than once: the least is their number.
size_t parameters_of(const std::map<const Operator *, size_t> &lists) {
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
  if (is_optimizer_step(fn.name())) {
    context->outer.swap(this_thread().lists);
    this_thread().optimizing = true;
  }
  ph_leave();
  return context;
}

void annotation_end(const at::RecordFunction &fn, at::ObserverContext *context) {
  if (!active() || !context) return;
  ph_enter();
  const char *name = fn.name();
  size_t length = strlen(name);
  if (is_optimizer_step(name)) {
    Thread &thread = this_thread();
    if (size_t parameters = parameters_of(thread.lists)) ph_charge_times(PH_API_OPTIMIZER_PARAM, parameters);
    thread.lists.swap(static_cast<Annotation *>(context)->outer);
    thread.optimizing = false;
  }
  ph_record record{};
  record.kind = PH_ANNOTATION;
  record.id = ph_name(ph_hash(name, length, 0), name, length);
  record.a = static_cast<uint64_t>(static_cast<Annotation *>(context)->start);
  ph_emit(&record);
  ph_leave();
}

}  // namespace

// Called once in the fork server, after `import torch`. Returns 0.
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

extern "C" __attribute__((visibility("default"))) void phantora_fused_end(void) {
  Thread &thread = this_thread();
  ph_enter();
  close_frame(thread, {});
  ph_leave();
}

extern "C" __attribute__((visibility("default"))) int phantora_tracer_install(void) {
  using at::RecordFunctionCallback;
  using at::RecordScope;
  at::addGlobalCallback(
      RecordFunctionCallback(op_start, op_end).needsInputs(true).needsOutputs(true).scopes({RecordScope::FUNCTION}));
  at::addGlobalCallback(RecordFunctionCallback(node_start, node_end).scopes({RecordScope::BACKWARD_FUNCTION}));
  at::addGlobalCallback(RecordFunctionCallback(annotation_start, annotation_end).scopes({RecordScope::USER_SCOPE}));
  ph_tame_watchdogs();
  return 0;
}
