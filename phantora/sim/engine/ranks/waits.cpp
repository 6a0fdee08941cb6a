#include "ranks/waits.h"

#include <string.h>

namespace phe {

void Waits::answer(Rank &rank, size_t place, int status, int64_t time, int64_t value) {
  Request q = std::move(rank.requests[place]);
  meters_ -= q.meters();
  rank.requests.erase(rank.requests.begin() + static_cast<long>(place));
  int64_t at = std::max(q.record.time, time);
  if (!q.helper()) {
    progress_.released = rank.index;
    rank.host = std::max(rank.host, std::max(at, rank.control->floor));
  }
  bool waited = q.record.kind != PH_ROOM || at > q.record.time;  // a launch that finds room is no wait
  if (!q.query && !q.data && !q.helper() && names_.call(q.record.kind) >= 0 && waited) {
    ph_row r = RowLog::row(PH_ROW_SYNC, rank.index, q.record.time, at);
    r.name = names_.call(q.record.kind);
    r.sub = q.record.kind;
    r.stream = q.record.thread;
    r.flags = q.record.flags;
    r.id = rank.fresh_id();
    r.link = released_by(rank, q);
    rows_.host(r);
  }
  reply(rank, q.record, status, q.query || q.record.kind == PH_EVENT_TIME ? time : at, value);
}

void Waits::reply(Rank &rank, const ph_record &record, int status, int64_t time, int64_t value, const char *data,
                  size_t length) {
  // A helper thread that polls moves nothing, however often it asks.
  if (!(record.flags & PH_F_HELPER)) progress_.moved = true;
  rank_table_.answered(rank, record, std::max(record.time, time));
  if (record.slot >= PH_REPLY_SLOTS || rank_table_.player(rank)) return;
  ph_reply &r = rank.replies[record.slot];
  r.status = status;
  r.time = time;
  r.value = value;
  r.length = length;
  if (length) memcpy(r.data, data, length);
  held_.push_back(&r);
  if (!holding_) let_go();
}

void Waits::let_go() {
  for (ph_reply *r : held_) {
    store<uint32_t>(&r->futex, 1);
    futex(&r->futex, FUTEX_WAKE, 1, nullptr);
  }
  progress_.to_relay |= !held_.empty();
  held_.clear();
  holding_ = false;
}

// True if the answer to this request is clear now.
bool Waits::answered_in_passing(Rank &rank, size_t place) {
  Request &q = rank.requests[place];
  if (q.data || ((q.meters() || q.shares()) && rank.failed < 0)) return false;
  if (rank.failed >= 0) {  // as every call does from then on
    answer(rank, place, -1, rank.failed, 0);
    return true;
  }
  Device *device = q.deps.empty() ? nullptr : q.deps[0].stream->device;
  bool ready = std::all_of(q.deps.begin(), q.deps.end(), Item::done);
  if (!q.query) {
    if (ready)
      answer(rank, place, 0, device ? device->now() : 0, 0);  // met this instant: completions are checked one by one
    return ready;
  }
  if (ready) {
    answer(rank, place, 0, completion(rank, q), 1);
    return true;
  }
  int64_t asked = q.record.time;
  if (!q.helper() && !(device && device->now() >= asked && device->next().time > asked)) return false;
  answer(rank, place, 1, -1, 0);
  return true;
}

void Waits::check(Rank &rank) {
  for (size_t place = 0; place < rank.requests.size();)
    if (!answered_in_passing(rank, place)) ++place;
}

// The row whose end let the host go on: of the streams it waited for, the one that was done last.
int64_t Waits::released_by(const Rank &rank, const Request &q) {
  if (!q.whole && q.deps.size() == 1) return q.link;
  const Stream *last = nullptr;
  auto poll = [&](const Stream *s) {
    if (s->done_id < 0) return;
    if (!last || s->free_at > last->free_at || (s->free_at == last->free_at && s->id < last->id)) last = s;
  };
  for (const Dep &d : q.deps) poll(d.stream);
  if (q.whole)
    for (auto &[id, s] : rank.streams)
      if (s->device == q.whole) poll(s.get());
  return last ? last->done_id : -1;
}

int64_t Waits::completion(const Rank &rank, const Request &q) {
  if (q.event) {
    auto it = rank.events.find(q.event);
    if (it != rank.events.end() && it->second.done >= 0) return it->second.done;
  }
  int64_t latest = 0;
  for (const Dep &d : q.deps) latest = std::max(latest, std::min(d.stream->free_at, q.record.time));
  return latest;
}

void Waits::request(Rank &rank, const ph_record &r, std::vector<Dep> deps, int64_t link, Device *whole) {
  Request q;
  q.record = r;
  q.link = link;
  q.whole = whole;
  q.query = r.kind == PH_STREAM_QUERY || r.kind == PH_EVENT_QUERY || r.kind == PH_EVENT_TIME;
  if (r.kind == PH_EVENT_QUERY || r.kind == PH_EVENT_TIME || r.kind == PH_EVENT_SYNC) q.event = r.id;
  // Work already done does not delay the host. Its GPU may be ahead of it only within what was already final.
  bool done = std::all_of(deps.begin(), deps.end(), Item::done);
  int64_t latest = 0;
  for (const Dep &d : deps) latest = std::max(latest, d.stream->free_at);
  q.deps = std::move(deps);
  if (done && q.event) latest = completion(rank, q);
  bool now = done && !q.query && rank.failed < 0;
  rank.requests.push_back(std::move(q));
  if (now) answer(rank, rank.requests.size() - 1, 0, latest, 0);
  if (rank.failed >= 0) check(rank);
}

// All long streams count, done or not: how far the GPU has been followed when the record comes is chance.
void Waits::request_room(Rank &rank, const ph_record &r) {
  const Device *device = devices_.stream(rank, r.stream).device;
  std::vector<Dep> deps;
  int64_t link = -1;
  for (auto &[id, s] : rank.streams) {
    if (s->device != device || s->commands <= r.room.depth) continue;
    deps.push_back({s.get(), s->command_before_last(r.room.depth)});
    if (const Item *item = s->at(deps.back().seq)) link = item->id;
  }
  request(rank, r, std::move(deps), link);
}

// A rank that is no process has the GPU of the one that asks.
Device &Waits::metered(Rank &asks, const ph_record &r) {
  Rank &named = rank_table_[static_cast<size_t>(r.meter.rank)];
  Rank &rank = named.control->folded ? asks : named;
  if (r.meter.device >= 0) return devices_.of(rank, static_cast<int>(r.meter.device));
  for (auto &context : rank.contexts)
    if (context->device.used()) return context->device;
  return devices_.of(rank, 0);
}

static int64_t reading(const Device &device, const ph_record &r) {
  Power::Reading now = device.power().at(r.time);
  return static_cast<int64_t>(1e3 * (r.id ? now.watts : now.joules) + 0.5);
}

void Waits::request_meter(Rank &rank, const ph_record &r) {
  if (r.flags & PH_F_HELPER) return reply(rank, r, 0, r.time, reading(metered(rank, r), r));
  Request q;
  q.record = r;
  q.query = true;
  rank.requests.push_back(std::move(q));
  ++meters_;
  if (rank.failed >= 0) check(rank);
}

void Waits::read_meter(Device &device, int64_t until) {
  if (!meters_) return;
  for (Rank &rank : rank_table_.ranks())
    for (size_t place = 0; place < rank.requests.size(); ++place) {
      const Request &q = rank.requests[place];
      if (!q.meters() || q.record.time > until || &metered(rank, q.record) != &device) continue;
      answer(rank, place--, 0, -1, reading(device, q.record));
    }
}

// ------------------------------------------------------------------ memory that processes share
void Waits::share_memory(Rank &rank, const ph_record &r) {
  SharedMemory &memory = memory_[rank.contexts[0]->device.index()];
  SharedMemory::Entry entry{&rank, r.share.bytes, false, r.slot != PH_NO_SLOT, r, r.time};
  if (r.flags & PH_F_HELPER) return answer_memory(memory, entry);  // of a thread whose place in time is not known
  memory.add(r.time, entry);
  if (!entry.asks) return;
  Request q;
  q.record = r;
  q.query = true;
  rank.requests.push_back(std::move(q));
  if (rank.failed >= 0) check(rank);
}

void Waits::return_memory(Rank &rank, int64_t time) {
  auto memory = rank.contexts.empty() ? memory_.end() : memory_.find(rank.contexts[0]->device.index());
  if (memory != memory_.end()) memory->second.add(time, {&rank, 0, true, false, {}, 0});
}

int64_t Waits::shared_peak() const {
  int64_t most = 0;
  for (const auto &[gpu, memory] : memory_) most = std::max(most, memory.peak());
  return most;
}

void Waits::settle_memory(Device &device) {
  auto memory = memory_.find(device.index());
  while (memory != memory_.end() && memory->second.ready(device.contexts()))
    answer_memory(memory->second, memory->second.next());
}

void Waits::answer_memory(SharedMemory &memory, const SharedMemory::Entry &entry) {
  auto capacity = static_cast<int64_t>(devices_.model(*entry.rank).gpu->memory_bytes);
  bool helper = entry.record.flags & PH_F_HELPER;
  // Another process may have given its memory back and then told this one to go on, by a message without a clock.
  if (int64_t later = entry.asks && !helper ? memory.room_at(entry, capacity) : -1; later >= 0)
    return memory.add(later + 1, entry);
  int status = !memory.apply(entry, capacity);
  if (!entry.asks) return;
  Rank &rank = *entry.rank;
  for (size_t place = 0; place < rank.requests.size(); ++place) {
    const Request &q = rank.requests[place];
    if (q.shares() && q.record.slot == entry.record.slot)
      return answer(rank, place, status, entry.time > q.record.time ? entry.time : -1, capacity - memory.used());
  }
  if (helper) reply(rank, entry.record, status, entry.record.time, capacity - memory.used());
}

bool Waits::give_room() {
  Rank *first = nullptr;
  size_t place = 0;
  for (Rank &rank : rank_table_.ranks())
    for (size_t i = 0; i < rank.requests.size(); ++i) {
      const ph_record &r = rank.requests[i].record;
      if (r.kind != PH_ROOM || (first && r.time >= first->requests[place].record.time)) continue;
      first = &rank;
      place = i;
    }
  if (first) answer(*first, place, 0, 0, 0);
  return first;
}

void Waits::host_wait(Rank &rank, const ph_record &record, int32_t name, int64_t start, int64_t end, int last_rank) {
  ph_row r = RowLog::row(PH_ROW_SYNC, rank.index, start, end);
  r.name = name;
  r.sub = record.kind;
  r.stream = record.thread;
  r.flags = record.flags;
  r.id = rank.fresh_id();
  r.last_rank = last_rank;
  rows_.host(r);
}

}  // namespace phe
