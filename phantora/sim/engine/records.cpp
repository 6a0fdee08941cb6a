// Consuming a rank's records.
#include "state.h"

namespace phc {

bool Core::consume(Rank &rank) {
  if (rank.exited && rank.died) return false;
  int64_t clock = load(&rank.control->clock);
  uint64_t head = load(&rank.control->head);
  if (head == rank.tail) {
    if (rank.started && clock > rank.host) {
      rank.host = clock;
      news = true;
      for (auto &g : rank.gpus) g->dirty = true;
    }
    return false;
  }
  news = true;
  uint64_t begin = rank.tail, end = std::min(head, rank.tail + MAX_PASS);
  bool moved = false;
  for (; rank.tail != end && error.empty(); ++rank.tail) {
    ph_record record = rank.ring[rank.tail & (PH_RING_RECORDS - 1)];
    if (rank.player && !play(rank, record)) break;
    moved = moved || !(record.flags & PH_F_HELPER);
    if (record.kind != PH_MOVED) take(rank, record);
  }
  if (rank.tail == begin) return false;
  store(&rank.control->tail, rank.tail);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);  // the rank sets its flag, then looks at the tail
  if (load(&rank.control->producer_waiting)) {
    __atomic_fetch_add(&rank.control->tail_futex, 1, __ATOMIC_SEQ_CST);
    futex(&rank.control->tail_futex, FUTEX_WAKE, 1, nullptr);
  }
  if (end == head && clock > rank.host) rank.host = clock;
  for (auto &g : rank.gpus) g->dirty = true;
  return moved;
}

int32_t Core::global(const std::vector<int32_t> &map, uint32_t local) {
  return local < map.size() ? map[local] : -1;
}

// A helper thread that looks in passing waits for nothing, so it changes nothing.
static bool polls(const ph_record &r) {
  return (r.flags & PH_F_HELPER) && (r.kind == PH_STREAM_QUERY || r.kind == PH_EVENT_QUERY || r.kind == PH_EVENT_TIME);
}

void Core::take(Rank &rank, const ph_record &r) {
  ++records;
  if (r.kind == PH_BLOB) {
    if (rank.recorder) remember(rank, r);
    rank.blob.append(reinterpret_cast<const char *>(&r) + 8, std::min<uint32_t>(r.id, PH_BLOB_BYTES));
    return;
  }
  if (r.time > rank.host && !(r.flags & PH_F_HELPER)) rank.host = r.time;
  if (rank.nap.since >= 0 && r.time >= rank.nap.until && !(r.flags & PH_F_HELPER)) wake(rank, r);
  if (rank.recorder) remember(rank, r);
  switch (r.kind) {
    case PH_RANK_START:
      rank.started = true;
      break;
    case PH_RANK_EXIT:
      close_pieces(rank);
      rank.exited = true;
      rank.status = static_cast<int>(r.a);
      device_peak = std::max(device_peak, static_cast<int64_t>(r.b));
      break;
    case PH_DEFINE_NAME:
      at(rank.names, r.id, -1) = intern(NAMES, rank.blob);
      break;
    case PH_DEFINE_SIGNATURE:
      at(rank.signatures, r.id, -1) = intern(SIGNATURES, rank.blob);
      break;
    case PH_OP_BEGIN: {
      OpenOp &op = rank.ops[r.op];
      op.instance = r.op;
      op.sig = global(rank.signatures, r.id);
      op.start = static_cast<int64_t>(r.a);
      op.row = ++rank.next_id;
      op.flags = r.flags;
      op.thread = r.thread;
      break;
    }
    case PH_OP_END: {
      auto it = rank.ops.find(r.op);
      if (it == rank.ops.end()) break;
      close_piece(it->second);
      ph_row o = row(PH_ROW_OPERATOR, rank, it->second.start, r.time);
      o.sig = it->second.sig;
      o.flags = it->second.flags;
      o.stream = it->second.thread;
      o.id = it->second.row;
      emit(rank.host_rows, o);
      rank.ops.erase(it);
      break;
    }
    case PH_ANNOTATION:
    case PH_HOST_SPAN: {
      ph_row o = row(r.kind == PH_ANNOTATION ? PH_ROW_ANNOTATION : PH_ROW_OPERATOR, rank, static_cast<int64_t>(r.a), r.time);
      o.name = global(rank.names, r.id);
      o.stream = r.thread;
      o.flags = r.flags;
      o.id = ++rank.next_id;
      if (rank.index == 0 && o.name >= 0 && texts[NAMES][o.name].compare(0, 15, "Optimizer.step#") == 0) step_ended(r.time);
      emit(rank.host_rows, o);
      break;
    }
    case PH_STREAM_CREATE: {
      Stream *s = stream_of(rank, r.stream, static_cast<int>(r.b));
      s->blocking = !(r.flags & PH_F_NONBLOCKING);
      s->priority = static_cast<int>(static_cast<int64_t>(r.a));
      break;
    }
    case PH_STREAM_DESTROY: {
      auto it = rank.streams.find(r.stream);
      if (it != rank.streams.end() && !it->second->legacy) {  // work in it goes on
        rank.retired.push_back(std::move(it->second));
        rank.streams.erase(it);
      }
      break;
    }
    case PH_KERNEL: {
      Stream *s = stream_of(rank, r.stream);
      Item item;
      item.launch = r.time;
      item.flags = r.flags;
      item.name = global(rank.names, r.id);
      item.priced = false;
      item.demand = r.flags & PH_F_LIBRARY ? 1.0f : demand_of(r.a, r.b);
      item.id = ++rank.next_id;
      phc_price_kernel k{item.name, r.flags & PH_F_LIBRARY ? 1 : 0, r.a, r.b, r.c};
      auto op = r.op ? rank.ops.find(r.op) : rank.ops.end();
      if (op != rank.ops.end()) {
        item.link = op->second.row;
        item.sig = op->second.sig;
      }
      enqueue(rank, s, std::move(item));
      if (op != rank.ops.end()) {
        launches[{s, s->enqueued}] = k;
        op->second.kernels.emplace_back(s, s->enqueued);
      } else {
        std::string key;
        put<uint8_t>(key, PHC_KERNEL);
        put(key, k);
        want(s, s->enqueued, price_of(key, [&](Price &p) {
               p.request.kind = PHC_KERNEL;
               p.request.kernels = 1;
               p.kernels.push_back(k);
             }), 0);
      }
      break;
    }
    case PH_MEMCPY:
    case PH_MEMSET: {
      bool copy = r.kind == PH_MEMCPY;
      Stream *s = stream_of(rank, r.stream);
      Item item;
      item.type = copy ? COPY : MEMSET;
      item.sub = copy ? static_cast<uint8_t>(r.id) : 0;
      item.flags = r.flags;
      item.launch = r.time;
      item.bytes = static_cast<int64_t>(r.a);
      item.peer = copy ? static_cast<int64_t>(r.b) : -1;
      item.demand = static_cast<float>(std::min(1.0, static_cast<double>(r.a) / (4 << 20)));
      item.name = copy ? copy_name(item.sub) : memset_name();
      item.priced = false;
      item.id = ++rank.next_id;
      auto op = r.op ? rank.ops.find(r.op) : rank.ops.end();
      if (op != rank.ops.end()) {
        item.link = op->second.row;
        item.sig = op->second.sig;
      }
      if (r.slot != PH_NO_SLOT) close_pieces(rank);
      enqueue(rank, s, std::move(item));
      std::string key;
      put<uint8_t>(key, copy ? PHC_COPY : PHC_MEMSET);
      put(key, r.id);
      put(key, r.a);
      want(s, s->enqueued, price_of(key, [&](Price &p) {
             p.request.kind = copy ? PHC_COPY : PHC_MEMSET;
             p.request.sub = static_cast<int32_t>(r.id);
             p.request.bytes = static_cast<int64_t>(r.a);
           }), 0);
      if (r.slot != PH_NO_SLOT) request(rank, r, {{s, s->enqueued}}, s->last_id);
      break;
    }
    case PH_EVENT_RECORD: {
      Stream *s = stream_of(rank, r.stream);
      Item item;
      item.type = RECORD;
      item.flags = r.flags;
      item.launch = r.time;
      item.event = r.id;
      item.name = api_names[PH_EVENT_RECORD];
      item.id = ++rank.next_id;
      int64_t id = item.id;
      enqueue(rank, s, std::move(item));
      Event &e = rank.events[r.id];
      e.dep = {s, s->enqueued};
      e.done = -1;
      e.id = id;
      e.recorded = true;
      break;
    }
    case PH_EVENT_DESTROY:
      rank.events.erase(r.id);
      break;
    case PH_STREAM_WAIT: {
      auto it = rank.events.find(r.id);
      if (it == rank.events.end() || !it->second.recorded) break;
      Stream *s = stream_of(rank, r.stream);
      Item item;
      item.type = WAIT;
      item.flags = r.flags & ~PH_F_HELPER;
      item.launch = r.time;
      item.name = api_names[PH_STREAM_WAIT];
      item.id = ++rank.next_id;
      item.link = it->second.id;
      if (it->second.dep.stream != s) item.dep = it->second.dep;
      enqueue(rank, s, std::move(item));
      break;
    }
    case PH_HOST_FUNC: {
      Item item;
      item.type = HOSTFUNC;
      item.launch = r.time;
      item.work = static_cast<double>(r.a);
      item.name = api_names[PH_HOST_FUNC];
      item.id = ++rank.next_id;
      enqueue(rank, stream_of(rank, r.stream), std::move(item));
      break;
    }
    case PH_STREAM_SYNC:
    case PH_STREAM_QUERY: {
      if (!polls(r)) close_pieces(rank);
      Stream *s = stream_of(rank, r.stream);
      std::vector<Dep> deps{{s, s->enqueued}};
      if (s->legacy)  // the legacy stream's work includes what blocking streams owe it
        for (auto &[id, other] : rank.streams)
          if (other->gpu == s->gpu && other->blocking && !other->queue.empty()) deps.push_back({other.get(), other->enqueued});
      request(rank, r, std::move(deps), s->last_id);
      break;
    }
    case PH_DEVICE_SYNC: {
      close_pieces(rank);
      Gpu *gpu = gpu_of(rank, static_cast<int>(r.a));
      std::vector<Dep> deps;
      for (Stream *s : gpu->busy) deps.push_back({s, s->enqueued});
      request(rank, r, std::move(deps), -1, gpu);
      break;
    }
    case PH_ROOM:
      wait_for_room(rank, r);
      break;
    case PH_EVENT_SYNC:
    case PH_EVENT_QUERY:
    case PH_EVENT_TIME: {
      if (!polls(r)) close_pieces(rank);
      auto it = rank.events.find(r.id);
      if (it == rank.events.end() || !it->second.recorded) {
        reply(rank, r, 0, r.time, 0, nullptr, 0);
        break;
      }
      if (r.kind == PH_EVENT_TIME || (it->second.done >= 0 && it->second.done <= r.time)) {
        bool known = it->second.done >= 0 && it->second.done <= std::max(r.time, rank.host);
        if (known || r.kind != PH_EVENT_TIME) {
          reply(rank, r, 0, it->second.done, 1, nullptr, 0);
          break;
        }
      }
      request(rank, r, {it->second.dep}, it->second.id);
      break;
    }
    case PH_COMM_CREATE:
      create_comm(rank, r);
      break;
    case PH_COMM_DESTROY:
      rank.comms.erase(r.id);
      break;
    case PH_EXCHANGE:
      exchange(rank, r);
      return;
    case PH_GROUP_BEGIN:
      rank.group = std::make_shared<Launch>();
      rank.group_left = static_cast<int>(r.a);
      rank.blob.clear();
      return;
    case PH_COLLECTIVE:
    case PH_SEND:
    case PH_RECV: {
      std::shared_ptr<Launch> launch = rank.group ? rank.group : std::make_shared<Launch>();
      if (r.kind == PH_COLLECTIVE)
        join_collective(rank, r, launch);
      else
        join_pair(rank, r, launch);
      if (!error.empty()) return;
      if (rank.group && --rank.group_left > 0) return;
      rank.group.reset();
      Stream *s = stream_of(rank, r.stream);
      launch->gpu = s->gpu;
      launch->id = rank.next_id + 1;
      Item item;
      item.type = COMM;
      item.flags = r.flags;
      item.launch = r.time;
      item.id = ++rank.next_id;
      auto op = r.op ? rank.ops.find(r.op) : rank.ops.end();
      if (op != rank.ops.end()) item.link = op->second.row;
      item.comm = launch;
      enqueue(rank, s, std::move(item));
      break;
    }
    case PH_PAYLOAD:
      if (r.slot == PH_NO_SLOT) {
        if (!rank.payloads.erase(r.a)) rank.unwanted.insert(r.a);
      } else if (!serve_payload(rank, r)) {
        Request q;
        q.record = r;
        q.data = true;
        rank.requests.push_back(std::move(q));
      }
      break;
    case PH_MEMORY: {
      ph_row o = row(PH_ROW_MEMORY, rank, r.time, r.time);
      o.sub = static_cast<uint8_t>(r.id);
      o.value = static_cast<int64_t>(r.a);
      o.bytes = static_cast<int64_t>(r.b);
      o.value2 = static_cast<int64_t>(r.c);
      o.stream = r.thread;
      o.id = ++rank.next_id;
      if (r.id == PH_MEM_ALLOC) {
        rank.blocks[r.d] = o.id;
      } else if (r.id == PH_MEM_FREE) {
        auto block = rank.blocks.find(r.d);
        if (block != rank.blocks.end()) {
          o.link = block->second;
          rank.blocks.erase(block);
        }
      }
      emit(rank.host_rows, o);
      break;
    }
    case PH_UNSUPPORTED: {
      ph_row o = row(PH_ROW_ANNOTATION, rank, r.time, r.time);
      int32_t name = global(rank.names, r.id);
      o.name = intern(NAMES, "unsupported: " + (name >= 0 ? texts[NAMES][name] : std::string("?")));
      o.stream = r.thread;
      o.id = ++rank.next_id;
      emit(rank.host_rows, o);
      break;
    }
    default:
      break;
  }
  rank.blob.clear();
}

int32_t Core::copy_name(uint8_t sub) {
  static const char *names[] = {"Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)",
                                "Memcpy DtoH (Device -> Pageable)", "Memcpy DtoD (Device -> Device)", "Memcpy PtoP (Device -> Device)", "Memcpy HtoH"};
  return intern(NAMES, names[std::min<int>(sub, 6)]);
}

int32_t Core::memset_name() { return intern(NAMES, "Memset (Device)"); }

}  // namespace phc
