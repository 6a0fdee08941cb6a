#include "diagnosis.h"

namespace phe {

std::string Communication::describe(const ph_record &r) {
  static const char *const kinds[] = PH_COLL_NAMES, *const dtypes[] = PH_NCCL_DTYPE_NAMES;
  const ph_collective_fields &call = r.collective;
  std::string text = call.coll < std::size(kinds) ? kinds[call.coll] : "?";
  text += " of " + std::to_string(call.count) + " " + (call.dtype < std::size(dtypes) ? dtypes[call.dtype] : "?");
  bool rooted = call.coll == PH_COLL_BROADCAST || call.coll == PH_COLL_REDUCE || call.coll == PH_COLL_GATHER ||
                call.coll == PH_COLL_SCATTER;
  if (rooted) text += ", root " + std::to_string(call.root);
  if (call.coll >= PH_COLL_SYMMETRIC_BARRIER && call.coll < PH_COLL_EXPERT_COUNTS)
    text += ", channel " + std::to_string(call.root);
  return text;
}

std::string Communication::called_at(int32_t site) const {
  return site < 0 ? "" : " (called at " + texts_.text(PHE_NAMES, site) + ")";
}

std::string Communication::describe(const Communicator &comm) {
  std::string text = comm.label.empty() ? "group" : "group '" + comm.label + "'";
  text += " (ranks ";
  const std::vector<int> &members = comm.ranks;
  for (size_t i = 0; i < members.size(); ++i) {
    size_t j = i;
    while (j + 1 < members.size() && members[j + 1] == members[j] + 1) ++j;
    if (i) text += ",";
    text += std::to_string(members[i]);
    if (j > i) text += "-" + std::to_string(members[j]);
    i = j;
  }
  return text + ")";
}

namespace {

std::string waits_in(const Collective &c, const Communication &all, const Communicator &comm, const Rank &rank) {
  const Member &me = c.members[static_cast<size_t>(comm.seat_of(rank.index))];
  std::string text = "waits in " + Communication::describe(me.record) + all.called_at(me.site) + ", sequence number " +
                     std::to_string(c.number()) + " of " + Communication::describe(comm) + "; not there: rank ";
  bool first = true;
  for (size_t i = 0; i < c.members.size(); ++i) {
    const auto &launch = c.members[i].launch;
    if (launch && launch->arrival >= 0) continue;
    text += (first ? "" : ", ") + std::to_string(comm.rank_at(i));
    first = false;
  }
  return text + ". ";
}

std::string waits_in(const Transfer &t, const Communication &all, const Communicator &comm, const Launch &mine) {
  if (t.kind == PHE_WAIT_SIGNAL)
    return "waits for a signal of rank " + std::to_string(t.like) + " in " + Communication::describe(comm) + ". ";
  if (t.kind == PHE_PUT_SIGNAL)
    return "waits until rank " + std::to_string(t.like) + " takes its last signal in " + Communication::describe(comm) +
           ". ";
  bool sending = t.send.launch.get() == &mine;
  const Post &own = sending ? t.send : t.recv, &other = sending ? t.recv : t.send;
  std::string text = std::string("waits to ") + (sending ? "send" : "receive") + " " + std::to_string(own.bytes) +
                     " bytes in " + Communication::describe(comm) + all.called_at(own.site);
  if (t.like >= 0) return text + ", and goes by rank " + std::to_string(t.like) + ", which has not reached it. ";
  text +=
      other.launch ? ", rank " + std::to_string(other.rank) + " has not reached it" : ", its peer has not called it";
  return text + ". ";
}

std::string waits_on_devices(const Rank &rank, const Communication &communication) {
  std::string text;
  for (const auto &context : rank.contexts)
    for (const Stream *s : context->device.busy()) {
      const Item &item = s->queue.front();
      if (s->context != context.get() || item.type != Item::COMM || !item.running || item.comm->end >= 0) continue;
      for (auto &c : item.comm->collectives)
        if (!c->begun) text += waits_in(*c, communication, communication.communicator(c->comm), rank);
      for (auto &t : item.comm->transfers)
        if (!t->begun) text += waits_in(*t, communication, communication.communicator(t->comm), *item.comm);
    }
  return text;
}

// A first send or receive: NCCL connects inside the call.
std::string connects(const Rank &rank, const ph_record &r, const Communication &communication) {
  const Communicator *comm = communication.find(rank, r.id);
  if (!comm || r.stream >= comm->ranks.size()) return "waits in a first send or receive. ";
  return "waits in its first send or receive with rank " + std::to_string(comm->ranks[r.stream]) + " in " +
         Communication::describe(*comm) + ": NCCL connects the two, and that rank is not there, or waits for others. ";
}

std::string state_of(const Rank &rank, const Communication &communication) {
  if (rank.exited) return rank.died ? "died" : "has exited with status " + std::to_string(rank.status);
  std::string text = waits_on_devices(rank, communication);
  for (const Request &q : rank.requests) {
    if (q.record.kind == PH_EXCHANGE && q.record.id)
      text += connects(rank, q.record, communication);
    else if (q.record.kind == PH_EXCHANGE)
      text += "waits in the creation of a communicator of " + std::to_string(q.record.exchange.members) + " ranks. ";
    else if (q.record.kind == PH_PAYLOAD && text.empty())
      text += "waits for the bytes of a small collective or receive. ";
  }
  if (!text.empty()) return text;
  if (!rank.requests.empty()) return "waits for its own GPU";
  return rank.started ? "runs or sleeps outside CUDA" : "has not started";
}

}  // namespace

std::string diagnose(RankTable &rank_table, const Communication &communication) {
  std::string text;
  for (const Rank &rank : rank_table.ranks()) {
    std::string line = state_of(rank, communication);
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += "  rank " + std::to_string(rank.index) + " " + line + "\n";
  }
  return text;
}

}  // namespace phe
