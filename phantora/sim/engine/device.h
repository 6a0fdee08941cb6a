// One GPU: its streams, what is admitted when, and when what runs has ended.
#pragma once
#include "interference.h"
#include "power.h"
#include "rank.h"
#include "rates.h"

#include <functional>

namespace phe {

struct Price;

// What all GPUs of the cluster have in common.
struct DeviceModel {
  const ph_device *gpu = nullptr;
  phe_timing timing{};
  phe_power_limit power{};

  float demand(const ph_kernel_fields &launch) const;  // share of the SMs
  float demand(uint64_t copied_bytes) const;
};

// What a GPU reports to the rest of the engine.
class DeviceListener {
 public:
  virtual ~DeviceListener() = default;
  // A communication kernel runs.
  virtual void arrived(Launch &launch, int64_t time) = 0;
  // `item` has left its stream; what it waited for was there since `reached`.
  virtual void completed(Device &device, const Stream &s, Item &item, int64_t reached) = 0;
  // `item`, a kernel that gave up waiting, has ended the context.
  virtual void failed(Device &device, const Stream &s, const Item &item) = 0;
  // The GPU went on as far as it can by itself.
  virtual void went_on(Rank &rank) = 0;
};

class Device {
 public:
  struct Next {
    int64_t time = NEVER;
    Stream *stream = nullptr;
  };

  Device(Rank &rank, int number, size_t index, const DeviceModel &model, DeviceListener &listener, Progress &progress)
      : rank_(rank), number_(number), index_(index), model_(model), listener_(listener), progress_(progress),
        power_(model.power, rank.power_factor, rank.trials) {}

  Rank &rank() const { return rank_; }
  int number() const { return number_; }    // in its rank
  size_t index() const { return index_; }   // among all
  int64_t now() const { return now_; }
  bool idle() const { return busy_.empty(); }
  const std::vector<Stream *> &busy() const { return busy_; }  // streams with items
  const Interference &interference() const { return interference_; }
  // CUDA_DEVICE_MAX_CONNECTIONS; only 1 is simulated: all streams share a queue, and nothing begins before what was
  // issued earlier has begun (benchmark: 2 H200, see docs/virtual-time.md).
  void set_queues(uint64_t queues) { one_queue_ = queues == 1; }
  Power &power() { return power_; }
  const Power &power() const { return power_; }
  bool used() const { return admissions_ > 0; }
  void set_default_stream(Stream *s) { default_stream_ = s; }

  // Appends work to a stream, with the ordering of the legacy default stream.
  Item &enqueue(Stream &s, Item &&item);
  // The same without it.
  Item &push(Stream &s, Item &&item);
  void apply(const Price &price, Item &item, int part);

  // Something has changed that lets it go on.
  void touch() { dirty_ = true; }
  bool touched() const { return dirty_; }
  // Goes on as far as its host and its running collectives allow by themselves.
  void advance();
  // The earliest thing that happens here by what is known. Sets hold().
  Next next();
  int64_t hold() const { return hold_; }  // a kernel without a price may start then
  void happen(Stream &s, int64_t when);   // what next() found
  void stand_at(int64_t time) { now_ = time; }
  // Another process has it now: what one whose context had ended left behind is gone.
  void revive();

 private:
  void enqueue_wait(Stream &s, Dep dep, int64_t launch);
  int64_t time_of(const Stream &s, const Item &item);
  static int64_t end_of(const Item &item);
  static bool seeks_room(const Item &item);
  bool starts_sooner(const Stream &s, const Item &communication, int64_t time) const;
  bool await_room(Item &item);
  double until_free(bool (*counts)(const Item &)) const;
  double until_free_of_next(const Item &communication) const;
  void admit(Stream &s);
  void complete(Stream &s);
  void fail(const Stream &s);
  int64_t gap_after(const Stream &s) const;
  uint64_t next_in_queue() const;
  void update_rates();
  void slow_communication();
  int64_t first_communication() const;

  Rank &rank_;
  int number_;
  size_t index_;
  const DeviceModel &model_;
  DeviceListener &listener_;
  Progress &progress_;
  Power power_;
  Interference interference_;
  int64_t now_ = 0;
  int64_t hold_ = NEVER;
  int64_t comm_end_ = NEVER;  // the earliest end, by its own bound, of a communication kernel that runs and has no end yet
  int communications_ = 0;    // communication kernels on the GPU
  bool failed_ = false;       // its context has ended: nothing happens on it any more
  bool copies_ = false;       // a copy from or to a peer runs: these take turns
  int kernels_ = 0;           // kernels, copies, memsets admitted
  uint64_t admissions_ = 0;
  bool one_queue_ = false;
  uint64_t issued_ = 0;       // items so far
  uint64_t next_issued_ = 0;  // that may begin, where there is one queue
  bool dirty_ = true;
  Stream *default_stream_ = nullptr;
  std::vector<Stream *> busy_;
  std::vector<Item *> running_;  // scratch of update_rates()
};

// All GPUs of the cluster, and their streams.
class Devices {
 public:
  Devices(const ph_header &header, Progress &progress) : progress_(progress) { model_.gpu = &header.device; }
  void tell(DeviceListener &listener) { listener_ = &listener; }
  DeviceModel &model() { return model_; }

  Device &of(Rank &rank, int number);
  // Ids below the number of devices are the legacy default streams; others belong to `device`, if they are new.
  Stream &stream(Rank &rank, uint32_t id, int device = -1);
  const std::vector<Device *> &all() const { return all_; }

 private:
  DeviceModel model_;
  Progress &progress_;
  DeviceListener *listener_ = nullptr;
  std::vector<Device *> all_;
};

}  // namespace phe
