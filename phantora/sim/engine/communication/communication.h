// Communicators and their operations: members, begin, end.
#pragma once
#include "noise.h"
#include "network/links.h"
#include "fold/ranks.h"
#include "communication/payloads.h"

#include <map>

namespace phe {

class Communication {
 public:
  Communication(RankTable &rank_table, Texts &texts, Prices &prices, Links &links, Payloads &payloads, RowLog &rows,
                const Noise &noise, Progress &progress, Failure &failure)
      : rank_table_(rank_table),
        texts_(texts),
        prices_(prices),
        links_(links),
        payloads_(payloads),
        rows_(rows),
        noise_(noise),
        progress_(progress),
        failure_(failure),
        local_(rank_table.size()) {}

  // ---- communicators.cpp
  void create(Rank &rank, const ph_record &r, const std::string &label);
  void destroy(const Rank &rank, uint32_t id) { local_[static_cast<size_t>(rank.index)].erase(id); }
  // The process of `rank` has gone, and its communicators with it.
  void leave(Rank &rank, int64_t time);
  const Communicator &communicator(int32_t number) const { return *communicators_[static_cast<size_t>(number)]; }
  // The communicator that `rank` calls `id`, nullptr if there is none.
  const Communicator *find(const Rank &rank, uint32_t id) const;
  // The run is folded over a mesh of axes of these sizes, the outermost first; of `whole` ones all ranks are processes.
  void fold(FoldedRanks folded) { folded_ = std::move(folded); }
  // Makes a row's numbers those of the log.
  void rename(ph_row &row) const;
  // Rows before this moment may still come: of communicators that some member has not joined.
  int64_t first_unnumbered() const;

  // ---- collectives.cpp, transfers.cpp, one_sided.cpp: members join
  void join_collective(Rank &rank, const ph_record &r, std::string data, const std::shared_ptr<Launch> &launch);
  void join_transfer(Rank &rank, const ph_record &r, std::string data, const std::shared_ptr<Launch> &launch);
  void join_copy(Rank &rank, const ph_record &r, const std::shared_ptr<Launch> &launch);
  void join_signal(Rank &rank, const ph_record &r, const std::shared_ptr<Launch> &launch);
  // Prices the transfers with two known sides; not those of a group that is still incomplete.
  void price_transfers(const std::vector<std::shared_ptr<Launch>> &groups);

  // No rank can go on: sends that wait for their receives and fit into NCCL's buffers end. False: there are none.
  bool send_ahead();
  void set_send_buffer(int64_t bytes) { send_buffer_ = bytes; }

  // ---- abort.cpp
  // The wait of `rank` in its communicator `id` ends at `time`; its peers wait on.
  void abort(Rank &rank, uint32_t id, int64_t time);

  // ---- activities.cpp: it happens
  // The stream has reached the kernel.
  void arrive(Launch &launch, int64_t time);
  // Begins the operation, if all its members are there and its price is known.
  void finalize(Operation &o);
  // A flow class has ended.
  void flow_ended(const phn::Ended &ended);
  const Activity &activity(int64_t tag) const { return activities_[static_cast<size_t>(tag)]; }
  const std::vector<std::shared_ptr<Operation>> &open_operations() const { return open_operations_; }
  // Devices of which some communication has ended since the last call.
  void take_ended(std::vector<Device *> &out) {
    out.clear();
    std::swap(out, ended_);
  }
  // Calls f(launch or nullptr, rank or -1) for every member.
  template <typename F>
  void members(Operation &o, F f) const;

  // ---- in words (diagnosis.cpp)
  static std::string describe(const ph_record &collective);
  static std::string describe(const Communicator &comm);
  std::string called_at(int32_t site) const;  // " (called at FILE:LINE)", or nothing

 private:
  Communicator *used(const Rank &rank, uint32_t id, int32_t &number);
  void found(Communicator &comm, int members, const std::string &label);
  void write_rows(Communicator &comm);
  bool agrees(const Communicator &comm, const Collective &c, const Rank &rank, const ph_record &r);
  void deliver(const Communicator &comm, const std::shared_ptr<Collective> &c);
  bool fill_folded(const Communicator &comm, const std::shared_ptr<Collective> &c, FoldedRanks::Parts &parts,
                   std::vector<std::string> &made);
  int like_of(const Communicator &comm, int own) const;
  void follow(const Communicator &comm, const std::shared_ptr<Transfer> &t);
  void show(const Communicator &comm, const Transfer &t, const Post &post);
  void resolve(const Communicator &comm, const std::shared_ptr<Transfer> &t, const Example &example);
  void price(const std::shared_ptr<Collective> &c, const ph_collective_fields &last, const Launch &launch);
  void price(const std::shared_ptr<Transfer> &t);
  bool agrees(const Communicator &comm, const Transfer &t);
  static int64_t next_of(Communicator &comm, const ph_collective_fields &call, size_t seat);
  std::shared_ptr<Transfer> join_alone(int32_t number, Rank &rank, int peer, bool gives, phe_transfer_kind kind,
                                       const std::shared_ptr<Launch> &launch);
  void show(Signals::Side &side, const std::shared_ptr<Launch> &launch);
  void follow(Signals::Side &side, int rank, const std::shared_ptr<Transfer> &t);
  void go_by(const std::shared_ptr<Transfer> &t, const std::shared_ptr<Launch> &launch);
  void open(const std::shared_ptr<Operation> &o);
  void finalize(Collective &c);
  void finalize(Transfer &t);
  void begin(Operation &o, Activity activity, int64_t arrival, int64_t time);
  void unlist(Operation &o);
  void give_up(Rank &rank, Launch &l, int32_t comm, int64_t time);
  bool give_up(Rank &rank, Collective &c);
  bool give_up(Rank &rank, Transfer &t);
  void end_aborted(Launch &l, int64_t time);
  int32_t fresh_tag();
  // The last flow, or what has none, has ended.
  void finish_with_noise(int32_t tag, int64_t time);
  void finish(int32_t tag, int64_t time);
  void finish_part(Launch &l, const Launch &last, int64_t arrival, int64_t end);
  void slow_down(const phn::Ended &ended);

  RankTable &rank_table_;
  Texts &texts_;
  Prices &prices_;
  Links &links_;
  Payloads &payloads_;
  RowLog &rows_;
  const Noise &noise_;
  Progress &progress_;
  Failure &failure_;
  FoldedRanks folded_;
  std::map<std::pair<std::vector<int>, size_t>, std::shared_ptr<Family>> families_;  // by members of the first, number
  std::map<std::vector<int>, size_t> equal_groups_;  // so far, by members
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::map<std::pair<uint64_t, uint64_t>, int32_t> by_key_;
  std::vector<std::unordered_map<uint32_t, int32_t>> local_;  // by rank: its own id -> number
  int64_t send_buffer_ = 0;  // bytes of a send that NCCL takes without a receive
  int unnumbered_ = 0;  // communicators that some member has not joined
  std::vector<std::shared_ptr<Transfer>> matched_;  // not yet priced: groups must be whole first
  std::vector<std::shared_ptr<Operation>> open_operations_;  // some member is there, they have not begun
  std::vector<Activity> activities_;  // by tag
  std::vector<int32_t> free_activities_;
  std::vector<Device *> ended_;
};

template <typename F>
void Communication::members(Operation &o, F f) const {
  const Communicator &comm = communicator(o.comm);
  if (o.transfer) {
    auto &t = static_cast<Transfer &>(o);
    if (t.send.launch || !t.one_sided) f(t.send.launch.get(), comm.ranks[static_cast<size_t>(t.src)]);
    if (t.recv.launch || !t.one_sided) f(t.recv.launch.get(), comm.ranks[static_cast<size_t>(t.dst)]);
    if (t.like >= 0 && (!t.there || t.there->arrival < 0)) f(t.there.get(), t.like);
  } else {
    auto &all = static_cast<Collective &>(o).members;
    for (size_t seat = 0; seat < all.size(); ++seat) f(all[seat].launch.get(), comm.rank_at(seat));
  }
}

}  // namespace phe
