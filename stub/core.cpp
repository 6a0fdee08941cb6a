// The simulator's core: consumes the ranks' rings and places their work in virtual time.
//
// Each rank has one or more GPUs; a GPU has streams, a stream is a queue of items. A GPU advances
// event by event: an item is admitted when it heads its stream and its launch and dependencies are
// past, and completes when its work is done. Kernels share the GPU: each demands a part of the
// SMs, streams of higher priority and earlier admission go first, the rest waits; beside a NCCL
// kernel every class of kernels is slower by its factor. A GPU never passes the moment at which
// its host, or a missing peer of a collective that runs on it, could still change what happens
// (conservative advance; docs/virtual-time.md). Costs are asked from Python once per distinct
// piece of work and kept.
#include "core.h"

#include <errno.h>
#include <linux/futex.h>
#include <math.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "payload.h"

namespace {

constexpr int64_t NEVER = INT64_MAX;
constexpr int64_t ROWS_WANTED = 1 << 17;  // rows that make it worth calling Python
constexpr int64_t ONE_SLOT_BYTES = 8192;  // of NCCL's LL protocol, the one for small messages
constexpr int MAX_PASS = 4096;            // records of one rank consumed before the next has its turn

enum Table { NAMES, SIGNATURES };
enum ItemType : uint8_t { KERNEL, COPY, MEMSET, COMM, RECORD, WAIT, HOSTFUNC };

struct Gpu;
struct Rank;
struct Stream;
struct Launch;

struct Dep {
  Stream *stream = nullptr;  // nullptr: none
  uint64_t seq = 0;          // done when stream->completed >= seq
};

struct Item {
  ItemType type = KERNEL;
  uint8_t sub = 0, flags = 0;
  bool priced = true;
  bool running = false;
  bool begun = false;  // has had a rate above zero
  int32_t name = -1, sig = -1, price = -1, part = 0;
  uint32_t event = 0;
  int64_t launch = 0, ready = 0, start = 0, updated = 0;
  double work = 0, rate = 0;  // ns of work left, ns per ns
  float demand = 0;           // share of the SMs
  uint8_t cls = 0;
  int64_t id = 0, link = -1, bytes = 0, peer = -1;
  int priority = 0;       // of the stream; lower is served first
  uint64_t admitted = 0;  // order of admission
  Dep dep;
  std::shared_ptr<Launch> comm;
};

struct Stream {
  Gpu *gpu = nullptr;
  uint32_t id = 0;
  int priority = 0;
  bool blocking = true;  // synchronises with the legacy default stream
  bool legacy = false;
  uint64_t enqueued = 0, completed = 0;
  int64_t free_at = 0;      // when the last item ended
  bool after_kernel = false;
  int64_t last_id = -1;     // id of the last item enqueued
  std::deque<Item> queue;
};

struct Gpu {
  Rank *rank = nullptr;
  int device = 0;
  int64_t now = 0;
  int64_t comm_bound = 0;      // before this no collective that runs here can end
  int64_t hold = NEVER;        // a kernel without a price yet may start then
  int nccl = 0;                // communication kernels on the GPU
  int kernels = 0;             // kernels, copies admitted
  uint64_t admissions = 0;
  bool dirty = true;
  Stream *default_stream = nullptr;
  std::vector<Stream *> busy;  // streams with items
};

struct Event {
  Dep dep;
  int64_t done = -1;  // completion time of the last record, -1 while pending
  int64_t id = -1;    // row id of the record
  bool recorded = false;
};

struct Request {
  ph_record record;
  std::vector<Dep> deps;
  bool query = false;
  bool data = false;  // waits for bytes, not for virtual time
  int64_t link = -1;
  uint32_t event = 0;
};

struct OpenOp {
  uint32_t instance = 0;
  int32_t sig = -1;
  int64_t start = 0, row = -1;
  int pieces = 0;
  uint8_t flags = 0, thread = 0;
  std::vector<std::pair<Stream *, uint64_t>> kernels;  // unpriced: stream, seq
};

struct Rank {
  int index = 0;
  ph_control *control = nullptr;
  const ph_record *ring = nullptr;
  ph_reply *replies = nullptr;
  uint64_t tail = 0;
  bool started = false, exited = false, died = false;
  int status = 0;
  int64_t host = 0;    // lower bound of the host clock
  int64_t next_id = 0;
  bool asleep = false; // outside CUDA, found by the caller; until the next record
  std::string blob;
  std::vector<std::unique_ptr<Gpu>> gpus;
  std::unordered_map<uint32_t, std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Stream>> retired;
  std::unordered_map<uint32_t, Event> events;
  std::vector<int32_t> names, signatures;  // local id -> global
  std::unordered_map<uint32_t, int32_t> comms;
  std::unordered_map<uint32_t, OpenOp> ops;
  std::vector<Request> requests;
  std::unordered_map<uint64_t, std::string> payloads;  // ticket -> bytes ready
  std::unordered_set<uint64_t> unwanted;               // tickets given up before their bytes were there
  std::shared_ptr<Launch> group;
  int group_left = 0;
  std::deque<ph_row> gpu_rows, host_rows;
  int64_t last_op_time = 0;
};

struct Post {  // one side of a send/receive
  std::shared_ptr<Launch> launch;
  int rank = 0;
  int64_t bytes = 0;
  uint64_t ticket = 0;
  std::string data;
  int concurrent = 1;
  int dtype = 0;
};

struct Pair {
  Post send, recv;
  int32_t price = -1;
  bool resolved = false;
};

struct Collective;

struct Launch {  // one communication kernel on one rank
  Gpu *gpu = nullptr;
  int32_t comm = -1;
  int64_t seq = -1;
  int64_t arrival = -1;  // -1: the stream has not reached it
  int64_t ready = -1, end = -1;
  int64_t part_end = 0;  // latest end among the parts settled so far
  int waiting = 0;       // parts that have no end yet
  int sends = 0, recvs = 0;
  bool p2p = false;
  int64_t bytes = 0, peer = -1;
  int32_t name = -1, price = -1;
  uint8_t sub = 0;
  std::vector<std::shared_ptr<Collective>> collectives;
  std::vector<std::shared_ptr<Pair>> pairs;
};

struct Member {
  std::shared_ptr<Launch> launch;
  ph_record record{};
  std::string data;
};

struct Collective {
  int32_t comm = -1;
  int64_t seq = 0;
  std::vector<Member> members;  // by rank in the communicator
  int joined = 0, arrived = 0;
  int64_t latest = 0;
  int32_t price = -1;
  bool resolved = false;
  int missing = 0;       // scratch of the bound computation
  int64_t bound = 0;
};

struct Comm {
  uint64_t hi = 0, lo = 0;
  int members = 0, created = 0;
  std::vector<int> ranks;            // global rank by comm rank, -1 unknown
  std::vector<uint32_t> local;       // local ids
  std::vector<int64_t> sequence;     // next sequence number by comm rank
  std::string label;
  std::vector<std::pair<int, int64_t>> waiting_rows;
  int32_t number = -1;               // what the log shows: independent of real time
  std::map<int64_t, std::shared_ptr<Collective>> open;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Pair>>> sends, recvs;  // unmatched, (src, dst)
  std::map<std::pair<int, int>, int64_t> p2p_sequence;
};

struct Price {
  bool known = false;
  phc_price_request request{};
  std::vector<phc_price_kernel> kernels;
  std::vector<int64_t> durations;
  int64_t least = 0;      // lower bound of the duration (lookahead)
  uint8_t cls = 0;
  int32_t name = -1;
  std::vector<std::pair<Stream *, uint64_t>> waiting;  // kernels that await this price
  std::vector<int> part;
  std::vector<std::shared_ptr<Collective>> collectives;
  std::vector<std::shared_ptr<Pair>> pairs;
};

struct Exchange {
  int members = 0, joined = 0;
  std::vector<std::string> data;
  std::vector<std::pair<Rank *, ph_record>> waiting;
  int64_t latest = 0;
};

long futex(const uint32_t *address, int op, uint32_t value, const timespec *timeout) {
  return syscall(SYS_futex, address, op, value, timeout, nullptr, 0);
}

template <typename T>
T load(const T *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
template <typename T>
void store(T *p, T v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

struct Core {
  char *base = nullptr;
  ph_header *header = nullptr;
  std::vector<Rank> ranks;
  std::vector<std::string> texts[2];
  std::unordered_map<std::string, int32_t> index[2];
  std::vector<std::unique_ptr<Price>> prices;
  std::unordered_map<std::string, int32_t> price_index;
  std::deque<int32_t> wanted;  // prices to ask for
  std::vector<std::unique_ptr<Comm>> comms;
  std::map<std::pair<uint64_t, uint64_t>, int32_t> comm_index;
  std::map<std::pair<uint64_t, uint64_t>, Exchange> exchanges;
  std::string error;
  std::string diagnosis;
  int64_t launch_latency = 0, kernel_gap = 0;
  double company[256];
  double demand_nccl = 0;
  int64_t records = 0, late = 0, overtakes = 0, row_count = 0;
  int steps = 0;
  bool progressed = false;
  int32_t api_names[PH_COUNT_PH_KIND];
  std::vector<ph_row> ready_rows;

  Core(void *area) : base(static_cast<char *>(area)), header(static_cast<ph_header *>(area)) {
    std::fill(std::begin(company), std::end(company), 1.0);
    std::fill(std::begin(api_names), std::end(api_names), -1);
    ranks = std::vector<Rank>(header->world_size);
    for (size_t r = 0; r < ranks.size(); ++r) {
      ranks[r].index = static_cast<int>(r);
      ranks[r].control = reinterpret_cast<ph_control *>(base + header->control_offset) + r;
      ranks[r].ring = reinterpret_cast<ph_record *>(base + header->ring_offset) + r * PH_RING_RECORDS;
      ranks[r].replies = reinterpret_cast<ph_reply *>(base + header->reply_offset) + r * PH_REPLY_SLOTS;
    }
    api_names[PH_STREAM_SYNC] = intern(NAMES, "cudaStreamSynchronize");
    api_names[PH_DEVICE_SYNC] = intern(NAMES, "cudaDeviceSynchronize");
    api_names[PH_EVENT_SYNC] = intern(NAMES, "cudaEventSynchronize");
    api_names[PH_MEMCPY] = intern(NAMES, "cudaMemcpyAsync");
    api_names[PH_MEMSET] = intern(NAMES, "cudaMemset");
    api_names[PH_EVENT_RECORD] = intern(NAMES, "cudaEventRecord");
    api_names[PH_STREAM_WAIT] = intern(NAMES, "cudaStreamWaitEvent");
    api_names[PH_HOST_FUNC] = intern(NAMES, "cudaLaunchHostFunc");
  }

  int32_t intern(Table table, const std::string &text) {
    auto [it, fresh] = index[table].try_emplace(text, static_cast<int32_t>(texts[table].size()));
    if (fresh) texts[table].push_back(text);
    return it->second;
  }

  void fail(std::string text) {
    if (error.empty()) error = std::move(text);
  }

  // ------------------------------------------------------------------ rows
  ph_row row(ph_row_kind kind, const Rank &rank, int64_t start, int64_t end) {
    ph_row r{};
    r.kind = kind;
    r.rank = rank.index;
    r.stream = r.name = r.sig = r.price = r.comm = -1;
    r.start = start;
    r.end = end;
    r.launch = r.link = r.seq = r.ready = -1;
    r.id = -1;
    return r;
  }
  void emit(std::deque<ph_row> &lane, const ph_row &r) {
    lane.push_back(r);
    ++row_count;
  }

  // ------------------------------------------------------------------ prices
  // A price is found by the bytes of its key; `make` fills the request of a new one.
  template <typename Make>
  int32_t price_of(const std::string &key, Make make) {
    auto [it, fresh] = price_index.try_emplace(key, static_cast<int32_t>(prices.size()));
    if (fresh) {
      prices.push_back(std::make_unique<Price>());
      prices.back()->request.id = it->second;
      make(*prices.back());
      wanted.push_back(it->second);
    }
    return it->second;
  }
  static void put(std::string &key, const void *data, size_t size) { key.append(static_cast<const char *>(data), size); }
  template <typename T>
  static void put(std::string &key, T value) { put(key, &value, sizeof value); }

  Item *item_at(Stream *s, uint64_t seq) {
    uint64_t first = s->enqueued - s->queue.size() + 1;
    return seq < first || seq > s->enqueued ? nullptr : &s->queue[seq - first];
  }

  void apply_price(Item &item, const Price &price, int part) {
    item.price = price.request.id;
    item.part = part;
    item.priced = true;
    item.cls = price.cls;
    item.work = static_cast<double>(price.durations[std::min<size_t>(part, price.durations.size() - 1)]);
  }

  void want(Stream *s, uint64_t seq, int32_t id, int part) {
    Price &price = *prices[id];
    if (price.known) {
      if (Item *item = item_at(s, seq)) apply_price(*item, price, part);
      s->gpu->dirty = true;
    } else {
      price.waiting.emplace_back(s, seq);
      price.part.push_back(part);
    }
  }

  // Prices the kernels that an operator has launched so far.
  void close_piece(Rank &rank, OpenOp &op) {
    (void)rank;
    if (op.kernels.empty()) return;
    std::string key;
    put<uint8_t>(key, PHC_OPERATOR);
    put(key, op.sig);
    put(key, op.pieces);
    std::vector<phc_price_kernel> kernels;
    for (auto &[stream, seq] : op.kernels) {
      phc_price_kernel k = launches[{stream, seq}];
      launches.erase({stream, seq});
      kernels.push_back(k);
      put(key, k);
    }
    int pieces = op.pieces;
    int32_t id = price_of(key, [&](Price &price) {
      price.request.kind = PHC_OPERATOR;
      price.request.sig = op.sig;
      price.request.part = pieces;
      price.request.kernels = static_cast<int32_t>(kernels.size());
      price.kernels = kernels;
    });
    for (size_t i = 0; i < op.kernels.size(); ++i) want(op.kernels[i].first, op.kernels[i].second, id, static_cast<int>(i));
    op.kernels.clear();
    ++op.pieces;
  }
  struct StreamSeqHash {
    size_t operator()(const std::pair<Stream *, uint64_t> &p) const {
      return reinterpret_cast<size_t>(p.first) * 31 + p.second * 0x9e3779b97f4a7c15ULL;
    }
  };
  std::unordered_map<std::pair<Stream *, uint64_t>, phc_price_kernel, StreamSeqHash> launches;

  void close_pieces(Rank &rank) {
    for (auto &[instance, op] : rank.ops) close_piece(rank, op);
  }

  // ------------------------------------------------------------------ streams
  Gpu *gpu_of(Rank &rank, int device) {
    while (static_cast<int>(rank.gpus.size()) <= device) {
      auto gpu = std::make_unique<Gpu>();
      gpu->rank = &rank;
      gpu->device = static_cast<int>(rank.gpus.size());
      rank.gpus.push_back(std::move(gpu));
    }
    return rank.gpus[device].get();
  }

  Stream *stream_of(Rank &rank, uint32_t id, int device = -1) {
    auto it = rank.streams.find(id);
    if (it != rank.streams.end()) return it->second.get();
    auto s = std::make_unique<Stream>();
    s->id = id;
    s->legacy = device < 0;  // ids below the number of devices are the legacy default streams
    s->gpu = gpu_of(rank, device < 0 ? static_cast<int>(id) : device);
    if (s->legacy) s->gpu->default_stream = s.get();
    return (rank.streams[id] = std::move(s)).get();
  }

  void enqueue_wait(Rank &rank, Stream *s, Dep dep, int64_t launch) {
    if (!dep.stream || dep.stream == s || dep.stream->completed >= dep.seq) return;
    Item item;
    item.type = WAIT;
    item.flags = PH_F_HELPER;  // implicit: no row
    item.launch = item.ready = launch;
    item.dep = dep;
    push(rank, s, std::move(item));
  }

  Item &push(Rank &rank, Stream *s, Item &&item) {
    (void)rank;
    if (s->queue.empty()) s->gpu->busy.push_back(s);
    ++s->enqueued;
    if (item.id > 0) s->last_id = item.id;
    item.priority = s->priority;
    s->gpu->dirty = true;
    s->queue.push_back(std::move(item));
    return s->queue.back();
  }

  // Appends work to a stream, with the ordering of the legacy default stream.
  Item &enqueue(Rank &rank, Stream *s, Item &&item) {
    Gpu *gpu = s->gpu;
    if (item.launch < gpu->now) {
      ++late;
      item.launch = gpu->now;
    }
    item.ready = item.launch + (item.type == KERNEL || item.type == COMM || item.type == COPY || item.type == MEMSET ? launch_latency : 0);
    if (s->legacy) {
      for (auto &[id, other] : rank.streams)
        if (other.get() != s && other->gpu == gpu && other->blocking && !other->queue.empty())
          enqueue_wait(rank, s, {other.get(), other->enqueued}, item.launch);
    } else if (s->blocking && gpu->default_stream && !gpu->default_stream->queue.empty()) {
      enqueue_wait(rank, s, {gpu->default_stream, gpu->default_stream->enqueued}, item.launch);
    }
    return push(rank, s, std::move(item));
  }

  float demand_of(uint64_t grid, uint64_t block) const {
    const ph_device &d = header->device;
    double blocks = static_cast<double>(grid & 0xffffffff) * ((grid >> 32) & 0xffff) * (grid >> 48);
    int threads = std::max<int>(1, static_cast<int>((block & 0xffff) * ((block >> 16) & 0xffff) * ((block >> 32) & 0xffff)));
    int per_sm = std::max(1, std::min(d.max_blocks_per_sm ? d.max_blocks_per_sm : 32, (d.max_threads_per_sm ? d.max_threads_per_sm : 2048) / threads));
    double capacity = static_cast<double>(std::max(1, d.sms)) * per_sm;
    return static_cast<float>(std::min(1.0, std::max(blocks, 1.0) / capacity));
  }

  // ------------------------------------------------------------------ one GPU
  int64_t host_limit(const Rank &rank) const {
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

  void update_rates(Gpu &gpu) {
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
        if (gpu.nccl > 0) rate /= company[item.cls];
      }
      item.rate = rate;
      if (rate > 0 && !item.begun) {
        item.begun = true;
        item.start = gpu.now;
      }
    }
  }
  static bool before(const Item &a, const Item &b) {
    return a.priority != b.priority ? a.priority < b.priority : a.admitted < b.admitted;
  }

  void run(Gpu &gpu) {
    gpu.dirty = false;
    for (;;) {
      int64_t limit = host_limit(*gpu.rank);
      if (gpu.nccl && limit >= gpu.comm_bound && unresolved(gpu)) limit = std::max(gpu.now, gpu.comm_bound - 1);
      Stream *best = nullptr;
      int64_t when = next_local(gpu, &best);
      if (gpu.hold != NEVER) limit = std::min(limit, gpu.hold - 1);
      if (!best || when > limit) {
        if (limit != NEVER && limit > gpu.now) gpu.now = limit;
        break;
      }
      progressed = true;
      gpu.now = when;
      Item &item = best->queue.front();
      if (item.running || item.type == RECORD || item.type == WAIT)
        complete(gpu, *best);
      else
        admit(gpu, *best);
    }
    if (!gpu.rank->requests.empty()) check_requests(*gpu.rank);
  }

  // The earliest moment at which something happens on this GPU by what is known.
  int64_t next_local(Gpu &gpu, Stream **which) {
    Stream *best = nullptr;
    int64_t when = NEVER;
    int rank_of_best = 0;
    gpu.hold = NEVER;
    for (Stream *s : gpu.busy) {
      Item &item = s->queue.front();
      int64_t t = NEVER;
      int order = 1;  // completions before admissions at equal times
      if (item.running) {
        order = 0;
        if (item.type == COMM) {
          if (item.comm->end >= 0) t = item.comm->end;
        } else if (item.type == HOSTFUNC) {
          t = item.start + static_cast<int64_t>(item.work);
        } else if (item.rate > 0) {
          t = item.updated + static_cast<int64_t>(ceil(item.work / item.rate - 1e-6));
        }
        if (t < gpu.now) t = gpu.now;
      } else {
        if (item.dep.stream && item.dep.stream->completed < item.dep.seq) continue;
        t = std::max(std::max(s->free_at + (item.type == KERNEL && s->after_kernel ? kernel_gap : 0), item.ready), gpu.now);
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

  void admit(Gpu &gpu, Stream &s) {
    Item &item = s.queue.front();
    item.running = true;
    item.start = item.updated = gpu.now;
    item.admitted = ++gpu.admissions;
    if (item.type == COMM) {
      ++gpu.nccl;
      if (gpu.kernels) update_rates(gpu);
      gpu.comm_bound = gpu.now + 1;
      arrive(*item.comm, gpu.now);
    } else if (item.type != HOSTFUNC) {
      ++gpu.kernels;
      if (gpu.kernels == 1 && !gpu.nccl) {
        item.rate = 1.0;
        item.begun = true;
      } else {
        update_rates(gpu);
      }
    }
  }

  void complete(Gpu &gpu, Stream &s) {
    Rank &rank = *gpu.rank;
    Item item = std::move(s.queue.front());
    s.queue.pop_front();
    ++s.completed;
    int64_t reached = std::min(gpu.now, std::max(s.free_at, item.ready));
    s.free_at = gpu.now;
    s.after_kernel = item.type == KERNEL;
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
        if (gpu.kernels) update_rates(gpu);
        break;
      case COMM: {
        --gpu.nccl;
        if (gpu.kernels) update_rates(gpu);
        Launch &l = *item.comm;
        r = row(l.p2p ? PH_ROW_SENDRECV : PH_ROW_COLLECTIVE, rank, item.start, gpu.now);
        r.ready = l.ready;
        r.seq = l.seq;
        r.comm = comms[l.comm]->number;
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
        write = !(item.flags & PH_F_HELPER);
        r = row(PH_ROW_WAIT, rank, reached, gpu.now);
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

  // ------------------------------------------------------------------ waits
  void answer(Rank &rank, size_t i, int status, int64_t time, int64_t value) {
    Request q = std::move(rank.requests[i]);
    rank.requests.erase(rank.requests.begin() + static_cast<long>(i));
    int64_t at = std::max(q.record.time, time);
    if (!(q.record.flags & PH_F_HELPER)) rank.host = std::max(rank.host, std::max(at, rank.control->floor));
    if (!q.query && q.record.kind != PH_EVENT_TIME && !q.data && api_names[q.record.kind] >= 0) {
      ph_row r = row(PH_ROW_SYNC, rank, q.record.time, at);
      r.name = api_names[q.record.kind];
      r.sub = q.record.kind;
      r.stream = q.record.thread;
      r.flags = q.record.flags;
      r.id = ++rank.next_id;
      r.link = q.link;
      emit(rank.host_rows, r);
    }
    reply(rank, q.record, status, q.query || q.record.kind == PH_EVENT_TIME ? time : at, value, nullptr, 0);
  }

  void reply(Rank &rank, const ph_record &record, int status, int64_t time, int64_t value, const char *data, size_t length) {
    // A helper thread that polls moves nothing, however often it asks.
    if (!(record.flags & PH_F_HELPER)) progressed = true;
    if (record.slot >= PH_REPLY_SLOTS) return;
    ph_reply &r = rank.replies[record.slot];
    r.status = status;
    r.time = time;
    r.value = value;
    r.length = length;
    if (length) memcpy(r.data, data, length);
    store<uint32_t>(&r.futex, 1);
    futex(&r.futex, FUTEX_WAKE, 1, nullptr);
  }

  void check_requests(Rank &rank) {
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
  int64_t completion(Rank &rank, const Request &q) {
    if (q.event) {
      auto it = rank.events.find(q.event);
      if (it != rank.events.end() && it->second.done >= 0) return it->second.done;
    }
    int64_t latest = 0;
    for (const Dep &d : q.deps) latest = std::max(latest, std::min(d.stream->free_at, q.record.time));
    return latest;
  }

  // ------------------------------------------------------------------ collectives
  void arrive(Launch &launch, int64_t time) {
    launch.arrival = time;
    for (auto &c : launch.collectives) {
      ++c->arrived;
      c->latest = std::max(c->latest, time);
      settle(*c);
    }
    for (auto &p : launch.pairs) settle(*p);
    if (launch.collectives.empty() && launch.pairs.empty()) launch.end = time;
  }

  void settle(Collective &c) {
    if (c.resolved || c.arrived < static_cast<int>(c.members.size()) || c.price < 0 || !prices[c.price]->known) return;
    c.resolved = true;
    int64_t duration = prices[c.price]->durations[0];
    for (Member &m : c.members) {
      std::shared_ptr<Launch> launch = std::move(m.launch);  // breaks the cycle of owners
      finish_part(*launch, c.latest, c.latest + duration, c.price);
    }
    comms[c.comm]->open.erase(c.seq);
  }

  void settle(Pair &p) {
    if (p.resolved || !p.send.launch || !p.recv.launch || p.send.launch->arrival < 0 || p.recv.launch->arrival < 0) return;
    if (p.price < 0 || !prices[p.price]->known) return;
    p.resolved = true;
    int64_t begin = std::max(p.send.launch->arrival, p.recv.launch->arrival);
    int64_t end = begin + prices[p.price]->durations[0];
    std::shared_ptr<Launch> from = std::move(p.send.launch), to = std::move(p.recv.launch);  // breaks the cycle of owners
    finish_part(*from, begin, end, p.price);
    finish_part(*to, begin, end, p.price);
  }

  // Parts of one launch run one after the other if they are collectives (one fused kernel), side
  // by side if they are sends and receives (their ports are shared in the price).
  void finish_part(Launch &l, int64_t begin, int64_t end, int32_t price) {
    progressed = true;
    l.ready = std::max(l.ready, begin);
    if (l.p2p) {
      l.part_end = std::max(l.part_end, end);
    } else {
      l.part_end = std::max(l.part_end, begin) + (end - begin);
    }
    if (l.price < 0 || prices[price]->durations[0] > prices[l.price]->durations[0]) l.price = price;
    if (l.name < 0) l.name = prices[price]->name;
    if (--l.waiting == 0) l.end = l.part_end;
    l.gpu->dirty = true;
  }

  int comm_rank(const Comm &comm, int rank) const {
    for (size_t i = 0; i < comm.ranks.size(); ++i)
      if (comm.ranks[i] == rank) return static_cast<int>(i);
    return -1;
  }

  static const char *kind_name(int kind) {
    static const char *names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter", "barrier"};
    return kind >= 0 && kind < 9 ? names[kind] : "?";
  }

  std::string describe(const ph_record &r) const {
    static const char *dtypes[] = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "fp8e4m3", "fp8e5m2"};
    int dtype = static_cast<int>(r.a >> 8 & 0xff);
    std::string text = kind_name(static_cast<int>(r.a & 0xff));
    text += " of " + std::to_string(r.b) + " " + (dtype < 12 ? dtypes[dtype] : "?");
    int kind = static_cast<int>(r.a & 0xff);
    if (kind == PH_COLL_BROADCAST || kind == PH_COLL_REDUCE || kind == PH_COLL_GATHER || kind == PH_COLL_SCATTER)
      text += ", root " + std::to_string(static_cast<int>(r.a >> 32));
    return text;
  }

  std::string comm_text(const Comm &comm) const {
    std::string text = comm.label.empty() ? "group" : "group '" + comm.label + "'";
    text += " (ranks ";
    std::vector<int> members = comm.ranks;
    for (size_t i = 0; i < members.size(); ++i) {
      size_t j = i;
      while (j + 1 < members.size() && members[j + 1] == members[j] + 1) ++j;
      if (i) text += ",";
      text += std::to_string(members[i]);
      if (j > i) text += "-" + std::to_string(members[j]);
      i = j;
    }
    return text + ")";
  }

  void join_collective(Rank &rank, const ph_record &r, std::shared_ptr<Launch> launch) {
    auto found = rank.comms.find(r.id);
    if (found == rank.comms.end()) return fail("rank " + std::to_string(rank.index) + " used a communicator that does not exist");
    Comm &comm = *comms[found->second];
    int me = comm_rank(comm, rank.index);
    int64_t seq = comm.sequence[me]++;
    auto &slot = comm.open[seq];
    if (!slot) {
      slot = std::make_shared<Collective>();
      slot->comm = found->second;
      slot->seq = seq;
      slot->members.resize(comm.members);
    }
    auto c = slot;
    if (c->joined) {
      for (size_t other = 0; other < c->members.size(); ++other) {
        const Member &m = c->members[other];
        if (!m.launch) continue;
        bool same = (m.record.a & 0xffff) == (r.a & 0xffff) && m.record.a >> 32 == r.a >> 32 && m.record.b == r.b;
        if (!same)
          return fail("mismatched collectives in " + comm_text(comm) + ", sequence number " + std::to_string(seq) + ": rank " +
                      std::to_string(comm.ranks[other]) + " calls " + describe(m.record) + ", rank " + std::to_string(rank.index) +
                      " calls " + describe(r) + "; every rank of a group must call the same collectives, with the same sizes, in the same order");
        break;
      }
    }
    Member &mine = c->members[me];
    mine.launch = launch;
    mine.record = r;
    mine.data = std::move(rank.blob);
    rank.blob.clear();
    ++c->joined;
    launch->comm = found->second;
    if (launch->seq < 0) launch->seq = seq;
    launch->sub = static_cast<uint8_t>(r.a);
    launch->bytes += static_cast<int64_t>(r.c);
    ++launch->waiting;
    launch->collectives.push_back(c);
    if (c->joined == comm.members) {
      if (r.d) deliver(comm, *c);
      std::string key;
      put<uint8_t>(key, PHC_COLLECTIVE);
      put(key, c->comm);
      put(key, r.a);
      put(key, r.c);
      c->price = price_of(key, [&](Price &p) {
        p.request.kind = PHC_COLLECTIVE;
        p.request.sub = static_cast<int32_t>(r.a & 0xff);
        p.request.dtype = static_cast<int32_t>(r.a >> 8 & 0xff);
        p.request.redop = static_cast<int32_t>(r.a >> 16 & 0xff);
        p.request.root = static_cast<int32_t>(r.a >> 32);
        p.request.comm = c->comm;
        p.request.bytes = static_cast<int64_t>(r.c);
      });
      if (!prices[c->price]->known) prices[c->price]->collectives.push_back(c);
    }
  }

  void deliver(Comm &comm, Collective &c) {
    std::vector<const std::string *> parts;
    for (Member &m : c.members) parts.push_back(&m.data);
    for (size_t i = 0; i < c.members.size(); ++i) {
      Member &m = c.members[i];
      double scale = 1.0;
      memcpy(&scale, &m.record.e, sizeof scale);
      std::string result = phc::collective_result(m.record, static_cast<int>(i), parts, scale);
      Rank &to = ranks[comm.ranks[i]];
      if (m.record.d) arrived(to, m.record.d, std::move(result));
    }
    for (Member &m : c.members) m.data.clear();
  }

  void join_pair(Rank &rank, const ph_record &r, std::shared_ptr<Launch> launch) {
    auto found = rank.comms.find(r.id);
    if (found == rank.comms.end()) return fail("rank " + std::to_string(rank.index) + " used a communicator that does not exist");
    Comm &comm = *comms[found->second];
    int me = comm_rank(comm, rank.index);
    int peer = static_cast<int>(r.a & 0xffffffff);
    bool send = r.kind == PH_SEND;
    std::pair<int, int> way = send ? std::make_pair(me, peer) : std::make_pair(peer, me);
    auto &mine = send ? comm.sends[way] : comm.recvs[way];
    auto &theirs = send ? comm.recvs[way] : comm.sends[way];
    Post post;
    post.launch = launch;
    post.rank = rank.index;
    post.bytes = static_cast<int64_t>(r.c);
    post.ticket = r.d;
    post.dtype = static_cast<int>(r.a >> 32);
    post.data = std::move(rank.blob);
    rank.blob.clear();
    launch->comm = found->second;
    launch->p2p = true;
    launch->bytes += post.bytes;
    launch->peer = launch->pairs.empty() ? comm.ranks[peer] : -1;
    ++(send ? launch->sends : launch->recvs);
    ++launch->waiting;
    std::shared_ptr<Pair> pair;
    if (!theirs.empty()) {
      pair = theirs.front();
      theirs.pop_front();
    } else {
      pair = std::make_shared<Pair>();
      mine.push_back(pair);
    }
    (send ? pair->send : pair->recv) = std::move(post);
    launch->pairs.push_back(pair);
    if (!pair->send.launch || !pair->recv.launch) return;
    // NCCL does not compare sizes: what fits one slot arrives (torch 2.9's pipeline warm-up sends 8
    // bytes and receives 4), more than that hangs on a cluster.
    if (pair->send.bytes != pair->recv.bytes && std::max(pair->send.bytes, pair->recv.bytes) > ONE_SLOT_BYTES)
      return fail("mismatched send and receive in " + comm_text(comm) + ": rank " + std::to_string(pair->send.rank) + " sends " +
                  std::to_string(pair->send.bytes) + " bytes, rank " + std::to_string(pair->recv.rank) + " receives " +
                  std::to_string(pair->recv.bytes) + "; sizes and order of sends and receives must agree");
    if (pair->recv.ticket) {
      pair->send.data.resize(static_cast<size_t>(pair->recv.bytes), '\0');
      arrived(ranks[pair->recv.rank], pair->recv.ticket, std::move(pair->send.data));
    }
    paired.push_back(pair);
  }
  std::vector<std::shared_ptr<Pair>> paired;  // matched, not yet priced: groups must be whole first

  void price_pairs() {
    std::vector<std::shared_ptr<Pair>> later;
    for (auto &pair : paired) {
      Rank &a = ranks[pair->send.rank], &b = ranks[pair->recv.rank];
      if (a.group == pair->send.launch || b.group == pair->recv.launch) {
        later.push_back(pair);
        continue;
      }
      int concurrent = std::max(1, std::max(pair->send.launch->sends, pair->recv.launch->recvs));
      std::string key;
      put<uint8_t>(key, PHC_TRANSFER);
      put(key, pair->send.rank);
      put(key, pair->recv.rank);
      int duplex = pair->send.launch->recvs > 0 && pair->recv.launch->sends > 0;
      int32_t comm = pair->send.launch->comm;
      put(key, comm);
      put(key, duplex);
      put(key, concurrent);
      put(key, pair->send.bytes);
      pair->price = price_of(key, [&](Price &p) {
        p.request.kind = PHC_TRANSFER;
        p.request.comm = comm;
        p.request.src = pair->send.rank;
        p.request.dst = pair->recv.rank;
        p.request.concurrent = concurrent;
        p.request.duplex = duplex;
        p.request.bytes = pair->send.bytes;
        p.request.dtype = pair->send.dtype;
      });
      if (prices[pair->price]->known)
        settle(*pair);
      else
        prices[pair->price]->pairs.push_back(pair);
    }
    paired.swap(later);
  }

  // ------------------------------------------------------------------ payloads and exchanges
  void arrived(Rank &to, uint64_t ticket, std::string data) {
    if (to.unwanted.erase(ticket)) return;
    to.payloads[ticket] = std::move(data);
    serve_payloads(to);
  }

  void serve_payloads(Rank &rank) {
    for (size_t i = 0; i < rank.requests.size();) {
      Request &q = rank.requests[i];
      if (q.record.kind != PH_PAYLOAD || !serve_payload(rank, q.record)) {
        ++i;
        continue;
      }
      rank.requests.erase(rank.requests.begin() + static_cast<long>(i));
    }
  }

  bool serve_payload(Rank &rank, const ph_record &r) {
    auto it = rank.payloads.find(r.a);
    if (it == rank.payloads.end()) return false;
    const std::string &data = it->second;
    size_t offset = std::min<size_t>(r.b, data.size());
    size_t length = std::min<size_t>(PH_REPLY_BYTES, data.size() - offset);
    int64_t total = static_cast<int64_t>(data.size());
    int64_t at = std::max(r.time, rank.control->floor);
    reply(rank, r, 0, at, total, data.data() + offset, length);
    if (offset + length >= data.size()) rank.payloads.erase(it);
    return true;
  }

  void exchange(Rank &rank, const ph_record &r) {
    Exchange &x = exchanges[{r.a, r.b}];
    if (x.data.empty()) {
      x.members = static_cast<int>(r.c);
      x.data.resize(r.c);
    }
    x.data[r.e] = std::move(rank.blob);
    rank.blob.clear();
    x.latest = std::max(x.latest, r.time);
    x.waiting.emplace_back(&rank, r);
    if (++x.joined < x.members) {
      Request q;
      q.record = r;
      q.data = true;
      rank.requests.push_back(std::move(q));
      return;
    }
    std::string all;
    for (const std::string &part : x.data) {
      uint32_t length = static_cast<uint32_t>(part.size());
      put(all, length);
      all += part;
    }
    for (auto &[to, record] : x.waiting) {
      auto &requests = to->requests;
      requests.erase(std::remove_if(requests.begin(), requests.end(), [&](const Request &q) { return q.record.kind == PH_EXCHANGE && q.record.slot == record.slot; }), requests.end());
      if (!(record.flags & PH_F_HELPER)) to->host = std::max(to->host, x.latest);
      size_t length = std::min<size_t>(PH_REPLY_BYTES, all.size());
      if (all.size() > length) to->payloads[record.d] = all;
      reply(*to, record, 0, std::max(x.latest, to->control->floor), static_cast<int64_t>(all.size()), all.data(), length);
    }
    exchanges.erase({r.a, r.b});
  }

  // ------------------------------------------------------------------ consuming a ring
  bool consume(Rank &rank) {
    if (rank.exited && rank.died) return false;
    int64_t clock = load(&rank.control->clock);
    uint64_t head = load(&rank.control->head);
    if (head == rank.tail) {
      if (rank.started && clock > rank.host) {
        rank.host = clock;
        for (auto &g : rank.gpus) g->dirty = true;
      }
      return false;
    }
    uint64_t end = std::min(head, rank.tail + MAX_PASS);
    bool moved = false;
    for (; rank.tail != end && error.empty(); ++rank.tail) {
      const ph_record &record = rank.ring[rank.tail & (PH_RING_RECORDS - 1)];
      moved = moved || !(record.flags & PH_F_HELPER);
      take(rank, record);
    }
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

  template <typename T>
  static T &at(std::vector<T> &v, size_t i, T fill) {
    if (v.size() <= i) v.resize(std::max(i + 1, v.size() * 2), fill);
    return v[i];
  }
  static int32_t global(const std::vector<int32_t> &map, uint32_t local) {
    return local < map.size() ? map[local] : -1;
  }

  void take(Rank &rank, const ph_record &r) {
    ++records;
    if (r.kind == PH_BLOB) {
      rank.blob.append(reinterpret_cast<const char *>(&r) + 8, std::min<uint32_t>(r.id, PH_BLOB_BYTES));
      return;
    }
    if (r.time > rank.host && !(r.flags & PH_F_HELPER)) rank.host = r.time;
    switch (r.kind) {
      case PH_RANK_START:
        rank.started = true;
        break;
      case PH_RANK_EXIT:
        close_pieces(rank);
        rank.exited = true;
        rank.status = static_cast<int>(r.a);
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
        close_piece(rank, it->second);
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
        if (rank.index == 0 && o.name >= 0 && texts[NAMES][o.name].compare(0, 15, "Optimizer.step#") == 0) ++steps;
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
        close_pieces(rank);
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
        int64_t link = -1;
        for (Stream *s : gpu->busy) {
          deps.push_back({s, s->enqueued});
          link = std::max(link, s->last_id);
        }
        request(rank, r, std::move(deps), link);
        break;
      }
      case PH_EVENT_SYNC:
      case PH_EVENT_QUERY:
      case PH_EVENT_TIME: {
        close_pieces(rank);
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

  int32_t copy_name(uint8_t sub) {
    static const char *names[] = {"Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)",
                                  "Memcpy DtoH (Device -> Pageable)", "Memcpy DtoD (Device -> Device)", "Memcpy PtoP (Device -> Device)", "Memcpy HtoH"};
    return intern(NAMES, names[std::min<int>(sub, 6)]);
  }
  int32_t memset_name() { return intern(NAMES, "Memset (Device)"); }

  void request(Rank &rank, const ph_record &r, std::vector<Dep> deps, int64_t link) {
    Request q;
    q.record = r;
    q.link = link;
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

  void create_comm(Rank &rank, const ph_record &r) {
    auto [it, fresh] = comm_index.try_emplace({r.a, r.b}, static_cast<int32_t>(comms.size()));
    if (fresh) {
      comms.push_back(std::make_unique<Comm>());
      Comm &c = *comms.back();
      c.hi = r.a;
      c.lo = r.b;
      c.members = static_cast<int>(r.c);
      c.ranks.assign(c.members, -1);
      c.local.assign(c.members, 0);
      c.sequence.assign(c.members, 0);
      c.label = rank.blob;
    }
    Comm &c = *comms[it->second];
    if (r.d >= c.ranks.size()) return fail("rank " + std::to_string(rank.index) + " joined a communicator beyond its size");
    c.ranks[r.d] = rank.index;
    c.local[r.d] = r.id;
    rank.comms[r.id] = it->second;
    c.waiting_rows.emplace_back(rank.index, r.time);
    if (++c.created < c.members) return;
    // A number that depends on the program alone: the lowest member's count of communicators.
    size_t lowest = static_cast<size_t>(std::min_element(c.ranks.begin(), c.ranks.end()) - c.ranks.begin());
    c.number = static_cast<int32_t>(c.local[lowest] * ranks.size() + static_cast<size_t>(c.ranks[lowest]));
    std::string members;
    for (size_t i = 0; i < c.ranks.size(); ++i) members += (i ? "," : "") + std::to_string(c.ranks[i]);
    int32_t sig = intern(SIGNATURES, "{\"op\":\"communicator\",\"args\":[[" + members + "]]}");
    int32_t name = intern(NAMES, c.label.empty() ? "communicator" : c.label);
    for (auto &[index, time] : c.waiting_rows) {
      Rank &member = ranks[index];
      ph_row o = row(PH_ROW_COMMUNICATOR, member, time, time);
      o.comm = c.number;
      o.name = name;
      o.sig = sig;
      o.id = -static_cast<int64_t>(c.number) - 2;
      pending_comm_rows.push_back(o);
      ++row_count;
    }
    c.waiting_rows.clear();
  }
  std::vector<ph_row> pending_comm_rows;

  // ------------------------------------------------------------------ bounds of collectives in flight
  // The earliest time at which each GPU could do something new, by Dijkstra's method: a GPU acts
  // at its next local event, when its host acts, or when a collective that runs on it ends; a
  // collective ends no earlier than its missing members could arrive plus its least duration.
  bool bound_collectives() {
    struct Node {
      Gpu *gpu;
      std::vector<Collective *> missing_in;
      std::vector<Launch *> running;
      int64_t bound = NEVER;
      bool final = false;
    };
    std::vector<Node> nodes;
    std::unordered_map<Gpu *, size_t> at_gpu;
    auto node_of = [&](Gpu *g) {
      auto [it, fresh] = at_gpu.try_emplace(g, nodes.size());
      if (fresh) {
        nodes.push_back({});
        nodes.back().gpu = g;
      }
      return it->second;
    };
    std::vector<Launch *> open;
    for (Rank &rank : ranks)
      for (auto &g : rank.gpus) {
        if (!g->nccl) continue;
        for (Stream *s : g->busy) {
          Item &item = s->queue.front();
          if (item.type == COMM && item.running && item.comm->end < 0) {
            size_t n = node_of(g.get());
            nodes[n].running.push_back(item.comm.get());
            open.push_back(item.comm.get());
          }
        }
      }
    if (open.empty()) return false;
    // Every rank that some open launch waits for.
    struct Wait {
      Launch *launch;
      int missing = 0;
      int64_t bound = 0;
      bool open_members = false;  // somebody has not joined the communicator yet: no bound
    };
    std::vector<Wait> waits;
    std::unordered_map<size_t, std::vector<size_t>> waited_by;  // node -> waits
    for (Launch *l : open) {
      Wait w{l, 0, l->arrival, false};
      std::vector<int> who;
      for (auto &c : l->collectives) {
        if (c->resolved) continue;
        const Comm &comm = *comms[c->comm];
        for (size_t i = 0; i < c->members.size(); ++i)
          if (!c->members[i].launch || c->members[i].launch->arrival < 0) who.push_back(comm.ranks[i]);
        w.bound = std::max(w.bound, c->latest);
      }
      for (auto &p : l->pairs) {
        if (p->resolved) continue;
        const Comm &comm = *comms[l->comm];
        for (Post *post : {&p->send, &p->recv})
          if (post->launch && post->launch->arrival < 0) who.push_back(post->rank);
        if (!p->send.launch || !p->recv.launch) {
          for (auto &[way, q] : comm.sends)
            if (!p->recv.launch && std::find(q.begin(), q.end(), p) != q.end()) who.push_back(comm.ranks[way.second]);
          for (auto &[way, q] : comm.recvs)
            if (!p->send.launch && std::find(q.begin(), q.end(), p) != q.end()) who.push_back(comm.ranks[way.first]);
        }
      }
      std::sort(who.begin(), who.end());
      who.erase(std::unique(who.begin(), who.end()), who.end());
      if (!who.empty() && who.front() < 0) {
        w.open_members = true;
        ++w.missing;
        who.erase(who.begin());
      }
      size_t index = waits.size();
      for (int r : who) {
        size_t n = node_of(busy_gpu(ranks[r]));
        waited_by[n].push_back(index);
        ++w.missing;
      }
      waits.push_back(w);
    }
    std::unordered_map<Launch *, size_t> wait_of;
    for (size_t i = 0; i < waits.size(); ++i) wait_of[waits[i].launch] = i;
    using Entry = std::pair<int64_t, size_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    auto relax = [&](size_t n, int64_t bound) {
      if (bound < nodes[n].bound) {
        nodes[n].bound = bound;
        queue.push({bound, n});
      }
    };
    auto finish_wait = [&](Wait &w) {
      int64_t end = w.bound == NEVER ? NEVER : w.bound + least_duration(*w.launch);
      w.bound = end;
      relax(node_of(w.launch->gpu), end);
    };
    for (size_t n = 0; n < nodes.size(); ++n)
      relax(n, std::max(nodes[n].gpu->now, std::min(std::min(next_local(*nodes[n].gpu, nullptr), nodes[n].gpu->hold), host_limit(*nodes[n].gpu->rank))));
    for (Wait &w : waits)
      if (!w.missing) finish_wait(w);
    while (!queue.empty()) {
      auto [bound, n] = queue.top();
      queue.pop();
      if (nodes[n].final || bound > nodes[n].bound) continue;
      nodes[n].final = true;
      for (size_t i : waited_by[n]) {
        Wait &w = waits[i];
        w.bound = std::max(w.bound, bound);
        if (--w.missing == 0) finish_wait(w);
      }
    }
    bool moved = false;
    for (Node &node : nodes) {
      int64_t bound = NEVER;
      for (Launch *l : node.running) {
        Wait &w = waits[wait_of[l]];
        bound = std::min(bound, w.open_members ? node.gpu->comm_bound : w.missing ? NEVER : w.bound);
      }
      if (node.running.empty()) continue;
      if (bound > node.gpu->comm_bound) {
        moved = true;
        node.gpu->comm_bound = bound;
        node.gpu->dirty = true;
      }
    }
    return moved;
  }
  Gpu *busy_gpu(Rank &rank) {  // the device that the rank works on
    for (auto &g : rank.gpus)
      if (!g->busy.empty()) return g.get();
    return gpu_of(rank, rank.gpus.empty() ? 0 : static_cast<int>(rank.gpus.size()) - 1);
  }
  int64_t least_duration(const Launch &l) const {
    int64_t least = 1;
    for (auto &c : l.collectives)
      if (c->price >= 0 && prices[c->price]->known) least = std::max(least, prices[c->price]->least);
    return least;
  }

  // ------------------------------------------------------------------ the loop
  void advance() {
    for (int round = 0; round < 1000000 && error.empty(); ++round) {
      bool before = progressed;
      progressed = false;
      price_pairs();
      for (Rank &rank : ranks)
        for (auto &g : rank.gpus) {
          if (g->dirty) run(*g);
        }
      bool again = progressed;
      progressed = progressed || before;
      if (!again) break;
    }
  }
  static bool unresolved(const Gpu &g) {
    for (const Stream *s : g.busy) {
      const Item &item = s->queue.front();
      if (item.type == COMM && item.running && item.comm->end < 0) return true;
    }
    return false;
  }

  bool all_done() const {
    for (const Rank &rank : ranks) {
      if (!rank.exited) return false;
      if (rank.tail != load(&rank.control->head) && !rank.died) return false;
    }
    return true;
  }

  int64_t frontier() {
    int64_t least = NEVER;
    for (Rank &rank : ranks) {
      if (rank.exited) {
        for (auto &g : rank.gpus)
          if (!g->busy.empty()) least = std::min(least, g->now);
        continue;
      }
      int64_t host = rank.requests.empty() ? rank.host : NEVER;
      for (const Request &q : rank.requests) host = std::min(host, std::max(q.record.time, rank.host));
      least = std::min(least, host);
      for (auto &g : rank.gpus)
        if (!g->busy.empty()) least = std::min(least, g->now);
    }
    return least;
  }

  int run_once(int timeout_us) {
    progressed = false;
    bool any = false;
    for (Rank &rank : ranks) any |= consume(rank);
    if (error.empty()) advance();
    while (error.empty() && !progressed && !any && bound_collectives()) advance();
    if (!error.empty()) return PHC_ERROR;
    int reason = any || progressed ? PHC_MOVED : PHC_IDLE;
    if (!wanted.empty()) reason |= PHC_PRICES;
    if (row_count >= ROWS_WANTED) reason |= PHC_ROWS;
    if (all_done()) reason |= PHC_DONE;
    if (reason != PHC_IDLE || timeout_us <= 0) return reason;
    store<uint32_t>(&header->sim_sleeping, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    uint32_t bell = load(&header->doorbell);
    bool fresh = false;
    for (Rank &rank : ranks) fresh = fresh || load(&rank.control->head) != rank.tail;
    if (!fresh) {
      timespec t{timeout_us / 1000000, (timeout_us % 1000000) * 1000};
      futex(&header->doorbell, FUTEX_WAIT, bell, &t);
    }
    store<uint32_t>(&header->sim_sleeping, 0);
    return PHC_IDLE;
  }

  // Ranks asleep outside CUDA (and those that wait for bytes) hold nobody back any longer. The
  // earliest answer that this allows is given, and their clocks move to at least that moment.
  bool overtake(const int32_t *sleepers, int count) {
    std::vector<Rank *> held;
    for (int i = 0; i < count; ++i) held.push_back(&ranks[sleepers[i]]);
    for (Rank &rank : ranks)
      for (const Request &q : rank.requests)
        if (q.data && !(q.record.flags & PH_F_HELPER)) held.push_back(&rank);
    if (held.empty()) return false;
    int64_t earliest = NEVER;
    std::vector<int64_t> old;
    for (Rank *r : held) r->asleep = true;
    // Step all GPUs in global order until one host gets its answer.
    size_t before = waiting_hosts();
    bool moved = false;
    for (int guard = 0; guard < 100000000; ++guard) {
      Gpu *next = nullptr;
      int64_t when = NEVER;
      for (Rank &rank : ranks)
        for (auto &g : rank.gpus) {
          int64_t t = next_local(*g, nullptr);
          if (t < when && t < g->hold && t <= host_limit(rank)) {
            when = t;
            next = g.get();
          }
        }
      if (!next) break;
      moved = true;
      Stream *s = nullptr;
      next_local(*next, &s);
      next->now = std::max(next->now, when);
      earliest = next->now;
      Item &item = s->queue.front();
      if (item.running || item.type == RECORD || item.type == WAIT)
        complete(*next, *s);
      else
        admit(*next, *s);
      if (waiting_hosts() < before || !wanted.empty()) break;
    }
    for (Rank *r : held) {
      r->asleep = false;
      if (moved && earliest != NEVER && earliest > r->host) {
        r->host = earliest;
        store(&r->control->floor, earliest);
      }
    }
    if (moved) ++overtakes;
    return moved;
  }
  size_t waiting_hosts() const {
    size_t n = 0;
    for (const Rank &rank : ranks)
      for (const Request &q : rank.requests) n += !q.data && !(q.record.flags & PH_F_HELPER);
    return n;
  }

  const std::string &diagnose() {
    std::string text;
    for (const Rank &rank : ranks) {
      std::string line;
      if (rank.exited) {
        line = rank.died ? "died" : "has exited with status " + std::to_string(rank.status);
      } else {
        for (const auto &g : rank.gpus)
          for (const Stream *s : g->busy) {
            const Item &item = s->queue.front();
            if (item.type != COMM || !item.running || item.comm->end >= 0) continue;
            for (auto &c : item.comm->collectives) {
              if (c->resolved) continue;
              const Comm &comm = *comms[c->comm];
              int me = comm_rank(comm, rank.index);
              line += "waits in " + describe(c->members[me].record) + ", sequence number " + std::to_string(c->seq) + " of " + comm_text(comm) + "; not there: rank ";
              bool first = true;
              for (size_t i = 0; i < c->members.size(); ++i)
                if (!c->members[i].launch || c->members[i].launch->arrival < 0) {
                  line += (first ? "" : ", ") + std::to_string(comm.ranks[i]);
                  first = false;
                }
              line += ". ";
            }
            for (auto &p : item.comm->pairs) {
              if (p->resolved) continue;
              bool sending = p->send.launch.get() == item.comm.get();
              const Comm &comm = *comms[item.comm->comm];
              line += std::string("waits to ") + (sending ? "send" : "receive") + " " + std::to_string(sending ? p->send.bytes : p->recv.bytes) + " bytes in " + comm_text(comm);
              const Post &other = sending ? p->recv : p->send;
              if (other.launch) line += ", rank " + std::to_string(other.rank) + " has not reached it";
              else line += ", its peer has not called it";
              line += ". ";
            }
          }
        for (const Request &q : rank.requests) {
          if (q.record.kind == PH_EXCHANGE) line += "waits in the creation of a communicator of " + std::to_string(q.record.c) + " ranks. ";
          else if (q.record.kind == PH_PAYLOAD && line.empty()) line += "waits for the bytes of a small collective or receive. ";
        }
        if (line.empty()) line = rank.requests.empty() ? (rank.started ? "runs or sleeps outside CUDA" : "has not started") : "waits for its own GPU";
      }
      while (!line.empty() && line.back() == ' ') line.pop_back();
      text += "  rank " + std::to_string(rank.index) + " " + line + "\n";
    }
    diagnosis = text;
    return diagnosis;
  }

  // ------------------------------------------------------------------ rows for Python
  int64_t take_rows(ph_row *out, int64_t capacity, bool everything) {
    if (ready_rows.empty()) {
      int64_t until = everything ? NEVER : frontier();
      struct Key {
        int64_t end;
        int32_t rank, lane;
        size_t seq;
      };
      std::vector<Key> keys;
      std::vector<ph_row> picked;
      auto pick = [&](std::deque<ph_row> &lane, int32_t rank, int32_t which) {
        while (!lane.empty() && (everything || lane.front().end < until)) {
          keys.push_back({lane.front().end, rank, which, keys.size()});
          picked.push_back(lane.front());
          lane.pop_front();
        }
      };
      std::vector<ph_row> keep;
      for (ph_row &r : pending_comm_rows) {
        if (everything || r.end < until) {
          keys.push_back({r.end, r.rank, 0, keys.size()});
          picked.push_back(r);
        } else {
          keep.push_back(r);
        }
      }
      pending_comm_rows.swap(keep);
      for (Rank &rank : ranks) {
        pick(rank.host_rows, rank.index, 1);
        pick(rank.gpu_rows, rank.index, 2);
      }
      // Communicator rows of one rank and time may come in any real order: their number decides.
      std::sort(keys.begin(), keys.end(), [&](const Key &a, const Key &b) {
        if (a.end != b.end) return a.end < b.end;
        if (a.rank != b.rank) return a.rank < b.rank;
        if (a.lane != b.lane) return a.lane < b.lane;
        if (a.lane == 0) return picked[a.seq].comm < picked[b.seq].comm;
        return a.seq < b.seq;
      });
      ready_rows.reserve(keys.size());
      for (auto it = keys.rbegin(); it != keys.rend(); ++it) ready_rows.push_back(picked[it->seq]);
    }
    int64_t n = 0;
    while (n < capacity && !ready_rows.empty()) {
      out[n++] = ready_rows.back();
      ready_rows.pop_back();
    }
    row_count -= n;
    return n;
  }
};


}  // namespace

// ------------------------------------------------------------------------------ C interface
#define PHC extern "C" __attribute__((visibility("default")))

PHC void *phc_open(void *area) { return new Core(area); }
PHC void phc_close(void *core) { delete static_cast<Core *>(core); }
PHC void phc_timing(void *core, int64_t launch_latency_ns, int64_t kernel_gap_ns) {
  static_cast<Core *>(core)->launch_latency = launch_latency_ns;
  static_cast<Core *>(core)->kernel_gap = kernel_gap_ns;
}
PHC void phc_company(void *core, int cls, double slowdown) { static_cast<Core *>(core)->company[cls & 255] = slowdown; }
PHC int phc_run(void *core, int timeout_us) { return static_cast<Core *>(core)->run_once(timeout_us); }
PHC int phc_next_price(void *core, phc_price_request *out) {
  Core &c = *static_cast<Core *>(core);
  if (c.wanted.empty()) return 0;
  *out = c.prices[c.wanted.front()]->request;
  c.wanted.pop_front();
  return 1;
}
PHC void phc_price_kernels(void *core, int32_t id, phc_price_kernel *out) {
  auto &kernels = static_cast<Core *>(core)->prices[id]->kernels;
  std::copy(kernels.begin(), kernels.end(), out);
}
PHC void phc_set_price(void *core, int32_t id, const int64_t *durations, int count, int64_t least, int cls, int32_t name) {
  Core &c = *static_cast<Core *>(core);
  Price &p = *c.prices[id];
  p.durations.assign(durations, durations + count);
  p.known = true;
  p.least = least;
  p.cls = static_cast<uint8_t>(cls);
  p.name = name;
  p.kernels.clear();
  for (size_t i = 0; i < p.waiting.size(); ++i) {
    auto [stream, seq] = p.waiting[i];
    if (Item *item = c.item_at(stream, seq)) c.apply_price(*item, p, p.part[i]);
    stream->gpu->dirty = true;
  }
  p.waiting.clear();
  p.part.clear();
  auto collectives = std::move(p.collectives);
  auto pairs = std::move(p.pairs);
  for (auto &x : collectives) c.settle(*x);
  for (auto &x : pairs) c.settle(*x);
}
PHC int32_t phc_intern(void *core, int table, const char *text, int64_t length) {
  return static_cast<Core *>(core)->intern(static_cast<Table>(table), std::string(text, static_cast<size_t>(length)));
}
PHC int64_t phc_text_count(void *core, int table) { return static_cast<int64_t>(static_cast<Core *>(core)->texts[table].size()); }
PHC const char *phc_text(void *core, int table, int32_t id, int64_t *length) {
  const std::string &text = static_cast<Core *>(core)->texts[table][id];
  *length = static_cast<int64_t>(text.size());
  return text.data();
}
PHC int phc_comm_ranks(void *core, int32_t comm, int32_t *out, int capacity) {
  const auto &ranks = static_cast<Core *>(core)->comms[comm]->ranks;
  for (size_t i = 0; i < ranks.size() && static_cast<int>(i) < capacity; ++i) out[i] = ranks[i];
  return static_cast<int>(ranks.size());
}
PHC int64_t phc_take_rows(void *core, ph_row *out, int64_t capacity, int everything) {
  return static_cast<Core *>(core)->take_rows(out, capacity, everything != 0);
}
PHC const char *phc_error(void *core) { return static_cast<Core *>(core)->error.c_str(); }
PHC const char *phc_diagnose(void *core) { return static_cast<Core *>(core)->diagnose().c_str(); }
PHC int phc_overtake(void *core, const int32_t *ranks, int count) {
  Core &c = *static_cast<Core *>(core);
  bool moved = c.overtake(ranks, count);
  c.advance();
  return moved;
}
// 0 not started, 1 runs, 2 waits for virtual time, 3 waits for bytes or an exchange, 4 exited
PHC int phc_rank_state(void *core, int rank) {
  const Rank &r = static_cast<Core *>(core)->ranks[rank];
  if (r.exited) return 4;
  if (!r.started) return 0;
  int state = 1;
  for (const Request &q : r.requests)
    if (!(q.record.flags & PH_F_HELPER)) state = std::max(state, q.data ? 3 : 2);
  return state;
}
PHC void phc_rank_died(void *core, int rank, int status) {
  Core &c = *static_cast<Core *>(core);
  Rank &r = c.ranks[rank];
  while (!r.exited && r.tail != load(&r.control->head) && c.error.empty()) c.consume(r);
  if (r.exited) return;
  r.exited = r.died = true;
  r.status = status;
  r.requests.clear();
  for (auto &g : r.gpus) g->dirty = true;
}
PHC void phc_get_status(void *core, phc_status *out) {
  Core &c = *static_cast<Core *>(core);
  memset(out, 0, sizeof *out);
  int64_t latest = 0;
  for (Rank &r : c.ranks) {
    latest = std::max(latest, r.host);
    for (auto &g : r.gpus) latest = std::max(latest, g->now);
    out->exited += r.exited;
    out->alive += r.started && !r.exited;
    out->blocked += !r.requests.empty();
  }
  int64_t frontier = c.frontier();
  out->final_time = frontier == NEVER ? latest : frontier;
  out->records = c.records;
  out->rows = c.row_count;
  out->late = c.late;
  out->steps = c.steps;
  out->overtakes = c.overtakes;
}
