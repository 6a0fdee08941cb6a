// Everything that can be known, in one pass in the order of virtual time, over GPUs and network.
//
// Alone, a GPU advances only as far as its host and its running collectives allow by themselves
// (Core::run). The sweep looks at all of them together: it takes whatever is next, a GPU or a
// component of the network, and lets it happen. What it cannot let happen, because a host that
// runs may still launch something, or a kernel has no price, stops that GPU; from then on
// - the links that its rank can put traffic on are closed: their component goes no further,
// - an operation that waits for nobody but stopped ranks may begin, so the links of its members
//   are closed as well,
// - a GPU on which communication runs that may now end in a way we do not know is closed from
//   the earliest such end.
// So whatever happens, happens after all that could have changed it; and the earliest thing of
// all can always happen, unless it is a host's turn. docs/virtual-time.md has the argument.
#include "state.h"

#include <functional>
#include <queue>

namespace phc {

namespace {

struct Turn {
  int64_t time;
  Gpu *gpu;        // nullptr: a component of the network; they come first, since what ends precedes what begins
  int32_t number;  // of the rank or the component
  bool operator>(const Turn &o) const {
    if (time != o.time) return time > o.time;
    if (!gpu != !o.gpu) return gpu;
    return number != o.number ? number > o.number : gpu && gpu->device > o.gpu->device;
  }
};

}  // namespace

bool Core::sweep(bool until_answer) {
  if (!news || unpriced_comm) return false;
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
  std::vector<std::shared_ptr<Operation>> known;  // kept until the end of the sweep
  std::vector<phn::Ended> ended;
  std::vector<int> changed;
  bool moved = false;

  auto look = [&](Gpu &g) {
    int64_t limit = host_limit(*g.rank);
    int64_t launch = limit > NEVER - launch_latency ? NEVER : limit + launch_latency;  // a new kernel is there no earlier
    int64_t turn = std::min(std::min(next_local(g, nullptr), g.hold), std::min(g.closed, launch));
    turn = std::max(turn, g.now);
    g.turn = turn;
    if (turn != NEVER && !g.stopped) turns.push({turn, &g, g.rank->index});
  };
  auto close_gpu = [&](Gpu &g, int64_t time) {
    if (time >= g.closed) return;
    g.closed = time;
    if (time < g.turn && !g.stopped) turns.push({g.turn = time, &g, g.rank->index});
  };
  auto close_launch = [&](Launch &l, int64_t time) { close_gpu(*l.gpu, std::max(time, l.least_end)); };
  std::vector<int64_t> tags;
  auto close_activity = [&](int64_t tag, int64_t time) {
    Activity &a = activities[tag];
    for (auto &l : a.launches) close_launch(*l, time);
    if (a.launches[0]->p2p) return;
    auto &list = comms[a.comm]->open;  // and those that wait for it in one kernel
    for (auto next = list.find(a.seq + 1); next != list.end() && next->second->held; ++next)
      for (Member &m : next->second->members)
        if (m.launch && m.launch->arrival >= 0) close_launch(*m.launch, time);
  };
  auto close_links = [&](Rank &rank, int64_t time) {
    for (int32_t scope : rank.scopes) network.close(scope, time);
    network.take_closed(tags);
    for (int64_t tag : tags) close_activity(tag, time);
  };
  // Calls f(launch or nullptr, rank or -1) for every member.
  auto members = [&](Operation &o, auto f) {
    const Comm &comm = *comms[o.comm];
    if (o.transfer) {
      auto &pair = static_cast<Pair &>(o);
      f(pair.send.launch.get(), comm.ranks[pair.src]);
      f(pair.recv.launch.get(), comm.ranks[pair.dst]);
    } else {
      auto &all = static_cast<Collective &>(o).members;
      for (size_t i = 0; i < all.size(); ++i) f(all[i].launch.get(), comm.ranks[i]);
    }
  };
  // Nobody can say any longer when it begins, except that it is not before `time`.
  auto may_begin = [&](Operation &o, int64_t time) {
    members(o, [&](Launch *l, int r) {
      if (!l || l->arrival < 0) return;
      close_launch(*l, time + 1);
      close_links(ranks[r], time);
    });
  };
  // Counts the members that can still say when; at `time` perhaps none.
  auto lacks = [&](Operation &o) {
    bool some = false;
    members(o, [&](Launch *l, int) { some = some || !l || l->arrival < 0; });
    return some;
  };
  auto know = [&](const std::shared_ptr<Operation> &o, int64_t time) {
    o->sweep = sweeps;
    o->missing = 0;
    known.push_back(o);
    members(*o, [&](Launch *l, int r) {
      if (r < 0 || (l && l->arrival >= 0) || ranks[r].stopped) return;  // r < 0: has not joined the communicator
      ++o->missing;
      ranks[r].missed.push_back(o.get());
    });
    if (!o->missing && lacks(*o)) may_begin(*o, time);
  };
  auto reached = [&](Rank &rank, const std::shared_ptr<Operation> &o, int64_t time) {
    if (o->begun) return;
    if (o->sweep != sweeps) return know(o, time);
    auto it = std::find(rank.missed.begin(), rank.missed.end(), o.get());
    if (it == rank.missed.end()) return;
    rank.missed.erase(it);
    if (--o->missing == 0 && lacks(*o)) may_begin(*o, time);
  };

  // What a GPU that goes no further does up to there is known, which may answer its host. The host of a sleeper goes on
  // from the moment of an answer, so its GPU stays behind that.
  auto settle = [&](Gpu &g) {
    if (g.rank->asleep) return;
    int64_t limit = std::min(host_limit(*g.rank), std::min(g.closed, g.hold) - 1);
    if (limit < NEVER - 1 && limit > g.now) g.now = limit;
    if (!g.rank->requests.empty()) check_requests(*g.rank);
  };

  ++sweeps;
  network.open();
  for (Rank &rank : ranks) {
    rank.stopped = false;
    rank.missed.clear();
  }
  for (Gpu *g : gpus) {
    g->closed = NEVER;
    g->stopped = false;
    look(*g);
  }
  for (size_t i = 0; i < open_operations.size(); ++i) know(open_operations[i], 0);
  for (int c = 0; c < network.components(); ++c)
    if (network.next(c) != NEVER) turns.push({network.next(c), nullptr, c});
  network.take_changed(changed);
  touched.clear();

  while (!turns.empty() && error.empty()) {
    Turn turn = turns.top();
    turns.pop();
    if (!turn.gpu) {
      if (network.next(turn.number) != turn.time || network.horizon(turn.number) < turn.time) continue;
      moved = progressed = true;
      swept = turn.time;
      ended.clear();
      network.step(turn.number, ended);
      for (const phn::Ended &e : ended) {
        if (flow_rows) flow_ended(e);
        slow_down(e);
        if (e.last) finish(static_cast<int32_t>(e.tag), activities[e.tag].slowed_end);
      }
    } else {
      Gpu &g = *turn.gpu;
      if (g.stopped || g.turn != turn.time) continue;
      Stream *s = nullptr;
      int64_t when = next_local(g, &s);
      if (s && when == turn.time && when <= host_limit(*g.rank) && when < g.hold && when < g.closed) {
        moved = true;
        swept = when;
        bool arrives = s->queue.front().type == COMM && !s->queue.front().running;
        happen(g, *s, when);
        if (arrives && s->queue.front().running) {  // it may wait for room first
          std::shared_ptr<Launch> l = s->queue.front().comm;
          for (auto &c : l->collectives) reached(*g.rank, c, when);
          for (auto &p : l->pairs) reached(*g.rank, p, when);
        }
        for (auto &other : g.rank->gpus) look(*other);
      } else {
        g.stopped = true;
        if (!g.rank->stopped) {
          g.rank->stopped = true;
          close_links(*g.rank, turn.time);
          for (Operation *o : g.rank->missed)
            if (--o->missing == 0) may_begin(*o, turn.time);
        }
        if (until_answer) {
          settle(g);  // a query that finds nothing done is an answer too
          if (released >= 0) {
            moved = true;
            swept = std::max(swept, ranks[released].host);
          }
        }
      }
    }
    network.take_closed(tags);  // what has begun on closed links, or met them
    for (int64_t tag : tags) close_activity(tag, turn.time);
    for (Gpu *g : touched) look(*g);
    touched.clear();
    network.take_changed(changed);
    for (int c : changed)
      if (network.next(c) != NEVER) turns.push({network.next(c), nullptr, c});
    if (until_answer && (released >= 0 || !wanted.empty())) return moved;
  }
  news = moved;
  for (Gpu *g : gpus) settle(*g);
  return moved;
}

}  // namespace phc
