// One rank in the engine: its end of the shared memory, its host's clock, its GPUs, streams and events.
#pragma once
#include "gpu/limiter.h"
#include "gpu/work.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace phe {

struct Event {
  Dep dep;
  int64_t done = -1;  // completion time of the last record, -1 while pending
  int64_t id = -1;    // row id of the record
  bool recorded = false;
};

// A host waits for an answer, or asks in passing.
struct Request {
  ph_record record{};
  std::vector<Dep> deps;
  Device *whole = nullptr;  // waits for all streams of it
  bool query = false;
  bool data = false;        // waits for bytes, not for virtual time
  int64_t link = -1;
  uint32_t event = 0;

  bool meters() const { return record.kind == PH_METER; }
  bool shares() const { return record.kind == PH_SHARE; }
  bool helper() const { return record.flags & PH_F_HELPER; }
};

struct Sleep {  // a sleep outside CUDA out of which the host was moved forward
  int64_t since = -1, until = -1;  // host clock; since -1: none
  int by = -1;                     // rank of the host that was released at `until`
  uint64_t answers = 0;            // that this rank had then
};

struct Throttle {  // kernels that begin between these times take `factor` times as long
  int64_t start, end;
  double factor;
};

struct Rank {
  int index = 0;
  ph_control *control = nullptr;
  const ph_record *ring = nullptr;
  ph_reply *replies = nullptr;
  bool started = false, exited = false, died = false;
  int status = 0;
  int64_t failed = -1;   // when its CUDA context ended with an error, -1: it has not
  int64_t host = 0;      // lower bound of the host clock
  bool asleep = false;   // outside CUDA, found by the caller; until the next record
  Sleep sleep;
  uint64_t answered = 0; // requests of the host
  double slowness = 1.0; // factor on the duration of its kernels
  std::vector<Throttle> throttles;
  double power_factor = 1.0;  // factor on their dynamic power
  std::vector<Trial> trials;  // of other power factors
  std::vector<std::unique_ptr<Context>> contexts;  // one a GPU
  std::unordered_map<uint32_t, std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Stream>> retired;  // destroyed; work in them goes on
  std::unordered_map<uint32_t, Event> events;
  std::vector<Request> requests;
  uint32_t communicators = 0;        // so far, by all processes that were this rank
  uint32_t first_communicator = 0;   // of them, by processes before this one
  int32_t site = -1;                // where the program makes the next collective, send or receive: a global name
  uint32_t correlation = 0;         // of the launches that come now
  std::vector<ph_activity> activities;  // that a profiler has not taken yet
  int64_t graph_row = -1;  // of the graph launch that sends its nodes now
  Context *communicating = nullptr;  // that on which communication arrived last
  std::vector<int32_t> scopes;      // of the links that it can put traffic on

  double throttled(int64_t now) const {
    double factor = 1;
    for (const Throttle &t : throttles)
      if (t.start <= now && now < t.end) factor *= t.factor;
    return factor;
  }
  int64_t fresh_id() { return ++next_id_; }
  int64_t next_id() const { return next_id_ + 1; }
  // The host adds nothing to its GPUs up to there.
  int64_t host_limit() const {
    if (!started) return exited ? NEVER : host;
    int64_t limit = NEVER;
    if (exited || asleep) return limit;
    bool blocked = false;
    for (const Request &q : requests) {
      if (q.helper()) continue;
      blocked = true;
      if (q.query || (q.data && q.deps.empty())) limit = std::min(limit, q.record.time);
    }
    return blocked ? limit : host;
  }

 private:
  int64_t next_id_ = 0;  // of rows
};

}  // namespace phe
