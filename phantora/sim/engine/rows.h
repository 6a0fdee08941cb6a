// The row log: finished work, in the order of the log.
#pragma once
#include "basics.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <vector>

namespace phe {

class RowLog {
 public:
  explicit RowLog(size_t ranks) : host_(ranks), device_(ranks) {}
  // A row with nothing in it but what is given.
  static ph_row row(ph_row_kind kind, int rank, int64_t start, int64_t end);

  // From now on none of memory, of events that are recorded, and of streams that wait for them.
  void log_briefly() { brief_ = true; }

  // Rows of a host come in the order of their ends, but for waits that it began together. Those of its GPUs always do.
  void host(const ph_row &r) {
    latest_ = std::max(latest_, r.end);
    if (!keeps(r)) return;
    std::deque<ph_row> &list = host_[static_cast<size_t>(r.rank)];
    auto at = list.end();
    while (at != list.begin() && std::prev(at)->end > r.end) --at;
    list.insert(at, r);
    ++count_;
  }
  void device(const ph_row &r) { put(device_[static_cast<size_t>(r.rank)], r); }
  int64_t latest() const { return latest_; }  // end of all rows so far, also of those that are not kept
  // Rows of communicators and of the network may come in any order.
  void communicator(const ph_row &r) { put(communicators_, r); }
  void network(const ph_row &r) { put(network_, r); }
  int64_t waiting() const { return count_; }

  // Up to `capacity` rows that end before `until`; `rename` makes a row's numbers those of the log.
  int64_t take(ph_row *out, int64_t capacity, int64_t until, const std::function<void(ph_row &)> &rename);
  bool must_gather() const { return taken_ == places_.size(); }

 private:
  enum Lane : int32_t { COMMUNICATORS, HOST, DEVICE, NETWORK };
  struct Place {
    int64_t end;
    int32_t rank;
    Lane lane;
    size_t position;
  };
  bool keeps(const ph_row &r) const {
    return !brief_ || (r.kind != PH_ROW_MEMORY && r.kind != PH_ROW_RECORD && r.kind != PH_ROW_WAIT);
  }
  template <typename List>
  void put(List &list, const ph_row &r) {
    latest_ = std::max(latest_, r.end);
    if (!keeps(r)) return;
    list.push_back(r);
    ++count_;
  }
  void gather(int64_t until, const std::function<void(ph_row &)> &rename);
  void pick(std::deque<ph_row> &list, Lane lane, int64_t until, const std::function<void(ph_row &)> &rename);
  void pick_unordered(std::vector<ph_row> &list, Lane lane, int64_t until);
  void add(const ph_row &r, Lane lane);
  bool before(const Place &a, const Place &b) const;

  std::vector<std::deque<ph_row>> host_, device_;  // by rank
  std::vector<ph_row> communicators_, network_;
  std::vector<ph_row> picked_;  // final rows
  std::vector<Place> places_;   // and their order
  size_t taken_ = 0;            // of them
  int64_t count_ = 0, latest_ = 0;
  bool brief_ = false;
};

}  // namespace phe
