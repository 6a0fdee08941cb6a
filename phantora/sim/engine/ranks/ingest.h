// Consuming the ranks' rings: a handler for each kind of record.
#pragma once
#include "communication/communication.h"
#include "fold/comparison.h"
#include "time/marks.h"

namespace phe {

constexpr int64_t MOST_TIME = int64_t{1} << 61;  // ns: 73 years
constexpr uint64_t MOST_PAYLOAD = 1u << 31;      // bytes

class Ingest {
 public:
  Ingest(RankTable &rank_table, Devices &devices, Texts &texts, CallNames &names, Launches &launches, Marks &marks,
         Communication &communication, Payloads &payloads, Waits &waits, Comparison &comparison, RowLog &rows,
         Progress &progress, Failure &failure);

  // Takes what `rank` has said, up to a number of records. False: nothing that moves anything.
  bool consume(Rank &rank);
  // True if there are more records.
  bool behind(const Rank &rank) const { return source(rank).tail != load(&rank.control->head); }
  uint64_t taken(const Rank &rank) const { return source(rank).tail; }
  // True if a process waits to become a rank that another one was.
  bool takes_over() const { return !joiners_.empty(); }
  // It does so at `time`, and the other places without their processes are free for new ones from then on.
  void begin_generation(int64_t time);
  // Launches of several records that are still being said, by rank.
  const std::vector<std::shared_ptr<Launch>> &groups() const { return groups_; }
  int64_t records() const { return records_; }
  int64_t device_peak() const { return device_peak_; }

 private:
  struct Source {  // what the records of one rank refer to
    uint64_t tail = 0;
    std::string blob;
    std::vector<int32_t> names, signatures;        // local id -> global
    std::unordered_map<uint64_t, int64_t>
        blocks;  // of the framework's allocator: address -> row that allocated it, 0: free
    int64_t block = 0;                             // that row of the record in hand, 0: none
    int64_t group_left = 0;
    int64_t measured = UNTIMED, delay = 0;  // of the next launch
    double crowd = 1;
  };
  using Handler = void (Ingest::*)(Rank &, const ph_record &);

  Source &source(const Rank &rank) { return sources_[static_cast<size_t>(rank.index)]; }
  const Source &source(const Rank &rank) const { return sources_[static_cast<size_t>(rank.index)]; }
  void take(Rank &rank, const ph_record &r);
  void hand_back(Rank &rank);
  void wake(Rank &rank, const ph_record &r);
  bool play(Rank &rank, ph_record &r);

  // ---- validation.cpp
  bool validate(const Rank &rank, const ph_record &r);
  void reject(const Rank &rank, const std::string &what);
  bool is_valid(const Rank &rank, const ph_record &r) const;
  bool valid_collective(const Rank &rank, const ph_record &r) const;
  bool valid_peer(const Rank &rank, const ph_record &r, int peer) const;
  bool valid_transfer(const Rank &rank, const ph_record &r) const;

  Item item_of(Rank &rank, const ph_record &r, Item::Type type);
  void take_times(const Rank &rank, Item &item);
  std::vector<Dep> all_of_stream(const Rank &rank, Stream &s);

  void vacate(Rank &rank, int64_t time);

  void ignore(Rank &, const ph_record &) {}
  void rank_start(Rank &rank, const ph_record &r);
  void rank_exit(Rank &rank, const ph_record &r);
  void define_name(Rank &rank, const ph_record &r);
  void define_signature(Rank &rank, const ph_record &r);
  void op_begin(Rank &rank, const ph_record &r);
  void op_end(Rank &rank, const ph_record &r);
  void span(Rank &rank, const ph_record &r);
  void stream_create(Rank &rank, const ph_record &r);
  void stream_destroy(Rank &rank, const ph_record &r);
  void kernel(Rank &rank, const ph_record &r);
  void memcpy(Rank &rank, const ph_record &r);
  void memset(Rank &rank, const ph_record &r);
  void copy(Rank &rank, const ph_record &r, Item item, uint32_t sub, uint64_t bytes);
  void event_record(Rank &rank, const ph_record &r);
  void event_destroy(Rank &rank, const ph_record &r);
  void stream_wait(Rank &rank, const ph_record &r);
  void host_func(Rank &rank, const ph_record &r);
  void stream_request(Rank &rank, const ph_record &r);
  void device_sync(Rank &rank, const ph_record &r);
  void event_request(Rank &rank, const ph_record &r);
  void room(Rank &rank, const ph_record &r);
  void meter(Rank &rank, const ph_record &r);
  void home(Rank &rank, const ph_record &r);
  void share(Rank &rank, const ph_record &r);
  void comm_create(Rank &rank, const ph_record &r);
  void comm_destroy(Rank &rank, const ph_record &r);
  void comm_abort(Rank &rank, const ph_record &r);
  void exchange(Rank &rank, const ph_record &r);
  void group_begin(Rank &rank, const ph_record &r);
  void communicate(Rank &rank, const ph_record &r);
  void payload(Rank &rank, const ph_record &r);
  void site(Rank &rank, const ph_record &r);
  void timed(Rank &rank, const ph_record &r);
  void memory(Rank &rank, const ph_record &r);
  int64_t block_of(const Rank &rank, const ph_record &r);
  void unsupported(Rank &rank, const ph_record &r);
  void correlate(Rank &rank, const ph_record &r);
  void profile(Rank &rank, const ph_record &r);
  void profile_name(Rank &rank, const ph_record &r);

  RankTable &rank_table_;
  Devices &devices_;
  Texts &texts_;
  CallNames &names_;
  Launches &launches_;
  Marks &marks_;
  Communication &communication_;
  Payloads &payloads_;
  Waits &waits_;
  Comparison &comparison_;
  RowLog &rows_;
  Progress &progress_;
  Failure &failure_;
  Handler handlers_[PH_COUNT_PH_KIND];
  std::vector<Source> sources_;                // by rank
  std::vector<std::shared_ptr<Launch>> groups_;  // by rank
  std::vector<std::pair<Rank *, ph_record>> joiners_;
  int64_t records_ = 0, device_peak_ = 0;
};

}  // namespace phe
