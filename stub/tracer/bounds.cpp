#include "tracer/bounds.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <limits>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "tracer/assumptions.h"
#include "tracer/deferred.h"
#include "tracer/host_calls.h"
#include "tracer/places.h"
#include "tracer/tensors.h"

namespace tracer {

constexpr double SEEN_NS = 1e6;  // of one core, for indices that are still to be computed; dearer ones are not checked

enum class Indexed : uint8_t { DIM, LIST, ELEMENTS, CLASSES };

// A kernel's assertion, as torch's sources have it. DIM: (self, dim, index), LIST: (self, indices), one for each
// dimension, ELEMENTS: (self, index) of all of self, CLASSES: (self, target, weight, reduction, ignore_index).
struct IndexRule {
  const char *name;
  Indexed indexed;
  bool from_end;  // negative indices count from the end
  const char *assertion;
};

static constexpr char LISTED[] =
    "IndexKernel.cu: Assertion `-sizes[i] <= index && index < sizes[i] && \"index out of bounds\"`";
static constexpr char SELECTED[] = "Indexing.cu: indexSelectSmallIndex: Assertion `srcIndex < srcSelectDimSize`";
static constexpr char SCATTERED[] =
    "ScatterGatherKernel.cu: Assertion `idx_dim >= 0 && idx_dim < index_size && \"index out of bounds\"`";
static constexpr char ADDED[] = "Indexing.cu: indexFuncSmallIndex: Assertion `dstIndex < dstAddDimSize`";
static constexpr char COPIED[] =
    "IndexKernel.cu: Assertion `idx >= 0 && idx < self_dim_size && \"index_copy_(): index out of bounds\"`";
static constexpr char FILLED[] =
    "IndexKernel.cu: Assertion `idx >= -self_dim_size && idx < self_dim_size && \"index out of bounds\"`";
static constexpr char TAKEN[] =
    "IndexKernel.cu: Assertion `idx < numel && idx >= -numel && \"cuda_take_put_kernel() index out of bounds\"`";
static constexpr char CLASSIFIED[] = "Loss.cu: nll_loss_forward: Assertion `t >= 0 && t < n_classes`";
static constexpr char CLASSIFIED_2D[] = "NLLLoss2d.cu: nll_loss2d_forward: Assertion `t >= 0 && t < n_classes`";

static constexpr IndexRule RULES[] = {
    {"aten::index", Indexed::LIST, true, LISTED},
    {"aten::_index_put_impl_", Indexed::LIST, true, LISTED},
    {"aten::index_select", Indexed::DIM, false, SELECTED},
    {"aten::gather", Indexed::DIM, false, SCATTERED},
    {"aten::scatter", Indexed::DIM, false, SCATTERED},
    {"aten::scatter_", Indexed::DIM, false, SCATTERED},
    {"aten::scatter_add", Indexed::DIM, false, SCATTERED},
    {"aten::scatter_add_", Indexed::DIM, false, SCATTERED},
    {"aten::scatter_reduce", Indexed::DIM, false, SCATTERED},
    {"aten::scatter_reduce_", Indexed::DIM, false, SCATTERED},
    {"aten::index_add", Indexed::DIM, false, ADDED},
    {"aten::index_add_", Indexed::DIM, false, ADDED},
    {"aten::index_copy", Indexed::DIM, false, COPIED},
    {"aten::index_copy_", Indexed::DIM, false, COPIED},
    {"aten::index_fill_", Indexed::DIM, true, FILLED},
    {"aten::take", Indexed::ELEMENTS, true, TAKEN},
    {"aten::put_", Indexed::ELEMENTS, true, TAKEN},
    {"aten::nll_loss_forward", Indexed::CLASSES, false, CLASSIFIED},
    {"aten::nll_loss2d_forward", Indexed::CLASSES, false, CLASSIFIED_2D},
};

const IndexRule *index_rule(const std::string &name) {
  for (const IndexRule &rule : RULES)
    if (name == rule.name) return &rule;
  return nullptr;
}

// Those that other ranks have not sent yet are not waited for: a GPU's host would not wait either. Behind a kernel
// without an operator (Triton) memory may read as it did before. A host that has read an unknown value may give indices
// that follow from it.
static bool is_checkable(const Tensor &t) {
  if (!on_device(t) || !t.numel() || !fits(t) || ph_memory_unseen() || host_read_unknown()) return false;
  ph_awaited_piece piece;
  const char *data = bytes_of(t);
  const size_t extent = extent_of(t);
  for (size_t at = 0; at < extent && ph_awaited(data + at, extent - at, &piece); at += piece.at + piece.bytes)
    if (!(piece.ticket & PH_DEFERRED)) return false;
  return !seems_unknown(t) && cost_to_see(t) <= SEEN_NS;
}

// The first element outside [low, high), other than `ignored`; null: none.
template <typename T>
static const T *first_outside(const T *from, const T *to, int64_t low, int64_t high, const int64_t *ignored) {
  for (; from < to; ++from)
    if ((*from < low || *from >= high) && !(ignored && *from == *ignored)) return from;
  return nullptr;
}

struct Range {
  int64_t least = INT64_MAX, most = INT64_MIN;  // of no elements
};

template <typename T>
static Range range_of(const T *from, const T *to) {
  T least = std::numeric_limits<T>::max(), most = std::numeric_limits<T>::lowest();
  for (const T *at = from; at < to; ++at) least = std::min(least, *at), most = std::max(most, *at);
  return from < to ? Range{static_cast<int64_t>(least), static_cast<int64_t>(most)} : Range();
}

// ---------------------------------------------------------------- indices that were looked at
// A graph's edges are the indices of every layer and step: millions, looked at once for each version of the tensor.
constexpr int64_t REMEMBERED = 4096;  // elements from which on their range is kept
constexpr size_t MOST_KEPT = 256;

struct Looked {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // others may come to lie in the same memory
  std::vector<int64_t> layout;  // offset, version, type, sizes, strides
  Range range;
};
static auto *looked = new std::unordered_map<const c10::StorageImpl *, std::vector<Looked>>();
static std::mutex looked_lock;

static std::vector<int64_t> layout_of(const Tensor &t, int64_t version) {
  std::vector<int64_t> layout{t.storage_offset(), version, static_cast<int64_t>(t.scalar_type())};
  layout.insert(layout.end(), t.sizes().begin(), t.sizes().end());
  layout.insert(layout.end(), t.strides().begin(), t.strides().end());
  return layout;
}

static std::optional<Range> remembered(const Tensor &t, int64_t version) {
  const c10::StorageImpl *storage = t.storage().unsafeGetStorageImpl();
  std::lock_guard<std::mutex> guard(looked_lock);
  auto found = looked->find(storage);
  if (found == looked->end()) return std::nullopt;
  if (found->second.front().storage.expired()) {
    looked->erase(found);
    return std::nullopt;
  }
  const std::vector<int64_t> layout = layout_of(t, version);
  for (const Looked &each : found->second)
    if (each.layout == layout) return each.range;
  return std::nullopt;
}

static void remember(const Tensor &t, int64_t version, Range range) {
  const auto storage = t.storage().getWeakStorageImpl();
  std::lock_guard<std::mutex> guard(looked_lock);
  if (looked->size() >= MOST_KEPT) looked->clear();
  std::vector<Looked> &kept = (*looked)[t.storage().unsafeGetStorageImpl()];
  if (kept.size() >= MOST_KEPT) kept.clear();
  kept.push_back({storage, layout_of(t, version), range});
}

// Without the dimensions along which all elements are the same. It has a version of its own.
static Tensor unexpanded(Tensor t) {
  for (int64_t d = t.dim() - 1; d >= 0; --d)
    if (t.stride(d) == 0 && t.size(d) > 1) t = t.narrow(d, 0, 1);
  return t;
}

static void fail(const Frame &f, int64_t index, int64_t low, int64_t high) {
  static std::atomic_flag failed = ATOMIC_FLAG_INIT;  // no kernel runs after the first assertion
  if (failed.test_and_set()) return;
  const std::string where = program_lines();
  std::string text = f.op->name + ": index " + std::to_string(index) + " is outside " + std::to_string(low) + " to " +
                     std::to_string(high - 1);
  if (!where.empty()) text += " at " + where;
  fprintf(stderr, "%s failed.\nphantora: rank %d: %s\n", f.op->indices->assertion, ph_rank(), text.c_str());
  ph_assert_fails(text.c_str());
}

template <typename T>
static void check_in(const Frame &f, const Tensor &given, int64_t size, const int64_t *ignored) {
  const Tensor t = unexpanded(given);
  const int64_t low = f.op->indices->from_end ? -size : 0;
  const bool kept = t.numel() >= REMEMBERED && !given.is_inference();
  const int64_t version = kept ? given._version() : 0;
  std::optional<Range> range = kept ? remembered(t, version) : std::nullopt;
  if (range && range->least >= low && range->most < size) return;
  const Tensor host = seen(t).contiguous();
  const auto *from = host.const_data_ptr<T>(), *to = from + host.numel();
  if (kept && !range) {
    range = range_of(from, to);
    remember(t, version, *range);
    if (range->least >= low && range->most < size) return;
  }
  if (const T *bad = first_outside(from, to, low, size, ignored)) fail(f, static_cast<int64_t>(*bad), low, size);
}

static void check(const Frame &f, const Tensor &t, int64_t size, const int64_t *ignored = nullptr) {
  if (!is_checkable(t)) return;
  PlainCalls plain;
  if (t.scalar_type() == at::kLong)
    check_in<int64_t>(f, t, size, ignored);
  else if (t.scalar_type() == at::kInt)
    check_in<int32_t>(f, t, size, ignored);
  else if (t.scalar_type() == at::kByte && f.op->indices->indexed == Indexed::CLASSES)
    check_in<uint8_t>(f, t, size, ignored);
}

// Masks take as many dimensions as they have; the indices that they stand for are in range.
static void check_list(const Frame &f, const Tensor &self) {
  int64_t dim = 0;
  for (const IValue &v : f.args[1].toListRef()) {
    const Tensor t = v.isTensor() ? v.toTensor() : Tensor();
    const bool mask = t.defined() && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte);
    if (t.defined() && !mask && dim < self.dim()) check(f, t, self.size(dim));
    dim += mask ? t.dim() : 1;
  }
}

void check_indices(const Frame &f) {
  const Tensor &self = f.args[0].toTensor();
  if (is_python(self)) return;
  switch (f.op->indices->indexed) {
    case Indexed::LIST:
      return check_list(f, self);
    case Indexed::ELEMENTS:
      return check(f, f.args[1].toTensor(), self.numel());
    case Indexed::DIM:
      if (!f.args[1].isInt() || !f.args[2].isTensor()) return;
      return check(f, f.args[2].toTensor(), self.dim() ? self.size(f.args[1].toInt()) : 1);
    case Indexed::CLASSES: {
      const int64_t ignored = f.args[4].toInt();
      return check(f, f.args[1].toTensor(), self.size(f.op->name == "aten::nll_loss_forward" ? -1 : 1), &ignored);
    }
  }
}

}  // namespace tracer
