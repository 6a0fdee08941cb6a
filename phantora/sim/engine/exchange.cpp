// Bytes between ranks: results of small collectives, and exchanges outside any communicator.
#include "state.h"

namespace phc {

void Core::arrived(Rank &to, uint64_t ticket, std::string data) {
  if (to.unwanted.erase(ticket)) return;
  to.payloads[ticket] = std::move(data);
  serve_payloads(to);
}

void Core::serve_payloads(Rank &rank) {
  for (size_t i = 0; i < rank.requests.size();) {
    Request &q = rank.requests[i];
    if (q.record.kind != PH_PAYLOAD || !serve_payload(rank, q.record)) {
      ++i;
      continue;
    }
    rank.requests.erase(rank.requests.begin() + static_cast<long>(i));
  }
}

bool Core::serve_payload(Rank &rank, const ph_record &r) {
  auto it = rank.payloads.find(r.a);
  if (it == rank.payloads.end()) return false;
  const std::string &data = it->second;
  size_t offset = std::min<size_t>(r.b, data.size());
  size_t length = std::min<size_t>(PH_REPLY_BYTES, data.size() - offset);
  int64_t total = static_cast<int64_t>(data.size());
  int64_t at = std::max(r.time, rank.control->floor);
  reply(rank, r, 0, at, total, data.data() + offset, length);
  if (offset + length >= data.size()) rank.payloads.erase(it);
  return true;
}

void Core::exchange(Rank &rank, const ph_record &r) {
  Exchange &x = exchanges[{r.a, r.b}];
  if (x.data.empty()) {
    x.members = static_cast<int>(r.c);
    x.data.resize(r.c);
  }
  if (r.e >= x.data.size()) return fail("rank " + std::to_string(rank.index) + " takes part in an exchange beyond its size");
  x.data[r.e] = std::move(rank.blob);
  rank.blob.clear();
  if (r.time > x.latest || (r.time == x.latest && rank.index < x.last_rank)) x.last_rank = rank.index;
  x.latest = std::max(x.latest, r.time);
  x.waiting.emplace_back(&rank, r);
  if (++x.joined < x.members) {
    Request q;
    q.record = r;
    q.data = true;
    rank.requests.push_back(std::move(q));
    return;
  }
  std::string all;
  for (const std::string &part : x.data) {
    uint32_t length = static_cast<uint32_t>(part.size());
    put(all, length);
    all += part;
  }
  for (auto &[to, record] : x.waiting) {
    auto &requests = to->requests;
    requests.erase(std::remove_if(requests.begin(), requests.end(), [&](const Request &q) { return q.record.kind == PH_EXCHANGE && q.record.slot == record.slot; }), requests.end());
    if (!(record.flags & PH_F_HELPER)) to->host = std::max(to->host, x.latest);
    int64_t at = std::max(x.latest, to->control->floor);
    if (!(record.flags & PH_F_HELPER)) host_wait(*to, record, api_names[PH_EXCHANGE], record.time, at, x.last_rank);
    size_t length = std::min<size_t>(PH_REPLY_BYTES, all.size());
    if (all.size() > length) to->payloads[record.d] = all;
    reply(*to, record, 0, at, static_cast<int64_t>(all.size()), all.data(), length);
  }
  exchanges.erase({r.a, r.b});
}

}  // namespace phc
