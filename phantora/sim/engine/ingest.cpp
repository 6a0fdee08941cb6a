// The ring of a rank, and how each record comes to its handler. The handlers are in handlers.cpp.
#include "ingest.h"

#include <string.h>

namespace phe {

constexpr uint64_t MAX_PASS = 4096;  // records of one rank consumed before the next has its turn

Ingest::Ingest(Stage &stage, Devices &devices, Texts &texts, CallNames &names, Launches &launches, Links &links,
               Communication &communication, Payloads &payloads, Waits &waits, Likeness &likeness, RowLog &rows,
               Progress &progress, Failure &failure)
    : stage_(stage), devices_(devices), texts_(texts), names_(names), launches_(launches), links_(links),
      communication_(communication), payloads_(payloads), waits_(waits), likeness_(likeness), rows_(rows), progress_(progress),
      failure_(failure), speakers_(stage.size()), groups_(stage.size()) {
  static const struct {
    ph_kind kind;
    Handler handler;
  } all[] = {
      {PH_RANK_START, &Ingest::rank_start},       {PH_RANK_EXIT, &Ingest::rank_exit},
      {PH_DEFINE_NAME, &Ingest::define_name},     {PH_DEFINE_SIGNATURE, &Ingest::define_signature},
      {PH_OP_BEGIN, &Ingest::op_begin},           {PH_OP_END, &Ingest::op_end},
      {PH_ANNOTATION, &Ingest::span},             {PH_HOST_SPAN, &Ingest::span},
      {PH_STREAM_CREATE, &Ingest::stream_create}, {PH_STREAM_DESTROY, &Ingest::stream_destroy},
      {PH_KERNEL, &Ingest::kernel},               {PH_MEMCPY, &Ingest::memcpy},
      {PH_MEMSET, &Ingest::memset},               {PH_EVENT_RECORD, &Ingest::event_record},
      {PH_EVENT_DESTROY, &Ingest::event_destroy}, {PH_STREAM_WAIT, &Ingest::stream_wait},
      {PH_HOST_FUNC, &Ingest::host_func},         {PH_STREAM_SYNC, &Ingest::stream_request},
      {PH_STREAM_QUERY, &Ingest::stream_request}, {PH_DEVICE_SYNC, &Ingest::device_sync},
      {PH_EVENT_SYNC, &Ingest::event_request},    {PH_EVENT_QUERY, &Ingest::event_request},
      {PH_EVENT_TIME, &Ingest::event_request},    {PH_ROOM, &Ingest::room},
      {PH_COMM_CREATE, &Ingest::comm_create},     {PH_COMM_DESTROY, &Ingest::comm_destroy},
      {PH_COMM_ABORT, &Ingest::comm_abort},       {PH_CORRELATE, &Ingest::correlate},
      {PH_PROFILE, &Ingest::profile},             {PH_PROFILE_NAME, &Ingest::profile_name},
      {PH_EXCHANGE, &Ingest::exchange},           {PH_GROUP_BEGIN, &Ingest::group_begin},
      {PH_COLLECTIVE, &Ingest::communicate},      {PH_SEND, &Ingest::communicate},
      {PH_RECV, &Ingest::communicate},            {PH_PAYLOAD, &Ingest::payload},
      {PH_MEMORY, &Ingest::memory},               {PH_UNSUPPORTED, &Ingest::unsupported},
  };
  std::fill(std::begin(handlers_), std::end(handlers_), &Ingest::ignore);
  for (const auto &entry : all) handlers_[entry.kind] = entry.handler;
}

bool Ingest::consume(Rank &rank) {
  Speaker &from = speaker(rank);
  int64_t clock = load(&rank.control->clock);
  uint64_t head = load(&rank.control->head);
  auto touch = [&] {
    for (auto &device : rank.devices) device->touch();
  };
  if (head == from.tail) {
    if (rank.started && !rank.died && clock > rank.host) {
      rank.host = clock;
      progress_.news = true;
      touch();
    }
    return false;
  }
  progress_.news = true;
  uint64_t begin = from.tail, end = std::min(head, from.tail + MAX_PASS);
  bool moved = false;
  for (; from.tail != end && failure_.none(); ++from.tail) {
    ph_record record = rank.ring[from.tail & (PH_RING_RECORDS - 1)];
    if (stage_.player(rank) && !play(rank, record)) break;
    moved = moved || !(record.flags & PH_F_HELPER);
    bool lost = rank.died && record.kind != PH_RANK_START;  // of a process that was ended for another's sake
    if (record.kind != PH_MOVED && !lost) take(rank, record);
  }
  if (from.tail == begin) return false;
  hand_back(rank);
  if (end == head && clock > rank.host && !rank.exited) rank.host = clock;
  touch();
  return moved;
}

// The rank may use the places of what has been taken.
void Ingest::hand_back(Rank &rank) {
  store(&rank.control->tail, speaker(rank).tail);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);  // the rank sets its flag, then looks at the tail
  if (!load(&rank.control->producer_waiting)) return;
  __atomic_fetch_add(&rank.control->tail_futex, 1, __ATOMIC_SEQ_CST);
  futex(&rank.control->tail_futex, FUTEX_WAKE, 1, nullptr);
}

void Ingest::take(Rank &rank, const ph_record &r) {
  ++records_;
  Speaker &from = speaker(rank);
  Recorder *recorder = stage_.recorder(rank);
  if (r.kind == PH_BLOB) {
    if (recorder) recorder->add(r, 0);
    ph_blob blob;
    ::memcpy(&blob, &r, sizeof blob);
    from.blob.append(reinterpret_cast<const char *>(blob.data), std::min<uint32_t>(blob.used, PH_BLOB_BYTES));
    return;
  }
  bool helper = r.flags & PH_F_HELPER;
  if (r.time > rank.host && !helper) rank.host = r.time;
  if (rank.nap.since >= 0 && r.time >= rank.nap.until && !helper) wake(rank, r);
  if (recorder) {
    int64_t block = 0;
    if (r.kind == PH_MEMORY) {
      auto known = from.blocks.find(r.memory.address);
      block = r.id == PH_MEM_ALLOC ? rank.next_id() : known == from.blocks.end() ? 0 : known->second;
    }
    recorder->add(r, block);
  }
  if (likeness_.watches(rank)) {
    bool named = r.kind == PH_KERNEL && r.id < from.names.size();
    likeness_.heard(rank, r, named ? from.names[r.id] : -1);
  }
  if (r.kind < PH_COUNT_PH_KIND) (this->*handlers_[r.kind])(rank, r);
  from.blob.clear();
}

// `r` is the first record after a sleep outside CUDA.
void Ingest::wake(Rank &rank, const ph_record &r) {
  waits_.host_wait(rank, r, texts_.name("outside CUDA"), rank.nap.since, rank.nap.until, rank.nap.by);
  if (Recorder *recorder = stage_.recorder(rank)) recorder->add_move(rank.nap);
  rank.nap = {};
}

// ------------------------------------------------------------------ replay
// Makes the recorded `r` what the rank says now. False: the rank cannot say it yet.
bool Ingest::play(Rank &rank, ph_record &r) {
  Player &player = *stage_.player(rank);
  if (r.kind == PH_BLOB) return true;
  if (!player.may_say(r)) return false;
  if (!credible(rank, r)) {
    failure_.set("the recording of rank " + std::to_string(rank.index) + " is damaged (record " +
                 std::to_string(speaker(rank).tail) + "); run `phantora trace` again");
    return false;
  }
  if (r.kind == PH_MOVED) {
    const Rank &other = stage_[r.moved.by];
    return player.wakes(rank, r, other, *stage_.player(other));
  }
  player.say(r);
  return true;
}

// Nothing that would make the engine reach beyond its tables.
bool Ingest::credible(const Rank &rank, const ph_record &r) const {
  constexpr uint64_t TEXTS = 1 << 24;
  auto known = [&] { return r.stream < PH_MAX_DEVICES || rank.streams.count(r.stream); };
  auto members = [&](uint64_t count, uint64_t index) { return count >= 1 && count <= stage_.size() && index < count; };
  switch (r.kind) {
    case PH_DEFINE_NAME:
    case PH_DEFINE_SIGNATURE:
      return r.id < TEXTS;
    case PH_STREAM_CREATE:
      return r.stream_create.device < PH_MAX_DEVICES;
    case PH_DEVICE_SYNC:
      return r.device_sync.device < PH_MAX_DEVICES;
    case PH_KERNEL:
    case PH_MEMCPY:
    case PH_MEMSET:
    case PH_EVENT_RECORD:
    case PH_STREAM_WAIT:
    case PH_HOST_FUNC:
    case PH_STREAM_SYNC:
    case PH_STREAM_QUERY:
    case PH_ROOM:
    case PH_COLLECTIVE:
      return known();
    case PH_SEND:
    case PH_RECV: {
      const Communicator *comm = communication_.find(rank, r.id);
      return known() && comm && static_cast<uint32_t>(r.transfer.peer) < comm->ranks.size();
    }
    case PH_COMM_CREATE:
      return members(r.comm.members, r.comm.rank);
    case PH_EXCHANGE:
      return members(r.exchange.members, r.exchange.index);
    case PH_MOVED:
      return r.moved.by < stage_.size() && r.moved.since <= r.time;
    default:
      return r.kind < PH_COUNT_PH_KIND;
  }
}

}  // namespace phe
