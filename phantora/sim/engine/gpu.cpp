// One GPU: its streams, what is admitted when, and how kernels share the SMs.
#include "state.h"

#include <math.h>

namespace phc {

// ns from the end of what it waits for to the start of a communication kernel: 1.4 to 2 in traces of DDP on 4 H200, where 33 of
// 38 all-reduces start at the end of the elementwise kernel that the other stream had queued.
constexpr int64_t COMMUNICATION_STARTS = 2000;

Gpu *Core::gpu_of(Rank &rank, int device) {
  while (static_cast<int>(rank.gpus.size()) <= device) {
    auto gpu = std::make_unique<Gpu>();
    gpu->rank = &rank;
    gpu->device = static_cast<int>(rank.gpus.size());
    gpus.push_back(gpu.get());
    rank.gpus.push_back(std::move(gpu));
  }
  return rank.gpus[device].get();
}

Stream *Core::stream_of(Rank &rank, uint32_t id, int device) {
  auto it = rank.streams.find(id);
  if (it != rank.streams.end()) return it->second.get();
  auto s = std::make_unique<Stream>();
  s->id = id;
  s->legacy = device < 0;  // ids below the number of devices are the legacy default streams
  s->gpu = gpu_of(rank, device < 0 ? static_cast<int>(id) : device);
  if (s->legacy) s->gpu->default_stream = s.get();
  return (rank.streams[id] = std::move(s)).get();
}

void Core::enqueue_wait(Stream *s, Dep dep, int64_t launch) {
  if (!dep.stream || dep.stream == s || dep.stream->completed >= dep.seq) return;
  Item item;
  item.type = WAIT;
  item.id = -1;
  item.name = api_names[PH_STREAM_WAIT];
  item.link = dep.stream->last_id;
  item.launch = item.ready = launch;
  item.dep = dep;
  push(s, std::move(item));
}

Item &Core::push(Stream *s, Item &&item) {
  if (s->queue.empty()) s->gpu->busy.push_back(s);
  ++s->enqueued;
  if (item.id > 0) s->last_id = item.id;
  item.priority = s->priority;
  s->gpu->dirty = true;
  s->queue.push_back(std::move(item));
  return s->queue.back();
}

// Appends work to a stream, with the ordering of the legacy default stream.
Item &Core::enqueue(Rank &rank, Stream *s, Item &&item) {
  Gpu *gpu = s->gpu;
  if (item.launch < gpu->now) {
    ++late;
    item.launch = gpu->now;
  }
  item.ready = item.launch + (item.type == KERNEL || item.type == COMM || item.type == COPY || item.type == MEMSET ? launch_latency : 0);
  if (s->legacy) {
    for (auto &[id, other] : rank.streams)
      if (other.get() != s && other->gpu == gpu && other->blocking && !other->queue.empty())
        enqueue_wait(s, {other.get(), other->enqueued}, item.launch);
  } else if (s->blocking && gpu->default_stream && !gpu->default_stream->queue.empty()) {
    enqueue_wait(s, {gpu->default_stream, gpu->default_stream->enqueued}, item.launch);
  }
  return push(s, std::move(item));
}

float Core::demand_of(uint64_t grid, uint64_t block) const {
  const ph_device &d = header->device;
  double blocks = static_cast<double>(grid & 0xffffffff) * ((grid >> 32) & 0xffff) * (grid >> 48);
  int threads = std::max<int>(1, static_cast<int>((block & 0xffff) * ((block >> 16) & 0xffff) * ((block >> 32) & 0xffff)));
  int per_sm = std::max(1, std::min(d.max_blocks_per_sm ? d.max_blocks_per_sm : 32, (d.max_threads_per_sm ? d.max_threads_per_sm : 2048) / threads));
  double capacity = static_cast<double>(std::max(1, d.sms)) * per_sm;
  return static_cast<float>(std::min(1.0, std::max(blocks, 1.0) / capacity));
}

int64_t Core::host_limit(const Rank &rank) const {
  if (!rank.started) return rank.exited ? NEVER : 0;
  int64_t limit = NEVER;
  if (rank.exited || rank.asleep) return limit;
  bool blocked = false;
  for (const Request &q : rank.requests) {
    if (q.record.flags & PH_F_HELPER) continue;
    blocked = true;
    if (q.query) limit = std::min(limit, q.record.time);
    if (q.data && !q.deps.size()) limit = std::min(limit, q.record.time);
  }
  return blocked ? limit : rank.host;
}

void Core::update_rates(Gpu &gpu) {
  Item *running[64];
  int n = 0;
  for (Stream *s : gpu.busy) {
    Item &item = s->queue.front();
    if (!item.running || (item.type != KERNEL && item.type != COPY && item.type != MEMSET)) continue;
    if (item.rate > 0) item.work = std::max(0.0, item.work - static_cast<double>(gpu.now - item.updated) * item.rate);
    item.updated = gpu.now;
    if (n < 64) running[n++] = &item;
  }
  // Streams of one GPU are few: insertion sort by (priority, admission).
  for (int i = 1; i < n; ++i)
    for (int j = i; j > 0 && before(*running[j], *running[j - 1]); --j) std::swap(running[j], running[j - 1]);
  double free_share = 1.0;
  int engines[8] = {0};
  bool first = std::any_of(gpu.busy.begin(), gpu.busy.end(), [](const Stream *s) {
    const Item &item = s->queue.front();
    return item.running && item.type == COMM && item.first;
  });
  for (int i = 0; i < n; ++i) {
    Item &item = *running[i];
    double rate;
    if (item.type == COPY && item.sub != PH_COPY_D2D) {  // copy engines: one per direction
      int engine = item.sub <= PH_COPY_H2D_PAGEABLE ? 0 : item.sub <= PH_COPY_D2H_PAGEABLE ? 1 : 2;
      rate = engines[engine]++ ? 0.0 : 1.0;
    } else {
      double want_share = std::max(1e-6f, item.demand);
      double share = std::min(want_share, free_share);
      rate = share < 1e-9 ? 0.0 : share / want_share;
      free_share = std::max(0.0, free_share - share);
      if (gpu.nccl > 0) rate /= first ? item.nature.after : item.nature.company;
    }
    item.rate = rate;
    if (rate > 0 && !item.begun) {
      item.begun = true;
      item.start = gpu.now;
    }
  }
  draw(gpu);
  if (gpu.nccl > 0) take_pace(gpu);
}

bool Core::before(const Item &a, const Item &b) {
  return a.priority != b.priority ? a.priority < b.priority : a.admitted < b.admitted;
}

void Core::run(Gpu &gpu) {
  gpu.dirty = false;
  for (;;) {
    int64_t limit = host_limit(*gpu.rank);
    Stream *best = nullptr;
    int64_t when = next_local(gpu, &best);
    if (gpu.hold != NEVER) limit = std::min(limit, gpu.hold - 1);
    if (gpu.comm_end != NEVER) limit = std::min(limit, gpu.comm_end - 1);
    if (!best || when > limit) {
      if (limit != NEVER && limit > gpu.now) gpu.now = limit;
      break;
    }
    happen(gpu, *best, when);
  }
  if (!gpu.rank->requests.empty()) check_requests(*gpu.rank);
}

static bool fills(const Item &item) { return item.type == KERNEL && item.demand >= 1; }
static bool product(const Item &item) { return fills(item) && item.flags & PH_F_LIBRARY; }

// ns until the last of the kernels that run and fill the GPU has ended.
static double full(const Gpu &gpu, bool (*counts)(const Item &)) {
  double longest = 0;
  for (const Stream *s : gpu.busy) {
    const Item &item = s->queue.front();
    if (!item.running || item.rate <= 0 || !counts(item)) continue;
    longest = std::max(longest, item.work / item.rate - static_cast<double>(gpu.now - item.updated));
  }
  return longest;
}

// And of one that starts sooner than a communication kernel does that has only now what it waited for. Products do not:
// they begin with a memset.
static double soon_full(const Gpu &gpu) {
  double longest = 0;
  for (const Stream *s : gpu.busy) {
    const Item &item = s->queue.front();
    if (item.running || !item.priced || !fills(item) || product(item)) continue;
    if (item.dep.stream && item.dep.stream->completed < item.dep.seq) continue;
    int64_t start = std::max(s->free_at + s->gap, item.ready);
    if (start <= gpu.now + COMMUNICATION_STARTS) longest = std::max(longest, static_cast<double>(start - gpu.now) + item.work);
  }
  return longest;
}

// A communication kernel of ordinary priority comes after all blocks of the kernels that run: those that fill the GPU
// leave no room before their end. Sets the moment from which there is some.
bool Core::await_room(Gpu &gpu, Item &item) {
  if (item.waited || item.priority < 0) return false;
  item.waited = true;
  double longest = std::max(full(gpu, fills), soon_full(gpu));
  if (longest < 1) return false;
  item.ready = gpu.now + static_cast<int64_t>(longest);
  return true;
}

// What next_local() found.
void Core::happen(Gpu &gpu, Stream &s, int64_t when) {
  progressed = true;
  gpu.now = when;
  feel(gpu);
  Item &item = s.queue.front();
  if (item.running || item.type == RECORD || item.type == WAIT || item.type == STEP)
    complete(gpu, s);
  else if (item.type != COMM || !await_room(gpu, item))
    admit(gpu, s);
}

// Does a gap part it from the like before it on its stream? The times of collectives hold their own.
static bool spaced(const Item &item) { return item.type == KERNEL || item.type == COPY || item.type == MEMSET; }

// The earliest moment at which something happens on this GPU by what is known.
int64_t Core::next_local(Gpu &gpu, Stream **which) {
  Stream *best = nullptr;
  int64_t when = NEVER;
  int rank_of_best = 0;
  gpu.hold = gpu.comm_end = NEVER;
  for (Stream *s : gpu.busy) {
    Item &item = s->queue.front();
    int64_t t = NEVER;
    int order = 1;  // completions before admissions at equal times
    if (item.running) {
      order = 0;
      if (item.type == COMM) {
        if (item.comm->end < 0) {
          gpu.comm_end = std::min(gpu.comm_end, item.comm->least_end);
          continue;
        }
        t = item.comm->end;
      } else if (item.type == HOSTFUNC) {
        t = item.start + static_cast<int64_t>(item.work);
      } else if (item.rate > 0) {
        t = item.updated + static_cast<int64_t>(ceil(item.work / item.rate - 1e-6));
      }
      if (t < gpu.now) t = gpu.now;
    } else {
      if (item.dep.stream && item.dep.stream->completed < item.dep.seq) continue;
      t = std::max(std::max(s->free_at + (spaced(item) ? s->gap : 0), item.ready), gpu.now);
      if (!item.priced) {
        gpu.hold = std::min(gpu.hold, t);
        continue;
      }
    }
    // At equal times the order is that of the program, not that in which streams came to be busy.
    bool earlier = t < when;
    if (t == when && best) {
      int64_t other = best->queue.front().id;
      earlier = order != rank_of_best ? order < rank_of_best : item.id != other ? item.id < other : s->id < best->id;
    }
    if (earlier) {
      when = t;
      best = s;
      rank_of_best = order;
    }
  }
  if (which) *which = when == NEVER ? nullptr : best;
  return when;
}

void Core::admit(Gpu &gpu, Stream &s) {
  Item &item = s.queue.front();
  item.running = true;
  item.start = item.updated = gpu.now;
  item.admitted = ++gpu.admissions;
  if (item.type == COMM) {
    item.first = full(gpu, product) < 1;
    ++gpu.nccl;
    gpu.rank->talking = &gpu;
    update_rates(gpu);
    arrive(*item.comm, gpu.now);
  } else if (item.type != HOSTFUNC) {
    ++gpu.kernels;
    double clock = item.nature.bound > 0 ? gpu.clock : 1.0;
    if (clock < item.nature.clock) item.work *= 1.0 + item.nature.bound * (item.nature.clock / clock - 1.0);
    if (gpu.kernels == 1 && !gpu.nccl) {
      item.rate = 1.0;
      item.begun = true;
      gpu.dynamic = item.nature.dynamic;
      gpu.steady = item.nature.steady;
    } else {
      update_rates(gpu);
    }
  }
}

// The GPU takes longer to go on to a stream's next kernel while two other streams have work, even if that only waits.
int64_t Core::gap_after(const Gpu &gpu, const Stream &s) const {
  int others = 0;
  for (const Stream *other : gpu.busy) others += other != &s && other->queue.front().launch <= gpu.now;
  return others < 2 ? kernel_gap : crowded_gap;
}

void Core::complete(Gpu &gpu, Stream &s) {
  Rank &rank = *gpu.rank;
  Item item = std::move(s.queue.front());
  s.queue.pop_front();
  ++s.completed;
  int64_t reached = std::min(gpu.now, std::max(s.free_at, item.ready));
  s.free_at = gpu.now;
  if (item.id > 0) s.done_id = item.id;
  if (spaced(item)) s.gap = gap_after(gpu, s);
  if (item.type == COMM || item.type == HOSTFUNC || (item.type == WAIT && gpu.now > reached)) s.gap = 0;
  if (s.queue.empty()) gpu.busy.erase(std::find(gpu.busy.begin(), gpu.busy.end(), &s));
  ph_row r{};
  bool write = true;
  switch (item.type) {
    case KERNEL:
    case COPY:
    case MEMSET:
      --gpu.kernels;
      r = row(item.type == KERNEL ? PH_ROW_KERNEL : item.type == COPY ? PH_ROW_MEMCPY : PH_ROW_MEMSET, rank, item.start, gpu.now);
      r.sig = item.sig;
      update_rates(gpu);
      break;
    case COMM: {
      --gpu.nccl;
      forget_losses(gpu);
      update_rates(gpu);
      Launch &l = *item.comm;
      r = row(l.p2p ? PH_ROW_SENDRECV : PH_ROW_COLLECTIVE, rank, item.start, gpu.now);
      r.ready = l.ready;
      r.last_rank = l.last_rank;
      r.last_id = l.last_id;
      r.seq = l.seq;
      r.comm = l.comm;  // until take_rows
      item.name = l.name;
      item.price = l.price;
      item.bytes = l.bytes;
      r.value = l.peer;
      item.sub = l.sub;
      break;
    }
    case RECORD: {
      r = row(PH_ROW_RECORD, rank, gpu.now, gpu.now);
      auto it = rank.events.find(item.event);
      if (it != rank.events.end() && it->second.id == item.id) it->second.done = gpu.now;
      break;
    }
    case WAIT:
      write = item.id > 0 || gpu.now > reached;  // one that the default stream's rules imply, if it delayed anything
      r = row(PH_ROW_WAIT, rank, reached, gpu.now);
      break;
    case STEP:
      write = false;
      step_begins(item.part, gpu.now);
      break;
    case HOSTFUNC:
      r = row(PH_ROW_HOST_FUNC, rank, item.start, gpu.now);
      break;
  }
  if (write) {
    r.sub = item.sub;
    r.flags = item.flags;
    r.stream = static_cast<int32_t>(s.id);
    r.name = item.name;
    r.price = item.price;
    r.part = item.part;
    r.launch = item.launch;
    r.id = item.id;
    r.link = item.link;
    r.bytes = item.bytes;
    if (item.type == COPY) r.value = item.peer;
    emit(rank.gpu_rows, r);
  }
  if (!rank.requests.empty()) check_requests(rank);
}

}  // namespace phc
