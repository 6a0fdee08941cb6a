// The conservative clock: advances all GPUs and the network through what nothing can change any more.
//
// Alone, a GPU advances only as far as its host and its running collectives allow by themselves
// (Device::advance). The conservative clock treats them together: it takes the earliest event of a GPU or
// of a component of the network. A GPU stops where a running host may still launch work or a kernel has no
// price. From then on
// - the links that its rank can put traffic on are closed: their component goes no further,
// - an operation that waits for stopped ranks only may begin, so the links of its members
//   are closed as well,
// - a GPU on which communication runs that may end at an unknown time is closed from
//   the earliest such end.
// So every event comes after all that could have changed it. The earliest event of all can always
// happen, unless a host comes first. docs/virtual-time.md has the argument.
#pragma once
#include "communication/communication.h"

#include <functional>
#include <queue>

namespace phe {

class ConservativeClock {
 public:
  ConservativeClock(RankTable &rank_table, Devices &devices, Links &links, Communication &communication, Prices &prices,
                    Waits &waits, Progress &progress, const Failure &failure)
      : rank_table_(rank_table),
        devices_(devices),
        network_(links.network()),
        communication_(communication),
        prices_(prices),
        waits_(waits),
        progress_(progress),
        failure_(failure) {}

  // Advances as far as possible; with `until_answer`, up to the first answer to a host. False: nothing has moved.
  bool run(bool until_answer = false);
  // The moment of the last thing that a pass did.
  int64_t reached() const { return reached_; }

 private:
  struct Candidate {
    int64_t time;
    Device *device;  // nullptr: a component of the network; they come first, since what ends precedes what begins
    int32_t number;  // of the rank or the component
    bool operator>(const Candidate &o) const {
      if (time != o.time) return time > o.time;
      if (!device != !o.device) return device;
      return number != o.number ? number > o.number : device && device->number() > o.device->number();
    }
  };
  struct DeviceState {
    int64_t next = NEVER;    // time of its candidate
    int64_t closed = NEVER;  // from then on a communication kernel may end that has no end yet
    bool stopped = false;    // nothing more is known about it
  };
  struct RankState {
    bool stopped = false;
    std::vector<Operation *> missed;  // open operations that wait for it
  };

  DeviceState &state(const Device &device) { return device_states_[device.index()]; }
  RankState &state(const Rank &rank) { return rank_states_[static_cast<size_t>(rank.index)]; }
  void begin();
  void schedule(Device &device);
  void schedule_changed();
  // Steps
  void step_network(const Candidate &candidate);
  void step_device(const Candidate &candidate, bool until_answer);
  void happen(Device &device, const Device::Next &next);
  void stop(Device &device, int64_t time);
  void finalize(Device &device);
  // What may change from a moment on
  void close(Device &device, int64_t time);
  void close(const Launch &launch, int64_t time) { close(launch.context->device, std::max(time, launch.least_end)); }
  void close_activity(int64_t tag, int64_t time);
  void close_activities(int64_t time);
  void close_links(const Rank &rank, int64_t time);
  // Operations that have not begun
  void may_begin(Operation &o, int64_t time);
  bool misses_members(Operation &o);
  void know(const std::shared_ptr<Operation> &o, int64_t time);
  void reached_by(const Rank &rank, const std::shared_ptr<Operation> &o, int64_t time);

  RankTable &rank_table_;
  Devices &devices_;
  phn::Network &network_;
  Communication &communication_;
  Prices &prices_;
  Waits &waits_;
  Progress &progress_;
  const Failure &failure_;
  int64_t reached_ = 0;
  uint64_t number_ = 0;  // of this pass
  bool moved_ = false;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates_;
  std::vector<DeviceState> device_states_;
  std::vector<RankState> rank_states_;
  std::vector<std::shared_ptr<Operation>> known_;  // kept until the end of the pass
  std::vector<phn::Ended> ended_;
  std::vector<int> changed_;
  std::vector<int64_t> tags_;
  std::vector<Device *> touched_;
};

}  // namespace phe
