// Validation of records, which may come from a damaged recording, a stub of another version, or a program that
// overwrote its memory. Handlers rely on it: no valid record makes the engine reach beyond its tables.
#include "ranks/ingest.h"

#include <iterator>

#include "ranks/recorder.h"

namespace phe {
namespace {

constexpr uint64_t MOST_TEXTS = 1 << 24, MOST_COMMUNICATORS = 1 << 24;
constexpr uint64_t MOST_BYTES = uint64_t{1} << 50;  // that an operation moves
constexpr double MOST_CROWD = 1e6;
constexpr size_t ELEMENT[] = PH_NCCL_DTYPE_BYTES;

bool is_time(int64_t time) { return 0 <= time && time <= MOST_TIME; }
bool is_size(int64_t bytes) { return 0 <= bytes && static_cast<uint64_t>(bytes) <= MOST_BYTES; }

bool has_root(int coll) {
  return coll == PH_COLL_BROADCAST || coll == PH_COLL_REDUCE || coll == PH_COLL_GATHER || coll == PH_COLL_SCATTER;
}

}  // namespace

bool Ingest::validate(const Rank &rank, const ph_record &r) {
  if (r.kind == PH_BLOB || is_valid(rank, r)) return true;
  reject(rank, "record " + std::to_string(source(rank).tail) + " of kind " + std::to_string(r.kind));
  return false;
}

void Ingest::reject(const Rank &rank, const std::string &what) {
  std::string of = "rank " + std::to_string(rank.index);
  failure_.set(rank_table_.player(rank)
                   ? "the recording of " + of + " is damaged (" + what + "); run `phantora trace` again"
                   : "what " + of + " says cannot be (" + what +
                         "): its process wrote into memory that is not its own; run it again");
}

bool Ingest::is_valid(const Rank &rank, const ph_record &r) const {
  auto known = [&] { return r.stream < PH_MAX_DEVICES || rank.streams.count(r.stream); };
  auto members = [&](uint64_t count, uint64_t index) {
    return count >= 1 && count <= rank_table_.size() && index < count;
  };
  if (!is_time(r.time)) return false;
  if (rank_table_.player(rank) && asks(r) && r.asked.resumes != NEVER_RESUMED && !is_time(r.asked.resumes))
    return false;
  switch (r.kind) {
    case PH_DEFINE_NAME:
    case PH_DEFINE_SIGNATURE:
      return r.id < MOST_TEXTS;
    case PH_PROFILE_NAME:
      return r.id < static_cast<uint64_t>(texts_.count(PHE_NAMES));
    case PH_OP_BEGIN:
      return is_time(r.op_begin.start);
    case PH_OP_END:
      return r.op_end.l2_hits <= PH_L2_STEPS + 1 && r.op_end.l2_written <= PH_L2_STEPS + 1;
    case PH_ANNOTATION:
    case PH_HOST_SPAN:
      return is_time(r.span.start);
    case PH_STREAM_CREATE:
      return r.stream_create.device < PH_MAX_DEVICES && r.stream_create.queues <= 32;
    case PH_DEVICE_SYNC:
      return r.device_sync.device < PH_MAX_DEVICES;
    case PH_MEMCPY:
      return known() && r.id < PH_COPY_COUNT_PH_COPY && r.copy.bytes <= MOST_BYTES;
    case PH_MEMSET:
      return known() && r.fill.bytes <= MOST_BYTES;
    case PH_TIMED:
      return is_time(r.timed.duration) && is_time(r.timed.delay) && r.timed.crowd >= 1 && r.timed.crowd <= MOST_CROWD;
    case PH_HOST_FUNC:
      return known() && is_time(r.host_func.duration);
    case PH_KERNEL:
    case PH_EVENT_RECORD:
    case PH_STREAM_WAIT:
    case PH_STREAM_SYNC:
    case PH_STREAM_QUERY:
    case PH_ROOM:
      return known();
    case PH_COLLECTIVE:
      return known() && valid_collective(rank, r);
    case PH_SEND:
    case PH_RECV:
      return known() && valid_transfer(rank, r);
    case PH_PEER_COPY:
      return known() && r.peer_copy.bytes <= MOST_BYTES && valid_peer(rank, r, r.peer_copy.peer);
    case PH_PUT_SIGNAL:
    case PH_WAIT_SIGNAL:
      return known() && valid_peer(rank, r, r.signal.peer) && is_time(r.signal.limit);
    case PH_COMM_CREATE:
      // Numbered from 1, over all processes of the rank: 0 stands for a member that has not joined.
      return members(r.comm.members, r.comm.rank) && r.id >= 1 && r.id < MOST_COMMUNICATORS - rank.first_communicator;
    case PH_EXCHANGE:
      return members(r.exchange.members, r.exchange.index);
    case PH_GROUP_BEGIN:
      return r.group.records <= INT64_MAX;
    case PH_MEMORY:
      return r.id < PH_MEM_COUNT_PH_MEM;
    case PH_HOME:
      return r.id < PH_MAX_DEVICES;
    case PH_SHARE:
      return r.share.bytes == 0 || is_size(std::abs(r.share.bytes));
    case PH_METER:
      return r.meter.rank < rank_table_.size() && r.meter.device >= -1 && r.meter.device < PH_MAX_DEVICES;
    case PH_MOVED:
      return r.moved.by < rank_table_.size() && is_time(r.moved.since) && r.moved.since <= r.time;
    default:
      return r.kind < PH_COUNT_PH_KIND;
  }
}

bool Ingest::valid_collective(const Rank &rank, const ph_record &r) const {
  const ph_collective_fields &call = r.collective;
  const Communicator *comm = communication_.find(rank, r.id);
  if (!comm) return true;  // its handler reports it
  if (call.coll >= PH_COLL_COUNT_PH_COLL || call.dtype >= std::size(ELEMENT) || !is_size(call.bytes)) return false;
  uint64_t members = comm->ranks.size();
  if (call.coll >= PH_COLL_SYMMETRIC_BARRIER && call.root < 0) return false;
  if (call.coll == PH_COLL_SYMMETRIC_BARRIER && !(call.scalar >= 0 && call.scalar <= static_cast<double>(MOST_TIME)))
    return false;
  if (call.coll >= PH_COLL_EXPERT_COUNTS && !(call.scalar >= 0 && call.scalar <= INT32_MAX && call.count <= INT32_MAX))
    return false;
  if (has_root(call.coll) && static_cast<uint32_t>(call.root) >= members) return false;
  bool shared = call.coll == PH_COLL_ALL_REDUCE || call.coll == PH_COLL_BROADCAST || call.coll == PH_COLL_REDUCE;
  return !call.ticket || call.count <= MOST_PAYLOAD / (ELEMENT[call.dtype] * (shared ? 1 : members));
}

bool Ingest::valid_peer(const Rank &rank, const ph_record &r, int peer) const {
  const Communicator *comm = communication_.find(rank, r.id);
  // Such a communicator names its members when it is made: the peer is known, whether or not it has joined.
  return comm && static_cast<uint32_t>(peer) < comm->ranks.size() && comm->ranks[static_cast<size_t>(peer)] >= 0;
}

bool Ingest::valid_transfer(const Rank &rank, const ph_record &r) const {
  const ph_transfer_fields &call = r.transfer;
  const Communicator *comm = communication_.find(rank, r.id);
  if (!comm) return false;
  if (static_cast<uint32_t>(call.peer) >= comm->ranks.size() || call.dtype >= std::size(ELEMENT)) return false;
  return is_size(call.bytes) && (!call.ticket || static_cast<uint64_t>(call.bytes) <= MOST_PAYLOAD);
}

}  // namespace phe
