// Operations begin when all members are there, take their links, and end.
#include "communication/communication.h"

namespace phe {

void Communication::open(const std::shared_ptr<Operation> &o) {
  if (o->open >= 0 || o->aborted) return;
  o->open = static_cast<int32_t>(open_operations_.size());
  open_operations_.push_back(o);
}

void Communication::arrive(Launch &launch, int64_t time) {
  launch.arrival = time;
  launch.least_end = time + 1;
  if (launch.aborted) return end_aborted(launch, time);
  if (launch.limit) {
    launch.gives_up = time + launch.limit;
    launch.ready = time;
    launch.name = texts_.name("gave up waiting");  // unless it gets its name with its price
  }
  for (auto &c : launch.collectives) {
    ++c->arrived;
    c->latest = std::max(c->latest, time);
    open(c);
    finalize(*c);
  }
  for (auto &t : launch.transfers) {
    open(t);
    finalize(*t);
  }
  for (auto &t : launch.followers) finalize(*t);
  if (launch.collectives.empty() && launch.transfers.empty()) launch.end = time;
}

void Communication::finalize(Operation &o) {
  if (o.transfer)
    finalize(static_cast<Transfer &>(o));
  else
    finalize(static_cast<Collective &>(o));
}

void Communication::finalize(Collective &c) {
  if (c.begun || c.aborted || c.held || c.arrived < static_cast<int>(c.members.size()) || c.price < 0 ||
      !prices_[c.price].known)
    return;
  Activity activity;
  for (Member &m : c.members) activity.launches.push_back(std::move(m.launch));  // breaks the cycle of owners
  int64_t arrival = c.latest, time = std::max(c.latest, c.begin);
  communicators_[static_cast<size_t>(c.comm)]->open.erase(c.seq);
  begin(c, std::move(activity), arrival, time);
}

void Communication::finalize(Transfer &t) {
  if (t.begun || t.aborted || t.price < 0 || !prices_[t.price].known) return;
  Activity activity;
  int64_t time = 0;
  for (Post *post : {&t.send, &t.recv}) {
    if (t.one_sided && !post->launch) continue;
    if (!post->launch || post->launch->arrival < 0) return;
    time = std::max(time, post == &t.send && t.sent >= 0 ? t.sent : post->launch->arrival);
  }
  if (t.like >= 0) {
    if (!t.there || t.there->arrival < 0) return;
    if (t.kind != PHE_PAIR && t.there->arrival > time) activity.signal = t.there;
    time = std::max(time, t.there->arrival);
    t.there.reset();  // breaks the cycle of owners
  }
  if (t.sent >= 0) t.send.launch.reset();  // has ended
  for (Post *post : {&t.send, &t.recv})
    if (post->launch) activity.launches.push_back(std::move(post->launch));  // breaks the cycle of owners
  begin(t, std::move(activity), time, time);
}

int32_t Communication::fresh_tag() {
  if (free_activities_.empty()) {
    activities_.emplace_back();
    return static_cast<int32_t>(activities_.size()) - 1;
  }
  int32_t tag = free_activities_.back();
  free_activities_.pop_back();
  return tag;
}

// It is no longer among those that may begin.
void Communication::unlist(Operation &o) {
  if (o.open < 0) return;
  std::shared_ptr<Operation> last = std::move(open_operations_.back());
  open_operations_.pop_back();
  if (last.get() != &o) {
    last->open = o.open;
    open_operations_[static_cast<size_t>(last->open)].swap(last);
  }
  o.open = -1;
}

// All members are there since `arrival`; the work begins at `time`, its flows after the latency.
void Communication::begin(Operation &o, Activity activity, int64_t arrival, int64_t time) {
  progress_.moved = true;
  o.begun = true;
  activity.comm = o.comm;
  activity.seq = o.seq;
  activity.price = o.price;
  activity.since = time;
  const Price &price = prices_[o.price];
  std::shared_ptr<Operation> kept = open_operations_[static_cast<size_t>(o.open)];
  unlist(o);
  int32_t tag = fresh_tag();
  for (auto &l : activity.launches) {
    l->gives_up = NEVER;
    l->ready = std::max(l->ready, arrival);
    l->least_end = std::max(l->least_end, time + price.least);
    l->context->device.touch();
  }
  activities_[static_cast<size_t>(tag)] = std::move(activity);
  if (price.flows.empty()) return finish_with_noise(tag, time + price.durations[0]);
  phn::Network &network = links_.network();
  int count = static_cast<int>(price.flows.size());
  int64_t start = time + price.latency, possible = network.earliest(price.flows.data(), count);
  if (start < possible) {
    ++progress_.late;
    start = possible;
  }
  network.begin(start, price.flows.data(), count, tag);
}

void Communication::flow_ended(const phn::Ended &ended) {
  const Activity &a = activity(ended.tag);
  links_.flow_ended(ended, a, prices_[a.price], communicator(a.comm).number);
  slow_down(ended);
  if (ended.last) finish_with_noise(static_cast<int32_t>(ended.tag), a.slowed_end);
}

void Communication::finish_with_noise(int32_t tag, int64_t time) {
  const Activity &a = activity(tag);
  int rank = a.launches.empty() ? 0 : a.launches[0]->context->rank.index;
  finish(tag, time + noise_.transfer(rank, a.since, time - a.since));
}

// A flow has ended as if it had been alone on the GPUs at its ends. What it lost there it has still to do, at the pace
// that it had. Both GPUs are known up to its end, since the links of both are in the component that ended it.
void Communication::slow_down(const phn::Ended &ended) {
  Activity &a = activities_[static_cast<size_t>(ended.tag)];
  const Price &price = prices_[a.price];
  const phn::FlowClass &flow = price.flows[static_cast<size_t>(ended.index)];
  double took = static_cast<double>(ended.end - a.since), most = 0;
  if (price.slowed > 0 && took > 0)
    for (int rank : {flow.src, flow.dst}) {
      const Context *context = rank < 0 ? nullptr : rank_table_[static_cast<size_t>(rank)].communicating;
      if (context) most = std::max(most, price.slowed * context->interference.lost(a.since, ended.end));
    }
  a.slowed_end = std::max(a.slowed_end, ended.end + static_cast<int64_t>(most / (1 - most / took)));
}

void Communication::finish(int32_t tag, int64_t time) {
  Activity activity = std::move(activities_[static_cast<size_t>(tag)]);
  free_activities_.push_back(tag);
  auto earlier = [](auto &a, auto &b) { return a->arrival < b->arrival; };
  const Launch &last = activity.signal
                           ? *activity.signal
                           : **std::max_element(activity.launches.begin(), activity.launches.end(), earlier);
  for (auto &l : activity.launches) finish_part(*l, l->arrival == last.arrival ? *l : last, last.arrival, time);
  auto &open = communicators_[static_cast<size_t>(activity.comm)]->open;
  auto next = open.find(activity.seq + 1);
  if (next == open.end() || !next->second->held || activity.launches[0]->p2p) return;
  auto c = next->second;
  c->held = false;
  c->begin = time;
  finalize(*c);
}

// Collectives of one communicator in one launch run one after the other (a fused kernel); sends and
// receives side by side. All of this part's members were there at `arrival`, when `last` came.
void Communication::finish_part(Launch &l, const Launch &last, int64_t arrival, int64_t end) {
  progress_.moved = true;
  int64_t at = l.p2p ? end : arrival;
  int last_rank = last.context->rank.index;
  if (at > l.last_at ||
      (at == l.last_at && std::make_pair(last_rank, last.id) < std::make_pair(l.last_rank, l.last_id))) {
    l.last_at = at;
    l.last_rank = last_rank;
    l.last_id = last.id;
  }
  l.part_end = std::max(l.part_end, end);
  l.context->device.touch();
  ended_.push_back(&l.context->device);
  if (--l.waiting) return;
  l.end = l.part_end;
  int32_t first = -1;
  auto count = [&](int32_t price) {
    if (price < 0 || !prices_[price].known) return;  // of a part that was given up before it could begin
    if (first < 0) first = price;
    // The launch has the price of its longest part.
    if (l.price < 0 || prices_[price].durations[0] > prices_[l.price].durations[0]) l.price = price;
  };
  for (auto &c : l.collectives) count(c->price);
  for (auto &t : l.transfers) count(t->price);
  l.name = prices_[first].name;  // this part has begun
}

}  // namespace phe
