// Communicators, collectives, sends and receives.
#include "core_state.h"

#include <string.h>

#include "payload.h"

namespace phc {

void Core::arrive(Launch &launch, int64_t time) {
  launch.arrival = time;
  for (auto &c : launch.collectives) {
    ++c->arrived;
    c->latest = std::max(c->latest, time);
    settle(*c);
  }
  for (auto &p : launch.pairs) settle(*p);
  if (launch.collectives.empty() && launch.pairs.empty()) launch.end = time;
}

void Core::settle(Collective &c) {
  if (c.resolved || c.arrived < static_cast<int>(c.members.size()) || c.price < 0 || !prices[c.price]->known) return;
  c.resolved = true;
  int64_t duration = prices[c.price]->durations[0];
  auto last = std::find_if(c.members.begin(), c.members.end(), [&](const Member &m) { return m.launch->arrival == c.latest; });
  for (Member &m : c.members)
    finish_part(*m.launch, m.launch->arrival == c.latest ? *m.launch : *last->launch, c.latest, c.latest + duration, c.price);
  for (Member &m : c.members) m.launch.reset();  // breaks the cycle of owners
  comms[c.comm]->open.erase(c.seq);
}

void Core::settle(Pair &p) {
  if (p.resolved || !p.send.launch || !p.recv.launch || p.send.launch->arrival < 0 || p.recv.launch->arrival < 0) return;
  if (p.price < 0 || !prices[p.price]->known) return;
  p.resolved = true;
  int64_t begin = std::max(p.send.launch->arrival, p.recv.launch->arrival);
  int64_t end = begin + prices[p.price]->durations[0];
  std::shared_ptr<Launch> from = std::move(p.send.launch), to = std::move(p.recv.launch);  // breaks the cycle of owners
  finish_part(*from, from->arrival == begin ? *from : *to, begin, end, p.price);
  finish_part(*to, to->arrival == begin ? *to : *from, begin, end, p.price);
}

// Parts of one launch run one after the other if they are collectives (one fused kernel), side
// by side if they are sends and receives (their ports are shared in the price).
void Core::finish_part(Launch &l, const Launch &last, int64_t begin, int64_t end, int32_t price) {
  progressed = true;
  int64_t at = l.p2p ? end : begin;
  if (at > l.last_at || (at == l.last_at && std::make_pair(last.gpu->rank->index, last.id) < std::make_pair(l.last_rank, l.last_id))) {
    l.last_at = at;
    l.last_rank = last.gpu->rank->index;
    l.last_id = last.id;
  }
  l.ready = std::max(l.ready, begin);
  if (l.p2p) {
    l.part_end = std::max(l.part_end, end);
  } else {
    l.part_end = std::max(l.part_end, begin) + (end - begin);
  }
  if (l.price < 0 || prices[price]->durations[0] > prices[l.price]->durations[0]) l.price = price;
  if (l.name < 0) l.name = prices[price]->name;
  if (--l.waiting == 0) l.end = l.part_end;
  l.gpu->dirty = true;
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
