#include "rows.h"

#include <algorithm>
#include <tuple>

namespace phe {

ph_row RowLog::row(ph_row_kind kind, int rank, int64_t start, int64_t end) {
  ph_row r{};
  r.kind = static_cast<uint8_t>(kind);
  r.rank = rank;
  r.stream = r.name = r.sig = r.price = r.comm = -1;
  r.start = start;
  r.end = end;
  r.launch = r.link = r.seq = r.ready = -1;
  r.id = r.last_id = -1;
  r.last_rank = -1;
  return r;
}

void RowLog::add(const ph_row &r, Lane lane) {
  places_.push_back({r.end, r.rank, lane, picked_.size()});
  picked_.push_back(r);
}

void RowLog::pick(std::deque<ph_row> &list, Lane lane, int64_t until, const std::function<void(ph_row &)> &rename) {
  while (!list.empty() && (until == NEVER || list.front().end < until)) {
    add(list.front(), lane);
    list.pop_front();
    ph_row &r = picked_.back();
    if (r.kind == PH_ROW_COLLECTIVE || r.kind == PH_ROW_SENDRECV) rename(r);
  }
}

void RowLog::pick_unordered(std::vector<ph_row> &list, Lane lane, int64_t until) {
  std::vector<ph_row> keep;
  for (ph_row &r : list) {
    if (until == NEVER || r.end < until)
      add(r, lane);
    else
      keep.push_back(r);
  }
  list.swap(keep);
}

// Of flows (and stretches of links, distinguished by their name) that end together at one rank.
static auto network_order(const ph_row &r) {
  return std::make_tuple(r.kind, r.kind == PH_ROW_LINK ? r.name : r.comm, r.seq, r.value, r.part, r.start);
}

bool RowLog::before(const Place &a, const Place &b) const {
  if (a.end != b.end) return a.end < b.end;
  if (a.rank != b.rank) return a.rank < b.rank;
  if (a.lane != b.lane) return a.lane < b.lane;
  const ph_row &x = picked_[a.position], &y = picked_[b.position];
  if (a.lane == COMMUNICATORS) return x.comm < y.comm;
  if (a.lane == NETWORK) return network_order(x) < network_order(y);
  return a.position < b.position;
}

void RowLog::gather(int64_t until, const std::function<void(ph_row &)> &rename) {
  picked_.clear();
  places_.clear();
  taken_ = 0;
  pick_unordered(communicators_, COMMUNICATORS, until);
  pick_unordered(network_, NETWORK, until);
  for (size_t rank = 0; rank < host_.size(); ++rank) {
    pick(host_[rank], HOST, until, rename);
    pick(device_[rank], DEVICE, until, rename);
  }
  std::sort(places_.begin(), places_.end(), [&](const Place &a, const Place &b) { return before(a, b); });
}

int64_t RowLog::take(ph_row *out, int64_t capacity, int64_t until, const std::function<void(ph_row &)> &rename) {
  if (must_gather()) gather(until, rename);
  int64_t n = 0;
  while (n < capacity && taken_ < places_.size()) out[n++] = picked_[places_[taken_++].position];
  count_ -= n;
  return n;
}

}  // namespace phe
