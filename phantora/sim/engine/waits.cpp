// Requests of a host that waits for its GPU, and their answers.
#include "state.h"

#include <string.h>

namespace phc {

void Core::answer(Rank &rank, size_t i, int status, int64_t time, int64_t value) {
  Request q = std::move(rank.requests[i]);
  rank.requests.erase(rank.requests.begin() + static_cast<long>(i));
  int64_t at = std::max(q.record.time, time);
  if (!(q.record.flags & PH_F_HELPER)) released = rank.index;
  if (!(q.record.flags & PH_F_HELPER)) rank.host = std::max(rank.host, std::max(at, rank.control->floor));
  bool waited = q.record.kind != PH_ROOM || at > q.record.time;  // a launch that finds room is no wait
  if (!q.query && !q.data && !(q.record.flags & PH_F_HELPER) && api_names[q.record.kind] >= 0 && waited) {
    ph_row r = row(PH_ROW_SYNC, rank, q.record.time, at);
    r.name = api_names[q.record.kind];
    r.sub = q.record.kind;
    r.stream = q.record.thread;
    r.flags = q.record.flags;
    r.id = ++rank.next_id;
    r.link = released_by(rank, q);
    emit(rank.host_rows, r);
  }
  reply(rank, q.record, status, q.query || q.record.kind == PH_EVENT_TIME ? time : at, value, nullptr, 0);
}

void Core::reply(Rank &rank, const ph_record &record, int status, int64_t time, int64_t value, const char *data, size_t length) {
  // A helper thread that polls moves nothing, however often it asks.
  if (!(record.flags & PH_F_HELPER)) progressed = true;
  answered(rank, record, std::max(record.time, time));
  if (record.slot >= PH_REPLY_SLOTS || rank.player) return;
  ph_reply &r = rank.replies[record.slot];
  r.status = status;
  r.time = time;
  r.value = value;
  r.length = length;
  if (length) memcpy(r.data, data, length);
  store<uint32_t>(&r.futex, 1);
  futex(&r.futex, FUTEX_WAKE, 1, nullptr);
}

void Core::check_requests(Rank &rank) {
  for (size_t i = 0; i < rank.requests.size();) {
    Request &q = rank.requests[i];
    if (q.data) {
      ++i;
      continue;
    }
    Gpu *gpu = q.deps.empty() ? nullptr : q.deps[0].stream->gpu;
    bool helper = q.record.flags & PH_F_HELPER;
    bool ready = true;
    for (const Dep &d : q.deps) ready = ready && d.stream->completed >= d.seq;
    if (!q.query) {
      if (!ready) {
        ++i;
        continue;
      }
      answer(rank, i, 0, gpu ? gpu->now : 0, 0);  // met this instant: completions are checked one by one
      continue;
    }
    if (ready) {
      int64_t at = completion(rank, q);
      answer(rank, i, 0, at, 1);
    } else if (helper || (gpu && gpu->now >= q.record.time && next_local(*gpu, nullptr) > q.record.time)) {
      answer(rank, i, 1, -1, 0);
    } else {
      ++i;
    }
  }
}

// The row whose end let the host go on: of the streams it waited for, the one that was done last.
int64_t Core::released_by(const Rank &rank, const Request &q) {
  if (!q.whole && q.deps.size() == 1) return q.link;
  const Stream *last = nullptr;
  auto look = [&](const Stream *s) {
    if (s->done_id < 0) return;
    if (!last || s->free_at > last->free_at || (s->free_at == last->free_at && s->id < last->id)) last = s;
  };
  for (const Dep &d : q.deps) look(d.stream);
  if (q.whole)
    for (auto &[id, s] : rank.streams)
      if (s->gpu == q.whole) look(s.get());
  return last ? last->done_id : -1;
}

// A host that launches waits while a stream has too much to do. All long streams count, done or not: how far the GPU has
// been followed when the record comes is chance.
void Core::wait_for_room(Rank &rank, const ph_record &r) {
  const Gpu *gpu = stream_of(rank, r.stream)->gpu;
  std::vector<Dep> deps;
  int64_t link = -1;
  for (auto &[id, s] : rank.streams) {
    if (s->gpu != gpu || s->enqueued <= r.a) continue;
    deps.push_back({s.get(), s->enqueued - r.a});
    if (const Item *item = item_at(s.get(), s->enqueued - r.a)) link = item->id;
  }
  request(rank, r, std::move(deps), link);
}

// The ranks wait for each other: whoever asked for room first does without. False: nobody asks.
bool Core::give_room() {
  Rank *first = nullptr;
  size_t place = 0;
  for (Rank &rank : ranks)
    for (size_t i = 0; i < rank.requests.size(); ++i) {
      const ph_record &r = rank.requests[i].record;
      if (r.kind != PH_ROOM || (first && r.time >= first->requests[place].record.time)) continue;
      first = &rank;
      place = i;
    }
  if (first) answer(*first, place, 0, 0, 0);
  return first;
}

// The row of a wait for another rank's host.
void Core::host_wait(Rank &rank, const ph_record &record, int32_t name, int64_t start, int64_t end, int last_rank) {
  ph_row r = row(PH_ROW_SYNC, rank, start, end);
  r.name = name;
  r.sub = record.kind;
  r.stream = record.thread;
  r.flags = record.flags;
  r.id = ++rank.next_id;
  r.last_rank = last_rank;
  emit(rank.host_rows, r);
}

// `r` is the first record after a sleep outside CUDA.
void Core::wake(Rank &rank, const ph_record &r) {
  host_wait(rank, r, intern(NAMES, "outside CUDA"), rank.nap.since, rank.nap.until, rank.nap.by);
  if (rank.recorder) {
    ph_record moved{};
    moved.kind = PH_MOVED;
    moved.slot = PH_NO_SLOT;
    moved.time = rank.nap.until;
    moved.a = static_cast<uint64_t>(rank.nap.since);
    moved.b = rank.nap.by < 0 ? 0 : static_cast<uint64_t>(rank.nap.by);
    moved.c = rank.nap.by < 0 ? 0 : rank.nap.answers;
    rank.recorder->kept.push_back(moved);
  }
  rank.nap = {};
}

int64_t Core::completion(Rank &rank, const Request &q) {
  if (q.event) {
    auto it = rank.events.find(q.event);
    if (it != rank.events.end() && it->second.done >= 0) return it->second.done;
  }
  int64_t latest = 0;
  for (const Dep &d : q.deps) latest = std::max(latest, std::min(d.stream->free_at, q.record.time));
  return latest;
}

void Core::request(Rank &rank, const ph_record &r, std::vector<Dep> deps, int64_t link, Gpu *whole) {
  Request q;
  q.record = r;
  q.link = link;
  q.whole = whole;
  q.query = r.kind == PH_STREAM_QUERY || r.kind == PH_EVENT_QUERY || r.kind == PH_EVENT_TIME;
  if (r.kind == PH_EVENT_QUERY || r.kind == PH_EVENT_TIME || r.kind == PH_EVENT_SYNC) q.event = r.id;
  // Work already done does not delay the host.
  bool done_before = true;
  int64_t latest = 0;
  for (const Dep &d : deps) {
    if (d.stream->completed < d.seq) done_before = false;
  }
  q.deps = std::move(deps);
  rank.requests.push_back(std::move(q));
  if (done_before && !rank.requests.back().query) {
    // The GPU may be ahead of a request only within what was already final.
    for (const Dep &d : rank.requests.back().deps) latest = std::max(latest, d.stream->free_at);
    answer(rank, rank.requests.size() - 1, 0, rank.requests.back().event ? completion(rank, rank.requests.back()) : latest, 0);
  }
}

}  // namespace phc
