// Links, what happens to them, and what the log says of them.
#include "state.h"

namespace phc {

// `members` are the ranks that can put traffic on the link; none: all.
int32_t Core::add_link(double bandwidth, int32_t name, const int32_t *members, int count) {
  std::vector<int32_t> who(members, members + count);
  auto [it, fresh] = scopes.try_emplace(std::move(who), static_cast<int32_t>(scopes.size()));
  if (fresh) {
    if (it->first.empty())
      for (Rank &rank : ranks) rank.scopes.push_back(it->second);
    else
      for (int32_t r : it->first) ranks[r].scopes.push_back(it->second);
  }
  link_names.push_back(name);
  link_ranks.push_back(count ? *std::min_element(members, members + count) : 0);
  return network.add_link(bandwidth, it->second);
}

// Rank 0's host has ended a step. If links change with the next, they do when its GPU gets there: behind
// what was launched last.
void Core::step_ended(int64_t time) {
  ++steps;
  auto next = [&](const StepChange &c) { return c.step == steps + 1; };
  if (std::none_of(step_changes.begin(), step_changes.end(), next)) return;
  Stream *last = nullptr;
  for (auto &[id, s] : ranks[0].streams)
    if (!last || s->last_id > last->last_id) last = s.get();
  if (!last) return step_begins(steps + 1, time);
  Item item;
  item.type = STEP;
  item.id = -1;
  item.part = steps + 1;
  item.launch = item.ready = time;
  push(last, std::move(item));
}

void Core::step_begins(int step, int64_t time) {
  for (const StepChange &c : step_changes)
    if (c.step == step) network.change(c.link, time, c.bandwidth);
}

void Core::flow_ended(const phn::Ended &e) {
  const Activity &a = activities[e.tag];
  const Price &price = *prices[a.price];
  const phn::FlowClass &f = price.flows[e.index];
  ph_row r = row(PH_ROW_FLOW, ranks[0], e.start, e.end);
  r.rank = f.src < 0 ? a.launches[0]->gpu->rank->index : f.src;
  r.name = price.routes[e.index];
  r.price = a.price;
  r.part = e.index;
  r.comm = comms[a.comm]->number;
  r.seq = a.seq;
  bool transfer = price.request.kind == PHC_TRANSFER;  // whose flow may keep its links busy with more than it moves
  r.bytes = transfer ? price.request.bytes : static_cast<int64_t>(f.bytes * f.count + 0.5);
  r.value = f.dst;
  network_rows.push_back(r);
  ++row_count;
}

void Core::busy_rows(int64_t until) {
  std::vector<phn::Busy> busy;
  if (until == NEVER) {
    int64_t last = 0;
    for (Gpu *g : gpus) last = std::max(last, g->now);
    network.stop(last);
  }
  network.take_busy(until, busy);
  for (const phn::Busy &b : busy) {
    ph_row r = row(PH_ROW_LINK, ranks[0], b.start, b.end);
    r.rank = link_ranks[b.link];
    r.name = link_names[b.link];
    r.bytes = static_cast<int64_t>(b.bytes + 0.5);
    r.value = static_cast<int64_t>(network.bandwidth(b.link) + 0.5);
    network_rows.push_back(r);
    ++row_count;
  }
}

}  // namespace phc
