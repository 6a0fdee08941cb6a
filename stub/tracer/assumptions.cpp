#include "tracer/assumptions.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "tracer/host_calls.h"
#include "tracer/places.h"
#include "tracer/sequences.h"
#include "tracer/tensors.h"

namespace tracer {

void note_assumption(const std::string &what) {
  std::string text = "assumed: " + what + " at " + place();
  ph_record record{};
  record.kind = PH_HOST_SPAN;
  record.id = ph_name(ph_hash(text.data(), text.size(), 0), text.data(), text.size());
  record.span.start = ph_now();
  ph_emit(&record);
}

std::string short_name(const Operator &op) { return op.name.substr(op.name.rfind(':') + 1); }

// ---------------------------------------------------------------- what is assumed (phantora/rank/assume.py)
struct Assumed {
  bool spread = true;  // choices: different ones, one after the other; else always the first
  double mask = 0;     // share of true elements
  double nms = 0.5;    // share of boxes that are kept
  double loss = 0, last_loss = 0, steps = 0;
  double accept = -1;     // what compared probabilities read as, and share of equal tokens; below 0: as they are
  int64_t iterations = 0; // reads of an unknown flag at one place until it reads as it is
  std::string place;      // where; empty: everywhere
  int64_t overflows = 0;  // steps of a GradScaler that find an infinity
};

static std::string setting(const std::string &all, const std::string &key) {
  size_t at = ("," + all).find("," + key + "=");
  if (at == std::string::npos) return "";
  at += key.size() + 1;
  return all.substr(at, all.find(',', at) - at);
}

static Assumed given;
static const Assumed &assumed() { return given; }

// `KEY=VALUE,...`. Called once, before the script runs.
extern "C" __attribute__((visibility("default"))) void phantora_assume(const char *text) {
  std::string all = text, loss = setting(all, "loss");
  given.spread = setting(all, "choice") != "first";
  given.mask = atof(setting(all, "mask").c_str());
  if (std::string nms = setting(all, "nms"); !nms.empty()) given.nms = atof(nms.c_str());
  if (std::string accept = setting(all, "accept"); !accept.empty()) given.accept = atof(accept.c_str());
  std::string iterations = setting(all, "iterations");
  given.iterations = atoll(iterations.c_str());
  if (size_t at = iterations.find('@'); at != std::string::npos) given.place = iterations.substr(at + 1);
  given.overflows = atoll(setting(all, "overflow").c_str());
  assume_lengths(setting(all, "length"), setting(all, "eos"));
  given.loss = given.last_loss = atof(loss.c_str());
  sscanf(loss.c_str(), "%lf:%lf:%lf", &given.loss, &given.last_loss, &given.steps);
}

static std::atomic<int64_t> steps_done{0};
void step_ended() { ++steps_done; }

int64_t assumed_count(const Tensor &mask) {
  if (truths(mask) & PH_HOLDS) return mask.numel();
  return mask.scalar_type() == at::kBool ? std::llround(assumed().mask * static_cast<double>(mask.numel())) : 0;
}

static std::atomic<int64_t> scaled_steps{0};
void scaled_step_ended() { ++scaled_steps; }

bool assume_overflow() {
  static std::atomic_flag said = ATOMIC_FLAG_INIT;
  const int64_t n = assumed().overflows;
  if (!said.test_and_set())
    note_assumption(n ? "GradScaler skips " + std::to_string(n) + " steps" : "GradScaler skips no step");
  return scaled_steps < n;
}

bool assumes_masks() { return assumed().mask > 0; }

int64_t assumed_kept(int64_t boxes) {  // the best box is always kept
  return boxes ? std::max<int64_t>(1, std::llround(assumed().nms * static_cast<double>(boxes))) : 0;
}

// ---------------------------------------------------------------- choices
// Operators that choose among unknown numbers, and which of their results holds the choice.
static int choice_result(const Operator &op) {
  if (is_one_of(op.name, {"aten::argmax", "aten::argmin", "aten::multinomial", "aten::argsort"})) return 0;
  if (op.name == "aten::topk" || op.name == "aten::sort") return 1;
  return is_one_of(op.text, {"aten::max.dim", "aten::min.dim"}) ? 1 : -1;
}

// The dimension that is chosen along, and whether it is gone from the result.
struct Along {
  int64_t dim = -1;
  bool kept = true;
};
static Along along(const Frame &f, const Tensor &result) {
  const Tensor &input = f.args[0].toTensor();
  Along a;
  a.kept = result.dim() == input.dim();
  if (f.op->name == "aten::multinomial") return {input.dim() - 1, true};
  size_t place = f.op->text == "aten::sort.stable" || f.op->name == "aten::topk" ? 2 : 1;
  bool given = f.args.size() > place && f.args[place].isInt();
  if (!given && f.op->name != "aten::sort" && f.op->name != "aten::topk") return {-1, false};  // among all elements
  a.dim = given ? f.args[place].toInt() : -1;
  if (a.dim < 0) a.dim += input.dim();
  return a;
}

// A router's choices differ by step and call: experts get other numbers of tokens, so products have other sizes. The
// choices of the first step are one after the other. So are all choices of a program that chooses in a backward pass,
// because recomputed activations need those of their forward pass. Ranks that share a layer make the same calls, so
// they choose the same.
static std::atomic<bool> recomputes{false};

// A seed of the call's choices; 0: one after the other. `shape`: rows, candidates, chosen.
static uint64_t seed_of(const Frame &f, std::array<int64_t, 3> shape) {
  static std::mutex lock;
  static auto *calls = new std::map<std::array<int64_t, 3>, int64_t>();  // of the present step
  static int64_t present = 0;
  bool routes = f.op->name == "aten::topk" || f.op->name == "aten::argmax" || f.op->text == "aten::max.dim";
  if (!routes || shape[1] > shape[0]) return 0;  // more candidates than rows: tokens of a vocabulary
  if (f.backward) recomputes = true;
  int64_t step = steps_done;
  if (!step || recomputes) return 0;
  std::lock_guard<std::mutex> guard(lock);
  if (step != present) calls->clear();
  present = step;
  const int64_t key[] = {step, (*calls)[shape]++};
  return ph_hash(key, sizeof key, 1);
}

// Row r of the result takes candidates N/2 + r * k, and the k - 1 that follow: every candidate as often as every other
// over the rows (the experts of a router), and never the first or the last (an end-of-sequence token). With a seed the
// first of a row is drawn. What was to be sorted is in order already.
static void choose(const Frame &f, const Tensor &result) {
  const Tensor &input = f.args[0].toTensor();
  if (!input.defined() || !input.dim() || !has_room(result) || result.scalar_type() != at::kLong) return;
  Along a = along(f, result);
  int64_t candidates = a.dim < 0 ? input.numel() : input.size(a.dim);
  int64_t chosen = a.dim >= 0 && a.kept ? result.size(a.dim) : 1;
  if (!candidates || !result.numel()) return;
  bool sorts = f.op->name == "aten::sort" || f.op->name == "aten::argsort";
  Tensor host = at::empty({result.numel() / chosen, chosen}, at::TensorOptions().dtype(at::kLong).device(at::kCPU));
  auto *to = host.data_ptr<int64_t>();
  uint64_t seed = seed_of(f, {host.size(0), candidates, chosen});
  for (int64_t row = 0; row < host.size(0); ++row) {
    uint64_t drawn = seed ? ph_hash(&row, sizeof row, seed) % static_cast<uint64_t>(candidates) : 0;
    int64_t first = seed ? static_cast<int64_t>(drawn) : candidates / 2 + row * chosen;
    for (int64_t i = 0; i < chosen; ++i) *to++ = sorts ? i : (first + i) % candidates;
  }
  if (a.dim >= 0 && a.kept) {  // rows go over the other dimensions, in order
    std::vector<int64_t> others = result.sizes().vec();
    others.erase(others.begin() + a.dim);
    others.push_back(chosen);
    host = host.view(others).movedim(-1, a.dim);
  } else {
    host = host.view(result.sizes());
  }
  alias(result).copy_(host);
  ph_memory_wrote(bytes_of(result), extent_of(result));
  mark(result, true);
}

// Boxes from all over, in order.
static void keep(const Frame &f, const Tensor &kept) {
  int64_t boxes = f.args[0].toTensor().size(0), count = kept.numel();
  if (boxes) note_assumption("nms keeps " + std::to_string(count) + " of " + std::to_string(boxes) + " boxes");
  if (!count || !has_room(kept) || kept.scalar_type() != at::kLong) return;
  auto *to = alias(kept).data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) to[i] = i * boxes / count;
  ph_memory_wrote(bytes_of(kept), extent_of(kept));
  mark(kept, true);
}

// ---------------------------------------------------------------- what is true of zeros
static void write_true(const Tensor &t) {
  if (!has_room(t)) return;
  alias(t).fill_(1);
  ph_memory_wrote(bytes_of(t), extent_of(t));
  mark(t, true);
}

void assume_true(const Tensor &t) {
  if (!on_device(t) || !t.numel() || !bytes_of(t)) return;
  PlainCalls plain;
  if (t.numel() <= PH_KNOWN_INTEGERS && has_room(t))
    write_true(t);
  else if (t.is_non_overlapping_and_dense())
    ph_memory_mark(bytes_of(t), extent_of(t), PH_HOLDS | PH_UNKNOWN);
}

// ---------------------------------------------------------------- comparisons of unknown numbers
static void mark_truth(const Tensor &t, unsigned truth) {
  if (on_device(t) && t.numel() && bytes_of(t) && t.is_non_overlapping_and_dense())
    ph_memory_mark(bytes_of(t), extent_of(t), truth | PH_UNKNOWN);
}

static const Tensor *tensor_at(const Frame &f, size_t i) {
  return f.args.size() > i && f.args[i].isTensor() && f.args[i].toTensor().defined() ? &f.args[i].toTensor() : nullptr;
}

// What zeros are compared with a number.
static bool zero_is(const std::string &name, double number) {
  return name == "aten::lt"   ? 0 < number
         : name == "aten::le" ? 0 <= number
         : name == "aten::gt" ? 0 > number
                              : name == "aten::ge" && 0 >= number;
}

// Unknown reals equal those with which a program compares them element by element, as they do for torch.equal, and are
// in the order that it asks for. Its masks stay unknown: only `all` and counts of equal elements see it.
static unsigned compared(const Frame &f) {
  const Tensor *a = tensor_at(f, 0), *b = tensor_at(f, 1);
  if (!a || !c10::isFloatingType(a->scalar_type())) return 0;
  const std::string &text = f.op->text;
  if (is_one_of(text, {"aten::lt.Scalar", "aten::le.Scalar", "aten::gt.Scalar", "aten::ge.Scalar"}))
    return zero_is(f.op->name, f.args[1].toScalar().toDouble()) ? PH_COMPARES : 0;
  if (!b || is_python(*a) || is_python(*b) || a->sizes() != b->sizes()) return 0;
  if (text == "aten::eq.Tensor") return PH_EQUALS | PH_COMPARES;
  const bool orders = is_one_of(text, {"aten::lt.Tensor", "aten::le.Tensor", "aten::gt.Tensor", "aten::ge.Tensor"});
  return orders ? PH_COMPARES : 0;
}

// Truths of a result that follow from those of the operands: of both for `and`, of either for `or`.
static unsigned combined(const Frame &f) {
  const bool both = is_one_of(f.op->name, {"aten::bitwise_and", "aten::logical_and"}),
             either = is_one_of(f.op->name, {"aten::bitwise_or", "aten::logical_or"});
  const Tensor *a = tensor_at(f, 0), *b = tensor_at(f, 1);
  if ((!both && !either) || !a || !b || is_python(*a) || is_python(*b) || a->sizes() != b->sizes()) return 0;
  return both ? truths(*a) & truths(*b) : truths(*a) | truths(*b);
}

// A number that all elements, each of them one, make.
static void write_number(const Tensor &t, double number) {
  if (t.numel() != 1 || !has_room(t)) return;
  alias(t).fill_(number);
  ph_memory_wrote(bytes_of(t), extent_of(t));
  mark(t, true);
}

// False: it is no comparison, and nothing follows from one.
static bool settle_comparison(const Frame &f, Values outputs) {
  PlainCalls plain;
  if (f.op->copies && tensor_at(f, 0) && tensor_at(f, 1)) {  // a mask becomes numbers
    const unsigned truth = truths(*tensor_at(f, 1)) & PH_EQUALS;
    if (truth) mark_truth(*tensor_at(f, 0), truth);
    return truth != 0;
  }
  if (outputs.size() != 1 || !outputs[0].isTensor() || !tensor_at(f, 0)) return false;
  const Tensor &result = outputs[0].toTensor();
  if (f.op->name == "aten::all" && truths(*tensor_at(f, 0))) return write_true(result), true;
  const bool sums = is_one_of(f.op->name, {"aten::sum", "aten::count_nonzero"});
  if ((sums || f.op->name == "aten::mean") && truths(*tensor_at(f, 0)) & PH_EQUALS) {
    write_number(result, sums ? static_cast<double>(tensor_at(f, 0)->numel()) : 1);
    return true;
  }
  if (result.scalar_type() != at::kBool) return false;
  const unsigned truth = compared(f) | combined(f);
  if (truth) mark_truth(result, truth);
  return truth != 0;
}

// ---------------------------------------------------------------- losses
static bool is_loss(const Operator &op) {
  return is_one_of(op.name, {"aten::nll_loss_forward", "aten::nll_loss2d_forward", "aten::mse_loss", "aten::l1_loss",
                             "aten::smooth_l1_loss", "aten::huber_loss", "aten::binary_cross_entropy",
                             "aten::_cudnn_ctc_loss", "aten::_ctc_loss", "aten::soft_margin_loss"});
}

// From the first value to the last by equal factors, then the last.
static double loss_now() {
  const Assumed &a = assumed();
  if (a.steps <= 0) return a.loss;
  double done = std::min(1.0, static_cast<double>(steps_done.load()) / a.steps);
  return a.loss * std::pow(a.last_loss / a.loss, done);
}

static void give_loss(const Tensor &t) {
  double value = loss_now();
  if (!value || !on_device(t) || t.numel() != 1 || !c10::isFloatingType(t.scalar_type())) return;
  alias(t).fill_(value);
  ph_memory_wrote(bytes_of(t), extent_of(t));
  mark(t, true);
}

// The argument of backward() is a loss, whatever operators made it; one that is not zero is true.
static void give_loss_at(void *data, at::ScalarType type) {
  Tensor t = at::from_blob(data, {}, at::TensorOptions().dtype(type).device(at::kCPU));
  double value = loss_now();
  if (!value || t.item<double>() != 0) return;
  t.fill_(value);
  size_t size = t.itemsize();
  ph_memory_wrote(data, size);
  ph_memory_mark(data, size, (ph_memory_flags(data, size) & PH_KNOWN) | PH_UNKNOWN);
}

// The choice among its results, if the operator makes one.
static const Tensor *choice_of(const Frame &f, Values outputs) {
  int choice = choice_result(*f.op);
  bool made =
      choice >= 0 && static_cast<size_t>(choice) < outputs.size() && outputs[choice].isTensor() && f.args[0].isTensor();
  return made ? &outputs[choice].toTensor() : nullptr;
}

void assume_sample(const Frame &f, Values outputs) {
  if (const Tensor *choice = choice_of(f, outputs)) sample(f, *choice);
}

void assume_results(const Frame &f, Values outputs) {
  if (f.op->count == Count::KEEPS) {
    PlainCalls plain;
    return keep(f, outputs[0].toTensor());
  }
  if (settle_comparison(f, outputs)) return;
  const Tensor *choice = choice_of(f, outputs);
  bool loss = !choice && is_loss(*f.op);
  if (!choice && !loss) return;
  PlainCalls plain;
  try {
    if (loss && !outputs.empty() && outputs[0].isTensor()) give_loss(outputs[0].toTensor());
    if (choice && !sample(f, *choice) && assumed().spread) choose(f, *choice);
  } catch (const std::exception &) {
    // A form with other arguments: its results stay zero.
  }
}

// ---------------------------------------------------------------- numbers that the host reads
static bool counts_as_unknown(const Tensor &t) { return on_device(t) && t.numel() && (!fits(t) || is_unknown(t)); }

static std::string number(const Tensor &t) {
  ph_touch(bytes_of(t), t.itemsize());
  int64_t value = 0;
  memcpy(&value, bytes_of(t), t.itemsize());
  if (t.scalar_type() == at::kBool) return value ? "True" : "False";
  int unused = 64 - 8 * static_cast<int>(t.itemsize());
  return std::to_string(static_cast<int64_t>(static_cast<uint64_t>(value) << unused) >> unused);
}

constexpr double FAR = 1e4;  // of a residual before its loop ends; finite in all types

// An unknown flag that ends a loop by what zeros make it ends it at the last of this many reads at its place. So does
// an unknown number, at a place that the user names: others are losses and sizes. A count is of what has not converged.
static void iterate(const Tensor &t) {
  static auto *reads = new std::unordered_map<std::string, int64_t>();
  static std::mutex lock;
  const Assumed &a = assumed();
  bool is_flag = t.scalar_type() == at::kBool;
  if (a.iterations <= 1 || t.numel() != 1 || (a.place.empty() && !is_flag)) return;
  std::string where = place();
  if (!a.place.empty() && where != a.place) return;
  std::lock_guard<std::mutex> guard(lock);
  if (++(*reads)[where] % a.iterations == 0) return;
  PlainCalls plain;
  ph_touch(bytes_of(t), t.itemsize());
  if (c10::isFloatingType(t.scalar_type()))
    alias(t).fill_(FAR);
  else
    alias(t).copy_(alias(t).logical_not());
  ph_memory_wrote(bytes_of(t), t.itemsize());
}

// Probabilities that are compared with known numbers, and tokens that are compared with each other.
bool assume_comparison(const Frame &f, const Tensor &result) {
  bool orders = is_one_of(f.op->text, {"aten::gt.Tensor", "aten::ge.Tensor", "aten::lt.Tensor", "aten::le.Tensor"});
  bool equals = is_one_of(f.op->text, {"aten::eq.Tensor", "aten::ne.Tensor"});
  if (assumed().accept < 0 || (!orders && !equals) || !f.args[0].isTensor() || !f.args[1].isTensor()) return false;
  const Tensor &a = f.args[0].toTensor(), &b = f.args[1].toTensor();
  if (!on_device(a) || !on_device(b) || is_large(result) || result.scalar_type() != at::kBool) return false;
  bool of_a = is_unknown(a), of_b = is_unknown(b);
  PlainCalls plain;
  torch::jit::Stack stack;
  if (orders && of_a != of_b && c10::isFloatingType(a.scalar_type())) {
    stack = {of_a ? at::full_like(on_host(a), assumed().accept) : on_host(a),
             of_b ? at::full_like(on_host(b), assumed().accept) : on_host(b)};
  } else if (equals && of_a && of_b && a.scalar_type() == at::kLong) {
    static std::atomic<uint64_t> drawn{0};
    Tensor first = at::zeros(result.sizes(), at::TensorOptions().dtype(at::kLong).device(at::kCPU)),
           second = at::zeros_like(first);
    for (int64_t i = 0; i < first.numel(); ++i) {
      uint64_t draw = drawn++;
      second.data_ptr<int64_t>()[i] =
          static_cast<double>(ph_hash(&draw, sizeof draw, 1) >> 11) * 0x1p-53 >= assumed().accept;
    }
    stack = {first, second};
  } else {
    return false;
  }
  call_cpu_kernel(*f.op, stack);
  store(stack[0].toTensor(), result);
  return true;
}

// An unknown real is zero; whether that decides anything, the source tells (phantora/trace/analysis/assumptions.py).
static std::atomic<bool> real_read{false};
extern "C" __attribute__((visibility("default"))) int phantora_real_read() { return real_read; }

static void note_real(const Tensor &t) {
  if (t.numel() != 1 || !c10::isFloatingType(t.scalar_type())) return;
  real_read = true;
  iterate(t);
  note_assumption("the real 0 is read");
}

static std::atomic<bool> unknown_read{false};
void note_unknown_read() { unknown_read.store(true, std::memory_order_relaxed); }
bool host_read_unknown() { return unknown_read.load(std::memory_order_relaxed); }

void note_read(const Frame &f) {
  bool copies = f.op->copies;
  const IValue &v = f.args[copies ? 1 : 0];
  if (!v.isTensor() || !v.toTensor().defined() || is_python(v.toTensor())) return;
  const Tensor &t = v.toTensor();
  if (!t.is_cuda()) return;
  if (copies && (!f.args[0].isTensor() || !f.args[0].toTensor().is_cpu())) return;
  if (on_device(t) && t.numel()) ph_touch_arriving(bytes_of(t), extent_of(t));
  if (counts_as_unknown(t)) note_real(t);
  if (!c10::isIntegralType(t.scalar_type(), /*includeBool=*/true)) return;
  if (copies && (t.itemsize() == 1 && t.scalar_type() != at::kBool)) return;  // storages are saved as bytes
  if (!counts_as_unknown(t)) return;
  note_unknown_read();
  for (ph_frame *frame = ph_top_frame(); frame; frame = frame->parent)
    if (frame->readback) return;  // said already
  iterate(t);
  note_assumption(t.numel() == 1 ? number(t) + " is read"
                                 : "unknown " + std::string(c10::toString(t.scalar_type())) + "s are read");
}

}  // namespace tracer

// phantora/rank/assume.py: a tensor of one number of the dtype `type` lies at `data`.
extern "C" __attribute__((visibility("default"))) void phantora_give_loss(void *data, int type) {
  ph_touch(data, c10::elementSize(static_cast<at::ScalarType>(type)));
  tracer::PlainCalls plain;
  tracer::give_loss_at(data, static_cast<at::ScalarType>(type));
}

// phantora/rank/patches/block_masks.py: what was assumed, of the Python code that runs.
extern "C" __attribute__((visibility("default"))) void phantora_assumed(const char *text, size_t length) {
  if (ph_connected()) tracer::note_assumption(std::string(text, length));
}
