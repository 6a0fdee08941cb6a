#include "communication/payloads.h"

namespace phe {

void Payloads::arrived(Rank &rank, uint64_t ticket, Bytes data, int knowledge) {
  if (box(rank).unwanted.erase(ticket)) return;
  box(rank).ready[ticket] = {std::move(data), knowledge};
  for (size_t i = 0; i < rank.requests.size();) {
    if (rank.requests[i].record.kind == PH_PAYLOAD && serve(rank, rank.requests[i].record))
      rank.requests.erase(rank.requests.begin() + static_cast<long>(i));
    else
      ++i;
  }
}

bool Payloads::serve(Rank &rank, const ph_record &r) {
  auto it = box(rank).ready.find(r.payload.ticket);
  if (it == box(rank).ready.end()) return false;
  const std::string &data = *it->second.data;
  size_t offset = std::min<size_t>(r.payload.offset, data.size());
  size_t length = std::min<size_t>(PH_REPLY_BYTES, data.size() - offset);
  int64_t at = std::max(r.time, rank.control->floor);
  waits_.reply(rank, r, it->second.knowledge, at, static_cast<int64_t>(data.size()), data.data() + offset, length);
  if (offset + length >= data.size()) box(rank).ready.erase(it);
  return true;
}

void Payloads::ask(Rank &rank, const ph_record &r) {
  if (serve(rank, r)) return;
  Request q;
  q.record = r;
  q.data = true;
  rank.requests.push_back(std::move(q));
}

void Payloads::forget(const Rank &rank, uint64_t ticket) {
  if (!box(rank).ready.erase(ticket)) box(rank).unwanted.insert(ticket);
}

void Payloads::exchange(Rank &rank, const ph_record &r, std::string data) {
  auto key = std::make_pair(r.exchange.key_hi, r.exchange.key_lo);
  Exchange &x = exchanges_[key];
  if (x.data.empty()) x.data.resize(r.exchange.members);
  if (r.exchange.index >= x.data.size())
    return failure_.set("rank " + std::to_string(rank.index) + " takes part in an exchange beyond its size");
  for (auto &[other, record] : x.waiting)
    if (record.exchange.index == r.exchange.index)
      return failure_.set("ranks " + std::to_string(other->index) + " and " + std::to_string(rank.index) +
                          " are the same member of an exchange");
  x.data[r.exchange.index] = std::move(data);
  if (r.time > x.latest || (r.time == x.latest && rank.index < x.last_rank)) x.last_rank = rank.index;
  x.latest = std::max(x.latest, r.time);
  x.waiting.emplace_back(&rank, r);
  if (++x.joined < x.data.size()) {
    Request q;
    q.record = r;
    q.data = true;
    rank.requests.push_back(std::move(q));
    return;
  }
  finish(x);
  exchanges_.erase(key);
}

void Payloads::finish(const Exchange &x) {
  std::string joined;
  for (const std::string &part : x.data) {
    joined += Key().add(static_cast<uint32_t>(part.size())).bytes();
    joined += part;
  }
  auto all = std::make_shared<const std::string>(std::move(joined));
  for (auto &[to, record] : x.waiting) {
    const ph_record &asked = record;
    auto mine = [&](const Request &q) {
      return q.record.kind == PH_EXCHANGE && q.record.slot == asked.slot && q.record.thread == asked.thread;
    };
    to->requests.erase(std::remove_if(to->requests.begin(), to->requests.end(), mine), to->requests.end());
    int64_t at = std::max(x.latest, to->control->floor);
    if (!(record.flags & PH_F_HELPER)) {
      to->host = std::max(to->host, x.latest);
      waits_.host_wait(*to, record, names_.exchange(record), record.time, at, x.last_rank);
    }
    size_t length = std::min<size_t>(PH_REPLY_BYTES, all->size());
    if (all->size() > length) box(*to).ready[record.exchange.ticket] = {all, 0};
    waits_.reply(*to, record, 0, at, static_cast<int64_t>(all->size()), all->data(), length);
  }
}

}  // namespace phe
