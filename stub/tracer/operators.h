// Facts about an operator from its schema.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <string>
#include <vector>

#include "rank/rank.h"

namespace tracer {

using at::Tensor;
using c10::IValue;
using Values = c10::ArrayRef<const IValue>;

// READ: item() and bool() of a tensor call each other and CUDA's copy, which has a cost of its own.
enum class Cost : uint8_t { COMPUTE, VIEW, READ, ALLOC, ANNOTATION };
enum class Role : uint8_t { PLAIN, NUMBER, DTYPE, LAYOUT, MEMORY_FORMAT, GENERATOR };
enum class Count : uint8_t {
  NONE,
  NONZERO,
  UNIQUE,
  EQUAL,
  KEEPS,
  COALESCE,
  FINDS
};  // operators that read an answer back
enum class Tokens : uint8_t { NONE, LOOKS_UP, SAMPLES, COMPARES };  // what it may do with a program's tokens

struct Argument {
  Role role = Role::PLAIN;
  bool mutated = false;
  bool out = false;  // an out= argument, copy_'s and the like: what it held before does not matter
};

// Facts about an operator from its schema; made once, never freed.
struct Operator {
  explicit Operator(const c10::OperatorHandle &h) : handle(h) {}
  c10::OperatorHandle handle;
  std::string name, overload, text;  // text = "aten::add.Tensor"
  uint64_t key = 0;
  int64_t last = 0;            // when it ran last, for ph_charge_cold
  Cost cost = Cost::COMPUTE;
  Count count = Count::NONE;
  Tokens tokens = Tokens::NONE;
  bool permanent = false;      // of aten: its schema is never unregistered
  bool values = true;          // its kernels' results are settled here (not c10d's: NCCL's stub does)
  bool in_place = false;       // some argument is both read and written, or may be
  bool random = false;
  bool random_hidden = false;  // random without a generator argument
  bool on_cpu = false;
  bool reads = false;          // brings numbers to the host
  bool in_place_only = false;  // writes what it is given, and returns nothing else
  bool copies = false;         // copy_: may bring bytes from the host
  bool own_copies = false;     // what it copies from the host only its own kernels read
  bool zeroes = false;         // writes the number that it is given, or zeros
  bool lists = false;          // takes or returns lists of tensors
  bool parameters = false;  // these are a program's parameters, gradients or states: lists that Python goes through
  bool holds = false;  // true of zeros: unknown numbers are finite, and close to each other
  bool joins = false;  // puts the tensors of its first argument side by side
  bool allocates = false;  // memory that it does not write
  bool empties = false;  // aten::empty, the begin of torch.tensor() of a list
  size_t squares = SIZE_MAX;  // the product of this argument and the next is of one tensor where both are (x * x)
  bool lifts = false;  // lift_fresh: the end of torch.tensor()
  bool ends_scaled = false;  // a step with scaled gradients
  const struct IndexRule *indices = nullptr;  // what its kernel asserts of them (bounds.h)
  size_t keeps = SIZE_MAX;  // mutated argument: 1 if an infinity is known in the first one, else as it was
  std::vector<Argument> arguments;
  std::vector<bool> returns_view;
};

bool is_one_of(const std::string &text, std::initializer_list<const char *> names);
bool starts_with(const std::string &text, const char *prefix);
Operator *find_operator(const c10::OperatorName &name);  // null: no such operator

}  // namespace tracer
