// Prices: what a distinct piece of work costs, asked from Python once and kept.
#include "state.h"

namespace phc {

Item *Core::item_at(Stream *s, uint64_t seq) {
  uint64_t first = s->enqueued - s->queue.size() + 1;
  return seq < first || seq > s->enqueued ? nullptr : &s->queue[seq - first];
}

void Core::apply_price(const Stream &s, Item &item, const Price &price, int part) {
  item.price = price.request.id;
  item.part = part;
  item.priced = true;
  item.cls = price.cls;
  item.nature = price.nature;
  item.work = static_cast<double>(price.durations[std::min<size_t>(part, price.durations.size() - 1)]);
  if (item.type == KERNEL) item.work *= s.gpu->rank->slowness;
}

void Core::want(Stream *s, uint64_t seq, int32_t id, int part) {
  Price &price = *prices[id];
  if (price.known) {
    if (Item *item = item_at(s, seq)) apply_price(*s, *item, price, part);
    s->gpu->dirty = true;
  } else {
    price.waiting.emplace_back(s, seq);
    price.part.push_back(part);
  }
}

// Prices the kernels that an operator has launched so far.
void Core::close_piece(OpenOp &op) {
  if (op.kernels.empty()) return;
  std::string key;
  put<uint8_t>(key, PHC_OPERATOR);
  put(key, op.sig);
  put(key, op.pieces);
  std::vector<phc_price_kernel> kernels;
  for (auto &[stream, seq] : op.kernels) {
    phc_price_kernel k = launches[{stream, seq}];
    launches.erase({stream, seq});
    kernels.push_back(k);
    put(key, k);
  }
  int pieces = op.pieces;
  int32_t id = price_of(key, [&](Price &price) {
    price.request.kind = PHC_OPERATOR;
    price.request.sig = op.sig;
    price.request.part = pieces;
    price.request.kernels = static_cast<int32_t>(kernels.size());
    price.kernels = kernels;
  });
  for (size_t i = 0; i < op.kernels.size(); ++i) want(op.kernels[i].first, op.kernels[i].second, id, static_cast<int>(i));
  op.kernels.clear();
  ++op.pieces;
}

void Core::close_pieces(Rank &rank) {
  for (auto &[instance, op] : rank.ops) close_piece(op);
}

}  // namespace phc
