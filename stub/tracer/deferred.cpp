#include "tracer/deferred.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "tracer/assumptions.h"
#include "tracer/finite.h"
#include "tracer/host_calls.h"
#include "tracer/signatures.h"

namespace tracer {

// ns of one CPU core that computing takes, by the costs in cost_of(). One chain of reals may take CHAIN_NS, all that a
// rank computes of them ALL_NS. Integers have no limit of time: what decides sizes must be true.
constexpr double CHAIN_NS = 5e8, ALL_NS = 3e10;
constexpr double CHECK_NS = 2e7;  // the first call of a form that takes less is computed at once, to see that it can be
constexpr size_t COPIED_REAL_BYTES = size_t{256} << 20;  // of copied reals that are kept; further ones are unknown
constexpr int DEEPEST = 256;  // operators in a chain
constexpr size_t KEPT_BYTES =
    1 << 16;  // larger pieces of device memory that a deferred operator reads are taken out of it

struct Node;

// One result of an operator.
struct Value {
  std::shared_ptr<Node> node;
  size_t index = 0;
};

// Bytes of an operand: some of a value's, some that lay in memory when the operator was called, or zeros.
struct Piece {
  size_t at = 0, bytes = 0, offset = 0;
  Value value;
  std::vector<char> copied;
};

struct Shape {
  std::vector<int64_t> sizes, strides;
  at::ScalarType type = at::kFloat;
  size_t extent = 0;
};

struct Operand {
  Shape shape;
  std::vector<Piece> pieces;
  bool conj = false, neg = false, number = false, changed = false;
};

// Places of the operator's tensors: indices of operands, or CPU tensors as they were.
struct Place {
  enum { PLAIN, TENSOR, LIST, OPTIONAL_LIST } kind = PLAIN;
  IValue plain;
  std::vector<int> operands;  // -1: none, or in `host`
  std::vector<Tensor> host;
};

struct Result {
  Shape shape;
  int output = -1, element = -1;  // of what the operator returns; -1: the operand is changed
  size_t operand = 0;
};

struct Node {
  const Operator *op = nullptr;
  std::vector<Place> places;
  std::vector<Operand> operands;
  std::vector<Result> results;
  uint64_t seed = 0;
  bool unknown = false, done = false;
  bool arrives = false;  // bytes of another rank, which its only value awaits
  bool arriving = false;  // so do some below it, or itself: then whether it is unknown shows when it is computed
  double cost = 0, all = 0;  // ns of its chain: of its reals, and of everything
  int depth = 0;
  std::vector<Tensor> values;  // by result, once it is done
  size_t kept = 0;  // bytes of them
  bool copied_real = false;  // reals that the program copied from the host
  ~Node();
};

static std::atomic<size_t> kept_bytes{0}, copied_real_bytes{0};
Node::~Node() {
  kept_bytes -= kept;
  if (arrives) ph_touch_drop(const_cast<void *>(values[0].const_data_ptr()), kept);
  if (copied_real) copied_real_bytes -= kept;
}

// Half of the machine's memory, shared by its ranks, at most 8 GiB.
static size_t most_bytes() {
  static const size_t most = [] {
    const char *ranks = getenv("LOCAL_WORLD_SIZE");
    double all = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
    double share = all / 2 / std::max(1, ranks ? atoi(ranks) : 1);
    return static_cast<size_t>(std::min(share, 8.0 * (1ULL << 30)));
  }();
  return most;
}

// ---------------------------------------------------------------- values by ticket
static auto *values = new std::unordered_map<uint64_t, Value>();
static std::mutex values_lock;
static std::recursive_mutex computing;  // one thread at a time; taken before values_lock

static Value value_of(uint64_t ticket) {
  std::lock_guard<std::mutex> guard(values_lock);
  auto found = values->find(ticket);
  return found == values->end() ? Value() : found->second;
}

static void drop(uint64_t ticket) {
  Value dropped;  // ends after the lock
  std::lock_guard<std::mutex> guard(values_lock);
  auto found = values->find(ticket);
  if (found == values->end()) return;
  dropped = std::move(found->second);
  values->erase(found);
}

static void await(const Tensor &t, std::shared_ptr<Node> node, size_t index) {
  char *data = bytes_of(t);
  size_t extent = extent_of(t);
  if (!extent) return;
  unsigned flags = ph_memory_flags(data, extent);
  ph_memory_clear(data, extent);
  uint64_t ticket = ph_next_deferred();
  {
    std::lock_guard<std::mutex> guard(values_lock);
    (*values)[ticket] = {std::move(node), index};
  }
  ph_expect(data, extent, ticket);
  ph_memory_mark(data, extent, flags);
}

// ---------------------------------------------------------------- what an operator is given
static Shape shape_of(const Tensor &t) { return {t.sizes().vec(), t.strides().vec(), t.scalar_type(), extent_of(t)}; }

static std::shared_ptr<Node> made_of(Tensor host, Shape shape) {
  auto node = std::make_shared<Node>();
  node->done = true;
  node->kept = shape.extent;
  kept_bytes += node->kept;
  Result result;
  result.shape = std::move(shape);
  node->results.push_back(std::move(result));
  node->values.push_back(std::move(host));
  return node;
}

static char *first_byte(const Tensor &t) { return static_cast<char *>(const_cast<void *>(t.const_data_ptr())); }

// Bytes that lie in the device's memory now. Many of them become a value, so that the next operator need not copy them.
static Piece copied(char *data, size_t at, size_t bytes) {
  Piece piece;
  piece.at = at;
  piece.bytes = bytes;
  if (!ph_memory_true(data + at, bytes)) return piece;
  if (bytes <= KEPT_BYTES) {
    piece.copied.assign(data + at, data + at + bytes);
    return piece;
  }
  PlainCalls plain;
  Tensor host = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  memcpy(first_byte(host), data + at, bytes);
  Shape shape{{static_cast<int64_t>(bytes)}, {1}, at::kByte, bytes};
  auto node = made_of(host, shape);
  unsigned flags = ph_memory_flags(data + at, bytes);
  ph_memory_clear(data + at, bytes);
  uint64_t ticket = ph_next_deferred();
  {
    std::lock_guard<std::mutex> guard(values_lock);
    (*values)[ticket] = {node, 0};
  }
  ph_expect(data + at, bytes, ticket);
  ph_memory_mark(data + at, bytes, flags);
  piece.value = {node, 0};
  return piece;
}

// Bytes that another rank is to send. A value awaits them in the memory's place, so that only its reader waits.
static Value arriving(const char *data, size_t bytes) {
  PlainCalls plain;
  Tensor host = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  if (!ph_expect_copy(first_byte(host), data, bytes)) return {};
  auto node = made_of(host, {{static_cast<int64_t>(bytes)}, {1}, at::kByte, bytes});
  node->done = false;
  node->arrives = node->arriving = true;
  return {node, 0};
}

static Operand operand_of(const Tensor &t, bool read, bool changed) {
  Operand o;
  o.shape = shape_of(t);
  o.conj = t.is_conj();
  o.neg = t.is_neg();
  o.number = t.unsafeGetTensorImpl()->is_wrapped_number();
  o.changed = changed;
  if (!read || !o.shape.extent) return o;
  char *data = bytes_of(t);
  for (size_t at = 0; at < o.shape.extent;) {
    ph_awaited_piece next;
    bool some = ph_awaited(data + at, o.shape.extent - at, &next);
    size_t plain = some ? next.at : o.shape.extent - at;
    if (plain) o.pieces.push_back(copied(data, at, plain));
    at += plain;
    if (!some) break;
    const bool deferred = next.ticket & PH_DEFERRED;
    Value value = deferred ? value_of(next.ticket) : arriving(data + at, next.bytes);
    if (!deferred && !value.node) {
      ph_touch(data + at, next.bytes);
      continue;
    }
    if (value.node) {
      Piece piece;
      piece.at = at;
      piece.bytes = next.bytes;
      piece.offset = deferred ? next.offset : 0;
      piece.value = std::move(value);
      o.pieces.push_back(std::move(piece));
    }
    at += next.bytes;
  }
  return o;
}

static Place place_of(Node &node, const IValue &v, const Argument &argument) {
  Place p;
  auto take = [&](const IValue &each) {
    if (each.isNone() || !each.toTensor().defined() || !on_device(each.toTensor())) {
      p.operands.push_back(-1);
      bool host = each.isTensor() && each.toTensor().defined() && each.toTensor().is_cpu();
      PlainCalls plain;
      p.host.push_back(host ? each.toTensor().clone() : Tensor());
      return;
    }
    p.operands.push_back(static_cast<int>(node.operands.size()));
    p.host.emplace_back();
    node.operands.push_back(operand_of(each.toTensor(), !argument.out, argument.mutated));
  };
  if (v.isTensor()) {
    p.kind = Place::TENSOR;
    take(v);
  } else if (v.isTensorList() || v.isOptionalTensorList()) {
    p.kind = v.isTensorList() ? Place::LIST : Place::OPTIONAL_LIST;
    for (const IValue &each : v.toListRef()) take(each);
  } else if (argument.role != Role::GENERATOR) {
    p.plain = v.isDevice() && v.toDevice().is_cuda() ? IValue(c10::Device(at::kCPU)) : v;
  }
  return p;
}

// ---------------------------------------------------------------- what it costs
static bool is_product(const Operator &op) {
  return is_one_of(op.name, {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addbmm", "aten::mv",
                             "aten::addmv", "aten::matmul", "aten::linear", "aten::dot"});
}

// Operators of a network's layers; and decompositions, which take the cube of what they are given.
static bool is_heavy(const Operator &op) {
  for (const char *word :
       {"conv", "attention", "rnn", "lstm", "gru", "linalg_", "cholesky", "svd", "_qr", "eigh", "lstsq", "_cdist"})
    if (op.name.find(word) != std::string::npos) return true;
  return false;
}

static int64_t elements(const Shape &s) {
  int64_t n = 1;
  for (int64_t size : s.sizes) n *= size;
  return n;
}

// ns by the elements that it touches, as measured on one core of a 2.1 GHz Xeon: 1.5 for arithmetic, 5 for indexing, 8
// for random numbers, 80 for sorting, 0.1 for each multiplication of a product.
static double cost_of(const Node &node) {
  double most = 0, out = 0;
  for (const Operand &o : node.operands) most = std::max(most, static_cast<double>(elements(o.shape)));
  for (const Result &r : node.results) out = std::max(out, static_cast<double>(elements(r.shape)));
  const Operator &op = *node.op;
  double n = std::max(most, out);
  if (is_product(op) && !node.operands.empty() && !node.operands[0].shape.sizes.empty())
    return n + 0.1 * out *
                   static_cast<double>(
                       node.operands[op.name == "aten::addmm" && node.operands.size() > 1].shape.sizes.back());
  if (is_heavy(op)) return n * 5 + 0.1 * std::pow(most, 1.5);
  if (op.random) return 8 * n;
  for (const char *word : {"sort", "unique", "topk", "median", "kthvalue", "mode", "searchsorted", "bucketize", "fft"})
    if (op.name.find(word) != std::string::npos) return 80 * n;
  for (const char *word :
       {"index", "gather", "scatter", "nonzero", "masked", "embedding", "cum", "pow", "exp", "log", "sin", "cos"})
    if (op.name.find(word) != std::string::npos) return 5 * n;
  return 500 + 1.5 * n;
}

static bool of_integers(const Shape &s) { return c10::isIntegralType(s.type, /*includeBool=*/true); }

// Nodes on which the node's operands depend and that are still to be computed.
template <typename F>
static void for_each_below(const Node &node, F visit) {
  for (const Operand &o : node.operands)
    for (const Piece &p : o.pieces)
      if (p.value.node && !p.value.node->done) visit(*p.value.node);
}

// All reals that are to be computed below the node, each once.
static double cost_below(const Node &node, std::unordered_set<const Node *> &met) {
  double sum = 0;
  for_each_below(node, [&](const Node &below) {
    if (below.cost > 0 && met.insert(&below).second) sum += cost_of(below) + cost_below(below, met);
  });
  return sum;
}

// ---------------------------------------------------------------- computing
static Tensor blank(const Shape &s) {
  return at::zeros({static_cast<int64_t>(s.extent)}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
}

static Tensor shaped(char *data, const Shape &s) {
  return at::from_blob(data, s.sizes, s.strides, at::TensorOptions().dtype(s.type).device(at::kCPU));
}

static void evaluate(Node &node);

// The operand's bytes; `own`: a copy, which the operator may change.
static char *gather(const Operand &o, Tensor *owner) {
  bool whole = o.pieces.size() == 1 && o.pieces[0].bytes == o.shape.extent && !o.changed;
  for (const Piece &p : o.pieces)
    if (p.value.node) evaluate(*p.value.node);
  if (whole && o.pieces[0].value.node)
    return first_byte(o.pieces[0].value.node->values[o.pieces[0].value.index]) + o.pieces[0].offset;
  *owner = blank(o.shape);
  char *to = first_byte(*owner);
  for (const Piece &p : o.pieces) {
    if (p.value.node)
      memcpy(to + p.at, first_byte(p.value.node->values[p.value.index]) + p.offset, p.bytes);
    else if (!p.copied.empty())
      memcpy(to + p.at, p.copied.data(), p.bytes);
  }
  return to;
}

static Tensor tensor_of(const Operand &o, Tensor *owner) {
  Tensor t = shaped(gather(o, owner), o.shape);
  if (o.number) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (o.conj) t = t.conj_physical();
  return o.neg ? t.neg() : t;
}

static torch::jit::Stack stack_of(const Node &node, std::vector<Tensor> &owners, std::vector<Tensor> &tensors) {
  owners.resize(node.operands.size());
  tensors.resize(node.operands.size());
  for (size_t i = 0; i < node.operands.size(); ++i) tensors[i] = tensor_of(node.operands[i], &owners[i]);
  torch::jit::Stack stack;
  at::Generator generator;
  if (node.op->random && !node.op->random_hidden) generator = at::detail::createCPUGenerator(node.seed);
  for (size_t i = 0; i < node.places.size(); ++i) {
    const Place &p = node.places[i];
    auto at = [&](size_t k) { return p.operands[k] < 0 ? p.host[k] : tensors[static_cast<size_t>(p.operands[k])]; };
    if (p.kind == Place::TENSOR) {
      stack.emplace_back(at(0));
    } else if (p.kind == Place::LIST) {
      c10::List<Tensor> list;
      for (size_t k = 0; k < p.operands.size(); ++k) list.push_back(at(k));
      stack.emplace_back(list);
    } else if (p.kind == Place::OPTIONAL_LIST) {
      c10::List<std::optional<Tensor>> list;
      for (size_t k = 0; k < p.operands.size(); ++k)
        list.push_back(at(k).defined() ? std::optional<Tensor>(at(k)) : std::nullopt);
      stack.emplace_back(list);
    } else if (node.op->arguments[i].role == Role::GENERATOR) {
      stack.push_back(generator.defined() ? IValue(generator) : IValue());
    } else {
      stack.push_back(p.plain);
    }
  }
  return stack;
}

// As the result lies in the device's memory.
static Tensor laid_out(const Tensor &returned, const Shape &s) {
  if (!returned.defined() || returned.sizes() != at::IntArrayRef(s.sizes)) return blank(s);
  Tensor t = returned.resolve_conj().resolve_neg();
  if (t.scalar_type() == s.type && t.strides() == at::IntArrayRef(s.strides) && t.storage().nbytes() >= s.extent)
    return t;
  Tensor to = blank(s);
  shaped(first_byte(to), s).copy_(t);
  return to;
}

struct Quiet : c10::WarningHandler {
  void process(const c10::Warning &) override {}
};

// Unknown numbers are finite, and what follows from them: unless the program put an infinity in.
static bool is_finite_input(const Node &node, const std::vector<Tensor> &tensors) {
  for (const Place &p : node.places)
    if ((p.plain.isDouble() && !std::isfinite(p.plain.toDouble())) ||
        (p.plain.isScalar() && !p.plain.isComplexDouble() && !std::isfinite(p.plain.toScalar().to<double>())))
      return false;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!all_finite(tensors[i].scalar_type(), first_byte(tensors[i]), extent_of(tensors[i]))) return false;
  return true;
}

static bool run(Node &node) {
  PlainCalls plain;
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  std::vector<Tensor> owners, tensors, found;
  torch::jit::Stack stack = stack_of(node, owners, tensors);
  at::Generator shared = at::detail::getDefaultCPUGenerator();
  Tensor state;
  if (node.op->random_hidden) {
    std::lock_guard<std::mutex> held(shared.mutex());
    state = shared.get_state();
    shared.set_current_seed(node.seed);
  }
  for (const Operand &o : node.operands)
    for (const Piece &piece : o.pieces) node.unknown |= node.arriving && piece.value.node && piece.value.node->unknown;
  bool fine = true, finite = node.unknown && is_finite_input(node, tensors);
  try {
    call_cpu_kernel(*node.op, stack);
    for (const Result &r : node.results) {
      if (r.output < 0) {
        found.push_back(owners[r.operand]);
        continue;
      }
      const IValue &v = stack.at(static_cast<size_t>(r.output));
      bool single = v.isTensor();
      Tensor t = single             ? v.toTensor()
                 : v.isTensorList() ? v.toListRef()[static_cast<size_t>(r.element)].toTensor()
                                    : Tensor();
      bool own = true;  // what it was given must not change with the result
      for (const Tensor &given : tensors) own = own && !(t.defined() && given.defined() && t.is_alias_of(given));
      found.push_back(laid_out(own || !t.defined() ? t : t.clone(), r.shape));
    }
  } catch (const std::exception &) { fine = false; }
  if (node.op->random_hidden) {
    std::lock_guard<std::mutex> held(shared.mutex());
    shared.set_state(state);
  }
  if (!fine) return false;
  for (size_t i = 0; i < found.size() && finite; ++i)
    make_finite(node.results[i].shape.type, first_byte(found[i]), node.results[i].shape.extent);
  node.values = std::move(found);
  return true;
}

static void say_once(const char *what) {
  static std::atomic_flag said = ATOMIC_FLAG_INIT;
  if (!said.test_and_set()) fprintf(stderr, "phantora: rank %d: %s (docs/values.md)\n", ph_rank(), what);
}

static void evaluate(Node &node) {
  if (node.done) return;
  if (node.arrives) {
    char *data = first_byte(node.values[0]);
    ph_touch(data, node.kept);
    node.unknown = ph_memory_flags(data, node.kept) & PH_UNKNOWN;
    node.done = true;
    return;
  }
  size_t bytes = 0;
  for (const Result &r : node.results) bytes += r.shape.extent;
  bool room = kept_bytes + bytes <= most_bytes();
  if (!room) say_once("values that the program reads do not fit into the memory of this machine and read as zero");
  if (!room || !run(node)) {
    node.values.clear();
    for (const Result &r : node.results) node.values.push_back(blank(r.shape));
  }
  node.kept = bytes;
  kept_bytes += bytes;
  node.done = true;
  node.operands.clear();  // what it was given may go
  node.places.clear();
}

static const uint8_t *bytes_for(uint64_t ticket, size_t *total, int *knowledge) {
  static Value given;  // stays until the next: the caller is the only one
  std::lock_guard<std::recursive_mutex> guard(computing);
  given = value_of(ticket);
  *total = 0;
  if (!given.node) return nullptr;
  evaluate(*given.node);
  *knowledge = given.node->unknown && given.node->arriving ? PH_F_UNKNOWN : 0;
  *total = given.node->results[given.index].shape.extent;
  return reinterpret_cast<const uint8_t *>(first_byte(given.node->values[given.index]));
}

void install_deferred() { ph_deferred_by(bytes_for, drop); }

// ---------------------------------------------------------------- what the tracer asks
bool is_deferred(const Tensor &t) {
  ph_awaited_piece piece;
  if (!on_device(t)) return false;
  size_t extent = extent_of(t);
  char *data = bytes_of(t);
  for (size_t at = 0; at < extent && ph_awaited(data + at, extent - at, &piece); at += piece.at + piece.bytes)
    if (piece.ticket & PH_DEFERRED) return true;
  return false;
}

bool has_deferred(const IValue &v) {
  bool found = false;
  each_tensor(v, [&](const Tensor &t) { found = found || is_deferred(t); });
  return found;
}

void await_senders(const Tensor &t) {
  if (!on_device(t)) return;
  const size_t extent = extent_of(t);
  ph_touch_arriving(bytes_of(t), extent);
  if (cost_to_see(t) == HUGE_VAL) ph_touch(bytes_of(t), extent);
}

Tensor seen(const Tensor &t) {
  if (!is_deferred(t)) return on_host(t);
  std::lock_guard<std::recursive_mutex> guard(computing);
  Operand o = operand_of(t, true, false);
  Tensor owner, host = tensor_of(o, &owner);
  if (o.conj || o.neg) return host;
  std::shared_ptr<Node> keep =
      owner.defined() ? nullptr : o.pieces[0].value.node;  // may be dropped while the tensor lives
  return at::from_blob(
      first_byte(host), o.shape.sizes, o.shape.strides, [keep, owner](void *) {},
      at::TensorOptions().dtype(o.shape.type).device(at::kCPU));
}

double cost_to_see(const Tensor &t) {
  ph_awaited_piece piece;
  const char *data = bytes_of(t);
  const size_t extent = extent_of(t);
  double ns = 0;
  for (size_t at = 0; at < extent && ph_awaited(data + at, extent - at, &piece); at += piece.at + piece.bytes)
    if (Value value = value_of(piece.ticket); value.node && !value.node->done)
      ns += value.node->arriving ? HUGE_VAL : value.node->all;
  return ns;
}

// Reals that are too many to be computed as layers of a network are.
static bool is_too_much(const Node &node) {
  if (!is_product(*node.op) && !is_heavy(*node.op)) return false;
  constexpr int64_t MATRIX = 1 << 18;
  for (const Operand &o : node.operands)
    if (!of_integers(o.shape) && elements(o.shape) > MATRIX) return true;
  return false;
}

static void add_results(Node &node, const Frame &f, Values outputs, std::vector<Tensor> &real) {
  auto add = [&](const Tensor &t, int output, int element) {
    if (!t.defined() || !on_device(t) || !t.numel()) return;
    Result r;
    r.shape = shape_of(t);
    r.output = output;
    r.element = element;
    node.results.push_back(std::move(r));
    real.push_back(t);
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (i < f.op->returns_view.size() && f.op->returns_view[i]) continue;
    int element = 0;
    each_tensor(outputs[i], [&](const Tensor &t) { add(t, static_cast<int>(i), element++); });
  }
  size_t operand = 0;
  for (size_t i = 0; i < f.args.size(); ++i)
    each_tensor(f.args[i], [&](const Tensor &t) {
      if (!t.defined() || !on_device(t)) return;
      if (f.op->arguments[i].mutated && t.numel()) {
        Result r;
        r.shape = shape_of(t);
        r.operand = operand;
        node.results.push_back(std::move(r));
        real.push_back(t);
      }
      ++operand;
    });
}

// Forms of operators that a CPU takes, and that none takes: by operator and types.
static auto *forms = new std::unordered_map<uint64_t, bool>();
static std::mutex forms_lock;

static uint64_t form_of(const Node &node) {
  Hash hash{node.op->key};
  for (const Operand &o : node.operands) hash.add(static_cast<uint64_t>(o.shape.type) * 16 + o.shape.sizes.size());
  for (const Result &r : node.results) hash.add(static_cast<uint64_t>(r.shape.type));
  return hash.h;
}

// Can it be computed at all? The first of its form shows it.
static bool is_possible(Node &node) {
  uint64_t form = form_of(node);
  {
    std::lock_guard<std::mutex> guard(forms_lock);
    auto found = forms->find(form);
    if (found != forms->end()) return found->second;
  }
  if (node.all > CHECK_NS || node.arriving) return true;
  bool fine = run(node);
  if (fine) {
    for (const Result &r : node.results) node.kept += r.shape.extent;
    kept_bytes += node.kept;
    node.done = true;
    node.operands.clear();
    node.places.clear();
  }
  std::lock_guard<std::mutex> guard(forms_lock);
  (*forms)[form] = fine;
  return fine;
}

static double real_ns = 0;  // of reals that were computed so far, with `computing` held

// Within its budget of time? Operands of a chain that grows too long are computed now.
static bool is_affordable(Node &node) {
  bool reals = false;
  for (const Result &r : node.results) reals |= !of_integers(r.shape);
  node.all = cost_of(node);
  node.cost = reals ? node.all : 0;
  const double own = node.cost;
  for_each_below(node, [&](const Node &below) {
    node.cost += below.cost;
    node.all += below.all;
    node.arriving |= below.arriving;
    node.depth = std::max(node.depth, below.depth + 1);
  });
  if (reals && node.cost > CHAIN_NS) {
    std::unordered_set<const Node *> met;
    node.cost = own + cost_below(node, met);
    if (node.cost > CHAIN_NS) return false;
  }
  if (node.depth <= DEEPEST) return true;
  if ((real_ns += node.cost) > ALL_NS) return false;
  for (const Operand &o : node.operands)
    for (const Piece &p : o.pieces)
      if (p.value.node) evaluate(*p.value.node);
  node.cost = own;
  node.depth = 0;
  return true;
}

Deferral defer(const Frame &f, Values outputs, bool unknown) {
  if (!f.op->on_cpu) return Deferral::NOW;  // the operator around it may know
  std::lock_guard<std::recursive_mutex> guard(computing);
  PlainCalls plain;
  auto node = std::make_shared<Node>();
  node->op = f.op;
  node->unknown = unknown;
  if (f.op->random) node->seed = seed_of(f);
  for (size_t i = 0; i < f.args.size(); ++i) node->places.push_back(place_of(*node, f.args[i], f.op->arguments[i]));
  std::vector<Tensor> real;
  add_results(*node, f, outputs, real);
  for (const Tensor &t : real)  // what lies in the gaps of one may be another's
    if (t.is_conj() || t.is_neg() || (real.size() > 1 && !t.is_non_overlapping_and_dense())) return Deferral::NOW;
  if (is_too_much(*node) || !is_affordable(*node) || !is_possible(*node)) return Deferral::NEVER;
  for (size_t i = 0; i < real.size(); ++i) await(real[i], node, i);
  return Deferral::LATER;
}

void bind(const Tensor &real, Tensor host) {
  if (!on_device(real) || !real.numel()) return;
  PlainCalls plain;
  Shape shape = shape_of(real);
  await(real, made_of(laid_out(host, shape), shape), 0);
}

bool defer_copy(const Tensor &to, const Tensor &from) {
  bool real = !of_integers(shape_of(to));
  if (real && copied_real_bytes + extent_of(to) > COPIED_REAL_BYTES) return false;  // weights, mostly
  if (kept_bytes + extent_of(to) > most_bytes()) {
    say_once("values that the program copies to a GPU do not fit into the memory of this machine and are unknown");
    return false;
  }
  PlainCalls plain;
  Shape shape = shape_of(to);
  Tensor host = blank(shape);
  shaped(first_byte(host), shape).copy_(from);
  auto made = made_of(host, shape);
  if (real) {
    made->copied_real = true;
    copied_real_bytes += made->kept;
  }
  await(to, made, 0);
  return true;
}

}  // namespace tracer
