// Unknown reals are finite: what was computed from them is too (docs/values.md). Zeros in the place of variances, norms
// and areas would make 0/0 and log(0), and with them a program that checks its loss, or matches boxes by it, would end.
#include "tracer/finite.h"

#include <atomic>
#include <cmath>

#include "tracer/tensors.h"

namespace tracer {

template <typename T>
static bool all_finite(const char *bytes, size_t extent) {
  const T *at = reinterpret_cast<const T *>(bytes), *end = at + extent / sizeof(T);
  for (; at < end; ++at)
    if (!std::isfinite(static_cast<double>(*at))) return false;
  return true;
}

bool all_finite(at::ScalarType type, const char *bytes, size_t extent) {
  switch (type) {
    case at::kFloat:
      return all_finite<float>(bytes, extent);
    case at::kDouble:
      return all_finite<double>(bytes, extent);
    case at::kHalf:
      return all_finite<at::Half>(bytes, extent);
    case at::kBFloat16:
      return all_finite<at::BFloat16>(bytes, extent);
    default:
      return true;
  }
}

template <typename T>
static void make_finite(char *bytes, size_t extent) {
  T *at = reinterpret_cast<T *>(bytes), *end = at + extent / sizeof(T);
  for (; at < end; ++at)
    if (!std::isfinite(static_cast<double>(*at))) *at = T(0);
}

void make_finite(at::ScalarType type, char *bytes, size_t extent) {
  switch (type) {
    case at::kFloat:
      return make_finite<float>(bytes, extent);
    case at::kDouble:
      return make_finite<double>(bytes, extent);
    case at::kHalf:
      return make_finite<at::Half>(bytes, extent);
    case at::kBFloat16:
      return make_finite<at::BFloat16>(bytes, extent);
    default:
      return;
  }
}

// Dense ones only: what lies in the gaps of others is not theirs.
static bool is_looked_at(const Tensor &t) { return on_device(t) && t.numel() && t.is_non_overlapping_and_dense(); }

static bool is_finite(const Tensor &t) {
  if (t.defined() && t.is_cpu() && t.layout() == at::kStrided && t.numel() == 1)
    return all_finite(t.scalar_type(), static_cast<const char *>(t.const_data_ptr()), t.itemsize());
  return !on_device(t) || !t.numel() || all_finite(t.scalar_type(), bytes_of(t), extent_of(t));
}

// Content of an argument before it was changed in place.
static bool was_finite(const Frame &f, const Tensor &t) {
  for (const Snapshot &s : f.snapshots)
    if (on_device(t) && s.data == bytes_of(t)) return all_finite(t.scalar_type(), f.saved.data() + s.offset, s.bytes);
  return true;
}

static bool is_finite(const Frame &f, size_t argument) {
  const IValue &v = f.args[argument];
  if (v.isDouble()) return std::isfinite(v.toDouble());
  if (v.isScalar() && !v.isComplexDouble()) return std::isfinite(v.toScalar().to<double>());
  bool finite = true;
  each_tensor(v, [&](const Tensor &t) {
    finite = finite && (f.op->arguments[argument].mutated ? was_finite(f, t) : is_finite(t));
  });
  return finite;
}

bool holds_infinity(const IValue &v) {
  bool found = false;
  each_tensor(v, [&](const Tensor &t) {
    if (found || !is_looked_at(t) || !fits(t)) return;
    ph_touch(bytes_of(t), extent_of(t));
    found = !is_finite(t);
  });
  return found;
}

static std::atomic<bool> emptied{false};
void note_empty() { emptied.store(true, std::memory_order_relaxed); }

bool is_empty_unknown(const Tensor &t) {
  return !t.numel() && emptied.load(std::memory_order_relaxed) && c10::isFloatingType(t.scalar_type());
}

void settle_empty(const Frame &f, Values outputs) {
  bool unknown = false;
  for (const IValue &v : f.args)
    each_tensor(v, [&](const Tensor &t) { unknown |= on_device(t) && is_empty_unknown(t); });
  if (!unknown) return;
  stay_finite(f, outputs);
  for (const IValue &v : outputs) each_tensor(v, [](const Tensor &t) { mark(t, true); });
}

void stay_finite(const Frame &f, Values outputs) {
  std::vector<Tensor> broken;
  auto inspect = [&](const Tensor &t) {
    if (is_looked_at(t) && !is_finite(t)) broken.push_back(t);
  };
  for (const IValue &v : outputs) each_tensor(v, inspect);
  for (size_t i = 0; i < f.args.size(); ++i)
    if (f.op->arguments[i].mutated) each_tensor(f.args[i], inspect);
  if (broken.empty()) return;
  for (size_t i = 0; i < f.args.size(); ++i)
    if (!is_finite(f, i)) return;  // the program put an infinity in: a mask's
  for (const Tensor &t : broken) make_finite(t.scalar_type(), bytes_of(t), extent_of(t));
}

}  // namespace tracer
