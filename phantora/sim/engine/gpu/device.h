// One GPU: its streams, what is admitted when, and when what runs has ended.
#pragma once
#include "gpu/context.h"
#include "gpu/power.h"
#include "gpu/rates.h"
#include "gpu/time_slices.h"
#include "noise.h"

#include <array>
#include <functional>

namespace phe {

struct Price;

// Common properties of all GPUs of a kind.
struct DeviceModel {
  uint8_t kind = 0;
  const ph_device *gpu = nullptr;
  phe_timing timing{};
  phe_power_limit power{};

  float demand(const ph_kernel_fields &launch) const;  // share of the SMs
  float demand(uint64_t copied_bytes) const;
};

// Reports of a GPU to the rest of the engine.
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
    Stream *stream = nullptr;  // nullptr at a time: a time slice begins or ends
  };

  // `first` is the first process that may use it.
  Device(Rank &first, size_t index, const DeviceModel &model, DeviceListener &listener, const Noise &noise,
         Progress &progress)
      : index_(index),
        model_(model),
        listener_(listener),
        noise_(noise),
        progress_(progress),
        power_(model.power, first.power_factor, first.trials) {}

  // `sliced`: the contexts share the GPU by time slices; else their kernels run concurrently (MPS).
  void add(Context &context, bool sliced);
  const std::vector<Context *> &contexts() const { return contexts_; }
  // The device with the rows that tell what it draws.
  Rank &rank() const { return contexts_[0]->rank; }
  int number() const { return contexts_[0]->number; }
  const DeviceModel &model() const { return model_; }
  size_t index() const { return index_; }   // among all
  // The hosts of its processes add nothing up to there.
  int64_t host_limit() const;
  int64_t now() const { return now_; }
  bool idle() const { return busy_.empty(); }
  const std::vector<Stream *> &busy() const { return busy_; }  // streams with items
  Power &power() { return power_; }
  const Power &power() const { return power_; }
  bool used() const { return admissions_ > 0; }

  // Appends work to a stream, with the ordering of the legacy default stream.
  Item &enqueue(Stream &s, Item &&item);
  // The same without it.
  Item &push(Stream &s, Item &&item);
  static void apply(const Price &price, const Stream &s, Item &item, int part);

  // Something has changed that lets it go on.
  void touch() { dirty_ = true; }
  bool touched() const { return dirty_; }
  // Goes on as far as its host and its running collectives allow by themselves.
  void advance();
  // The earliest thing that happens here by what is known. Sets hold().
  Next next();
  int64_t hold() const { return hold_; }  // a kernel without a price may start then
  void happen(const Next &next);          // what next() found
  void stand_at(int64_t time) { now_ = time; }
  // Another process has this context now: what one left behind at its end is gone.
  void revive(Context &context);

 private:
  void enqueue_wait(Stream &s, Dep dep, int64_t launch);
  int64_t time_of(const Stream &s, const Item &item);
  static int64_t end_of(const Item &item);
  static bool seeks_room(const Item &item);
  bool starts_sooner(const Stream &s, const Stream &communication, int64_t time) const;
  bool await_room(Stream &s);
  double until_free(const Context &context, bool (*counts)(const Item &)) const;
  double until_free_of_next(const Stream &communication) const;
  void admit(Stream &s);
  void complete(Stream &s);
  void fail(const Stream &s);
  int64_t gap_after(const Stream &s) const;
  uint64_t next_in_queue(const Context &context) const;
  // Are the kernels of both on the GPU at the same time?
  bool concurrent(const Context &a, const Context &b) const { return &a == &b || !slices_.on(); }
  bool wants(const Stream &s) const;
  void update_slices();
  void update_rates();
  void slow_communication(Context &context);
  int64_t first_communication(const Context &context) const;

  size_t index_;
  const DeviceModel &model_;
  DeviceListener &listener_;
  const Noise &noise_;
  Progress &progress_;
  Power power_;
  std::vector<Context *> contexts_;
  TimeSlices slices_;
  int64_t now_ = 0;
  int64_t hold_ = NEVER;
  int64_t comm_end_ =
      NEVER;  // the earliest end, by its own bound, of a communication kernel that runs and has no end yet
  int communications_ = 0;    // communication kernels on the GPU
  bool copies_ = false;       // a copy from or to a peer runs: one at a time
  int kernels_ = 0;           // kernels, copies, memsets admitted
  uint64_t admissions_ = 0;
  uint64_t issued_ = 0;       // items so far
  bool dirty_ = true;
  std::vector<Stream *> busy_;
  std::vector<Item *> running_;  // scratch of update_rates()
  std::vector<TimeSlices::Contender> contenders_;
};

// All GPUs of the cluster, and their streams.
class Devices {
 public:
  Devices(const ph_header &header, const Noise &noise, Progress &progress)
      : header_(header), noise_(noise), progress_(progress) {
    for (size_t kind = 0; kind < models_.size(); ++kind) {
      models_[kind].kind = static_cast<uint8_t>(kind);
      models_[kind].gpu = &header.devices[kind];
    }
  }
  void tell(DeviceListener &listener) { listener_ = &listener; }
  DeviceModel &model(size_t kind) { return models_[kind]; }
  DeviceModel &model(const Rank &rank) { return models_[rank.control->gpu_kind]; }

  // GPU `number` of `rank`: its own, or, where several processes share GPUs, that of its place.
  Device &of(Rank &rank, int number) { return context(rank, number).device; }
  Context &context(Rank &rank, int number);
  // `number` is what the rank calls the GPU of its place.
  void home(Rank &rank, int number);
  // Makes the GPUs that processes share, before any of them comes.
  void share(const std::vector<std::reference_wrapper<Rank>> &ranks);
  // Ids below the number of devices are the legacy default streams; others belong to `device`, if they are new.
  Stream &stream(Rank &rank, uint32_t id, int device = -1);
  const std::vector<Device *> &all() const { return all_; }

 private:
  Device &make(Rank &first);
  Context &make(Rank &rank, int number, Device &device);

  const ph_header &header_;
  const Noise &noise_;
  std::array<DeviceModel, PH_MAX_KINDS> models_;
  Progress &progress_;
  DeviceListener *listener_ = nullptr;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<Device *> all_;
};

}  // namespace phe
