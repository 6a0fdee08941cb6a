// Finished work as rows of the log, in the order of the log.
#include "state.h"

#include <tuple>

namespace phc {

ph_row Core::row(ph_row_kind kind, const Rank &rank, int64_t start, int64_t end) {
  ph_row r{};
  r.kind = kind;
  r.rank = rank.index;
  r.stream = r.name = r.sig = r.price = r.comm = -1;
  r.start = start;
  r.end = end;
  r.launch = r.link = r.seq = r.ready = -1;
  r.id = r.last_id = -1;
  r.last_rank = -1;
  return r;
}

void Core::emit(std::deque<ph_row> &lane, const ph_row &r) {
  lane.push_back(r);
  ++row_count;
}

// Of flows (and stretches of links, told by their name) that end together at one rank.
static auto network_order(const ph_row &r) {
  return std::make_tuple(r.kind, r.kind == PH_ROW_LINK ? r.name : r.comm, r.seq, r.value, r.part, r.start);
}

int64_t Core::take_rows(ph_row *out, int64_t capacity, bool everything) {
  if (ready_rows.empty()) {
    int64_t until = everything ? NEVER : frontier();
    // A communicator is numbered, and has its rows, when all have joined: nothing later goes before.
    if (unnumbered && !everything)
      for (const auto &comm : comms)
        for (auto &[rank, joined] : comm->waiting_rows) until = std::min(until, joined);
    struct Key {
      int64_t end;
      int32_t rank, lane;
      size_t seq;
    };
    std::vector<Key> keys;
    std::vector<ph_row> picked;
    auto pick = [&](std::deque<ph_row> &lane, int32_t rank, int32_t which) {
      while (!lane.empty() && (everything || lane.front().end < until)) {
        keys.push_back({lane.front().end, rank, which, keys.size()});
        picked.push_back(lane.front());
        lane.pop_front();
        ph_row &r = picked.back();
        if (r.kind != PH_ROW_COLLECTIVE && r.kind != PH_ROW_SENDRECV) continue;
        const Comm &comm = *comms[r.comm];
        r.comm = comm.number;
        if (r.kind == PH_ROW_SENDRECV && r.value >= 0) r.value = comm.ranks[r.value];
      }
    };
    auto pick_unordered = [&](std::vector<ph_row> &list, int32_t which) {
      std::vector<ph_row> keep;
      for (ph_row &r : list) {
        if (everything || r.end < until) {
          keys.push_back({r.end, r.rank, which, keys.size()});
          picked.push_back(r);
        } else {
          keep.push_back(r);
        }
      }
      list.swap(keep);
    };
    if (flow_rows) busy_rows(until);
    pick_unordered(pending_comm_rows, 0);
    pick_unordered(network_rows, 3);
    for (Rank &rank : ranks) {
      pick(rank.host_rows, rank.index, 1);
      pick(rank.gpu_rows, rank.index, 2);
    }
    // Rows of communicators and of the network may come in any real order.
    std::sort(keys.begin(), keys.end(), [&](const Key &a, const Key &b) {
      if (a.end != b.end) return a.end < b.end;
      if (a.rank != b.rank) return a.rank < b.rank;
      if (a.lane != b.lane) return a.lane < b.lane;
      const ph_row &x = picked[a.seq], &y = picked[b.seq];
      if (a.lane == 0) return x.comm < y.comm;
      if (a.lane == 3) return network_order(x) < network_order(y);
      return a.seq < b.seq;
    });
    ready_rows.reserve(keys.size());
    for (auto it = keys.rbegin(); it != keys.rend(); ++it) ready_rows.push_back(picked[it->seq]);
  }
  int64_t n = 0;
  while (n < capacity && !ready_rows.empty()) {
    out[n++] = ready_rows.back();
    ready_rows.pop_back();
  }
  row_count -= n;
  return n;
}

}  // namespace phc
