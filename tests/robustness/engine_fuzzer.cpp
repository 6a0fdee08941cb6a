// The engine under libFuzzer (`fuzz.py ranks --guided`, docs/reliability.md): three ranks say what the input holds.
//
// An input is cells of 65 bytes, as in fuzz_engine.py: whose record, and the record. The rank is the first byte modulo
// 3. What is left of the first cell's byte chooses what else a run sets (SETTINGS); it is 0 in the seeds, and
// fuzz_engine.py takes no notice of it. PHANTORA_FUZZ_REPLAYED=1: the records are those of recordings.
// PHANTORA_FUZZ_COUNTS names a file of two 64-bit numbers: inputs that were accepted and that were refused.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "engine_cells.h"
#include "phantora_engine.h"

namespace {

constexpr int MOST_TURNS = 2000;    // of the engine for one input: thousands of times what the seeds take
constexpr size_t TURN_EVERY = 8;    // records
constexpr size_t MOST_RECORDS = 2048;
constexpr int64_t MOST_ROWS = 1 << 16;
constexpr size_t BOUNDARY = 4096;  // of the parts of the memory
enum Settings { NETWORK = 1, POWER = 2, UNEVEN = 4, CLOCKS = 8, ROOM = 16, AFTER_ERRORS = 32, FOLDED = 64 };
constexpr uint32_t PLACES = WORLD + 1;  // of a folded run: an axis of four ranks, of which the third is no process

constexpr size_t pages(size_t bytes) { return (bytes + BOUNDARY - 1) / BOUNDARY * BOUNDARY; }

// The memory that ranks share with the engine, as wire/session.py lays it out.
class Area {
 public:
  Area() {
    size_t control = pages(sizeof(ph_header)), ring = control + pages(PLACES * sizeof(ph_control));
    size_t reply = ring + PLACES * PH_RING_RECORDS * sizeof(ph_record);
    size_t size = reply + pages(PLACES * PH_REPLY_SLOTS * sizeof(ph_reply));
    bytes_.reset(static_cast<char *>(std::aligned_alloc(BOUNDARY, size)));
    std::memset(bytes_.get(), 0, size);
    ph_header &h = *reinterpret_cast<ph_header *>(bytes_.get());
    h.magic = PH_MAGIC;
    h.version = PH_WIRE_VERSION;
    h.layout = PH_LAYOUT;
    h.size = size;
    h.control_offset = control;
    h.ring_offset = ring;
    h.reply_offset = reply;
    h.workspace_offset = size;
    h.device.sms = 100;
    h.device.max_threads_per_sm = 2048;
    h.device.max_blocks_per_sm = 32;
    fresh_ = h;
  }

  // As before any rank has said a word. The rings may keep what was said: no head reaches it.
  void clear(bool folded) {
    fresh_.world_size = fresh_.ranks_per_host = folded ? PLACES : WORLD;
    fresh_.folded = folded;
    *reinterpret_cast<ph_header *>(bytes_.get()) = fresh_;
    auto *control = reinterpret_cast<ph_control *>(bytes_.get() + fresh_.control_offset);
    std::memset(control, 0, PLACES * sizeof *control);
    if (folded) control[2].folded = 1;
    for (size_t i = 0; i < PLACES * PH_REPLY_SLOTS; ++i) {
      char *reply = bytes_.get() + fresh_.reply_offset + i * sizeof(ph_reply);
      std::memset(reply, 0, offsetof(ph_reply, data));
    }
  }

  void say(size_t rank, const uint8_t *record, bool clock) {
    auto &control = reinterpret_cast<ph_control *>(bytes_.get() + fresh_.control_offset)[rank];
    auto *ring = reinterpret_cast<ph_record *>(bytes_.get() + fresh_.ring_offset) + rank * PH_RING_RECORDS;
    ph_record &place = ring[control.head++ % PH_RING_RECORDS];
    std::memcpy(&place, record, sizeof place);
    if (clock && place.kind != PH_BLOB && place.time > control.clock) control.clock = place.time;
  }

  char *bytes() { return bytes_.get(); }

 private:
  struct Free {
    void operator()(char *bytes) const { std::free(bytes); }
  };
  std::unique_ptr<char, Free> bytes_;
  ph_header fresh_{};
};

// One run: the engine, and the simulator's part, which prices everything and asks for what is known.
class Run {
 public:
  Run(Area &area, unsigned settings, bool replayed)
      : area_(area), settings_(settings), replayed_(replayed), engine_(phe_open(area.bytes())) {
    phe_timing timing{};
    timing.communication_start_ns = 2000;
    timing.filling_copy_bytes = 4 << 20;
    if (settings_ & UNEVEN) {
      timing.launch_latency_ns = 3000;
      timing.kernel_gap_ns = 500;
      timing.crowded_gap_ns = 900;
      timing.graph_gap_ns = 100;
      phe_straggler(engine_, 1, 1.5);
    }
    phe_set_timing(engine_, 0, &timing);
    if (settings_ & FOLDED) {
      const int32_t size = PLACES, none = 0;
      phe_fold(engine_, &size, &none, &none, 1);
      phe_compare(engine_, 1, 0, 3, "dp", 0);
    }
    if (settings_ & NETWORK) connect();
    if (settings_ & POWER) {
      phe_power_limit limit{400, 2.0, 50, 1e6, 1e6, 0.3, 24};
      phe_set_power(engine_, 0, &limit);
      phe_set_power_factor(engine_, 2, 1.1);
    }
    if (replayed_)
      phe_play(engine_, 1.0);
    else
      phe_record(engine_);
  }
  Run(const Run &) = delete;
  Run &operator=(const Run &) = delete;
  ~Run() { phe_close(engine_); }

  // False: the engine refuses what it heard.
  bool hear(const uint8_t *data, size_t cells) {
    for (size_t i = 0; i < cells; ++i) {
      const uint8_t *cell = data + i * CELL;
      area_.say(static_cast<size_t>(rank_of(cell[0] % WORLD)), cell + 1, settings_ & CLOCKS);
      if (!replayed_ && i % TURN_EVERY == TURN_EVERY - 1 && !turns()) return refused();
    }
    if (!turns()) return refused();
    if (settings_ & ROOM) phe_give_room(engine_);
    if (!replayed_) phe_release_sleepers(engine_, nullptr, 0);
    phe_diagnose(engine_);
    if (!replayed_) {
      for (int i = 0; i < WORLD; ++i) phe_rank_died(engine_, rank_of(i), 1);
      if (!turns()) return refused();
    }
    take();
    return true;
  }

 private:
  int rank_of(int place) const { return settings_ & FOLDED ? REAL[place] : place; }

  void connect() {
    const int32_t name = phe_intern(engine_, PHE_NAMES, "link", 4);
    for (int32_t rank = 0; rank < WORLD; ++rank) phe_add_link(engine_, 1e9 * (rank + 1), name, &rank, 1);
    phe_add_link(engine_, 2e9, name, nullptr, 0);
    phe_log_flows(engine_);
    phe_change_link(engine_, 3, 50000, 1e8);
    const int32_t busy = 3;
    phe_background(engine_, &busy, 1, 1e7);
  }

  bool turns() {
    for (int turn = 0; turn < MOST_TURNS; ++turn) {
      int reason = phe_run(engine_, 0, 0);
      if (reason & PHE_ERROR) return false;
      bool asked = false;
      phe_price_request request;
      while (phe_next_price(engine_, &request)) {
        asked = true;
        answer(request);
      }
      if (!asked && !(reason & PHE_MOVED)) return true;
    }
    std::fprintf(stderr, "the engine still moves after %d turns\n", MOST_TURNS);
    std::abort();
  }

  void answer(const phe_price_request &request) {
    size_t count = static_cast<size_t>(request.kernels > 0 ? request.kernels : 1);
    std::vector<phe_price_kernel> kernels(count);
    if (request.kernels > 0) phe_price_kernels(engine_, request.id, kernels.data());
    std::vector<int64_t> durations(count, 1000);
    if (settings_ & UNEVEN)
      for (size_t i = 0; i < count; ++i) durations[i] = 1 + 997 * ((request.id + static_cast<int64_t>(i)) % 7);
    bool communicates = request.kind == PHE_COLLECTIVE || request.kind == PHE_TRANSFER;
    if (communicates && settings_ & NETWORK) flow(request);
    if (!communicates && settings_ & POWER) {
      phe_kernel_profile profile{1.2, 1.1, 300, 50, 1.0, 0.7, 0.2, 0.5, request.id % 2 ? 300 : 0, 100, 16};
      phe_set_profile(engine_, request.id, &profile);
    }
    phe_set_price(engine_, request.id, durations.data(), static_cast<int>(count), -1);
  }

  void flow(const phe_price_request &request) {
    phe_flow flows[2] = {};
    flows[0] = {
        request.kind == PHE_TRANSFER ? request.src : -1, -1, 2, 2, -1, 0, static_cast<double>(request.bytes), 1e9};
    flows[1] = {-1, -1, 1, 1, -1, 0, 4096, 5e8};
    const int32_t source = request.kind == PHE_TRANSFER ? request.src % WORLD : 0;
    const int32_t links[3] = {source, 3, 3};
    phe_set_flows(engine_, request.id, 2000, 0.5, flows, 2, links, 3);
  }

  bool refused() {
    if (!std::strlen(phe_error(engine_))) std::abort();
    if (settings_ & AFTER_ERRORS) take();
    return false;
  }

  void take() {
    static std::vector<ph_row> rows(MOST_ROWS);
    static std::vector<ph_record> records(MOST_ROWS);
    int64_t got = phe_take_rows(engine_, rows.data(), MOST_ROWS, 1);
    for (int64_t i = 0; i < got; ++i)
      if (rows[static_cast<size_t>(i)].name >= phe_text_count(engine_, PHE_NAMES)) std::abort();
    for (int i = 0; i < WORLD && !replayed_; ++i) phe_take_records(engine_, rank_of(i), records.data(), MOST_ROWS, 1);
    phe_status status;
    phe_get_status(engine_, &status);
    for (int i = 0; i < WORLD; ++i) phe_state_of_rank(engine_, rank_of(i));
  }

  Area &area_;
  unsigned settings_;
  bool replayed_;
  void *engine_;
};

// In a file that the caller has, so that they outlive a crash.
uint64_t *counts() {
  static uint64_t none[2];
  const char *name = std::getenv("PHANTORA_FUZZ_COUNTS");
  int file = name ? open(name, O_RDWR) : -1;
  if (file < 0) return none;
  void *mapped = mmap(nullptr, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return mapped == MAP_FAILED ? none : static_cast<uint64_t *>(mapped);
}

}  // namespace

// Of engines that are closed in the middle of a run, memory is not looked for: their process ends then.
extern "C" const char *__asan_default_options() { return "detect_leaks=0:quarantine_size_mb=16:malloc_context_size=8"; }
extern "C" const char *__ubsan_default_options() { return "print_stacktrace=1"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const bool replayed = std::getenv("PHANTORA_FUZZ_REPLAYED") != nullptr;
  static Area area;
  static uint64_t *const counted = counts();
  size_t cells = size / CELL;
  if (cells > MOST_RECORDS) cells = MOST_RECORDS;
  unsigned settings = cells ? data[0] / WORLD : 0U;
  area.clear(settings & FOLDED);
  Run run(area, settings, replayed);
  ++counted[run.hear(data, cells) ? 0 : 1];
  return 0;
}
