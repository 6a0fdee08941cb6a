#include "gpu/launches.h"

namespace phe {

// GPUs of one kind have the same prices.
static uint8_t kind_of(const Stream &s) { return s.device->model().kind; }

const Launches::Operator *Launches::of(const Rank &rank, uint32_t instance) const {
  const auto &open = open_[static_cast<size_t>(rank.index)];
  auto it = instance ? open.find(instance) : open.end();
  return it == open.end() ? nullptr : &it->second;
}

void Launches::begin_operator(Rank &rank, const ph_record &r, int32_t sig) {
  Operator &op = open_[static_cast<size_t>(rank.index)][r.op];
  op.sig = sig;
  op.start = r.op_begin.start;
  op.row = r.flags & PH_F_GRAPH ? rank.graph_row : rank.fresh_id();
  op.flags = r.flags;
  op.thread = r.thread;
}

void Launches::end_operator(Rank &rank, const ph_record &r, int32_t sig) {
  auto &open = open_[static_cast<size_t>(rank.index)];
  auto it = open.find(r.op);
  if (it == open.end()) return;
  Operator &op = it->second;
  if (sig >= 0) op.sig = sig;
  op.l2_hits = static_cast<int32_t>(r.op_end.l2_hits);
  op.l2_written = static_cast<int32_t>(r.op_end.l2_written);
  close_piece(op);
  ph_row row = RowLog::row(PH_ROW_OPERATOR, rank.index, op.start, r.time);
  row.sig = op.sig;
  row.flags = op.flags;
  row.stream = op.thread;
  row.id = op.row;
  if (!(op.flags & PH_F_GRAPH)) rows_.host(row);  // else it ran when it was captured
  open.erase(it);
}

void Launches::attribute(const Rank &rank, uint32_t instance, Item &item) const {
  const Operator *op = of(rank, instance);
  if (!op) return;
  item.link = op->row;
  item.sig = op->sig;
}

void Launches::kernel(const Rank &rank, uint32_t instance, Stream &s, const phe_price_kernel &launch) {
  if (auto *op = const_cast<Operator *>(of(rank, instance))) {
    op->kernels.push_back({&s, s.enqueued, launch});
    return;
  }
  int32_t price = prices_.find(prices_.key().add<uint8_t>(PHE_KERNEL).add(kind_of(s)).add(launch), [&](Price &p) {
    p.request.gpu_kind = kind_of(s);
    p.request.kind = PHE_KERNEL;
    p.request.kernels = 1;
    p.kernels.push_back(launch);
  });
  want(s, s.enqueued, price, 0);
}

void Launches::copy(Stream &s, phe_price_kind kind, uint32_t sub, uint64_t bytes) {
  Key &key = prices_.key().add(static_cast<uint8_t>(kind)).add(kind_of(s)).add(sub).add(bytes);
  int32_t price = prices_.find(key, [&](Price &p) {
    p.request.gpu_kind = kind_of(s);
    p.request.kind = kind;
    p.request.sub = static_cast<int32_t>(sub);
    p.request.bytes = static_cast<int64_t>(bytes);
  });
  want(s, s.enqueued, price, 0);
}

void Launches::want(Stream &s, uint64_t seq, int32_t id, int part) {
  Price &price = prices_[id];
  if (!price.known) return price.launches.push_back({&s, seq, part});
  if (Item *item = s.at(seq)) Device::apply(price, s, *item, part);
  s.device->touch();
}

void Launches::priced(Price &price) {
  for (const Price::Waiting &w : price.launches) {
    if (Item *item = w.stream->at(w.seq)) Device::apply(price, *w.stream, *item, w.part);
    w.stream->device->touch();
  }
  price.launches.clear();
}

// Prices the kernels that an operator has launched so far.
void Launches::close_piece(Operator &op) {
  if (op.kernels.empty()) return;
  Key &key = prices_.key();
  uint8_t kind = kind_of(*op.kernels[0].stream);
  key.add<uint8_t>(PHE_OPERATOR).add(kind).add(op.sig).add(op.pieces).add(op.l2_hits).add(op.l2_written);
  for (const Launched &l : op.kernels) key.add(l.kernel);
  int32_t id = prices_.find(key, [&](Price &price) {
    price.request.kind = PHE_OPERATOR;
    price.request.gpu_kind = kind;
    price.request.sig = op.sig;
    price.request.part = op.pieces;
    price.request.l2_hits = op.l2_hits;
    price.request.l2_written = op.l2_written;
    price.request.kernels = static_cast<int32_t>(op.kernels.size());
    for (const Launched &l : op.kernels) price.kernels.push_back(l.kernel);
  });
  for (size_t i = 0; i < op.kernels.size(); ++i)
    want(*op.kernels[i].stream, op.kernels[i].seq, id, static_cast<int>(i));
  op.kernels.clear();
  ++op.pieces;
}

void Launches::cut(Rank &rank) {
  for (auto &[instance, op] : open_[static_cast<size_t>(rank.index)]) close_piece(op);
}

}  // namespace phe
