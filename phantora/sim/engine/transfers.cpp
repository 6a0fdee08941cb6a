// Sends and receives find each other and are priced.
#include "communication.h"

namespace phe {

constexpr int64_t ONE_SLOT_BYTES = 8192;  // of NCCL's LL protocol, the one for small messages

// NCCL does not compare sizes: what fits one slot arrives (torch 2.9's pipeline warm-up sends 8
// bytes and receives 4), more than that hangs on a cluster.
bool Communication::agrees(const Communicator &comm, const Transfer &t) {
  if (t.send.bytes == t.recv.bytes || std::max(t.send.bytes, t.recv.bytes) <= ONE_SLOT_BYTES) return true;
  failure_.set("mismatched send and receive in " + describe(comm) + ": rank " + std::to_string(t.send.rank) + " sends " +
               std::to_string(t.send.bytes) + " bytes, rank " + std::to_string(t.recv.rank) + " receives " +
               std::to_string(t.recv.bytes) + "; sizes and order of sends and receives must agree");
  return false;
}

void Communication::join_transfer(Rank &rank, const ph_record &r, std::string data, const std::shared_ptr<Launch> &launch) {
  int32_t number;
  Communicator *comm = used(rank, r.id, number);
  if (!comm) return;
  int me = comm->own_rank(rank.index), peer = r.transfer.peer;
  bool send = r.kind == PH_SEND;
  int other = comm->ranks[static_cast<size_t>(peer)];
  bool lone = other >= 0 && stage_.folded(other);
  if (lone && !send && r.transfer.ticket)
    return failure_.set("rank " + std::to_string(rank.index) + " receives " + std::to_string(r.transfer.bytes) +
                        " bytes that matter from rank " + std::to_string(other) + " in " + describe(*comm) +
                        ", which is folded; keep the axis whole (NAME=SIZE* in --fold), name the rank in --real-ranks, or "
                        "use --fold off");
  std::pair<int, int> way = send ? std::make_pair(me, peer) : std::make_pair(peer, me);
  auto &mine = send ? comm->sends[way] : comm->recvs[way];
  auto &theirs = send ? comm->recvs[way] : comm->sends[way];
  launch->comm = number;
  launch->p2p = true;
  launch->bytes += r.transfer.bytes;
  launch->peer = launch->transfers.empty() ? peer : -1;
  ++(send ? launch->sends : launch->recvs);
  ++launch->waiting;
  std::shared_ptr<Transfer> t;
  if (!lone && !theirs.empty()) {
    t = theirs.front();
    theirs.pop_front();
  } else {
    t = std::make_shared<Transfer>();
    t->transfer = true;
    t->comm = number;
    t->src = way.first;
    t->dst = way.second;
    t->seq = comm->transfers[way]++;
    t->lone = lone;
    if (!lone) mine.push_back(t);
  }
  Post &post = send ? t->send : t->recv;
  post.launch = launch;
  post.rank = rank.index;
  post.bytes = static_cast<int64_t>(r.transfer.bytes);
  post.ticket = r.transfer.ticket;
  post.data = std::move(data);
  post.dtype = static_cast<uint32_t>(r.transfer.dtype);
  launch->transfers.push_back(t);
  if (lone) return matched_.push_back(t);
  if (!t->send.launch || !t->recv.launch || !agrees(*comm, *t)) return;
  if (t->recv.ticket) {
    t->send.data.resize(static_cast<size_t>(t->recv.bytes), '\0');
    payloads_.arrived(stage_[static_cast<size_t>(t->recv.rank)], t->recv.ticket, std::move(t->send.data));
  }
  matched_.push_back(t);
}

void Communication::price_transfers(const std::vector<std::shared_ptr<Launch>> &groups) {
  if (matched_.empty()) return;
  auto unfinished = [&](const Post &post) { return groups[static_cast<size_t>(post.rank)] == post.launch; };
  std::vector<std::shared_ptr<Transfer>> later, now;
  for (auto &t : matched_) {
    bool wait = t->lone ? unfinished(t->own()) : unfinished(t->send) || unfinished(t->recv);
    (wait ? later : now).push_back(t);
  }
  matched_.swap(later);
  for (auto &t : now) price(t);
}

void Communication::price(const std::shared_ptr<Transfer> &t) {
  // A rank that is no process sends and receives as much as the one that meets it.
  const Launch &send = *(t->lone ? t->own() : t->send).launch, &recv = *(t->lone ? t->own() : t->recv).launch;
  const Communicator &comm = communicator(t->comm);
  phe_price_request request{};
  request.kind = PHE_TRANSFER;
  request.comm = send.comm;
  request.src = comm.ranks[static_cast<size_t>(t->src)];
  request.dst = comm.ranks[static_cast<size_t>(t->dst)];
  request.concurrent = std::max(1, std::max(send.sends, recv.recvs));
  request.duplex = send.recvs > 0 && recv.sends > 0;
  request.bytes = (t->lone ? t->own() : t->send).bytes;
  Key &key = prices_.key();  // the format of the elements does not matter
  key.add<uint8_t>(PHE_TRANSFER).add(request);
  t->price = prices_.find(key, [&](Price &p) {
    int32_t id = p.request.id;
    p.request = request;
    p.request.id = id;
    p.request.dtype = static_cast<int32_t>((t->lone ? t->own() : t->send).dtype);
  });
  if (prices_[t->price].known)
    settle(*t);
  else
    prices_[t->price].operations.push_back(t);
}

}  // namespace phe
