#include "tracer/operands.h"

#include "tracer/signatures.h"
#include "tracer/tensors.h"

namespace tracer {

constexpr size_t MOST_OPERANDS = 4096;  // of one operator: lists of an optimizer have thousands

static bool noted(const Frame &f, const void *data, size_t bytes) {
  for (const ph_operand &operand : f.operands)
    if (operand.data == data && operand.bytes == bytes) return true;
  return false;
}

// The first GPU counts: operators on two are copies between them.
static void add(Frame &f, const Tensor &t, bool changed, bool unread, bool once) {
  if (!on_device(t) || !t.numel() || f.operands.size() == MOST_OPERANDS) return;
  char *data = bytes_of(t);
  int device = t.device().index();
  if (f.device < 0) f.device = device;
  if (!data || device != f.device) return;
  size_t bytes = std::min(extent_of(t), static_cast<size_t>(t.numel()) * t.itemsize());
  if (once && noted(f, data, bytes)) return;
  f.operands.push_back({data, bytes, changed, unread});
}

void note_operand(Frame &f, const void *data, size_t bytes, bool changed) {
  ph_range range;
  if (!bytes || !ph_memory_find(data, &range) || range.space != PH_SPACE_DEVICE) return;
  if (f.device < 0) f.device = range.device;
  if (range.device == f.device && f.operands.size() < MOST_OPERANDS)
    f.operands.push_back({data, bytes, changed, false});
}

void touch_operands(Frame &f, Values outputs, ph_record &end) {
  if (f.op) {
    size_t place = 0, twice = is_square(f) ? f.op->squares + 1 : SIZE_MAX;
    for (const IValue &v : f.args) {
      const Argument &argument = f.op->arguments[place++];
      if (place - 1 == twice) continue;
      each_tensor(v, [&](const Tensor &t) { add(f, t, argument.mutated, argument.out, false); });
    }
    size_t inputs = f.operands.size(), count = std::min(outputs.size(), f.op->returns_view.size());
    for (const IValue &v : outputs.slice(outputs.size() - count))
      each_tensor(v, [&](const Tensor &t) { add(f, t, true, true, v.isTensor() && inputs <= 16); });
  }
  if (f.ph.captured)
    ph_capture_operands(f.ph.instance, f.device, f.operands.data(), f.operands.size());
  else
    ph_l2_touch(f.device, f.operands.data(), f.operands.size(), &end);
}

}  // namespace tracer
