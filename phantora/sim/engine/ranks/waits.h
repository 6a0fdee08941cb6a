// Requests of hosts that wait for their GPUs, and their answers.
#pragma once
#include "names.h"
#include "rows.h"
#include "ranks/rank_table.h"
#include "gpu/shared_memory.h"

namespace phe {

class Waits {
 public:
  Waits(RankTable &rank_table, Devices &devices, RowLog &rows, CallNames &names, Progress &progress)
      : rank_table_(rank_table), devices_(devices), rows_(rows), names_(names), progress_(progress) {}

  // `r` asks until `deps` are done, or whether they are. `link`: the row it waits for. `whole`: it waits for all of it.
  void request(Rank &rank, const ph_record &r, std::vector<Dep> deps, int64_t link, Device *whole = nullptr);
  // A host that launches waits while a stream has too much to do.
  void request_room(Rank &rank, const ph_record &r);
  // NVML asks what a GPU has drawn.
  void request_meter(Rank &rank, const ph_record &r);
  // Memory of a GPU that several processes share, taken and given back in the order of their clocks.
  void share_memory(Rank &rank, const ph_record &r);
  // A process that has ended has none.
  void return_memory(Rank &rank, int64_t time);
  // Most bytes that a GPU had taken at a time.
  int64_t shared_peak() const;
  // Answers those of `device` that nothing can precede any more.
  void settle_memory(Device &device);
  // The work of `device` up to `until` is known: answers requests for its energy.
  void read_meter(Device &device, int64_t until);
  // The ranks wait for each other: the first that asked for room does without. False: none asks.
  bool give_room();
  // Answers what has become clear.
  void check(Rank &rank);
  void reply(Rank &rank, const ph_record &record, int status, int64_t time, int64_t value, const char *data = nullptr,
             size_t length = 0);
  // Answers that are given from now on reach their ranks by let_go().
  void hold() { holding_ = true; }
  void let_go();
  // The row of a wait for another rank's host.
  void host_wait(Rank &rank, const ph_record &r, int32_t name, int64_t start, int64_t end, int last_rank);

 private:
  bool answered_in_passing(Rank &rank, size_t place);
  void answer(Rank &rank, size_t place, int status, int64_t time, int64_t value);
  Device &metered(Rank &asks, const ph_record &r);
  void answer_memory(SharedMemory &memory, const SharedMemory::Entry &entry);
  static int64_t completion(const Rank &rank, const Request &q);
  static int64_t released_by(const Rank &rank, const Request &q);

  RankTable &rank_table_;
  Devices &devices_;
  RowLog &rows_;
  CallNames &names_;
  Progress &progress_;
  std::vector<ph_reply *> held_;
  bool holding_ = false;
  int meters_ = 0;  // requests that wait for read_meter()
  std::map<size_t, SharedMemory> memory_;  // by index of the GPU
};

}  // namespace phe
