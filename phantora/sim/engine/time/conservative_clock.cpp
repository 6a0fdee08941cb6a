#include "time/conservative_clock.h"

#include <algorithm>

namespace phe {

// ------------------------------------------------------------------ candidates
void ConservativeClock::schedule(Device &device) {
  DeviceState &d = state(device);
  int64_t limit = device.host_limit(), latency = device.model().timing.launch_latency_ns;
  int64_t launch = limit > NEVER - latency ? NEVER : limit + latency;  // a new kernel is there no earlier
  int64_t next = device.next().time;
  d.next = std::max(std::min(std::min(next, device.hold()), std::min(d.closed, launch)), device.now());
  if (d.next != NEVER && !d.stopped) candidates_.push({d.next, &device, device.rank().index});
}

void ConservativeClock::schedule_changed() {
  network_.take_changed(changed_);
  for (int c : changed_)
    if (network_.next(c) != NEVER) candidates_.push({network_.next(c), nullptr, c});
}

void ConservativeClock::begin() {
  ++number_;
  moved_ = false;
  candidates_ = {};
  known_.clear();
  network_.open();
  device_states_.assign(devices_.all().size(), {});
  rank_states_.resize(rank_table_.size());
  for (const Rank &rank : rank_table_.ranks()) {
    state(rank).stopped = false;
    state(rank).missed.clear();
  }
  for (Device *device : devices_.all()) schedule(*device);
  for (const auto &o : communication_.open_operations()) know(o, 0);
  for (int c = 0; c < network_.components(); ++c)
    if (network_.next(c) != NEVER) candidates_.push({network_.next(c), nullptr, c});
  network_.take_changed(changed_);
  communication_.take_ended(touched_);
}

bool ConservativeClock::run(bool until_answer) {
  if (!progress_.news || prices_.communication_missing()) return false;
  begin();
  while (!candidates_.empty() && failure_.none()) {
    Candidate candidate = candidates_.top();
    candidates_.pop();
    if (candidate.device) {
      if (state(*candidate.device).stopped || state(*candidate.device).next != candidate.time) continue;
      step_device(candidate, until_answer);
    } else {
      if (network_.next(candidate.number) != candidate.time || network_.horizon(candidate.number) < candidate.time)
        continue;
      step_network(candidate);
    }
    close_activities(candidate.time);  // what has begun on closed links, or met them
    communication_.take_ended(touched_);
    for (Device *device : touched_) schedule(*device);
    schedule_changed();
    if (until_answer && (progress_.released >= 0 || prices_.wanted())) return moved_;
  }
  progress_.news = moved_;
  for (Device *device : devices_.all()) finalize(*device);
  return moved_;
}

void ConservativeClock::step_network(const Candidate &candidate) {
  moved_ = progress_.moved = true;
  reached_ = candidate.time;
  ended_.clear();
  network_.step(candidate.number, ended_);
  for (const phn::Ended &e : ended_) communication_.flow_ended(e);
}

void ConservativeClock::step_device(const Candidate &candidate, bool until_answer) {
  Device &device = *candidate.device;
  Device::Next next = device.next();
  bool may = next.time != NEVER && next.time == candidate.time && next.time <= device.host_limit();
  if (may && next.time < device.hold() && next.time < state(device).closed) return happen(device, next);
  stop(device, candidate.time);
  if (!until_answer) return;
  finalize(device);  // a query that finds nothing done is an answer too
  if (progress_.released < 0) return;
  moved_ = true;
  reached_ = std::max(reached_, rank_table_[static_cast<size_t>(progress_.released)].host);
}

void ConservativeClock::happen(Device &device, const Device::Next &next) {
  moved_ = true;
  int64_t when = reached_ = next.time;
  if (!next.stream) {
    device.happen(next);
    return schedule(device);
  }
  Stream &s = *next.stream;
  const Rank &rank = s.context->rank;
  bool arrives = s.queue.front().type == Item::COMM && !s.queue.front().running;
  device.happen(next);
  if (arrives && s.queue.front().running) {  // it may wait for room first
    std::shared_ptr<Launch> l = s.queue.front().comm;
    for (auto &c : l->collectives) reached_by(rank, c, when);
    for (auto &t : l->transfers) reached_by(rank, t, when);
    for (auto &t : l->followers) reached_by(rank, t, when);
  }
  for (auto &other : rank.contexts) schedule(other->device);
}

void ConservativeClock::stop(Device &device, int64_t time) {
  state(device).stopped = true;
  for (const Context *context : device.contexts()) {
    RankState &rank = state(context->rank);
    if (rank.stopped) continue;
    rank.stopped = true;
    close_links(context->rank, time);
    for (Operation *o : rank.missed)
      if (--o->missing == 0) may_begin(*o, time);
  }
}

// What a GPU that goes no further does up to there is known, which may answer its host. The host of a sleeper goes on
// from the moment of an answer, so its GPU stays behind that.
void ConservativeClock::finalize(Device &device) {
  int64_t host = device.host_limit(), limit = std::min(host, std::min(state(device).closed, device.hold()) - 1);
  waits_.read_meter(device, limit);
  waits_.settle_memory(device);
  auto asleep = [](const Context *c) { return c->rank.asleep; };
  bool one_sleeps = std::any_of(device.contexts().begin(), device.contexts().end(), asleep);
  if (one_sleeps && limit < host) return;
  if (limit < NEVER - 1 && limit > device.now()) device.stand_at(limit);
  for (const Context *c : device.contexts())
    if (!c->rank.requests.empty() && !c->rank.asleep) waits_.check(c->rank);
}

// ------------------------------------------------------------------ what may change from a moment on
void ConservativeClock::close(Device &device, int64_t time) {
  DeviceState &d = state(device);
  if (time >= d.closed) return;
  d.closed = time;
  if (time >= d.next || d.stopped) return;
  d.next = time;
  candidates_.push({time, &device, device.rank().index});
}

void ConservativeClock::close_activity(int64_t tag, int64_t time) {
  const Activity &a = communication_.activity(tag);
  for (auto &l : a.launches) close(*l, time);
  if (a.launches[0]->p2p) return;
  const auto &open = communication_.communicator(a.comm).open;  // and those that wait for it in one kernel
  for (auto next = open.find(a.seq + 1); next != open.end() && next->second->held; ++next)
    for (const Member &m : next->second->members)
      if (m.launch && m.launch->arrival >= 0) close(*m.launch, time);
}

void ConservativeClock::close_activities(int64_t time) {
  network_.take_closed(tags_);
  for (int64_t tag : tags_) close_activity(tag, time);
}

void ConservativeClock::close_links(const Rank &rank, int64_t time) {
  for (int32_t scope : rank.scopes) network_.close(scope, time);
  close_activities(time);
}

// ------------------------------------------------------------------ operations that have not begun
// Nobody can say any longer when it begins, except that it is not before `time`.
void ConservativeClock::may_begin(Operation &o, int64_t time) {
  communication_.members(o, [&](Launch *l, int r) {
    if (!l || l->arrival < 0) return;
    close(*l, time + 1);
    close_links(rank_table_[static_cast<size_t>(r)], time);
  });
}

bool ConservativeClock::misses_members(Operation &o) {
  bool some = false;
  communication_.members(o, [&](Launch *l, int) { some = some || !l || l->arrival < 0; });
  return some;
}

// Counts the members that can still say when; at `time` perhaps none.
void ConservativeClock::know(const std::shared_ptr<Operation> &o, int64_t time) {
  o->pass = number_;
  o->missing = 0;
  known_.push_back(o);
  communication_.members(*o, [&](Launch *l, int r) {
    if (r < 0 || (l && l->arrival >= 0)) return;  // r < 0: has not joined the communicator
    RankState &rank = rank_states_[static_cast<size_t>(r)];
    if (rank.stopped) return;
    ++o->missing;
    rank.missed.push_back(o.get());
  });
  if (!o->missing && misses_members(*o)) may_begin(*o, time);
}

void ConservativeClock::reached_by(const Rank &rank, const std::shared_ptr<Operation> &o, int64_t time) {
  if (o->begun || o->aborted) return;
  if (o->pass != number_) return know(o, time);
  auto &missed = state(rank).missed;
  auto it = std::find(missed.begin(), missed.end(), o.get());
  if (it == missed.end()) return;
  missed.erase(it);
  if (--o->missing == 0 && misses_members(*o)) may_begin(*o, time);
}

}  // namespace phe
