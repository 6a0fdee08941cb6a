// Effects of a completion on a GPU: rows, events, answers.
#pragma once
#include "communication/communication.h"
#include "time/marks.h"

namespace phe {

class Completions : public DeviceListener {
 public:
  Completions(Communication &communication, Marks &marks, Pipelines &pipelines, Waits &waits, CallNames &names,
              RowLog &rows)
      : communication_(communication),
        marks_(marks),
        pipelines_(pipelines),
        waits_(waits),
        names_(names),
        rows_(rows) {}

  void arrived(Launch &launch, int64_t time) override { communication_.arrive(launch, time); }
  void completed(Device &device, const Stream &s, Item &item, int64_t reached) override;
  void failed(Device &device, const Stream &s, const Item &item) override;
  // The row of what the GPU has drawn up to there.
  void write_power(Device &device, int64_t until);
  void went_on(Rank &rank) override {
    if (!rank.requests.empty()) waits_.check(rank);
  }

 private:
  void write(Device &device, const Stream &s, const Item &item, int64_t reached);

  Communication &communication_;
  Marks &marks_;
  Pipelines &pipelines_;
  Waits &waits_;
  CallNames &names_;
  RowLog &rows_;
};

}  // namespace phe
