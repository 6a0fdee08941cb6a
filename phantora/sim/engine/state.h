// What the simulator's core knows: ranks, GPUs, streams, collectives; and the class that moves them.
#pragma once
#include "engine.h"
#include "network.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace phc {

constexpr int64_t NEVER = INT64_MAX;
constexpr int64_t ROWS_WANTED = 1 << 17;  // rows that make it worth calling Python
constexpr int64_t ONE_SLOT_BYTES = 8192;  // of NCCL's LL protocol, the one for small messages
constexpr int MAX_PASS = 4096;            // records of one rank consumed before the next has its turn

enum Table { NAMES, SIGNATURES };
enum ItemType : uint8_t { KERNEL, COPY, MEMSET, COMM, RECORD, WAIT, HOSTFUNC, STEP };  // STEP: all before belongs to a step

struct Gpu;
struct Rank;
struct Stream;
struct Launch;
struct Operation;

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
  bool waited = false; // communication: for room on the GPU
  bool first = false;  // communication: came when no product filled the GPU
  int32_t name = -1, sig = -1, price = -1, part = 0;
  uint32_t event = 0;
  int64_t launch = 0, ready = 0, start = 0, updated = 0;
  double work = 0, rate = 0;  // ns of work left, ns per ns
  float demand = 0;           // share of the SMs
  uint8_t cls = 0;
  phc_nature nature = {1, 1, 0, 0, 1, 0, 0};
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
  int64_t gap = 0;          // before the next kernel, copy or memset can start
  int64_t last_id = -1;     // id of the last item enqueued
  int64_t done_id = -1;     // and of the last one completed
  std::deque<Item> queue;
};

struct Loss {  // of communication to the kernels beside it, from a moment on
  int64_t since = 0;
  double before = 0;  // ns lost until then
  double share = 0;   // of the time, from then on
};

struct Gpu {
  Rank *rank = nullptr;
  int device = 0;
  int64_t now = 0;
  int64_t hold = NEVER;        // a kernel without a price yet may start then
  int64_t comm_end = NEVER;    // the earliest end, by its own bound, of a communication kernel that runs and has no end yet
  int nccl = 0;                // communication kernels on the GPU
  int kernels = 0;             // kernels, copies admitted
  uint64_t admissions = 0;
  double dynamic = 0, steady = 0;  // W that what runs draws at full clock (core_power.cpp)
  double mean = 0;                 // W drawn of late
  double clock = 1.0;              // share of the full one
  int64_t felt = 0;                // when these were brought up to date
  std::deque<Loss> losses;         // since the first communication kernel that still runs arrived
  bool dirty = true;
  // Scratch of sweep():
  int64_t turn = NEVER;        // when it is looked at next
  int64_t closed = NEVER;      // from then on a communication kernel may end that has no end yet
  bool stopped = false;        // nothing more is known about it
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
  Gpu *whole = nullptr;  // waits for all streams of it
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

struct Nap {  // a sleep outside CUDA out of which the host was moved forward
  int64_t since = -1, until = -1;  // host clock; since -1: none
  int by = -1;                     // rank whose host was released at `until`
  uint64_t answers = 0;            // that this rank had then
};

struct Recorder {  // what one rank said, on its way to the log (core_replay.cpp)
  std::deque<ph_record> kept;
  uint64_t taken = 0;             // records that went before `kept`
  std::vector<ph_record> pieces;  // of a blob whose taker is still to come
  uint64_t asked[PH_REPLY_SLOTS] = {};  // position of the request that holds the slot, plus one; 0: none
};

struct Player {  // one rank of a recorded run, in place of a process (core_replay.cpp)
  double scale = 1;           // of host time
  bool waits = false;         // a request is not answered
  bool sleeps = false;        // a MOVED record is not due
  int64_t resumes = 0;        // recorded clock after that request
  int64_t then = 0, now = 0;  // recorded clock and ours, at the last moment that shifted them
  std::vector<std::pair<int64_t, int64_t>> shifts;  // those moments, as far as they changed anything
  std::vector<int64_t> answers;                     // our clock after each answer

  int64_t clock(int64_t recorded) const;
  void shift(int64_t recorded, int64_t ours);
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
  Nap nap;
  std::unique_ptr<Recorder> recorder;
  std::unique_ptr<Player> player;
  uint64_t answered = 0;  // requests of the host
  std::string blob;
  std::vector<std::unique_ptr<Gpu>> gpus;
  std::unordered_map<uint32_t, std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Stream>> retired;
  std::unordered_map<uint32_t, Event> events;
  std::unordered_map<uint64_t, int64_t> blocks;  // of the framework's allocator: address -> row that allocated it
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
  double slowness = 1.0;               // its kernels take so many times as long
  double appetite = 1.0;               // its GPUs draw so many times the dynamic power
  Gpu *talking = nullptr;              // its GPU on which communication arrived last
  std::vector<int32_t> scopes;         // of the links that it can put traffic on
  // Scratch of sweep():
  bool stopped = false;
  std::vector<Operation *> missed;     // open operations that wait for it
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

// What members do together: a collective, or a pair of a send and a receive.
struct Operation {
  bool transfer = false;
  int32_t comm = -1, price = -1;
  int64_t seq = 0;       // of a collective in its communicator, of a transfer among those of its way
  bool begun = false;    // all members are there and it has a price
  int32_t open = -1;     // place in Core::open_operations
  // Scratch of sweep():
  uint64_t sweep = 0;    // the last that knew it
  int missing = 0;       // members that have not reached it and may still say when
};

struct Pair : Operation {
  int src = 0, dst = 0;  // ranks in the communicator
  Post send, recv;
};

struct Collective;

struct Launch {  // one communication kernel on one rank
  Gpu *gpu = nullptr;
  int32_t comm = -1;
  int64_t seq = -1;
  int64_t arrival = -1;  // -1: the stream has not reached it
  int64_t id = -1;       // of its row
  int64_t ready = -1, end = -1;
  int64_t least_end = 0; // it ends no earlier
  int64_t part_end = 0;  // latest end among the parts that have ended
  int64_t last_at = -1;  // when the launch that holds this one up longest came, or was through
  int last_rank = -1;    // whose that is
  int64_t last_id = -1;
  int waiting = 0;       // parts that have no end yet
  int sends = 0, recvs = 0;
  bool p2p = false;
  int64_t bytes = 0, peer = -1;  // peer: rank in the communicator, -1: several
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

struct Collective : Operation {
  std::vector<Member> members;  // by rank in the communicator
  int joined = 0, arrived = 0;
  int64_t latest = 0;    // arrival
  int64_t begin = 0;     // and end of the collective before it in the same kernel
  bool held = false;     // that one has not ended
};

// An operation that is under way.
struct Activity {
  int32_t comm = -1, price = -1;
  int64_t seq = -1;
  std::vector<std::shared_ptr<Launch>> launches;
  int64_t since = 0;       // when it began
  int64_t slowed_end = 0;  // latest end of a flow that has ended, with what kernels at its ends cost it
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
  int64_t latency = 0;    // communication: from its beginning to that of its flows
  int64_t least = 0;      // and the duration when it has the links to itself
  std::vector<phn::FlowClass> flows;
  std::vector<int32_t> links;   // of the flows
  std::vector<int32_t> routes;  // and what to call them, global names
  uint8_t cls = 0;
  phc_nature nature = {1, 1, 0, 0, 1, 0, 0};
  int32_t name = -1;
  std::vector<std::pair<Stream *, uint64_t>> waiting;  // kernels that await this price
  std::vector<int> part;
  std::vector<std::shared_ptr<Collective>> collectives;
  std::vector<std::shared_ptr<Pair>> pairs;
};

struct PowerLimit {
  double budget = 0;         // W beside the idle GPU's in the long run; 0: no limit
  double exponent = 1;       // of dynamic power over the clock
  double communication = 0;  // W that a communication kernel draws
  double response = 1;       // ns over which the limiter averages
  double reaction = 1;       // ns in which it would take the clock to nothing, at twice the budget
};

struct Exchange {
  int members = 0, joined = 0;
  std::vector<std::string> data;
  std::vector<std::pair<Rank *, ph_record>> waiting;
  int64_t latest = -1;
  int last_rank = -1;  // who came then
};

inline long futex(const uint32_t *address, int op, uint32_t value, const timespec *timeout) {
  return syscall(SYS_futex, address, op, value, timeout, nullptr, 0);
}

template <typename T>
T load(const T *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
template <typename T>
void store(T *p, T v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

// One file of definitions per group of functions, named above it.
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
  int64_t launch_latency = 0, kernel_gap = 0, crowded_gap = 0;
  PowerLimit power;
  int64_t records = 0, late = 0, overtakes = 0, row_count = 0, device_peak = 0;
  int unnumbered = 0;  // communicators that some member has not joined
  int unpriced_comm = 0;    // collectives and transfers whose price has been asked for
  int steps = 0;
  int released = -1;        // rank whose host was answered last
  bool progressed = false;
  bool news = true;         // something has come in since the last sweep
  int64_t swept = 0;        // the moment of the last thing that a sweep did
  phn::Network network;
  bool flow_rows = false;
  std::vector<int32_t> link_names;
  std::vector<int32_t> link_ranks;                 // the lowest that can use it
  std::deque<std::vector<int32_t>> background;     // links of endless flows
  std::map<std::vector<int32_t>, int32_t> scopes;  // ranks -> scope
  std::vector<Activity> activities;                // by tag
  std::vector<int32_t> free_activities;
  std::vector<std::shared_ptr<Operation>> open_operations;  // some member is there, they have not begun
  uint64_t sweeps = 0;
  std::vector<Gpu *> gpus;                         // all
  std::vector<Gpu *> touched;                      // whose communication has ended, for sweep()
  std::vector<ph_row> network_rows;                // in no order
  struct StepChange {
    int32_t link;
    int step;
    double bandwidth;
  };
  std::vector<StepChange> step_changes;            // of links, to come
  int32_t api_names[PH_COUNT_PH_KIND];
  std::vector<ph_row> ready_rows;
  std::vector<ph_row> pending_comm_rows;
  std::vector<std::shared_ptr<Pair>> paired;  // matched, not yet priced: groups must be whole first
  struct StreamSeqHash {
    size_t operator()(const std::pair<Stream *, uint64_t> &p) const {
      return reinterpret_cast<size_t>(p.first) * 31 + p.second * 0x9e3779b97f4a7c15ULL;
    }
  };
  std::unordered_map<std::pair<Stream *, uint64_t>, phc_price_kernel, StreamSeqHash> launches;  // of open operators

  // A price is found by the bytes of its key; `make` fills the request of a new one.
  template <typename Make>
  int32_t price_of(const std::string &key, Make make) {
    auto [it, fresh] = price_index.try_emplace(key, static_cast<int32_t>(prices.size()));
    if (fresh) {
      prices.push_back(std::make_unique<Price>());
      prices.back()->request.id = it->second;
      make(*prices.back());
      unpriced_comm += is_communication(*prices.back());
      wanted.push_back(it->second);
    }
    return it->second;
  }
  static bool is_communication(const Price &p) { return p.request.kind == PHC_COLLECTIVE || p.request.kind == PHC_TRANSFER; }
  static void put(std::string &key, const void *data, size_t size) { key.append(static_cast<const char *>(data), size); }
  template <typename T>
  static void put(std::string &key, T value) { put(key, &value, sizeof value); }
  template <typename T>
  static T &at(std::vector<T> &v, size_t i, T fill) {
    if (v.size() <= i) v.resize(std::max(i + 1, v.size() * 2), fill);
    return v[i];
  }

  // core.cpp
  explicit Core(void *area);
  int32_t intern(Table table, const std::string &text);
  void fail(std::string text);
  void advance();
  bool all_done() const;
  int64_t frontier();
  int run_once(int timeout_us);
  bool overtake(const int32_t *sleepers, int count);

  // core_records.cpp
  bool consume(Rank &rank);
  static int32_t global(const std::vector<int32_t> &map, uint32_t local);
  void take(Rank &rank, const ph_record &r);
  int32_t copy_name(uint8_t sub);
  int32_t memset_name();

  // core_replay.cpp
  void remember(Rank &rank, const ph_record &r);
  void answered(Rank &rank, const ph_record &r, int64_t clock);
  int64_t take_records(Rank &rank, ph_record *out, int64_t capacity, bool everything);
  bool play(Rank &rank, ph_record &r);
  bool wakes(Rank &rank, const ph_record &moved);
  bool credible(const Rank &rank, const ph_record &r) const;

  // core_gpu.cpp
  Gpu *gpu_of(Rank &rank, int device);
  Stream *stream_of(Rank &rank, uint32_t id, int device = -1);
  void enqueue_wait(Stream *s, Dep dep, int64_t launch);
  Item &push(Stream *s, Item &&item);
  Item &enqueue(Rank &rank, Stream *s, Item &&item);
  float demand_of(uint64_t grid, uint64_t block) const;
  int64_t host_limit(const Rank &rank) const;
  void update_rates(Gpu &gpu);
  void feel(Gpu &gpu);
  void draw(Gpu &gpu);
  int64_t gap_after(const Gpu &gpu, const Stream &s) const;
  static bool before(const Item &a, const Item &b);
  void run(Gpu &gpu);
  void happen(Gpu &gpu, Stream &s, int64_t when);
  int64_t next_local(Gpu &gpu, Stream **which);
  bool await_room(Gpu &gpu, Item &item);
  void admit(Gpu &gpu, Stream &s);
  void complete(Gpu &gpu, Stream &s);

  // core_company.cpp
  static void take_pace(Gpu &gpu);
  static void forget_losses(Gpu &gpu);
  static double lost(const Gpu &gpu, int64_t from, int64_t until);
  void slow_down(const phn::Ended &e);

  // core_waits.cpp
  void answer(Rank &rank, size_t i, int status, int64_t time, int64_t value);
  void reply(Rank &rank, const ph_record &record, int status, int64_t time, int64_t value, const char *data, size_t length);
  void check_requests(Rank &rank);
  int64_t completion(Rank &rank, const Request &q);
  static int64_t released_by(const Rank &rank, const Request &q);
  void host_wait(Rank &rank, const ph_record &r, int32_t name, int64_t start, int64_t end, int last_rank);
  void wake(Rank &rank, const ph_record &r);
  void wait_for_room(Rank &rank, const ph_record &r);
  bool give_room();
  void request(Rank &rank, const ph_record &r, std::vector<Dep> deps, int64_t link, Gpu *whole = nullptr);

  // core_prices.cpp
  Item *item_at(Stream *s, uint64_t seq);
  void apply_price(const Stream &s, Item &item, const Price &price, int part);
  void want(Stream *s, uint64_t seq, int32_t id, int part);
  void close_piece(OpenOp &op);
  void close_pieces(Rank &rank);

  // core_collectives.cpp
  void arrive(Launch &launch, int64_t time);
  void settle(Collective &c);
  void settle(Pair &p);
  void begin(Operation &o, Activity activity, int64_t arrival, int64_t time);
  void finish(int32_t tag, int64_t time);
  void finish_part(Launch &l, const Launch &last, int64_t arrival, int64_t end);
  int comm_rank(const Comm &comm, int rank) const;
  void join_collective(Rank &rank, const ph_record &r, std::shared_ptr<Launch> launch);
  void deliver(Comm &comm, Collective &c);
  void join_pair(Rank &rank, const ph_record &r, std::shared_ptr<Launch> launch);
  void price_pairs();
  void create_comm(Rank &rank, const ph_record &r);

  // core_exchange.cpp
  void arrived(Rank &to, uint64_t ticket, std::string data);
  void serve_payloads(Rank &rank);
  bool serve_payload(Rank &rank, const ph_record &r);
  void exchange(Rank &rank, const ph_record &r);

  // core_network.cpp
  int32_t add_link(double bandwidth, int32_t name, const int32_t *members, int count);
  void step_ended(int64_t time);
  void step_begins(int step, int64_t time);
  void flow_ended(const phn::Ended &e);
  void busy_rows(int64_t until);

  // core_sweep.cpp
  bool sweep(bool until_answer = false);

  // core_rows.cpp
  ph_row row(ph_row_kind kind, const Rank &rank, int64_t start, int64_t end);
  void emit(std::deque<ph_row> &lane, const ph_row &r);
  int64_t take_rows(ph_row *out, int64_t capacity, bool everything);

  // core_diagnosis.cpp
  static const char *kind_name(int kind);
  std::string describe(const ph_record &r) const;
  std::string comm_text(const Comm &comm) const;
  const std::string &diagnose();
};

}  // namespace phc
