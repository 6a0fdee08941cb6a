#include "time/completions.h"

namespace phe {
namespace {

ph_row_kind row_kind(const Item &item) {
  switch (item.type) {
    case Item::COPY:
      return PH_ROW_MEMCPY;
    case Item::MEMSET:
      return PH_ROW_MEMSET;
    case Item::COMM:
      return item.comm->p2p ? PH_ROW_SENDRECV : PH_ROW_COLLECTIVE;
    case Item::RECORD:
      return PH_ROW_RECORD;
    case Item::WAIT:
      return PH_ROW_WAIT;
    case Item::HOSTFUNC:
      return PH_ROW_HOST_FUNC;
    default:
      return PH_ROW_KERNEL;
  }
}

int64_t row_start(const Item &item, int64_t reached, int64_t end) {
  return item.type == Item::RECORD ? end : item.type == Item::WAIT ? reached : item.start;
}

}  // namespace

void Completions::completed(Device &device, const Stream &s, Item &item, int64_t reached) {
  Rank &rank = s.context->rank;
  if (item.type == Item::RECORD) {
    auto it = rank.events.find(item.event);
    if (it != rank.events.end() && it->second.id == item.id) it->second.done = device.now();
  }
  if (item.type == Item::COMM && item.comm->p2p) pipelines_.handed_on(rank);
  if (item.type == Item::MARK)
    marks_.gpu_at(rank, device, item.part);
  else if (item.type != Item::WAIT || item.id > 0 ||
           device.now() > reached)  // a wait that is implied, if it delayed anything
    write(device, s, item, reached);
  if (!rank.requests.empty()) waits_.check(rank);
}

void Completions::failed(Device &device, const Stream &s, const Item &item) {
  write(device, s, item, item.start);
  waits_.check(s.context->rank);
}

void Completions::write(Device &device, const Stream &s, const Item &item, int64_t reached) {
  int64_t end = device.now();
  ph_row r = RowLog::row(row_kind(item), s.context->rank.index, row_start(item, reached, end), end);
  r.sub = item.sub;
  r.flags = item.flags;
  r.stream = static_cast<int32_t>(s.id);
  r.name = item.type == Item::WAIT ? names_.call(PH_STREAM_WAIT) : item.name;
  r.price = item.price;
  r.part = item.part;
  r.launch = item.launch;
  r.id = item.id;
  r.link = item.link;
  r.bytes = item.bytes;
  if (item.shares()) r.sig = item.sig;
  if (item.type == Item::COPY) r.value = item.peer;
  if (item.type == Item::COMM) {
    const Launch &l = *item.comm;
    r.sub = l.sub;
    r.name = l.name;
    r.price = l.price;
    r.bytes = l.bytes;
    r.value = l.peer;
    r.ready = l.ready;
    r.last_rank = l.last_rank;
    r.last_id = l.last_id;
    r.seq = l.seq;
    r.comm = l.comm;  // until it is taken
  }
  bool copies = item.type == Item::COMM && item.comm->copies;
  uint8_t kind = copies ? uint8_t{PH_ROW_MEMCPY} : r.kind;  // as a profiler has it
  if (item.correlation && (item.shares() || item.type == Item::COMM))
    s.context->rank.activities.push_back(
        {kind, r.sub, r.flags, 0, item.correlation, s.id, r.name, r.start, r.end, r.launch, r.bytes});
  rows_.device(r);
  if (device.power().due(end)) write_power(device, end);
}

void Completions::write_power(Device &device, int64_t until) {
  Power::Reading now = device.power().at(until);
  ph_control &control = *device.rank().control;
  store(&control.drawn_mj, static_cast<int64_t>(1e3 * now.joules));
  store(&control.drawn_mw, static_cast<int64_t>(1e3 * now.watts));
  ph_row r = device.power().row(device.rank().index, until);
  r.stream = device.number();
  rows_.device(r);
}

}  // namespace phe
