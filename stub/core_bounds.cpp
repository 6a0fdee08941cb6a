// Bounds of collectives in flight.
#include "core_state.h"

#include <queue>

namespace phc {

// The earliest time at which each GPU could do something new, by Dijkstra's method: a GPU acts
// at its next local event, when its host acts, or when a collective that runs on it ends; a
// collective ends no earlier than its missing members could arrive plus its least duration.
bool Core::bound_collectives() {
  struct Node {
    Gpu *gpu;
    std::vector<Collective *> missing_in;
    std::vector<Launch *> running;
    int64_t bound = NEVER;
    bool final = false;
  };
  std::vector<Node> nodes;
  std::unordered_map<Gpu *, size_t> at_gpu;
  auto node_of = [&](Gpu *g) {
    auto [it, fresh] = at_gpu.try_emplace(g, nodes.size());
    if (fresh) {
      nodes.push_back({});
      nodes.back().gpu = g;
    }
    return it->second;
  };
  std::vector<Launch *> open;
  for (Rank &rank : ranks)
    for (auto &g : rank.gpus) {
      if (!g->nccl) continue;
      for (Stream *s : g->busy) {
        Item &item = s->queue.front();
        if (item.type == COMM && item.running && item.comm->end < 0) {
          size_t n = node_of(g.get());
          nodes[n].running.push_back(item.comm.get());
          open.push_back(item.comm.get());
        }
      }
    }
  if (open.empty()) return false;
  // Every rank that some open launch waits for.
  struct Wait {
    Launch *launch;
    int missing = 0;
    int64_t bound = 0;
    bool open_members = false;  // somebody has not joined the communicator yet: no bound
  };
  std::vector<Wait> waits;
  std::unordered_map<size_t, std::vector<size_t>> waited_by;  // node -> waits
  for (Launch *l : open) {
    Wait w{l, 0, l->arrival, false};
    std::vector<int> who;
    for (auto &c : l->collectives) {
      if (c->resolved) continue;
      const Comm &comm = *comms[c->comm];
      for (size_t i = 0; i < c->members.size(); ++i)
        if (!c->members[i].launch || c->members[i].launch->arrival < 0) who.push_back(comm.ranks[i]);
      w.bound = std::max(w.bound, c->latest);
    }
    for (auto &p : l->pairs) {
      if (p->resolved) continue;
      const Comm &comm = *comms[l->comm];
      for (Post *post : {&p->send, &p->recv})
        if (post->launch && post->launch->arrival < 0) who.push_back(post->rank);
      if (!p->send.launch || !p->recv.launch) {
        for (auto &[way, q] : comm.sends)
          if (!p->recv.launch && std::find(q.begin(), q.end(), p) != q.end()) who.push_back(comm.ranks[way.second]);
        for (auto &[way, q] : comm.recvs)
          if (!p->send.launch && std::find(q.begin(), q.end(), p) != q.end()) who.push_back(comm.ranks[way.first]);
      }
    }
    std::sort(who.begin(), who.end());
    who.erase(std::unique(who.begin(), who.end()), who.end());
    if (!who.empty() && who.front() < 0) {
      w.open_members = true;
      ++w.missing;
      who.erase(who.begin());
    }
    size_t index = waits.size();
    for (int r : who) {
      size_t n = node_of(busy_gpu(ranks[r]));
      waited_by[n].push_back(index);
      ++w.missing;
    }
    waits.push_back(w);
  }
  std::unordered_map<Launch *, size_t> wait_of;
  for (size_t i = 0; i < waits.size(); ++i) wait_of[waits[i].launch] = i;
  using Entry = std::pair<int64_t, size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  auto relax = [&](size_t n, int64_t bound) {
    if (bound < nodes[n].bound) {
      nodes[n].bound = bound;
      queue.push({bound, n});
    }
  };
  auto finish_wait = [&](Wait &w) {
    int64_t end = w.bound == NEVER ? NEVER : w.bound + least_duration(*w.launch);
    w.bound = end;
    relax(node_of(w.launch->gpu), end);
  };
  for (size_t n = 0; n < nodes.size(); ++n)
    relax(n, std::max(nodes[n].gpu->now, std::min(std::min(next_local(*nodes[n].gpu, nullptr), nodes[n].gpu->hold), host_limit(*nodes[n].gpu->rank))));
  for (Wait &w : waits) {
    if (!w.missing) finish_wait(w);
    if (w.open_members) relax(node_of(w.launch->gpu), w.launch->gpu->comm_bound);  // and so for those that wait for it
  }
  while (!queue.empty()) {
    auto [bound, n] = queue.top();
    queue.pop();
    if (nodes[n].final || bound > nodes[n].bound) continue;
    nodes[n].final = true;
    for (size_t i : waited_by[n]) {
      Wait &w = waits[i];
      w.bound = std::max(w.bound, bound);
      if (--w.missing == 0) finish_wait(w);
    }
  }
  bool moved = false;
  for (Node &node : nodes) {
    int64_t bound = NEVER;
    for (Launch *l : node.running) {
      Wait &w = waits[wait_of[l]];
      bound = std::min(bound, w.open_members ? node.gpu->comm_bound : w.missing ? NEVER : w.bound);
    }
    if (node.running.empty()) continue;
    if (bound > node.gpu->comm_bound) {
      moved = true;
      node.gpu->comm_bound = bound;
      node.gpu->dirty = true;
    }
  }
  return moved;
}

Gpu *Core::busy_gpu(Rank &rank) {
  for (auto &g : rank.gpus)
    if (!g->busy.empty()) return g.get();
  return gpu_of(rank, rank.gpus.empty() ? 0 : static_cast<int>(rank.gpus.size()) - 1);
}

int64_t Core::least_duration(const Launch &l) const {
  int64_t least = 1;
  for (auto &c : l.collectives)
    if (c->price >= 0 && prices[c->price]->known) least = std::max(least, prices[c->price]->least);
  return least;
}

}  // namespace phc
