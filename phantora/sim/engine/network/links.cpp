#include "network/links.h"

#include <math.h>

#include <algorithm>
#include <iterator>

namespace phe {

int32_t Links::scope_of(const std::vector<int32_t> &users) {
  auto [it, fresh] = scopes_.try_emplace(users, static_cast<int32_t>(scopes_.size()));
  if (fresh) {
    if (users.empty())
      for (Rank &rank : rank_table_.ranks()) rank.scopes.push_back(it->second);
    else
      for (int32_t r : users) rank_table_[static_cast<size_t>(r)].scopes.push_back(it->second);
  }
  return it->second;
}

int Links::add(double bandwidth, int32_t name, std::vector<int32_t> members) {
  names_.push_back(name);
  first_rank_.push_back(members.empty() ? 0 : *std::min_element(members.begin(), members.end()));
  users_.push_back(std::move(members));
  return network_.add_link(bandwidth, scope_of(users_.back()));
}

void Links::share(const std::vector<int> &ranks) {
  std::vector<int32_t> sorted(ranks.begin(), ranks.end()), both;
  std::sort(sorted.begin(), sorted.end());
  for (size_t link = 0; link < users_.size(); ++link) {
    std::vector<int32_t> &users = users_[link];
    std::sort(users.begin(), users.end());
    both.clear();
    std::set_union(users.begin(), users.end(), sorted.begin(), sorted.end(), std::back_inserter(both));
    if (users.empty() || both.size() == users.size() || both.size() == users.size() + sorted.size()) continue;
    users = both;
    network_.set_scope(static_cast<int>(link), scope_of(users));
  }
}

void Links::add_background(std::vector<int32_t> links, double rate) {
  background_.push_back(std::move(links));
  const std::vector<int32_t> &kept = background_.back();
  phn::FlowClass flow{-1, -1, kept.data(), static_cast<int32_t>(kept.size()), 1, INFINITY, rate};
  network_.begin(0, &flow, 1, -1);
}

bool Links::changes_at(int mark) const {
  return std::any_of(changes_.begin(), changes_.end(), [mark](const Change &c) { return c.mark == mark; });
}

void Links::at_mark(int mark, int64_t time) {
  for (const Change &c : changes_)
    if (c.mark == mark) network_.change(c.link, time, c.bandwidth);
}

void Links::flow_ended(const phn::Ended &ended, const Activity &activity, const Price &price, int32_t comm) {
  if (!flow_rows_) return;
  const phn::FlowClass &flow = price.flows[static_cast<size_t>(ended.index)];
  int rank = flow.src < 0 ? activity.launches[0]->context->rank.index : flow.src;
  ph_row r = RowLog::row(PH_ROW_FLOW, rank, ended.start, ended.end);
  r.name = price.routes[static_cast<size_t>(ended.index)];
  r.price = activity.price;
  r.part = ended.index;
  r.comm = comm;
  r.seq = activity.seq;
  bool transfer = price.request.kind == PHE_TRANSFER;  // whose flow may keep its links busy with more than it moves
  r.bytes = transfer ? price.request.bytes : static_cast<int64_t>(flow.bytes * flow.count + 0.5);
  r.value = flow.dst;
  rows_.network(r);
}

void Links::write_carried(int64_t until, int64_t end) {
  if (!flow_rows_) return;
  if (until == NEVER) network_.stop(end);
  std::vector<phn::Busy> busy;
  network_.take_busy(until, busy);
  for (const phn::Busy &b : busy) {
    ph_row r = RowLog::row(PH_ROW_LINK, first_rank_[static_cast<size_t>(b.link)], b.start, b.end);
    r.name = names_[static_cast<size_t>(b.link)];
    r.bytes = static_cast<int64_t>(b.bytes + 0.5);
    r.value = static_cast<int64_t>(network_.bandwidth(b.link) + 0.5);
    rows_.network(r);
  }
}

}  // namespace phe
