// A member gives up what it waits for in a communicator (ncclCommAbort): the operation never begins, and a kernel ends
// unless it has parts in other communicators.
#include "communication/communication.h"

namespace phe {

void Communication::abort(Rank &rank, uint32_t id, int64_t time) {
  int32_t number;
  Communicator *comm = used(rank, id, number);
  if (!comm) return;
  auto give_up_in = [&](Stream &s) {
    for (size_t i = 0; i < s.queue.size(); ++i)
      if (Item &item = s.queue[i]; item.type == Item::COMM && item.comm->end < 0)
        give_up(rank, *item.comm, number, time);
  };
  for (auto &[stream, s] : rank.streams) give_up_in(*s);
  for (auto &s : rank.retired) give_up_in(*s);
  auto given_up = [](const std::shared_ptr<Transfer> &t) { return t->aborted; };
  for (auto *unmatched : {&comm->sends, &comm->recvs})
    for (auto &[way, waiting] : *unmatched)
      waiting.erase(std::remove_if(waiting.begin(), waiting.end(), given_up), waiting.end());
  matched_.erase(std::remove_if(matched_.begin(), matched_.end(), given_up), matched_.end());
}

void Communication::leave(Rank &rank, int64_t time) {
  auto &mine = local_[static_cast<size_t>(rank.index)];
  std::vector<uint32_t> ids;
  for (auto &[id, number] : mine) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (uint32_t id : ids) abort(rank, id, time);
  mine.clear();
}

void Communication::give_up(Rank &rank, Launch &l, int32_t comm, int64_t time) {
  if (l.aborted) return;
  int given_up = 0;
  for (auto &c : l.collectives)
    if (c->comm == comm && !c->begun) given_up += give_up(rank, *c);
  for (auto &t : l.transfers)
    if (t->comm == comm && !t->begun) given_up += give_up(rank, *t);
  l.waiting -= given_up;
  l.aborted = given_up && !l.waiting;
  if (l.aborted && l.arrival >= 0) end_aborted(l, time);
}

// False if it had been given up before.
bool Communication::give_up(Rank &rank, Collective &c) {
  Member &me = c.members[static_cast<size_t>(communicator(c.comm).seat_of(rank.index))];
  if (!me.launch) return false;
  bool delivered = c.joined == static_cast<int>(c.members.size()) && !c.aborted;
  if (me.record.collective.ticket && !delivered)
    payloads_.arrived(rank, me.record.collective.ticket, std::make_shared<const std::string>());
  c.aborted = true;
  me.launch.reset();
  unlist(c);
  return true;
}

bool Communication::give_up(Rank &rank, Transfer &t) {
  bool delivered = t.send.launch && t.recv.launch;
  Post &mine = t.send.launch && t.send.rank == rank.index ? t.send : t.recv;
  if (!mine.launch || mine.rank != rank.index || (&mine == &t.send && t.sent >= 0)) return false;
  if (&mine == &t.recv && t.recv.ticket && !delivered)
    payloads_.arrived(rank, t.recv.ticket, std::make_shared<const std::string>());
  t.aborted = true;
  t.there.reset();
  mine.launch.reset();
  unlist(t);
  return true;
}

void Communication::end_aborted(Launch &l, int64_t time) {
  progress_.moved = progress_.news = true;
  l.end = std::max(std::max(time, l.part_end), std::max(l.arrival + 1, l.context->device.now()));
  l.ready = std::max(l.ready, l.arrival);
  if (l.name < 0) l.name = texts_.name("ncclDevKernel (aborted)");
  l.context->device.touch();
  ended_.push_back(&l.context->device);
}

}  // namespace phe
