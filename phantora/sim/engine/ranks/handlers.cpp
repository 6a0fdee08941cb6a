// Effects of each kind of record. phantora/wire/records.py has their meanings.
#include "ranks/ingest.h"

namespace phe {
namespace {

int32_t global(const std::vector<int32_t> &map, uint32_t local) { return local < map.size() ? map[local] : -1; }

void define(std::vector<int32_t> &map, uint32_t local, int32_t number) {
  if (map.size() <= local) map.resize(std::max<size_t>(local + 1, map.size() * 2), -1);
  map[local] = number;
}

// A helper thread that polls waits for nothing, so it changes nothing.
bool polls(const ph_record &r) {
  return (r.flags & PH_F_HELPER) && (r.kind == PH_STREAM_QUERY || r.kind == PH_EVENT_QUERY || r.kind == PH_EVENT_TIME);
}

// The text of `key` in a flat JSON object of ours, empty if it is not there.
std::string field(const std::string &json, const std::string &key) {
  size_t at = json.find("\"" + key + "\":\"");
  if (at == std::string::npos) return {};
  at += key.size() + 4;
  return json.substr(at, json.find('"', at) - at);
}

// As the log names it (trace/writer.py): a library call's JSON description by its name.
std::string shown(const std::string &name) {
  std::string library = name.empty() || name[0] != '{' ? "" : field(name, "lib");
  if (library.empty()) return name;
  std::string own = field(name, "name"), call = field(name, "call");
  return !own.empty() ? own : library + "::" + (call.empty() ? "kernel" : call);
}

}  // namespace

// ------------------------------------------------------------------ ranks and names
void Ingest::rank_exit(Rank &rank, const ph_record &r) {
  launches_.cut(rank);
  rank.exited = true;
  comparison_.ended(rank);
  rank.status = static_cast<int>(r.exit.status);
  waits_.return_memory(rank, r.time);
  device_peak_ = std::max(device_peak_, r.exit.device_peak);
}

void Ingest::define_name(Rank &rank, const ph_record &r) {
  Source &from = source(rank);
  define(from.names, r.id, texts_.name(from.blob));
}

void Ingest::define_signature(Rank &rank, const ph_record &r) {
  Source &from = source(rank);
  define(from.signatures, r.id, texts_.intern(PHE_SIGNATURES, from.blob));
}

// ------------------------------------------------------------------ the host
void Ingest::op_begin(Rank &rank, const ph_record &r) {
  launches_.begin_operator(rank, r, global(source(rank).signatures, r.id));
}

void Ingest::op_end(Rank &rank, const ph_record &r) {
  launches_.end_operator(rank, r, r.id ? global(source(rank).signatures, r.id) : -1);
}

void Ingest::span(Rank &rank, const ph_record &r) {
  ph_row_kind kind = r.kind == PH_ANNOTATION ? PH_ROW_ANNOTATION : PH_ROW_OPERATOR;
  ph_row row = RowLog::row(kind, rank.index, r.span.start, r.time);
  row.name = global(source(rank).names, r.id);
  row.stream = r.thread;
  row.flags = r.flags;
  row.id = rank.fresh_id();
  if (marks_.matter(rank) && row.name >= 0 && marks_.named(texts_.text(PHE_NAMES, row.name)))
    marks_.host_at(rank, r.time);
  if (r.flags & PH_F_GRAPH) rank.graph_row = row.id;
  rows_.host(row);
}

void Ingest::site(Rank &rank, const ph_record &r) { rank.site = global(source(rank).names, r.id); }

void Ingest::memory(Rank &rank, const ph_record &r) {
  int64_t block = source(rank).block;
  bool used = r.id == PH_MEM_USE;
  if (used && !block) return;  // of a block from before the log
  ph_row row = RowLog::row(PH_ROW_MEMORY, rank.index, r.time, r.time);
  row.sub = static_cast<uint8_t>(r.id);
  if (r.id == PH_MEM_SITE || used) row.name = global(source(rank).names, r.op);
  row.value = r.memory.allocated;
  row.bytes = r.memory.reserved;
  row.value2 = r.memory.change;
  if (r.id == PH_MEM_OOM) row.seq = r.memory.change;
  if (r.id == PH_MEM_FREE && r.op) row.seq = static_cast<int64_t>(r.op) * 1000;
  row.stream = r.thread;
  row.id = rank.fresh_id();
  if (block && (used || r.id == PH_MEM_FREE)) row.link = block;
  rows_.host(row);
}

// The row that allocates the block of an allocation or a free; it is known until the free.
int64_t Ingest::block_of(const Rank &rank, const ph_record &r) {
  auto &blocks = source(rank).blocks;
  if (r.id == PH_MEM_ALLOC) return blocks[r.memory.address] = rank.next_id();
  auto known = blocks.find(r.memory.address);
  if (known == blocks.end()) return 0;
  // A freed block keeps its place in the table: another one has the address soon.
  return r.id == PH_MEM_FREE ? std::exchange(known->second, 0) : known->second;
}

// ------------------------------------------------------------------ a profiler in the rank
void Ingest::correlate(Rank &rank, const ph_record &r) { rank.correlation = r.id; }

void Ingest::profile(Rank &rank, const ph_record &r) {
  auto &all = rank.activities;
  size_t count = std::min(all.size(), PH_REPLY_BYTES / sizeof(ph_activity));
  waits_.reply(rank, r, 0, r.time, static_cast<int64_t>(count), reinterpret_cast<const char *>(all.data()),
               count * sizeof(ph_activity));
  all.erase(all.begin(), all.begin() + static_cast<long>(count));
}

void Ingest::profile_name(Rank &rank, const ph_record &r) {
  std::string name = shown(texts_.text(PHE_NAMES, static_cast<int32_t>(r.id)));
  waits_.reply(rank, r, 0, r.time, static_cast<int64_t>(name.size()), name.data(),
               std::min<size_t>(name.size(), PH_REPLY_BYTES));
}

void Ingest::unsupported(Rank &rank, const ph_record &r) {
  ph_row row = RowLog::row(PH_ROW_ANNOTATION, rank.index, r.time, r.time);
  int32_t name = global(source(rank).names, r.id);
  row.name = texts_.name("unsupported: " + (name >= 0 ? texts_.text(PHE_NAMES, name) : std::string("?")));
  row.stream = r.thread;
  row.id = rank.fresh_id();
  rows_.host(row);
}

// ------------------------------------------------------------------ streams and events
void Ingest::stream_create(Rank &rank, const ph_record &r) {
  Stream &s = devices_.stream(rank, r.stream, static_cast<int>(r.stream_create.device));
  s.blocking = !(r.flags & PH_F_NONBLOCKING);
  s.priority = static_cast<int>(r.stream_create.priority);
  s.context->one_queue = r.stream_create.queues == 1;
}

void Ingest::stream_destroy(Rank &rank, const ph_record &r) {
  auto it = rank.streams.find(r.stream);
  if (it == rank.streams.end() || it->second->legacy) return;
  rank.retired.push_back(std::move(it->second));
  rank.streams.erase(it);
}

Item Ingest::item_of(Rank &rank, const ph_record &r, Item::Type type) {
  Item item;
  item.type = type;
  item.flags = r.flags;
  item.launch = r.time;
  item.id = rank.fresh_id();
  item.correlation = rank.correlation;
  if (r.flags & PH_F_GRAPH) item.link = rank.graph_row;
  return item;
}

void Ingest::timed(Rank &rank, const ph_record &r) {
  source(rank).measured = r.timed.duration;
  source(rank).delay = r.timed.delay;
  source(rank).crowd = r.timed.crowd;
}

// The times that a TIMED record gave. They hold what the GPU's other work cost it.
void Ingest::take_times(const Rank &rank, Item &item) {
  Source &from = source(rank);
  if (from.measured == UNTIMED) return;
  item.measured = from.measured;
  item.delay = from.delay;
  item.demand = 0;
  from.measured = UNTIMED;
}

void Ingest::event_record(Rank &rank, const ph_record &r) {
  Stream &s = devices_.stream(rank, r.stream);
  Item item = item_of(rank, r, Item::RECORD);
  item.event = r.id;
  item.name = names_.call(PH_EVENT_RECORD);
  int64_t id = item.id;
  s.device->enqueue(s, std::move(item));
  rank.events[r.id] = {s.all(), -1, id, true};
}

void Ingest::event_destroy(Rank &rank, const ph_record &r) { rank.events.erase(r.id); }

void Ingest::stream_wait(Rank &rank, const ph_record &r) {
  auto it = rank.events.find(r.id);
  if (it == rank.events.end() || !it->second.recorded) return;
  Stream &s = devices_.stream(rank, r.stream);
  Item item = item_of(rank, r, Item::WAIT);
  item.flags = static_cast<uint8_t>(r.flags & ~PH_F_HELPER);
  item.link = it->second.id;
  if (it->second.dep.stream != &s) item.dep = it->second.dep;
  s.device->enqueue(s, std::move(item));
}

void Ingest::host_func(Rank &rank, const ph_record &r) {
  Item item = item_of(rank, r, Item::HOSTFUNC);
  item.flags = 0;
  item.work = static_cast<double>(r.host_func.duration);
  item.name = names_.call(PH_HOST_FUNC);
  Stream &s = devices_.stream(rank, r.stream);
  s.device->enqueue(s, std::move(item));
}

// ------------------------------------------------------------------ kernels and copies
void Ingest::kernel(Rank &rank, const ph_record &r) {
  Stream &s = devices_.stream(rank, r.stream);
  bool library = r.flags & PH_F_LIBRARY;
  Item item = item_of(rank, r, Item::KERNEL);
  item.name = global(source(rank).names, r.id);
  item.priced = false;
  item.demand = library ? 1.0f : devices_.model(rank).demand(r.kernel);
  take_times(rank, item);
  launches_.attribute(rank, r.op, item);
  const ph_kernel_fields &k = r.kernel;
  phe_price_kernel launch{item.name, library,   static_cast<int32_t>(k.grid_x),
                          k.grid_y,  k.grid_z,  k.block_x,
                          k.block_y, k.block_z, k.shared_bytes};
  s.device->enqueue(s, std::move(item));
  launches_.kernel(rank, r.op, s, launch);
}

void Ingest::memcpy(Rank &rank, const ph_record &r) {
  Item item = item_of(rank, r, Item::COPY);
  item.sub = static_cast<uint8_t>(r.id);
  item.peer = r.copy.peer;
  item.name = names_.copy(item.sub);
  copy(rank, r, std::move(item), r.id, r.copy.bytes);
}

void Ingest::memset(Rank &rank, const ph_record &r) {
  Item item = item_of(rank, r, Item::MEMSET);
  item.name = names_.fill();
  copy(rank, r, std::move(item), r.id, r.fill.bytes);
}

void Ingest::copy(Rank &rank, const ph_record &r, Item item, uint32_t sub, uint64_t bytes) {
  Stream &s = devices_.stream(rank, r.stream);
  phe_price_kind kind = item.type == Item::COPY
  ? PHE_COPY : PHE_MEMSET;
  item.bytes = static_cast<int64_t>(bytes);
  item.demand = devices_.model(rank).demand(bytes);
  take_times(rank, item);
  item.priced = false;
  launches_.attribute(rank, r.op, item);
  bool waits = r.slot != PH_NO_SLOT;
  if (waits) launches_.cut(rank);
  s.device->enqueue(s, std::move(item));
  launches_.copy(s, kind, sub, bytes);
  if (waits) waits_.request(rank, r, {s.all()}, s.last_id);
}

// ------------------------------------------------------------------ requests
// The legacy stream's work includes what blocking streams owe it, done or not: how far the GPU has been followed is
// chance.
std::vector<Dep> Ingest::all_of_stream(const Rank &rank, Stream &s) {
  std::vector<Dep> deps{s.all()};
  if (!s.legacy) return deps;
  for (auto &[id, other] : rank.streams)
    if (other.get() != &s && other->device == s.device && other->blocking && other->enqueued)
      deps.push_back(other->all());
  return deps;
}

void Ingest::stream_request(Rank &rank, const ph_record &r) {
  if (!polls(r)) launches_.cut(rank);
  Stream &s = devices_.stream(rank, r.stream);
  waits_.request(rank, r, all_of_stream(rank, s), s.last_id);
}

void Ingest::device_sync(Rank &rank, const ph_record &r) {
  launches_.cut(rank);
  Device &device = devices_.of(rank, static_cast<int>(r.device_sync.device));
  std::vector<Dep> deps;
  for (Stream *s : device.busy())
    if (&s->context->rank == &rank) deps.push_back(s->all());
  waits_.request(rank, r, std::move(deps), -1, &device);
}

void Ingest::event_request(Rank &rank, const ph_record &r) {
  if (!polls(r)) launches_.cut(rank);
  auto it = rank.events.find(r.id);
  if (it == rank.events.end() || !it->second.recorded) return waits_.reply(rank, r, 0, r.time, 0);
  const Event &event = it->second;
  int64_t latest = r.kind == PH_EVENT_TIME ? std::max(r.time, rank.host) : r.time;
  bool polls = r.kind != PH_EVENT_SYNC;  // a wait has its row, whether or not its GPU has been followed so far
  if (polls && event.done >= 0 && event.done <= latest) return waits_.reply(rank, r, 0, event.done, 1);
  waits_.request(rank, r, {event.dep}, event.id);
}

void Ingest::room(Rank &rank, const ph_record &r) { waits_.request_room(rank, r); }

void Ingest::meter(Rank &rank, const ph_record &r) {
  if (!(r.flags & PH_F_HELPER)) launches_.cut(rank);
  waits_.request_meter(rank, r);
}

// ------------------------------------------------------------------ GPUs that processes share
void Ingest::home(Rank &rank, const ph_record &r) { devices_.home(rank, static_cast<int>(r.id)); }

void Ingest::share(Rank &rank, const ph_record &r) {
  if (!(r.flags & PH_F_HELPER) && r.slot != PH_NO_SLOT) launches_.cut(rank);
  waits_.share_memory(rank, r);
}

// ------------------------------------------------------------------ communication
void Ingest::comm_create(Rank &rank, const ph_record &r) { communication_.create(rank, r, source(rank).blob); }
void Ingest::comm_destroy(Rank &rank, const ph_record &r) { communication_.destroy(rank, r.id); }
void Ingest::comm_abort(Rank &rank, const ph_record &r) { communication_.abort(rank, r.id, r.time); }
void Ingest::exchange(Rank &rank, const ph_record &r) { payloads_.exchange(rank, r, std::move(source(rank).blob)); }

void Ingest::payload(Rank &rank, const ph_record &r) {
  if (r.slot == PH_NO_SLOT)
    payloads_.forget(rank, r.payload.ticket);
  else
    payloads_.ask(rank, r);
}

void Ingest::group_begin(Rank &rank, const ph_record &r) {
  groups_[static_cast<size_t>(rank.index)] = std::make_shared<Launch>();
  source(rank).group_left = static_cast<int64_t>(r.group.records);
}

void Ingest::communicate(Rank &rank, const ph_record &r) {
  Source &from = source(rank);
  std::shared_ptr<Launch> &group = groups_[static_cast<size_t>(rank.index)];
  std::shared_ptr<Launch> launch = group ? group : std::make_shared<Launch>();
  launch->measured = from.measured;
  launch->crowd = from.crowd;
  if (r.kind == PH_COLLECTIVE)
    communication_.join_collective(rank, r, std::move(from.blob), launch);
  else if (r.kind == PH_PEER_COPY)
    communication_.join_copy(rank, r, launch);
  else if (r.kind == PH_PUT_SIGNAL || r.kind == PH_WAIT_SIGNAL)
    communication_.join_signal(rank, r, launch);
  else
    communication_.join_transfer(rank, r, std::move(from.blob), launch);
  if (!failure_.none() || (group && --from.group_left > 0)) return;
  group.reset();
  Stream &s = devices_.stream(rank, r.stream);
  Item item = item_of(rank, r, Item::COMM);
  take_times(rank, item);
  launch->context = s.context;
  launch->id = item.id;
  launches_.attribute(rank, r.op, item);
  item.comm = std::move(launch);
  s.device->enqueue(s, std::move(item));
}

}  // namespace phe
