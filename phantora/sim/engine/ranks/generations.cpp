// Several processes in one place of a rank, one after the other.
//
// A generation begins when a new process asks for a place: all exited processes give up theirs together. It begins at
// the moment at which their work is done. Until a place is taken or closed, its new process may still send records
// after that moment.
#include <errno.h>
#include <signal.h>

#include "ranks/ingest.h"

namespace phe {

void Ingest::rank_start(Rank &rank, const ph_record &r) {
  if (r.slot == PH_NO_SLOT) {  // the first in this place
    rank.started = true;
    return;
  }
  if (rank.started && !rank.exited) {  // the process before sent no exit record
    launches_.cut(rank);
    waits_.return_memory(rank, rank.host);
    rank.exited = true;
    rank.requests.clear();
  }
  if (rank.exited) return joiners_.emplace_back(&rank, r), void();
  rank.started = true;  // its place is free in this generation
  waits_.reply(rank, r, 0, rank.host, 0);
}

void Ingest::begin_generation(int64_t time) {
  for (const Rank &rank : rank_table_.ranks()) {
    if (!rank.exited) continue;
    time = std::max(time, rank.host);
    for (const auto &context : rank.contexts) time = std::max(time, context->device.now());
  }
  for (Rank &rank : rank_table_.ranks())  // of a recorded rank we know whether another process follows
    if (rank.exited && (!rank_table_.player(rank) || behind(rank))) vacate(rank, time);
  auto joiners = std::move(joiners_);
  joiners_.clear();
  for (auto &[rank, request] : joiners) {
    if (rank->exited) vacate(*rank, time);
    rank->started = true;
    waits_.reply(*rank, request, 0, time, 0);
  }
}

// Remains of the process before are gone, as with its CUDA context.
void Ingest::vacate(Rank &rank, int64_t time) {
  ph_control &control = *rank.control;
  int32_t pid = load(&control.pid);
  bool gone = pid < 0 || pid == load(&control.left) || (pid && kill(pid, 0) && errno == ESRCH);
  if (gone && !rank_table_.player(rank))
    __atomic_compare_exchange_n(&control.pid, &pid, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  communication_.leave(rank, time);
  payloads_.forget(rank);
  launches_.forget(rank);
  groups_[static_cast<size_t>(rank.index)].reset();
  Source &from = source(rank);
  uint64_t tail = from.tail;
  from = {};
  from.tail = tail;
  for (auto stream = rank.streams.begin(); stream != rank.streams.end();) {
    if (stream->second->legacy) {
      ++stream;
      continue;
    }
    rank.retired.push_back(std::move(stream->second));
    stream = rank.streams.erase(stream);
  }
  rank.events.clear();
  rank.requests.clear();
  rank.sleep = {};
  rank.graph_row = -1;
  rank.correlation = 0;
  rank.activities.clear();
  rank.first_communicator = rank.communicators;
  rank.started = rank.exited = rank.died = false;
  rank.status = 0;
  rank.failed = -1;
  rank.host = time;
  store(&control.floor, time);
  progress_.to_relay = true;
  for (auto &context : rank.contexts) {
    context->device.revive(*context);
    context->device.touch();
  }
}

}  // namespace phe
