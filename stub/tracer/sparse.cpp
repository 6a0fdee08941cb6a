#include "tracer/sparse.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/zeros.h>

#include "tracer/assumptions.h"
#include "tracer/host_calls.h"
#include "tracer/tensors.h"

namespace tracer {

static bool is_coo(const IValue &v) {
  if (!v.isTensor()) return false;
  const Tensor &t = v.toTensor();
  return t.defined() && !is_python(t) && t.is_cuda() && t.layout() == at::kSparse &&
         !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// The same with its indices on the CPU; its values too where they are known, else one zero for each index.
static Tensor with_indices(const Tensor &self, const Tensor &indices, const Tensor &values, bool whole) {
  if (whole) return at::_sparse_coo_tensor_unsafe(alias(indices), alias(values), self.sizes());
  Tensor none = at::zeros({indices.size(1)}, at::TensorOptions().dtype(at::kFloat).device(at::kCPU));
  return at::_sparse_coo_tensor_unsafe(alias(indices), none,
                                       self.sizes().slice(0, static_cast<size_t>(self.sparse_dim())));
}

void note_coalesced(Frame &f) {
  f.early.clear();
  if (!is_coo(f.args[0])) return;
  PlainCalls plain;
  try {
    const Tensor &self = f.args[0].toTensor();
    Tensor indices = self._indices(), values = self._values();
    if (!indices.numel() || !on_device(indices)) return;
    Sight of_indices, of_values;
    inspect(indices, &of_indices);
    inspect_values(indices, &of_indices);
    inspect(values, &of_values);
    if (of_indices.absent) {
      f.ph.readback_value = indices.size(1);
    } else {
      bool whole = on_device(values) && !of_values.absent;
      f.early.push_back(with_indices(self, indices, values, whole).coalesce());
      f.early.push_back(whole);
      f.early.push_back(of_indices.unknown);
      f.ph.readback_value = f.early[0].toTensor()._nnz();
    }
    f.ph.readback = 1;
    if (of_indices.absent || of_indices.unknown)
      note_assumption("coalesce finds " + std::to_string(f.ph.readback_value) + " different among " +
                      std::to_string(indices.size(1)) + " indices");
  } catch (const std::exception &) {
    f.early.clear();  // the CUDA operator will refuse the same tensor
  }
}

static void become(const Tensor &known, const Tensor &result, bool unknown) {
  if (!has_room(result) || known.sizes() != result.sizes()) return clear(result);
  store(known, result);
  mark(result, unknown);
}

bool settle_coalesced(Frame &f, Values outputs) {
  if (f.early.empty() || outputs.size() != 1 || !is_coo(outputs[0])) return false;
  PlainCalls plain;
  const Tensor &result = outputs[0].toTensor(), known = f.early[0].toTensor();
  bool whole = f.early[1].toBool(), unknown = f.early[2].toBool();
  become(known._indices(), result._indices(), unknown);
  if (whole)
    become(known._values(), result._values(), unknown);
  else
    clear(result._values());
  f.early.clear();
  return true;
}

}  // namespace tracer
