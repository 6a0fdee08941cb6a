// The links of the cluster: their users, changes of their rates, and their rows in the log.
#pragma once
#include "gpu/launches.h"

namespace phe {

class Links {
 public:
  Links(RankTable &rank_table, RowLog &rows) : rank_table_(rank_table), rows_(rows) {}

  phn::Network &network() { return network_; }
  // `members` are the ranks that can put traffic on the link; none: all.
  int add(double bandwidth, int32_t name, std::vector<int32_t> members);
  // From rank 0's `mark`-th mark on, counted from 1.
  void change_at_mark(int link, int mark, double bandwidth) { changes_.push_back({link, mark, bandwidth}); }
  // From now on each of these ranks can put traffic on what the others can: they reach each other's memory.
  void share(const std::vector<int> &ranks);
  void add_background(std::vector<int32_t> links, double rate);

  bool changes_at(int mark) const;
  // Rank 0's GPU is at the mark.
  void at_mark(int mark, int64_t time);

  void log_flows() {
    flow_rows_ = true;
    network_.watch_links();
  }
  // A flow class of an operation has ended. `comm`: the log's number of its communicator.
  void flow_ended(const phn::Ended &ended, const Activity &activity, const Price &price, int32_t comm);
  // Rows of what links carried before `until`; NEVER: all, up to `end`.
  void write_carried(int64_t until, int64_t end);

 private:
  int32_t scope_of(const std::vector<int32_t> &users);

  struct Change {
    int link, mark;
    double bandwidth;
  };

  RankTable &rank_table_;
  RowLog &rows_;
  phn::Network network_;
  bool flow_rows_ = false;
  std::vector<int32_t> names_;
  std::vector<int32_t> first_rank_;                 // the lowest that can use it
  std::vector<std::vector<int32_t>> users_;         // ranks that can; none: all
  std::map<std::vector<int32_t>, int32_t> scopes_;  // ranks -> scope
  std::deque<std::vector<int32_t>> background_;     // links of endless flows
  std::vector<Change> changes_;                     // to come
};

}  // namespace phe
