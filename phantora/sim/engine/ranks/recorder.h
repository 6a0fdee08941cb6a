// The recording of a run (docs/replay.md): the records of every rank, without those that do not affect time:
// payloads, the polls of helper threads, numbers that differ between equal runs. A request keeps the host clock after
// its answer.
#pragma once
#include "ranks/rank.h"

namespace phe {

constexpr int64_t NEVER_RESUMED = -1;  // of a request that was not answered when the recording ended

// A profiler's questions move no clock.
inline bool of_profiler(const ph_record &r) { return r.kind == PH_PROFILE || r.kind == PH_PROFILE_NAME; }
// A watchdog's question, in the name of the host: it moves no clock, and nothing waits for its answer.
inline bool of_watchdog(const ph_record &r) { return r.kind == PH_EVENT_QUERY && r.thread >= PH_OTHER_THREADS; }
// True if the rank's host waits for an answer to `r`.
inline bool asks(const ph_record &r) { return r.slot != PH_NO_SLOT && !(r.flags & PH_F_HELPER) && !of_watchdog(r); }
// A rank's helper thread that meets a peer for a connection. The peer's host waits for it.
inline bool meets(const ph_record &r) { return r.kind == PH_EXCHANGE && r.id && (r.flags & PH_F_HELPER); }

class Recorder {
 public:
  // `block`: of a MEMORY record, the row that allocated its block, 0 if there is none.
  void add(const ph_record &said, int64_t block);
  // The rank's host was moved out of a sleep.
  void add_move(const Sleep &sleep);
  void answered(const ph_record &r, int64_t clock);  // of the host after the answer
  // Without `everything`, only what is final: the records before the first request that has no answer.
  int64_t take(ph_record *out, int64_t capacity, bool everything);

 private:
  Queue<ph_record, 512> kept_;
  uint64_t taken_ = 0;             // records that went before `kept_`
  std::vector<ph_record> pieces_;  // of a blob before its reader comes
  uint64_t asked_[PH_REPLY_SLOTS] = {};  // position of the request that holds the slot, plus one; 0: none
};

}  // namespace phe
