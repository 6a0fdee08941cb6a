// Communicators, collectives, sends and receives.
#include "state.h"

#include <string.h>

#include "payload.h"

namespace phc {

void Core::arrive(Launch &launch, int64_t time) {
  auto open = [&](const std::shared_ptr<Operation> &o) {
    if (o->open >= 0) return;
    o->open = static_cast<int32_t>(open_operations.size());
    open_operations.push_back(o);
  };
  launch.arrival = time;
  launch.least_end = time + 1;
  for (auto &c : launch.collectives) {
    ++c->arrived;
    c->latest = std::max(c->latest, time);
    open(c);
    settle(*c);
  }
  for (auto &p : launch.pairs) {
    open(p);
    settle(*p);
  }
  if (launch.collectives.empty() && launch.pairs.empty()) launch.end = time;
}

void Core::settle(Collective &c) {
  if (c.begun || c.held || c.arrived < static_cast<int>(c.members.size()) || c.price < 0 || !prices[c.price]->known) return;
  Activity activity;
  for (Member &m : c.members) activity.launches.push_back(std::move(m.launch));  // breaks the cycle of owners
  int64_t arrival = c.latest, time = std::max(c.latest, c.begin);
  comms[c.comm]->open.erase(c.seq);
  begin(c, std::move(activity), arrival, time);
}

void Core::settle(Pair &p) {
  if (p.begun || !p.send.launch || !p.recv.launch || p.send.launch->arrival < 0 || p.recv.launch->arrival < 0) return;
  if (p.price < 0 || !prices[p.price]->known) return;
  int64_t time = std::max(p.send.launch->arrival, p.recv.launch->arrival);
  Activity activity;
  activity.launches = {std::move(p.send.launch), std::move(p.recv.launch)};  // breaks the cycle of owners
  begin(p, std::move(activity), time, time);
}

// All members are there since `arrival`; the work begins at `time`, its flows after the latency.
void Core::begin(Operation &o, Activity activity, int64_t arrival, int64_t time) {
  progressed = true;
  o.begun = true;
  activity.comm = o.comm;
  activity.seq = o.seq;
  activity.price = o.price;
  activity.since = time;
  std::shared_ptr<Operation> last = std::move(open_operations.back());
  open_operations.pop_back();
  if (last.get() != &o) {
    last->open = o.open;
    open_operations[last->open].swap(last);
  }
  Price &price = *prices[activity.price];
  int32_t tag;
  if (free_activities.empty()) {
    tag = static_cast<int32_t>(activities.size());
    activities.emplace_back();
  } else {
    tag = free_activities.back();
    free_activities.pop_back();
  }
  for (auto &l : activity.launches) {
    l->ready = std::max(l->ready, arrival);
    l->least_end = std::max(l->least_end, time + price.least);
    l->gpu->dirty = true;
  }
  activities[tag] = std::move(activity);
  if (price.flows.empty()) return finish(tag, time + price.durations[0]);
  int64_t start = time + price.latency, possible = network.earliest(price.flows.data(), static_cast<int>(price.flows.size()));
  if (start < possible) {
    ++late;
    start = possible;
  }
  network.begin(start, price.flows.data(), static_cast<int>(price.flows.size()), tag);
}

void Core::finish(int32_t tag, int64_t time) {
  Activity activity = std::move(activities[tag]);
  free_activities.push_back(tag);
  auto earlier = [](auto &a, auto &b) { return a->arrival < b->arrival; };
  const Launch &last = **std::max_element(activity.launches.begin(), activity.launches.end(), earlier);
  for (auto &l : activity.launches) finish_part(*l, l->arrival == last.arrival ? *l : last, last.arrival, time);
  auto &open = comms[activity.comm]->open;
  auto next = open.find(activity.seq + 1);
  if (next == open.end() || !next->second->held || activity.launches[0]->p2p) return;
  auto c = next->second;
  c->held = false;
  c->begin = time;
  settle(*c);
}

// Collectives of one communicator in one launch run one after the other (a fused kernel); sends and
// receives side by side. All of this part's members were there at `arrival`, when `last` came.
void Core::finish_part(Launch &l, const Launch &last, int64_t arrival, int64_t end) {
  progressed = true;
  int64_t at = l.p2p ? end : arrival;
  if (at > l.last_at || (at == l.last_at && std::make_pair(last.gpu->rank->index, last.id) < std::make_pair(l.last_rank, l.last_id))) {
    l.last_at = at;
    l.last_rank = last.gpu->rank->index;
    l.last_id = last.id;
  }
  l.part_end = std::max(l.part_end, end);
  l.gpu->dirty = true;
  touched.push_back(l.gpu);
  if (--l.waiting) return;
  l.end = l.part_end;
  auto longer = [&](int32_t price) {  // the launch is called by its longest part
    if (l.price < 0 || prices[price]->durations[0] > prices[l.price]->durations[0]) l.price = price;
  };
  for (auto &c : l.collectives) longer(c->price);
  for (auto &p : l.pairs) longer(p->price);
  l.name = prices[l.collectives.empty() ? l.pairs[0]->price : l.collectives[0]->price]->name;
}

int Core::comm_rank(const Comm &comm, int rank) const {
  for (size_t i = 0; i < comm.ranks.size(); ++i)
    if (comm.ranks[i] == rank) return static_cast<int>(i);
  return -1;
}

void Core::join_collective(Rank &rank, const ph_record &r, std::shared_ptr<Launch> launch) {
  auto found = rank.comms.find(r.id);
  if (found == rank.comms.end()) return fail("rank " + std::to_string(rank.index) + " used a communicator that does not exist");
  Comm &comm = *comms[found->second];
  int me = comm_rank(comm, rank.index);
  int64_t seq = comm.sequence[me]++;
  auto &slot = comm.open[seq];
  if (!slot) {
    slot = std::make_shared<Collective>();
    slot->comm = found->second;
    slot->seq = seq;
    slot->members.resize(comm.members);
  }
  auto c = slot;
  if (c->joined) {
    for (size_t other = 0; other < c->members.size(); ++other) {
      const Member &m = c->members[other];
      if (!m.launch) continue;
      bool same = (m.record.a & 0xffff) == (r.a & 0xffff) && m.record.a >> 32 == r.a >> 32 && m.record.b == r.b;
      if (!same)
        return fail("mismatched collectives in " + comm_text(comm) + ", sequence number " + std::to_string(seq) + ": rank " +
                    std::to_string(comm.ranks[other]) + " calls " + describe(m.record) + ", rank " + std::to_string(rank.index) +
                    " calls " + describe(r) + "; every rank of a group must call the same collectives, with the same sizes, in the same order");
      break;
    }
  }
  Member &mine = c->members[me];
  mine.launch = launch;
  mine.record = r;
  mine.data = std::move(rank.blob);
  rank.blob.clear();
  ++c->joined;
  launch->comm = found->second;
  if (launch->seq < 0) launch->seq = seq;
  launch->sub = static_cast<uint8_t>(r.a);
  launch->bytes += static_cast<int64_t>(r.c);
  ++launch->waiting;
  c->held = c->held || (!launch->collectives.empty() && launch->collectives.back()->comm == c->comm && !launch->collectives.back()->begun);
  launch->collectives.push_back(c);
  if (c->joined == comm.members) {
    if (r.d) deliver(comm, *c);
    std::string key;
    put<uint8_t>(key, PHC_COLLECTIVE);
    put(key, c->comm);
    put(key, r.a);
    put(key, r.c);
    c->price = price_of(key, [&](Price &p) {
      p.request.kind = PHC_COLLECTIVE;
      p.request.sub = static_cast<int32_t>(r.a & 0xff);
      p.request.dtype = static_cast<int32_t>(r.a >> 8 & 0xff);
      p.request.redop = static_cast<int32_t>(r.a >> 16 & 0xff);
      p.request.root = static_cast<int32_t>(r.a >> 32);
      p.request.comm = c->comm;
      p.request.bytes = static_cast<int64_t>(r.c);
    });
    if (!prices[c->price]->known) prices[c->price]->collectives.push_back(c);
  }
}

void Core::deliver(Comm &comm, Collective &c) {
  std::vector<const std::string *> parts;
  for (Member &m : c.members) parts.push_back(&m.data);
  for (size_t i = 0; i < c.members.size(); ++i) {
    Member &m = c.members[i];
    double scale = 1.0;
    memcpy(&scale, &m.record.e, sizeof scale);
    std::string result = phc::collective_result(m.record, static_cast<int>(i), parts, scale);
    Rank &to = ranks[comm.ranks[i]];
    if (m.record.d) arrived(to, m.record.d, std::move(result));
  }
  for (Member &m : c.members) m.data.clear();
}

void Core::join_pair(Rank &rank, const ph_record &r, std::shared_ptr<Launch> launch) {
  auto found = rank.comms.find(r.id);
  if (found == rank.comms.end()) return fail("rank " + std::to_string(rank.index) + " used a communicator that does not exist");
  Comm &comm = *comms[found->second];
  int me = comm_rank(comm, rank.index);
  int peer = static_cast<int>(r.a & 0xffffffff);
  bool send = r.kind == PH_SEND;
  std::pair<int, int> way = send ? std::make_pair(me, peer) : std::make_pair(peer, me);
  auto &mine = send ? comm.sends[way] : comm.recvs[way];
  auto &theirs = send ? comm.recvs[way] : comm.sends[way];
  Post post;
  post.launch = launch;
  post.rank = rank.index;
  post.bytes = static_cast<int64_t>(r.c);
  post.ticket = r.d;
  post.dtype = static_cast<int>(r.a >> 32);
  post.data = std::move(rank.blob);
  rank.blob.clear();
  launch->comm = found->second;
  launch->p2p = true;
  launch->bytes += post.bytes;
  launch->peer = launch->pairs.empty() ? peer : -1;
  ++(send ? launch->sends : launch->recvs);
  ++launch->waiting;
  std::shared_ptr<Pair> pair;
  if (!theirs.empty()) {
    pair = theirs.front();
    theirs.pop_front();
  } else {
    pair = std::make_shared<Pair>();
    pair->transfer = true;
    pair->comm = found->second;
    pair->src = way.first;
    pair->dst = way.second;
    pair->seq = comm.p2p_sequence[way]++;
    mine.push_back(pair);
  }
  (send ? pair->send : pair->recv) = std::move(post);
  launch->pairs.push_back(pair);
  if (!pair->send.launch || !pair->recv.launch) return;
  // NCCL does not compare sizes: what fits one slot arrives (torch 2.9's pipeline warm-up sends 8
  // bytes and receives 4), more than that hangs on a cluster.
  if (pair->send.bytes != pair->recv.bytes && std::max(pair->send.bytes, pair->recv.bytes) > ONE_SLOT_BYTES)
    return fail("mismatched send and receive in " + comm_text(comm) + ": rank " + std::to_string(pair->send.rank) + " sends " +
                std::to_string(pair->send.bytes) + " bytes, rank " + std::to_string(pair->recv.rank) + " receives " +
                std::to_string(pair->recv.bytes) + "; sizes and order of sends and receives must agree");
  if (pair->recv.ticket) {
    pair->send.data.resize(static_cast<size_t>(pair->recv.bytes), '\0');
    arrived(ranks[pair->recv.rank], pair->recv.ticket, std::move(pair->send.data));
  }
  paired.push_back(pair);
}

void Core::price_pairs() {
  std::vector<std::shared_ptr<Pair>> later;
  for (auto &pair : paired) {
    Rank &a = ranks[pair->send.rank], &b = ranks[pair->recv.rank];
    if (a.group == pair->send.launch || b.group == pair->recv.launch) {
      later.push_back(pair);
      continue;
    }
    int concurrent = std::max(1, std::max(pair->send.launch->sends, pair->recv.launch->recvs));
    std::string key;
    put<uint8_t>(key, PHC_TRANSFER);
    put(key, pair->send.rank);
    put(key, pair->recv.rank);
    int duplex = pair->send.launch->recvs > 0 && pair->recv.launch->sends > 0;
    int32_t comm = pair->send.launch->comm;
    put(key, comm);
    put(key, duplex);
    put(key, concurrent);
    put(key, pair->send.bytes);
    pair->price = price_of(key, [&](Price &p) {
      p.request.kind = PHC_TRANSFER;
      p.request.comm = comm;
      p.request.src = pair->send.rank;
      p.request.dst = pair->recv.rank;
      p.request.concurrent = concurrent;
      p.request.duplex = duplex;
      p.request.bytes = pair->send.bytes;
      p.request.dtype = pair->send.dtype;
    });
    if (prices[pair->price]->known)
      settle(*pair);
    else
      prices[pair->price]->pairs.push_back(pair);
  }
  paired.swap(later);
}

void Core::create_comm(Rank &rank, const ph_record &r) {
  auto [it, fresh] = comm_index.try_emplace({r.a, r.b}, static_cast<int32_t>(comms.size()));
  if (fresh) {
    comms.push_back(std::make_unique<Comm>());
    Comm &c = *comms.back();
    c.hi = r.a;
    c.lo = r.b;
    c.members = static_cast<int>(r.c);
    c.ranks.assign(c.members, -1);
    c.local.assign(c.members, 0);
    c.sequence.assign(c.members, 0);
    c.label = rank.blob;
    ++unnumbered;
  }
  Comm &c = *comms[it->second];
  if (r.d >= c.ranks.size()) return fail("rank " + std::to_string(rank.index) + " joined a communicator beyond its size");
  if (c.ranks[r.d] >= 0) return fail("ranks " + std::to_string(c.ranks[r.d]) + " and " + std::to_string(rank.index) + " are the same member of a communicator");
  c.ranks[r.d] = rank.index;
  c.local[r.d] = r.id;
  rank.comms[r.id] = it->second;
  c.waiting_rows.emplace_back(rank.index, r.time);
  if (++c.created < c.members) return;
  --unnumbered;
  // A number that depends on the program alone: the lowest member's count of communicators.
  size_t lowest = static_cast<size_t>(std::min_element(c.ranks.begin(), c.ranks.end()) - c.ranks.begin());
  c.number = static_cast<int32_t>(c.local[lowest] * ranks.size() + static_cast<size_t>(c.ranks[lowest]));
  std::string members;
  for (size_t i = 0; i < c.ranks.size(); ++i) members += (i ? "," : "") + std::to_string(c.ranks[i]);
  int32_t sig = intern(SIGNATURES, "{\"op\":\"communicator\",\"args\":[[" + members + "]]}");
  int32_t name = intern(NAMES, c.label.empty() ? "communicator" : c.label);
  for (auto &[index, time] : c.waiting_rows) {
    Rank &member = ranks[index];
    ph_row o = row(PH_ROW_COMMUNICATOR, member, time, time);
    o.comm = c.number;
    o.name = name;
    o.sig = sig;
    o.id = -static_cast<int64_t>(c.number) - 2;
    pending_comm_rows.push_back(o);
    ++row_count;
  }
  c.waiting_rows.clear();
}

}  // namespace phc
