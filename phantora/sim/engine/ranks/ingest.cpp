// The ring of a rank, and how each record comes to its handler. The handlers are in handlers.cpp.
#include "ranks/ingest.h"

#include <string.h>

namespace phe {

constexpr uint64_t MAX_PASS = 4096;  // records of one rank consumed before the next rank

Ingest::Ingest(RankTable &rank_table, Devices &devices, Texts &texts, CallNames &names, Launches &launches,
               Marks &marks, Communication &communication, Payloads &payloads, Waits &waits, Comparison &comparison,
               RowLog &rows, Progress &progress, Failure &failure)
    : rank_table_(rank_table),
      devices_(devices),
      texts_(texts),
      names_(names),
      launches_(launches),
      marks_(marks),
      communication_(communication),
      payloads_(payloads),
      waits_(waits),
      comparison_(comparison),
      rows_(rows),
      progress_(progress),
      failure_(failure),
      sources_(rank_table.size()),
      groups_(rank_table.size()) {
  static const struct {
    ph_kind kind;
    Handler handler;
  } all[] = {
      {PH_RANK_START, &Ingest::rank_start},
      {PH_RANK_EXIT, &Ingest::rank_exit},
      {PH_DEFINE_NAME, &Ingest::define_name},
      {PH_DEFINE_SIGNATURE, &Ingest::define_signature},
      {PH_OP_BEGIN, &Ingest::op_begin},
      {PH_OP_END, &Ingest::op_end},
      {PH_ANNOTATION, &Ingest::span},
      {PH_HOST_SPAN, &Ingest::span},
      {PH_STREAM_CREATE, &Ingest::stream_create},
      {PH_STREAM_DESTROY, &Ingest::stream_destroy},
      {PH_KERNEL, &Ingest::kernel},
      {PH_MEMCPY, &Ingest::memcpy},
      {PH_MEMSET, &Ingest::memset},
      {PH_EVENT_RECORD, &Ingest::event_record},
      {PH_EVENT_DESTROY, &Ingest::event_destroy},
      {PH_STREAM_WAIT, &Ingest::stream_wait},
      {PH_HOST_FUNC, &Ingest::host_func},
      {PH_STREAM_SYNC, &Ingest::stream_request},
      {PH_STREAM_QUERY, &Ingest::stream_request},
      {PH_DEVICE_SYNC, &Ingest::device_sync},
      {PH_EVENT_SYNC, &Ingest::event_request},
      {PH_EVENT_QUERY, &Ingest::event_request},
      {PH_EVENT_TIME, &Ingest::event_request},
      {PH_ROOM, &Ingest::room},
      {PH_COMM_CREATE, &Ingest::comm_create},
      {PH_COMM_DESTROY, &Ingest::comm_destroy},
      {PH_COMM_ABORT, &Ingest::comm_abort},
      {PH_CORRELATE, &Ingest::correlate},
      {PH_PROFILE, &Ingest::profile},
      {PH_PROFILE_NAME, &Ingest::profile_name},
      {PH_EXCHANGE, &Ingest::exchange},
      {PH_GROUP_BEGIN, &Ingest::group_begin},
      {PH_COLLECTIVE, &Ingest::communicate},
      {PH_SEND, &Ingest::communicate},
      {PH_RECV, &Ingest::communicate},
      {PH_PAYLOAD, &Ingest::payload},
      {PH_PEER_COPY, &Ingest::communicate},
      {PH_PUT_SIGNAL, &Ingest::communicate},
      {PH_WAIT_SIGNAL, &Ingest::communicate},
      {PH_METER, &Ingest::meter},
      {PH_HOME, &Ingest::home},
      {PH_SHARE, &Ingest::share},
      {PH_SITE, &Ingest::site},
      {PH_TIMED, &Ingest::timed},
      {PH_MEMORY, &Ingest::memory},
      {PH_UNSUPPORTED, &Ingest::unsupported},
  };
  std::fill(std::begin(handlers_), std::end(handlers_), &Ingest::ignore);
  for (const auto &entry : all) handlers_[entry.kind] = entry.handler;
}

bool Ingest::consume(Rank &rank) {
  Source &from = source(rank);
  int64_t clock = load(&rank.control->clock);
  uint64_t head = load(&rank.control->head);
  auto touch = [&] {
    for (auto &context : rank.contexts) context->device.touch();
  };
  if (head - from.tail > PH_RING_RECORDS || clock > MOST_TIME) {
    reject(rank, "its ring");
    return false;
  }
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
    if (rank_table_.player(rank) && !play(rank, record)) break;
    moved = moved || !(record.flags & PH_F_HELPER);
    bool lost = rank.died && record.kind != PH_RANK_START;  // of a process that was ended for another's sake
    if (record.kind == PH_MOVED || lost) continue;
    if (!rank_table_.player(rank) && !validate(rank, record)) break;
    take(rank, record);
  }
  if (from.tail == begin) return false;
  hand_back(rank);
  progress_.to_relay |= begin / ROOM != from.tail / ROOM;
  if (end == head && clock > rank.host && !rank.exited) rank.host = clock;
  touch();
  return moved;
}

// The rank may use the places of what has been taken.
void Ingest::hand_back(Rank &rank) {
  store(&rank.control->tail, source(rank).tail);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);  // the rank sets its flag, then looks at the tail
  if (!load(&rank.control->producer_waiting)) return;
  progress_.to_relay = true;
  __atomic_fetch_add(&rank.control->tail_futex, 1, __ATOMIC_SEQ_CST);
  futex(&rank.control->tail_futex, FUTEX_WAKE, 1, nullptr);
}

void Ingest::take(Rank &rank, const ph_record &r) {
  ++records_;
  Source &from = source(rank);
  Recorder *recorder = rank_table_.recorder(rank);
  if (r.kind == PH_BLOB) {
    if (recorder) recorder->add(r, 0);
    ph_blob blob;
    ::memcpy(&blob, &r, sizeof blob);
    from.blob.append(reinterpret_cast<const char *>(blob.data), std::min<uint32_t>(blob.used, PH_BLOB_BYTES));
    if (from.blob.size() > MOST_PAYLOAD) reject(rank, "a text without end");
    return;
  }
  bool helper = r.flags & PH_F_HELPER;
  if (r.time > rank.host && !helper) rank.host = r.time;
  if (rank.sleep.since >= 0 && r.time >= rank.sleep.until && !helper) wake(rank, r);
  from.block = r.kind == PH_MEMORY ? block_of(rank, r) : 0;
  if (recorder) recorder->add(r, from.block);
  if (comparison_.watches(rank)) {
    bool named = r.kind == PH_KERNEL && r.id < from.names.size();
    comparison_.record(rank, r, named ? from.names[r.id] : -1);
  }
  if (r.kind < PH_COUNT_PH_KIND) (this->*handlers_[r.kind])(rank, r);
  from.blob.clear();
}

// `r` is the first record after a sleep outside CUDA.
void Ingest::wake(Rank &rank, const ph_record &r) {
  waits_.host_wait(rank, r, texts_.name("outside CUDA"), rank.sleep.since, rank.sleep.until, rank.sleep.by);
  if (Recorder *recorder = rank_table_.recorder(rank)) recorder->add_move(rank.sleep);
  rank.sleep = {};
}

// ------------------------------------------------------------------ replay
// Makes the recorded `r` the rank's next record. False: it is not due yet.
bool Ingest::play(Rank &rank, ph_record &r) {
  Player &player = *rank_table_.player(rank);
  if (r.kind == PH_BLOB) return true;
  if (!player.is_due(r) || !validate(rank, r)) return false;
  if (r.kind == PH_MOVED) {
    const Rank &other = rank_table_[r.moved.by];
    return player.wakes(rank, r, other, *rank_table_.player(other));
  }
  player.issue(r);
  return true;
}

}  // namespace phe
