#include "time/marks.h"

namespace phe {

// The mark comes behind what was launched last.
void Marks::host_at(Rank &rank, int64_t time) {
  int mark = rank.index == 0 ? ++count_ : 0;
  if (!(mark && links_.changes_at(mark)) && !pipelines_.has(rank) && !settled_power_.has(rank)) return;
  Stream *last = nullptr;
  for (auto &[id, s] : rank.streams)
    if (!last || s->last_id > last->last_id) last = s.get();
  if (!last) return change(rank, mark, time);
  Item item;
  item.type = Item::MARK;
  item.id = -1;
  item.part = mark;
  item.launch = item.ready = time;
  last->device->push(*last, std::move(item));
}

void Marks::gpu_at(Rank &rank, Device &device, int mark) {
  change(rank, mark, device.now());
  settled_power_.at_mark(rank, device);
}

void Marks::change(Rank &rank, int mark, int64_t time) {
  if (rank.index == 0) links_.at_mark(mark, time);
  pipelines_.at_mark(rank);
}

}  // namespace phe
