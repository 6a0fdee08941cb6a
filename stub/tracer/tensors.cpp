#include "tracer/tensors.h"

#include <ATen/SparseCsrTensorImpl.h>

#include "tracer/deferred.h"
#include "tracer/finite.h"

namespace tracer {

constexpr int64_t MOST_RUNS = 64;  // dense pieces of a tensor with gaps that are visited one by one
constexpr size_t KNOWN_BYTES = size_t{1} << 30;  // of host memory that true bytes may take in a rank

bool is_python(const Tensor &t) { return t.unsafeGetTensorImpl()->is_python_dispatch(); }
bool has_sizes(const Tensor &t) {
  return !t.is_nested() && !is_python(t) && !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

int64_t stored_in(const Tensor &t) {
  if (is_python(t)) return -1;
  if (t.layout() == at::kSparse) return t._nnz();
  if (t.layout() != at::kSparseCsr && t.layout() != at::kSparseCsc) return -1;
  return static_cast<at::SparseCsrTensorImpl *>(t.unsafeGetTensorImpl())->nnz();
}

bool on_device(const Tensor &t) {
  return t.defined() && !is_python(t) && t.is_cuda() && t.layout() == at::kStrided && has_sizes(t) && t.has_storage() &&
         !t.is_quantized();
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

// Visits the dense pieces of a tensor with gaps: the innermost dimensions that lie without one. False: they are too
// many.
template <typename F>
static bool each_run(const Tensor &t, F visit) {
  int64_t inner_dims = t.dim(), run = 1;
  while (inner_dims > 0 && (t.size(inner_dims - 1) == 1 || t.stride(inner_dims - 1) == run))
    run *= t.size(--inner_dims);
  int64_t runs = 1;
  for (int64_t d = 0; d < inner_dims; ++d) runs *= t.stride(d) ? t.size(d) : 1;
  if (runs > MOST_RUNS) return false;
  const auto item = static_cast<int64_t>(t.itemsize());
  std::vector<int64_t> at(static_cast<size_t>(inner_dims), 0);
  for (;;) {
    int64_t offset = 0;
    for (int64_t d = 0; d < inner_dims; ++d) offset += at[static_cast<size_t>(d)] * t.stride(d);
    visit(bytes_of(t) + offset * item, static_cast<size_t>(run * item));
    int64_t d = inner_dims - 1;
    for (; d >= 0; --d) {
      auto u = static_cast<size_t>(d);
      if (t.stride(d) && ++at[u] < t.size(d)) break;
      at[u] = 0;
    }
    if (d < 0) return true;
  }
}

void clear(const Tensor &t) {
  if (!on_device(t) || !t.numel()) return;
  char *data = bytes_of(t);
  if (!data) return;
  if (t.is_non_overlapping_and_dense()) {
    ph_memory_clear(data, static_cast<size_t>(t.numel()) * t.itemsize());
    return;
  }
  // Gaps belong to others.
  if (!each_run(t, [](char *from, size_t bytes) { ph_memory_clear(from, bytes); })) ph_memory_clear(data, extent_of(t));
}

bool is_large(const Tensor &t) { return t.numel() > PH_SMALL_ELEMENTS; }

bool is_part_of_large(const Tensor &t) { return t.storage().nbytes() > PH_SMALL_ELEMENTS * t.itemsize(); }

static unsigned flags_of(const Tensor &t) {
  const unsigned all = ph_memory_flags(bytes_of(t), extent_of(t));
  const bool plain = (all & (PH_KNOWN | PH_UNKNOWN)) == PH_KNOWN || !ph_memory_known();
  if (plain || !t.numel() || t.is_non_overlapping_and_dense()) return all;
  unsigned every = ~0U, unknown = 0;  // gaps are not the tensor's
  bool fine = each_run(t, [&](char *from, size_t bytes) {
    const unsigned flags = ph_memory_flags(from, bytes);
    every &= flags;
    unknown |= flags & PH_UNKNOWN;
  });
  return fine ? (every & ~static_cast<unsigned>(PH_UNKNOWN)) | unknown : all;
}

bool is_object(const Tensor &t) { return t.scalar_type() == at::kByte && t.dim() == 1; }

bool has_room(const Tensor &t) { return on_device(t) && (!is_large(t) || ph_memory_held() < KNOWN_BYTES); }

bool is_trained(const Tensor &t) { return at::isFloatingType(t.scalar_type()) && t.requires_grad(); }

bool fits(const Tensor &t) {
  if (!on_device(t) || t._is_zerotensor()) return false;
  if (!is_large(t)) return true;
  return extent_of(t) <= PH_SMALL_ELEMENTS * t.itemsize() || flags_of(t) & PH_KNOWN;
}

bool knows_some(const Tensor &t) {
  ph_known_span first;
  return !is_large(t) || ph_known_spans(bytes_of(t), extent_of(t), PH_KNOWN, &first, 1);
}

unsigned truths(const Tensor &t) {
  return on_device(t) && t.numel() ? flags_of(t) & (PH_HOLDS | PH_EQUALS | PH_COMPARES) : 0;
}

bool is_unknown(const Tensor &t) {
  if (t.numel()) await_senders(t);
  return seems_unknown(t);
}

// A small piece of a large tensor is unknown unless it is known.
bool seems_unknown(const Tensor &t) {
  if (!t.numel()) return is_empty_unknown(t);
  unsigned flags = flags_of(t);
  if (flags & PH_UNKNOWN) return true;
  return !(flags & PH_KNOWN) && is_part_of_large(t);
}

// The gaps of a tensor stay what they were, if its pieces are few. What has not been written of new memory reads as
// zero.
static void mark_runs(const Tensor &t, bool unknown) {
  const unsigned had = ph_memory_flags(bytes_of(t), extent_of(t)), flag = unknown ? PH_UNKNOWN : 0;
  const bool changeable = had & (PH_KNOWN | PH_FRESH);
  const unsigned flags = flag | (changeable || (!unknown && !is_large(t)) ? PH_KNOWN : 0);
  if (!flags) return;
  if (!(had & PH_FRESH) && each_run(t, [&](char *from, size_t bytes) { ph_memory_mark(from, bytes, flags); })) return;
  if (changeable || unknown) ph_memory_mark(bytes_of(t), extent_of(t), flags | (had & PH_UNKNOWN));
}

void mark(const Tensor &t, bool unknown) {
  if (!on_device(t) || !t.numel()) return;
  if (!t.is_non_overlapping_and_dense()) return mark_runs(t, unknown);
  char *data = bytes_of(t);
  size_t extent = extent_of(t);
  bool changeable = ph_memory_flags(data, extent) & (PH_KNOWN | PH_FRESH);
  bool known = is_large(t) || (!unknown && is_part_of_large(t)) || changeable;
  ph_memory_mark(data, extent, (known ? PH_KNOWN : 0) | (unknown ? PH_UNKNOWN : 0));
}

static unsigned fresh_flags(const Tensor &t) {
  unsigned flags = on_device(t) && !t._is_zerotensor() ? flags_of(t) : 0;
  return flags & PH_FRESH ? flags : 0;
}

void mark_fresh(const Tensor &t) {
  if (on_device(t) && is_large(t) && bytes_of(t)) ph_memory_mark(bytes_of(t), extent_of(t), PH_FRESH);
}

void inspect(const IValue &v, Sight *sight, bool changed) {
  each_tensor(v, [&](const Tensor &t) {
    if (sight->absent || !t.defined()) return;
    sight->trained |= is_trained(t);
    if (!is_python(t) && !t.is_cuda()) return;
    sight->tensors = true;
    if (unsigned flags = changed ? fresh_flags(t) : 0) {
      sight->large |= is_large(t);
      sight->unknown |= (flags & PH_UNKNOWN) != 0;
    } else if (is_python(t) || !fits(t)) {
      sight->absent = true;
    } else {
      sight->large |= is_large(t);
    }
  });
}

void inspect_values(const IValue &v, Sight *sight, bool changed) {
  each_tensor(v, [&](const Tensor &t) {
    if (sight->absent || !t.defined() || !t.is_cuda() || (changed && fresh_flags(t))) return;
    if (!is_large(t)) ph_touch_arriving(bytes_of(t), extent_of(t));
    sight->unknown |= seems_unknown(t);
    sight->absent |= !fits(t);  // as the sender says
  });
}

}  // namespace tracer
