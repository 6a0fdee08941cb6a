// Members join collectives; the last of them lets it be priced and delivers the bytes.
#include "communication/communication.h"
#include "communication/reductions.h"

namespace phe {

// Do the members that have joined call the same as `rank` does?
bool Communication::agrees(const Communicator &comm, const Collective &c, const Rank &rank, const ph_record &r) {
  auto first = std::find_if(c.members.begin(), c.members.end(), [](const Member &m) { return m.launch != nullptr; });
  if (first == c.members.end()) return true;
  const ph_collective_fields &theirs = first->record.collective, &mine = r.collective;
  bool same =
      theirs.coll == mine.coll && theirs.dtype == mine.dtype && theirs.root == mine.root && theirs.count == mine.count;
  if (same) return true;
  int other = comm.rank_at(static_cast<size_t>(first - c.members.begin()));
  failure_.set("mismatched collectives in " + describe(comm) + ", sequence number " + std::to_string(c.number()) +
               ": rank " + std::to_string(other) + " calls " + describe(first->record) + called_at(first->site) +
               ", rank " + std::to_string(rank.index) + " calls " + describe(r) + called_at(rank.site) +
               "; every rank of a group must call the same collectives, with the same sizes, in the same order");
  return false;
}

// Kernels on symmetric memory follow each other by channel; the others all.
int64_t Communication::next_of(Communicator &comm, const ph_collective_fields &call, size_t seat) {
  int channel = call.coll >= PH_COLL_SYMMETRIC_BARRIER ? call.root : 0;
  std::vector<int64_t> &next = comm.sequence[channel];
  next.resize(comm.seats.size());
  return (int64_t{channel} << 32) + next[seat]++;
}

void Communication::join_collective(Rank &rank, const ph_record &r, std::string data,
                                    const std::shared_ptr<Launch> &launch) {
  int32_t number;
  Communicator *comm = used(rank, r.id, number);
  if (!comm) return;
  size_t me = static_cast<size_t>(comm->seat_of(rank.index));
  int64_t seq = next_of(*comm, r.collective, me);
  auto &slot = comm->open[seq];
  if (!slot) {
    slot = std::make_shared<Collective>();
    slot->comm = number;
    slot->seq = seq;
    slot->members.resize(comm->seats.size());
  }
  auto c = slot;
  if (!agrees(*comm, *c, rank, r)) return;
  c->members[me] = {launch, r, std::move(data), rank.site};
  ++c->joined;
  if (launch->comm != number)
    launch->peer = -1;  // the peer of a send in the same group is a member of another communicator
  launch->comm = number;
  if (launch->seq < 0) launch->seq = seq;
  launch->sub = r.collective.coll;
  if (launch->sub == PH_COLL_SYMMETRIC_BARRIER) launch->limit = static_cast<int64_t>(r.collective.scalar);
  if (r.collective.coll >= PH_COLL_SYMMETRIC_BARRIER) launch->blocks = std::max<int>(1, r.collective.blocks);
  launch->bytes += r.collective.bytes;
  ++launch->waiting;
  bool behind =
      !launch->collectives.empty() && launch->collectives.back()->comm == number && !launch->collectives.back()->begun;
  c->held = c->held || behind;
  launch->collectives.push_back(c);
  if (c->aborted || c->joined < static_cast<int>(comm->seats.size())) return;
  bool awaited =
      std::any_of(c->members.begin(), c->members.end(), [](const Member &m) { return m.record.collective.ticket; });
  if (awaited) deliver(*comm, c);
  price(c, r.collective, *launch);
}

void Communication::price(const std::shared_ptr<Collective> &c, const ph_collective_fields &last,
                          const Launch &launch) {
  ph_collective_fields call = last;
  bool experts = call.coll >= PH_COLL_EXPERT_COUNTS;
  if (experts)  // members move different numbers of rows: the largest decides
    for (const Member &m : c->members) {
      call.bytes = std::max(call.bytes, m.record.collective.bytes);
      call.scalar = std::max(call.scalar, m.record.collective.scalar);
    }
  int32_t tokens = experts ? static_cast<int32_t>(call.scalar) : 0,
          row = experts ? static_cast<int32_t>(call.count) : 0;
  Key &key = prices_.key();
  key.add<uint8_t>(PHE_COLLECTIVE)
      .add(c->comm)
      .add(call.coll)
      .add(call.dtype)
      .add(call.redop)
      .add(call.blocks)
      .add(call.root)
      .add(call.bytes);
  key.add(tokens).add(row).add(launch.measured).add(launch.crowd);
  c->price = prices_.find(key, [&](Price &p) {
    p.request.tokens = tokens;
    p.request.row = row;
    p.request.kind = PHE_COLLECTIVE;
    p.request.sub = call.coll;
    p.request.dtype = call.dtype;
    p.request.redop = call.redop;
    p.request.blocks = call.blocks;
    p.request.root = call.root;
    p.request.comm = c->comm;
    p.request.bytes = call.bytes;
    p.request.measured = launch.measured;
    p.request.crowd = launch.crowd;
  });
  if (!prices_[c->price].known) prices_[c->price].operations.push_back(c);
}

// Knowledge of the members that give something. Bytes that are absent at one member are unknown.
static int knowledge_of(const Communicator &comm, const Collective &c) {
  int all = 0;
  bool some = false;
  for (size_t seat = 0; seat < c.members.size(); ++seat) {
    const ph_record &r = c.members[seat].record;
    bool rooted = r.collective.coll == PH_COLL_BROADCAST || r.collective.coll == PH_COLL_SCATTER;
    if (rooted && comm.seats[seat] != r.collective.root) continue;
    all |= r.flags & KNOWLEDGE;
    some |= !(r.flags & PH_F_ABSENT);
  }
  return all & PH_F_ABSENT && some ? (all & ~PH_F_ABSENT) | PH_F_UNKNOWN : all;
}

void Communication::deliver(const Communicator &comm, const std::shared_ptr<Collective> &c) {
  FoldedRanks::Parts parts(static_cast<size_t>(comm.members), nullptr);
  for (size_t seat = 0; seat < c->members.size(); ++seat)
    parts[static_cast<size_t>(comm.seats[seat])] = &c->members[seat].data;
  std::vector<std::string> made;
  if (comm.family && !fill_folded(comm, c, parts, made)) return;
  int knowledge = knowledge_of(comm, *c);
  bool nothing =
      std::all_of(parts.begin(), parts.end(), [](const std::string *part) { return !part || part->empty(); });
  Bytes result = nothing ? std::make_shared<const std::string>() : nullptr;  // zeros, however many
  for (size_t seat = 0; seat < c->members.size(); ++seat) {
    const ph_record &call = c->members[seat].record;
    if (!result || (!nothing && !same_for_all(call.collective)))
      result =
          std::make_shared<const std::string>(collective_result(call, comm.seats[seat], parts, call.collective.scalar));
    Rank &to = rank_table_[static_cast<size_t>(comm.rank_at(seat))];
    if (call.collective.ticket) payloads_.arrived(to, call.collective.ticket, result, knowledge);
  }
  for (Member &m : c->members) m.data.clear();
}

// Data that ranks without a process would have given. False: the run has failed, or it is known only when the first of
// the family has its bytes.
bool Communication::fill_folded(const Communicator &comm, const std::shared_ptr<Collective> &c,
                                FoldedRanks::Parts &parts, std::vector<std::string> &made) {
  const ph_collective_fields call = c->members[0].record.collective;
  bool first = comm.ranks == comm.first_place;
  if (!first && c->members.size() == parts.size()) return true;
  std::string why;
  if (call.coll == PH_COLL_BROADCAST || call.coll == PH_COLL_SCATTER) {  // only the root gives bytes
    if (parts[static_cast<size_t>(call.root)]) {
      for (auto &part : parts)
        if (!part) part = &c->members[0].data;
      return true;
    }
    why = "its root, rank " + std::to_string(comm.ranks[static_cast<size_t>(call.root)]) + ", is folded";
  } else {
    Family &family = *comm.family;
    auto law = family.laws.find(c->seq);
    if (!first && law == family.laws.end()) return family.waiting[c->seq].push_back(c), false;
    if (first) law = family.laws.try_emplace(c->seq).first;
    if ((!first || folded_.learn(comm, call.coll, call.dtype, parts, law->second, why)) &&
        folded_.fill(comm, call.dtype, law->second, parts, made, why)) {
      if (!first) return true;
      for (auto &other : family.waiting[c->seq]) deliver(communicator(other->comm), other);
      family.waiting.erase(c->seq);
      return true;
    }
  }
  failure_.cannot_fold(describe(c->members[0].record) + " of " + describe(comm) + ", sequence number " +
                       std::to_string(c->seq) + ": " + why +
                       "; run more of its ranks as processes (--real-ranks, NAME=SIZE:all in --fold), or --fold off");
  return false;
}

}  // namespace phe
