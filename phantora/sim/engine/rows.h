// The row log: finished work, in the order of the log.
#pragma once
#include "basics.h"
#include "queue.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace phe {

class RowLog {
 public:
  explicit RowLog(size_t ranks) : host_(ranks), device_(ranks) {}
  // A row with nothing in it but what is given.
  static ph_row row(ph_row_kind kind, int rank, int64_t start, int64_t end);

  // From now on none of memory, of events that are recorded, and of streams that wait for them.
  void log_briefly() { brief_ = true; }

  // Rows of a host come in the order of their ends, but for waits that it began together. So do those of its GPUs, each
  // by itself.
  void host(const ph_row &r) {
    if (keep(r)) insert(host_[static_cast<size_t>(r.rank)], r);
  }
  void device(const ph_row &r) {
    if (keep(r)) insert(device_[static_cast<size_t>(r.rank)], r);
  }
  int64_t latest() const { return latest_; }  // end of all rows so far, also of those that are not kept
  // Rows of communicators and of the network may come in any order.
  void communicator(const ph_row &r) {
    if (keep(r)) communicators_.push_back(r);
  }
  void network(const ph_row &r) {
    if (keep(r)) network_.push_back(r);
  }
  int64_t waiting() const { return count_; }

  // Up to `capacity` rows that end before `until`; `rename` makes a row's numbers those of the log.
  int64_t take(ph_row *out, int64_t capacity, int64_t until, const std::function<void(ph_row &)> &rename);
  bool must_gather() const { return lanes_.empty(); }

 private:
  using Rows = Queue<ph_row, 256>;
  enum Order : int32_t { COMMUNICATORS, HOST, DEVICE, NETWORK };  // of rows of one rank that end together
  struct Lane {  // rows in the order of their ends, some of which are final
    Rows *rows;
    Order order;

    bool before(const Lane &other) const {
      const ph_row &a = rows->front(), &b = other.rows->front();
      return a.end != b.end ? a.end < b.end : a.rank != b.rank ? a.rank < b.rank : order < other.order;
    }
  };
  bool keep(const ph_row &r) {
    latest_ = std::max(latest_, r.end);
    bool kept = !brief_ || (r.kind != PH_ROW_MEMORY && r.kind != PH_ROW_RECORD && r.kind != PH_ROW_WAIT);
    count_ += kept;
    return kept;
  }
  static void insert(Rows &rows, const ph_row &r) {
    rows.push_back(r);
    for (size_t at = rows.size() - 1; at && rows[at - 1].end > rows[at].end; --at) std::swap(rows[at - 1], rows[at]);
  }
  void gather(int64_t until);
  void add(Rows &rows, Order order);
  void sink(size_t at);

  std::vector<Rows> host_, device_;  // by rank
  std::vector<ph_row> communicators_, network_;
  Rows final_communicators_, final_network_;  // of them, in order
  std::vector<Lane> lanes_;  // a heap of those that have final rows
  int64_t until_ = 0;        // rows that end before are final
  int64_t count_ = 0, latest_ = 0;
  bool brief_ = false;
};

}  // namespace phe
