// What the ranks wait for, in words.
#include "state.h"

namespace phc {

const char *Core::kind_name(int kind) {
  static const char *names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter", "barrier"};
  return kind >= 0 && kind < 9 ? names[kind] : "?";
}

std::string Core::describe(const ph_record &r) const {
  static const char *dtypes[] = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "fp8e4m3", "fp8e5m2"};
  int dtype = static_cast<int>(r.a >> 8 & 0xff);
  std::string text = kind_name(static_cast<int>(r.a & 0xff));
  text += " of " + std::to_string(r.b) + " " + (dtype < 12 ? dtypes[dtype] : "?");
  int kind = static_cast<int>(r.a & 0xff);
  if (kind == PH_COLL_BROADCAST || kind == PH_COLL_REDUCE || kind == PH_COLL_GATHER || kind == PH_COLL_SCATTER)
    text += ", root " + std::to_string(static_cast<int>(r.a >> 32));
  return text;
}

std::string Core::comm_text(const Comm &comm) const {
  std::string text = comm.label.empty() ? "group" : "group '" + comm.label + "'";
  text += " (ranks ";
  std::vector<int> members = comm.ranks;
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

const std::string &Core::diagnose() {
  std::string text;
  for (const Rank &rank : ranks) {
    std::string line;
    if (rank.exited) {
      line = rank.died ? "died" : "has exited with status " + std::to_string(rank.status);
    } else {
      for (const auto &g : rank.gpus)
        for (const Stream *s : g->busy) {
          const Item &item = s->queue.front();
          if (item.type != COMM || !item.running || item.comm->end >= 0) continue;
          for (auto &c : item.comm->collectives) {
            if (c->begun) continue;
            const Comm &comm = *comms[c->comm];
            int me = comm_rank(comm, rank.index);
            line += "waits in " + describe(c->members[me].record) + ", sequence number " + std::to_string(c->seq) + " of " + comm_text(comm) + "; not there: rank ";
            bool first = true;
            for (size_t i = 0; i < c->members.size(); ++i)
              if (!c->members[i].launch || c->members[i].launch->arrival < 0) {
                line += (first ? "" : ", ") + std::to_string(comm.ranks[i]);
                first = false;
              }
            line += ". ";
          }
          for (auto &p : item.comm->pairs) {
            if (p->begun) continue;
            bool sending = p->send.launch.get() == item.comm.get();
            const Comm &comm = *comms[item.comm->comm];
            line += std::string("waits to ") + (sending ? "send" : "receive") + " " + std::to_string(sending ? p->send.bytes : p->recv.bytes) + " bytes in " + comm_text(comm);
            const Post &other = sending ? p->recv : p->send;
            if (other.launch) line += ", rank " + std::to_string(other.rank) + " has not reached it";
            else line += ", its peer has not called it";
            line += ". ";
          }
        }
      for (const Request &q : rank.requests) {
        if (q.record.kind == PH_EXCHANGE) line += "waits in the creation of a communicator of " + std::to_string(q.record.c) + " ranks. ";
        else if (q.record.kind == PH_PAYLOAD && line.empty()) line += "waits for the bytes of a small collective or receive. ";
      }
      if (line.empty()) line = rank.requests.empty() ? (rank.started ? "runs or sleeps outside CUDA" : "has not started") : "waits for its own GPU";
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += "  rank " + std::to_string(rank.index) + " " + line + "\n";
  }
  diagnosis = text;
  return diagnosis;
}

}  // namespace phc
