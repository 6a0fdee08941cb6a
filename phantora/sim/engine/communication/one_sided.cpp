// Memory of peers: copies from and to a peer that does nothing, and signals.
//
// A wait goes by the signal of the same number: it ends when that has been given. The next signal goes by that wait,
// since there is room for one, unless signals are counted. So each is an operation of one member that begins when
// another's kernel has been reached.
#include "communication/communication.h"

namespace phe {

std::shared_ptr<Transfer> Communication::join_alone(int32_t number, Rank &rank, int peer, bool gives,
                                                    phe_transfer_kind kind, const std::shared_ptr<Launch> &launch) {
  int me = communicator(number).own_rank(rank.index);
  launch->comm = number;
  launch->p2p = true;
  launch->peer = peer;
  launch->sub = PH_COPY_P2P;
  ++launch->waiting;
  auto t = std::make_shared<Transfer>();
  t->transfer = t->one_sided = true;
  t->kind = kind;
  t->comm = number;
  t->src = gives ? me : peer;
  t->dst = gives ? peer : me;
  Post &own = gives ? t->send : t->recv;
  own.launch = launch;
  own.rank = rank.index;
  own.bytes = launch->bytes;
  launch->transfers.push_back(t);
  matched_.push_back(t);
  return t;
}

void Communication::join_copy(Rank &rank, const ph_record &r, const std::shared_ptr<Launch> &launch) {
  int32_t number;
  if (!used(rank, r.id, number)) return;
  launch->bytes = static_cast<int64_t>(r.peer_copy.bytes);
  launch->blocks = static_cast<int>(r.peer_copy.blocks);
  launch->copies = !launch->blocks;
  join_alone(number, rank, r.peer_copy.peer, r.peer_copy.push, PHE_PEER_COPY, launch);
}

void Communication::join_signal(Rank &rank, const ph_record &r, const std::shared_ptr<Launch> &launch) {
  int32_t number;
  Communicator *comm = used(rank, r.id, number);
  if (!comm) return;
  bool puts = r.kind == PH_PUT_SIGNAL;
  int me = comm->own_rank(rank.index), peer = r.signal.peer, other = comm->ranks[static_cast<size_t>(peer)];
  launch->limit = r.signal.limit;
  bool counted = r.flags & PH_F_COUNTED;
  launch->blocks = 1;
  launch->counted = counted;
  auto t = join_alone(number, rank, peer, puts, puts ? PHE_PUT_SIGNAL : PHE_WAIT_SIGNAL, launch);
  Signals &way = comm->signals[{puts ? me : peer, puts ? peer : me, r.signal.channel}];
  if (!puts) {
    follow(way.puts, other, t);
    if (!counted) show(way.waits, launch);
    return;
  }
  if (way.used && !counted) follow(way.waits, other, t);
  way.used = true;
  show(way.puts, launch);
}

void Communication::show(Signals::Side &side, const std::shared_ptr<Launch> &launch) {
  if (side.followers.empty()) return side.launches.push_back(launch);
  std::shared_ptr<Transfer> t = std::move(side.followers.front());
  side.followers.pop_front();
  go_by(t, launch);
}

void Communication::follow(Signals::Side &side, int rank, const std::shared_ptr<Transfer> &t) {
  t->like = rank;
  if (side.launches.empty()) return side.followers.push_back(t);
  go_by(t, side.launches.front());
  side.launches.pop_front();
}

void Communication::go_by(const std::shared_ptr<Transfer> &t, const std::shared_ptr<Launch> &launch) {
  if (t->aborted) return;
  t->there = launch;
  if (launch->arrival < 0) launch->followers.push_back(t);
  finalize(*t);
}

}  // namespace phe
