// The recording of a run, and its replay (docs/replay.md).
//
// Recorded is what a rank said, record by record, without what has no bearing on time: payloads, the
// polls of helper threads, numbers that differ between equal runs. A request keeps in `d` the
// host clock after its answer. In a replay the records come back through the rings; between two waits
// the host takes as long as it did, after a wait it goes on when the answer has come.
#include "state.h"

#include <math.h>

namespace phc {

namespace {

bool asks(const ph_record &r) { return r.slot != PH_NO_SLOT && !(r.flags & PH_F_HELPER); }

bool forgotten(const ph_record &r) {
  if (r.kind == PH_PAYLOAD || r.kind == PH_NOP || r.kind == PH_CLOCK) return true;
  return r.slot != PH_NO_SLOT && (r.flags & PH_F_HELPER) && r.kind != PH_MEMCPY && r.kind != PH_MEMSET;
}

}  // namespace

// ------------------------------------------------------------------ recording
void Core::remember(Rank &rank, const ph_record &said) {
  Recorder &to = *rank.recorder;
  if (said.kind == PH_BLOB) {
    to.pieces.push_back(said);
    return;
  }
  ph_record r = said;
  bool texts = r.kind == PH_DEFINE_NAME || r.kind == PH_DEFINE_SIGNATURE || r.kind == PH_COMM_CREATE;
  if (texts) to.kept.insert(to.kept.end(), to.pieces.begin(), to.pieces.end());
  to.pieces.clear();
  if (forgotten(r)) return;
  if (r.slot != PH_NO_SLOT) r.slot = 0;
  switch (r.kind) {
    case PH_RANK_START:
      r.a = 0;
      break;
    case PH_COLLECTIVE:
    case PH_SEND:
    case PH_RECV:
      r.d = 0;
      break;
    case PH_MEMORY: {  // addresses differ between runs: a block goes by the row that allocated it
      auto block = rank.blocks.find(r.d);
      r.d = r.id == PH_MEM_ALLOC ? static_cast<uint64_t>(rank.next_id + 1) : block == rank.blocks.end() ? 0 : static_cast<uint64_t>(block->second);
      break;
    }
    default:
      break;
  }
  if (asks(r)) r.d = static_cast<uint64_t>(-1);
  to.kept.push_back(r);
  if (asks(r)) to.asked[said.slot % PH_REPLY_SLOTS] = to.taken + to.kept.size();
}

// `clock`: of the host after the answer.
void Core::answered(Rank &rank, const ph_record &r, int64_t clock) {
  if (!asks(r) || r.kind == PH_PAYLOAD) return;
  ++rank.answered;
  if (rank.recorder) {
    uint64_t &position = rank.recorder->asked[r.slot % PH_REPLY_SLOTS];
    if (position > rank.recorder->taken) rank.recorder->kept[position - 1 - rank.recorder->taken].d = static_cast<uint64_t>(clock);
    position = 0;
  }
  if (rank.player) {
    Player &p = *rank.player;
    p.waits = false;
    p.answers.push_back(clock);
    p.shift(p.resumes, clock);
  }
}

int64_t Core::take_records(Rank &rank, ph_record *out, int64_t capacity, bool everything) {
  if (!rank.recorder) return 0;
  Recorder &from = *rank.recorder;
  uint64_t count = std::min<uint64_t>(static_cast<uint64_t>(capacity), from.kept.size());
  if (!everything)
    for (uint64_t position : from.asked)
      if (position) count = std::min(count, position - 1 - from.taken);
  std::copy_n(from.kept.begin(), count, out);
  from.kept.erase(from.kept.begin(), from.kept.begin() + static_cast<long>(count));
  from.taken += count;
  return static_cast<int64_t>(count);
}

// ------------------------------------------------------------------ replay
// Makes the recorded `r` what the rank says now. False: the rank cannot say it yet.
bool Core::play(Rank &rank, ph_record &r) {
  Player &p = *rank.player;
  if (r.kind == PH_BLOB) return true;
  // What came while the host waited (from a helper thread) does not wait for the answer.
  bool aside = p.waits && r.time < p.resumes;
  if (p.waits && !aside) return false;
  if (!credible(rank, r)) {
    fail("the recording of rank " + std::to_string(rank.index) + " is damaged (record " + std::to_string(rank.tail) + "); run `phantora trace` again");
    return false;
  }
  if (r.kind == PH_MOVED) return wakes(rank, r);
  if (r.kind == PH_OP_BEGIN || r.kind == PH_ANNOTATION || r.kind == PH_HOST_SPAN) r.a = static_cast<uint64_t>(p.clock(static_cast<int64_t>(r.a)));
  r.time = p.clock(r.time);
  if (asks(r)) {
    p.waits = true;
    p.resumes = static_cast<int64_t>(r.d);
    r.d = 0;
  }
  return true;
}

// A sleep outside CUDA ends when the rank that it waited for, directly or not, is released.
bool Core::wakes(Rank &rank, const ph_record &moved) {
  Player &p = *rank.player;
  if (moved.time <= p.then || !moved.c) return true;  // a wait has seen to it
  int64_t began = p.clock(static_cast<int64_t>(moved.a));
  rank.host = std::max(rank.host, began);
  const Rank &other = ranks[moved.b];
  p.sleeps = other.answered < moved.c;
  if (p.sleeps) return false;
  bool overtaken = rank.nap.since >= 0 && rank.nap.by == other.index;
  int64_t until = overtaken ? rank.nap.until : std::max(rank.nap.until, other.player->answers[moved.c - 1]);
  p.shift(moved.time, std::max(began, until));
  return true;
}

int64_t Player::clock(int64_t recorded) const {
  auto from = std::make_pair(then, now);
  if (recorded < then) {
    auto next = std::upper_bound(shifts.begin(), shifts.end(), std::make_pair(recorded, NEVER));
    from = next == shifts.begin() ? std::make_pair<int64_t, int64_t>(0, 0) : *(next - 1);
  }
  int64_t spent = recorded - from.first;
  return from.second + (scale == 1 ? spent : llround(static_cast<double>(spent) * scale));
}

void Player::shift(int64_t recorded, int64_t ours) {
  if (ours - recorded != now - then || scale != 1) shifts.emplace_back(recorded, ours);
  then = recorded;
  now = ours;
}

// Nothing that would make the engine reach beyond its tables.
bool Core::credible(const Rank &rank, const ph_record &r) const {
  constexpr uint64_t DEVICES = 64, TEXTS = 1 << 24;
  auto known = [&] { return r.stream < DEVICES || rank.streams.count(r.stream); };
  switch (r.kind) {
    case PH_DEFINE_NAME:
    case PH_DEFINE_SIGNATURE:
      return r.id < TEXTS;
    case PH_STREAM_CREATE:
      return r.b < DEVICES;
    case PH_DEVICE_SYNC:
      return r.a < DEVICES;
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
      auto comm = rank.comms.find(r.id);
      return known() && comm != rank.comms.end() && (r.a & 0xffffffff) < comms[comm->second]->ranks.size();
    }
    case PH_COMM_CREATE:
      return r.c >= 1 && r.c <= ranks.size() && r.d < r.c;
    case PH_EXCHANGE:
      return r.c >= 1 && r.c <= ranks.size() && r.e < r.c;
    case PH_MOVED:
      return r.b < ranks.size() && static_cast<int64_t>(r.a) <= r.time;
    default:
      return r.kind < PH_COUNT_PH_KIND;
  }
}

}  // namespace phc
