// Sends and receives find each other and are priced.
#include "communication/communication.h"

namespace phe {

constexpr int64_t ONE_SLOT_BYTES = 8192;  // of NCCL's LL protocol, the one for small messages

// NCCL does not compare sizes: what fits one slot arrives (torch 2.9's pipeline warm-up sends 8
// bytes and receives 4), more than that hangs on a cluster.
bool Communication::agrees(const Communicator &comm, const Transfer &t) {
  if (t.send.bytes == t.recv.bytes || std::max(t.send.bytes, t.recv.bytes) <= ONE_SLOT_BYTES) return true;
  failure_.set("mismatched send and receive in " + describe(comm) + ": rank " + std::to_string(t.send.rank) +
               " sends " + std::to_string(t.send.bytes) + " bytes" + called_at(t.send.site) + ", rank " +
               std::to_string(t.recv.rank) + " receives " + std::to_string(t.recv.bytes) + called_at(t.recv.site) +
               "; sizes and order of sends and receives must agree");
  return false;
}

void Communication::join_transfer(Rank &rank, const ph_record &r, std::string data,
                                  const std::shared_ptr<Launch> &launch) {
  int32_t number;
  Communicator *comm = used(rank, r.id, number);
  if (!comm) return;
  int me = comm->own_rank(rank.index), peer = r.transfer.peer;
  bool send = r.kind == PH_SEND;
  int other = comm->ranks[static_cast<size_t>(peer)];
  bool one_sided = other >= 0 && rank_table_.folded(other);
  // True if there is a pair of processes like it at the first place.
  int like = one_sided ? like_of(*comm, peer) : -1, mine_like = one_sided ? like_of(*comm, me) : -1;
  bool led = one_sided && like != mine_like && !rank_table_.folded(like) && !rank_table_.folded(mine_like);
  bool asked = one_sided && !led && !send && r.transfer.ticket;
  bool zeros = asked && folded_.takes_zeros(*comm, static_cast<int>(r.transfer.dtype));
  if (asked && !zeros)
    return failure_.cannot_fold(
        "a receive: rank " + std::to_string(rank.index) + " receives " + std::to_string(r.transfer.bytes) +
        " bytes that matter from rank " + std::to_string(other) + " in " + describe(*comm) +
        ", which is folded; expand the axis (NAME=SIZE:all in --fold), name the rank in --real-ranks, or "
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
  if (!one_sided && !theirs.empty()) {
    t = theirs.front();
    theirs.pop_front();
  } else {
    t = std::make_shared<Transfer>();
    t->transfer = true;
    t->comm = number;
    t->src = way.first;
    t->dst = way.second;
    t->seq = comm->transfers[way]++;
    t->one_sided = one_sided;
    if (!one_sided) mine.push_back(t);
  }
  Post &post = send ? t->send : t->recv;
  post.launch = launch;
  post.rank = rank.index;
  post.bytes = static_cast<int64_t>(r.transfer.bytes);
  post.ticket = r.transfer.ticket;
  post.data = std::move(data);
  post.knowledge = r.flags & KNOWLEDGE;
  post.dtype = static_cast<uint32_t>(r.transfer.dtype);
  post.site = rank.site;
  launch->transfers.push_back(t);
  if (comm->family && !one_sided && comm->ranks == comm->first_place) show(*comm, *t, post);
  if (led) {
    t->like = like;
    follow(*comm, t);
  }
  if (zeros) payloads_.arrived(rank, r.transfer.ticket, std::make_shared<const std::string>());
  if (one_sided) return matched_.push_back(t);
  if (!t->send.launch || !t->recv.launch || !agrees(*comm, *t)) return;
  if (t->recv.ticket) {
    auto data = std::make_shared<const std::string>(std::move(t->send.data));  // the receiver reads zeros behind them
    payloads_.arrived(rank_table_[static_cast<size_t>(t->recv.rank)], t->recv.ticket, std::move(data),
                      t->send.knowledge);
  }
  matched_.push_back(t);
}

// The rank that does what a member does: it has the same place in the first of the family; in the first itself it has
// the first place of all folded axes.
int Communication::like_of(const Communicator &comm, int own) const {
  int rank = comm.ranks[static_cast<size_t>(own)];
  return comm.ranks == comm.first_place ? folded_.origin(rank) : comm.first_place[static_cast<size_t>(own)];
}

// A send to a rank that is no process, or a receive from one, waits for what the pair that is like it does.
void Communication::follow(const Communicator &comm, const std::shared_ptr<Transfer> &t) {
  bool source = !t->send.launch;  // it is the sender who is no process
  auto place = [&](int own) {
    return static_cast<int>(std::find(comm.first_place.begin(), comm.first_place.end(), like_of(comm, own)) -
                            comm.first_place.begin());
  };
  Family::Way way{place(t->src), place(t->dst), source};
  const std::vector<Example> &shown = comm.family->examples[way];
  if (static_cast<int64_t>(shown.size()) > t->seq) return resolve(comm, t, shown[static_cast<size_t>(t->seq)]);
  comm.family->followers[{way, t->seq}].push_back(t);
}

// One side of a transfer in the first of a family: others go by it.
void Communication::show(const Communicator &comm, const Transfer &t, const Post &post) {
  bool source = &post == &t.send;
  Family::Way way{t.src, t.dst, source};
  std::vector<Example> &shown = comm.family->examples[way];
  shown.push_back({post.launch, post.bytes, post.data});
  auto waiting = comm.family->followers.find({way, static_cast<int64_t>(shown.size()) - 1});
  if (waiting == comm.family->followers.end()) return;
  for (auto &other : waiting->second) resolve(communicator(other->comm), other, shown.back());
  comm.family->followers.erase(waiting);
}

void Communication::resolve(const Communicator &comm, const std::shared_ptr<Transfer> &t, const Example &example) {
  const Post &own = t->own();
  if (own.bytes != example.bytes)
    return failure_.cannot_fold(
        "a send and receive in " + describe(comm) + ": rank " + std::to_string(own.rank) + " has " +
        std::to_string(own.bytes) + " bytes where the pair at the first place of the mesh has " +
        std::to_string(example.bytes) + "; expand the axis (NAME=SIZE:all in --fold), or use --fold off");
  go_by(t, example.launch);
  if (t->recv.launch && t->recv.ticket)
    payloads_.arrived(rank_table_[static_cast<size_t>(t->recv.rank)], t->recv.ticket,
                      std::make_shared<const std::string>(example.data));
}

void Communication::price_transfers(const std::vector<std::shared_ptr<Launch>> &groups) {
  if (matched_.empty()) return;
  auto unfinished = [&](const Post &post) { return groups[static_cast<size_t>(post.rank)] == post.launch; };
  std::vector<std::shared_ptr<Transfer>> later, now;
  for (auto &t : matched_) {
    bool wait = t->one_sided ? unfinished(t->own()) : unfinished(t->send) || unfinished(t->recv);
    (wait ? later : now).push_back(t);
  }
  matched_.swap(later);
  for (auto &t : now) price(t);
}

void Communication::price(const std::shared_ptr<Transfer> &t) {
  if (t->sent >= 0) return finalize(*t);
  // A rank that is no process, or has not called yet, sends and receives as much as the one that meets it.
  const Post &of_send = t->send.launch ? t->send : t->recv, &of_recv = t->recv.launch ? t->recv : t->send;
  const Launch &send = *of_send.launch, &recv = *of_recv.launch;
  const Communicator &comm = communicator(t->comm);
  phe_price_request request{};
  request.kind = PHE_TRANSFER;
  request.sub = t->kind;
  request.comm = send.comm;
  request.src = comm.ranks[static_cast<size_t>(t->src)];
  request.dst = comm.ranks[static_cast<size_t>(t->dst)];
  request.concurrent = std::max(1, std::max(send.sends, recv.recvs));
  request.duplex = send.recvs > 0 && recv.sends > 0;
  request.bytes = of_send.bytes;
  request.blocks = send.blocks;
  request.counted = send.counted;
  request.measured = send.measured;
  request.crowd = send.crowd;
  Key &key = prices_.key();  // the format of the elements does not matter
  key.add<uint8_t>(PHE_TRANSFER).add(request);
  t->price = prices_.find(key, [&](Price &p) {
    int32_t id = p.request.id;
    p.request = request;
    p.request.id = id;
    p.request.dtype = static_cast<int32_t>(of_send.dtype);
  });
  if (prices_[t->price].known)
    finalize(*t);
  else
    prices_[t->price].operations.push_back(t);
}

// A send puts its bytes into the buffers of the receiver's channels, and ends when they are there: with 2 H200,
// NCCL 2.28, 64 MiB end without a receive and 128 MiB do not. Sends end so only where all ranks wait: else the receive
// decides.
bool Communication::send_ahead() {
  std::vector<std::shared_ptr<Transfer>> all;
  for (const auto &o : open_operations_) {
    if (!o->transfer || o->begun || o->aborted) continue;
    auto t = std::static_pointer_cast<Transfer>(o);
    bool waits = t->kind == PHE_PAIR && !t->one_sided && t->sent < 0 && t->send.launch && t->send.launch->arrival >= 0;
    if (waits && t->send.bytes <= send_buffer_ && !(t->recv.launch && t->recv.launch->arrival >= 0)) all.push_back(t);
  }
  for (const auto &t : all)
    if (t->price < 0) price(t);
  for (const auto &t : all)
    if (!prices_[t->price].known) return false;  // it is asked for
  for (const auto &t : all) {
    Launch &send = *t->send.launch;
    t->sent = send.arrival + prices_[t->price].durations[0];
    send.ready = std::max(send.ready, send.arrival);
    finish_part(send, send, send.arrival, t->sent);
  }
  return !all.empty();
}

}  // namespace phe
