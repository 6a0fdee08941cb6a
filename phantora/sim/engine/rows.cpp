#include "rows.h"

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

static auto communicator_order(const ph_row &r) { return std::make_tuple(r.end, r.rank, r.comm); }

// Rows of flows (and stretches of links, distinguished by their name) that end together at one rank.
static auto network_order(const ph_row &r) {
  return std::make_tuple(r.end, r.rank, r.kind, r.kind == PH_ROW_LINK ? r.name : r.comm, r.seq, r.value, r.part,
                         r.start);
}

// Moves what ends before `until` from `list` to `sorted`.
template <typename Rows, typename Key>
static void finalize(std::vector<ph_row> &list, Rows &sorted, int64_t until, Key key) {
  auto rest = std::stable_partition(list.begin(), list.end(), [&](const ph_row &r) { return r.end < until; });
  std::stable_sort(list.begin(), rest, [&](const ph_row &a, const ph_row &b) { return key(a) < key(b); });
  std::for_each(list.begin(), rest, [&](const ph_row &r) { sorted.push_back(r); });
  list.erase(list.begin(), rest);
}

void RowLog::gather(int64_t until) {
  until_ = until;
  finalize(communicators_, final_communicators_, until, communicator_order);
  finalize(network_, final_network_, until, network_order);
  add(final_communicators_, COMMUNICATORS);
  add(final_network_, NETWORK);
  for (Rows &rows : host_) add(rows, HOST);
  for (Rows &rows : device_) add(rows, DEVICE);
  for (size_t at = lanes_.size() / 2; at-- > 0;) sink(at);
}

void RowLog::add(Rows &rows, Order order) {
  if (!rows.empty() && rows.front().end < until_) lanes_.push_back({&rows, order});
}

// Restores the heap below a lane whose front has changed.
void RowLog::sink(size_t at) {
  for (;;) {
    size_t least = at;
    for (size_t child = 2 * at + 1; child < std::min(2 * at + 3, lanes_.size()); ++child)
      if (lanes_[child].before(lanes_[least])) least = child;
    if (least == at) return;
    std::swap(lanes_[at], lanes_[least]);
    at = least;
  }
}

int64_t RowLog::take(ph_row *out, int64_t capacity, int64_t until, const std::function<void(ph_row &)> &rename) {
  if (must_gather()) gather(until);
  int64_t taken = 0;
  for (; taken < capacity && !lanes_.empty(); ++taken) {
    Rows &rows = *lanes_.front().rows;
    ph_row &r = out[taken] = rows.front();
    if (r.kind == PH_ROW_COLLECTIVE || r.kind == PH_ROW_SENDRECV) rename(r);
    rows.pop_front();
    if (rows.empty() || rows.front().end >= until_) {
      lanes_.front() = lanes_.back();
      lanes_.pop_back();
    }
    if (!lanes_.empty()) sink(0);
  }
  count_ -= taken;
  return taken;
}

}  // namespace phe
