// The simulator's engine: consumes the ranks' rings and places their work in virtual time.
//
// Each rank has one or more GPUs; a GPU has streams, a stream is a queue of items. A GPU advances
// event by event: an item is admitted when it heads its stream and its launch and dependencies are
// past, and completes when its work is done (gpu/device.h). Kernels share the GPU (gpu/rates.h), lose to communication
// that run with them (gpu/interference.h) and to the power limit (gpu/power.h). A GPU never passes the moment at which
// its host, a missing peer of a collective that runs on it, or other traffic on the links could
// still change what happens (time/conservative_clock.h; docs/virtual-time.md). Costs are asked from Python once per
// distinct piece of work and kept (prices.h).
#pragma once
#include "time/completions.h"
#include "ranks/ingest.h"
#include "time/conservative_clock.h"

namespace phe {

constexpr int64_t ROWS_WANTED = 1 << 14;  // new rows that make it worth calling Python
constexpr int64_t MOST_MS = 50;  // of Engine::run: Python notes deaths and shows progress

class Engine {
 public:
  explicit Engine(void *area);

  // ---- before the run
  void set_timing(int kind, const phe_timing &timing) {
    devices_.model(static_cast<size_t>(kind)).timing = timing;
    communication_.set_send_buffer(timing.send_buffer_bytes);
  }
  void set_power(int kind, const phe_power_limit &limit) { devices_.model(static_cast<size_t>(kind)).power = limit; }
  void set_power_factor(int rank, double factor) { rank_table_[static_cast<size_t>(rank)].power_factor = factor; }
  void throttle(int rank, const Throttle &one) { rank_table_[static_cast<size_t>(rank)].throttles.push_back(one); }
  void set_slowness(int rank, double factor) { rank_table_[static_cast<size_t>(rank)].slowness = factor; }
  void record() { rank_table_.record(); }
  void play(double scale) { rank_table_.play(scale); }
  Noise &noise() { return noise_; }
  void log_briefly() { rows_.log_briefly(); }
  Links &links() { return links_; }
  Marks &marks() { return marks_; }
  Pipelines &pipelines() { return pipelines_; }
  SettledPower &settled_power() { return settled_power_; }
  void fold(FoldedRanks folded) { communication_.fold(std::move(folded)); }
  Comparison &comparison() { return comparison_; }

  // ---- the run
  // Consumes, advances, answers, until Python is needed or MOST_MS have passed. Where nothing moves it sleeps: up to
  // `waiting_us` while a rank waits for an answer, else up to `resting_us`; 0: it returns. Bits of phe_reason.
  int run(int waiting_us, int resting_us);
  Prices &prices() { return prices_; }
  void price(int32_t id, const int64_t *durations, int count, int32_t name);
  // Ranks asleep outside CUDA (and those that wait for bytes) hold no rank back any longer. The
  // earliest answer that this allows is given, and their clocks move to at least that moment. False: there is none.
  bool release_sleepers(const int32_t *sleepers, int count);
  bool give_room() { return waits_.give_room(); }
  void rank_died(int rank, int status);
  // More processes may come when all have gone.
  void keep_open(bool open) { open_ = open; }

  // ---- what it knows
  Texts &texts() { return texts_; }
  const Communication &communication() const { return communication_; }
  int64_t take_rows(ph_row *out, int64_t capacity, bool everything);
  int64_t take_records(int rank, ph_record *out, int64_t capacity, bool everything);
  const std::string &error() const { return failure_.text(); }
  phe_failure error_kind() const { return failure_.kind(); }
  int unlike() const { return failure_.unlike(); }
  const std::string &diagnosis();
  phe_rank_state state_of(int rank);
  phe_status status();

 private:
  int iterate();
  void advance();
  bool all_done();
  bool all_wait();
  int64_t frontier();  // nothing earlier can change
  void write_power();
  bool sleep(int timeout_us);
  void wake_relay();
  bool a_rank_is_behind();
  bool a_rank_waits();
  bool a_recording_runs_out();
  std::vector<Rank *> held(const int32_t *sleepers, int count);

  ph_header *header_;
  Progress progress_;
  Failure failure_;
  Texts texts_;
  CallNames names_;
  Noise noise_;
  RankTable rank_table_;
  RowLog rows_;
  Devices devices_;
  Prices prices_;
  Launches launches_;
  Waits waits_;
  Payloads payloads_;
  Links links_;
  Pipelines pipelines_;
  SettledPower settled_power_;
  Marks marks_;
  Communication communication_;
  Comparison comparison_;
  Completions completions_;
  Ingest ingest_;
  ConservativeClock clock_;
  int64_t metered_until_ = -1;  // end of the last power rows
  int64_t rows_wanted_ = ROWS_WANTED;  // rows that wait before they are asked for again
  std::string diagnosis_;
  int64_t releases_ = 0;
  bool open_ = false;
  bool quick_ = false;  // the thread of run() has short slices
};

}  // namespace phe
