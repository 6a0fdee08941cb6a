#include "tracer/operators.h"

#include <mutex>
#include <unordered_map>

#include "tracer/bounds.h"

namespace tracer {

static bool is_tensor_list(const c10::Type &type) {
  return type.kind() == c10::TypeKind::ListType && type.containedType(0)->kind() == c10::TypeKind::TensorType;
}

static const c10::Type &inner(const c10::Type &type) {
  if (type.kind() == c10::TypeKind::OptionalType || type.kind() == c10::TypeKind::ListType)
    return inner(*type.containedType(0));
  return type;
}

static Role role_of(const c10::Argument &argument) {
  switch (inner(*argument.real_type()).kind()) {
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return Role::NUMBER;
    case c10::TypeKind::ScalarTypeType:
      return Role::DTYPE;
    case c10::TypeKind::LayoutType:
      return Role::LAYOUT;
    case c10::TypeKind::MemoryFormatType:
      return Role::MEMORY_FORMAT;
    case c10::TypeKind::GeneratorType:
      return Role::GENERATOR;
    default:
      return Role::PLAIN;
  }
}

bool starts_with(const std::string &text, const char *prefix) { return text.rfind(prefix, 0) == 0; }

bool is_one_of(const std::string &text, std::initializer_list<const char *> names) {
  for (const char *name : names)
    if (text == name) return true;
  return false;
}

static Cost cost_of(const Operator &op, const c10::FunctionSchema &schema) {
  if (starts_with(op.name, "profiler::")) return Cost::ANNOTATION;
  if (starts_with(op.name, "aten::empty") || starts_with(op.name, "aten::new_empty")) return Cost::ALLOC;
  if (op.handle.hasTag(at::Tag::inplace_view) ||
      is_one_of(op.name, {"aten::record_stream", "aten::resize_", "aten::set_", "aten::requires_grad_", "aten::detach_",
                          "aten::retain_grad", "aten::_backward"}))
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
  if (is_one_of(op.name, {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"})) return Cost::READ;
  bool query = op.permanent && reads_tensors && !tensors && !mutates &&
               !is_one_of(op.name, {"aten::equal", "aten::allclose", "aten::_assert_async"});
  return query ? Cost::VIEW : Cost::COMPUTE;
}

static Tokens tokens_of(const Operator &op) {
  if (op.text == "aten::embedding") return Tokens::LOOKS_UP;
  if (is_one_of(op.name, {"aten::argmax", "aten::multinomial", "aten::topk"}) || op.text == "aten::max.dim")
    return Tokens::SAMPLES;
  return is_one_of(op.name, {"aten::eq", "aten::ne"}) ? Tokens::COMPARES : Tokens::NONE;
}

static Operator *describe(const c10::OperatorHandle &handle) {
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
  bool overwrites =
      is_one_of(op->name, {"aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_zero_", "aten::_foreach_copy_",
                           "aten::random_", "aten::bernoulli_", "aten::uniform_", "aten::normal_", "aten::exponential_",
                           "aten::geometric_", "aten::cauchy_", "aten::log_normal_"});
  op->copies = op->name == "aten::copy_";
  op->own_copies = is_one_of(op->name, {"aten::_chunk_cat", "aten::split_with_sizes_copy"});
  op->reads = op->copies || op->name == "aten::_local_scalar_dense";
  op->zeroes = is_one_of(op->text, {"aten::zero_", "aten::_foreach_zero_", "aten::fill_.Scalar"});
  op->holds = is_one_of(op->name, {"aten::isfinite", "aten::isclose", "aten::_is_all_true"});
  for (const c10::Argument &argument : schema.arguments()) {
    Argument a;
    a.role = role_of(argument);
    a.mutated = argument.alias_info() && argument.alias_info()->isWrite();
    a.out = a.mutated && (argument.kwarg_only() || overwrites);
    generator |= a.role == Role::GENERATOR;
    op->in_place |= a.mutated && (!a.out || argument.kwarg_only());
    op->lists |= is_tensor_list(*argument.type());
    op->arguments.push_back(a);
  }
  for (const char *family : {"aten::_foreach_", "aten::_fused_ad", "aten::_fused_sgd", "aten::_amp_foreach_"})
    op->parameters |= starts_with(op->name, family);
  op->in_place_only = overwrites;
  op->random_hidden = op->random && !generator;
  for (const c10::Argument &result : schema.returns()) {
    op->lists |= is_tensor_list(*result.type());
    op->returns_view.push_back(result.alias_info() && !result.alias_info()->isWrite());
  }
  if (is_one_of(op->text, {"aten::nonzero", "aten::nonzero.out"})) op->count = Count::NONZERO;
  if (is_one_of(op->text, {"aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
                           "aten::unique_dim_consecutive"}))
    op->count = Count::UNIQUE;
  if (is_one_of(op->text, {"aten::equal", "aten::allclose"})) op->count = Count::EQUAL;
  if (op->text == "torchvision::nms") op->count = Count::KEEPS;
  if (op->text == "aten::_coalesce") op->count = Count::COALESCE;
  if (is_one_of(op->text, {"aten::mode", "aten::mode.values"})) op->count = Count::FINDS;
  op->empties = op->text == "aten::empty.memory_format";
  op->allocates = op->empties || op->text == "aten::empty_strided";
  op->lifts = op->name == "aten::lift_fresh";
  if (is_one_of(op->text, {"aten::mul.Tensor", "aten::mul_.Tensor"})) op->squares = 0;
  if (is_one_of(op->text, {"aten::addcmul", "aten::addcmul_", "aten::_foreach_addcmul_.Scalar"})) op->squares = 1;
  op->joins = op->text == "aten::cat";
  op->tokens = tokens_of(*op);
  // found_inf: an infinity seen earlier stays, and zeros are finite.
  if (op->name == "aten::_amp_foreach_non_finite_check_and_unscale_") op->keeps = 1;
  op->ends_scaled = op->name == "aten::_amp_update_scale_";
  op->indices = index_rule(op->name);
  op->cost = cost_of(*op, schema);
  return op;
}

Operator *find_operator(const c10::OperatorName &name) {
  static auto *table = new std::unordered_map<std::string, Operator *>();
  static auto *lock = new std::mutex();
  std::lock_guard<std::mutex> guard(*lock);
  Operator *&op = (*table)[name.name + "." + name.overload_name];
  if (!op) {
    std::optional<c10::OperatorHandle> handle = c10::Dispatcher::singleton().findSchema(name);
    if (handle) op = describe(*handle);
  }
  return op;
}

}  // namespace tracer
