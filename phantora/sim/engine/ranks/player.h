// One rank of a recorded run, in place of a process (docs/replay.md): the records come back through the ring; between
// two waits the host takes as long as it did, after a wait it goes on when the answer has come.
#pragma once
#include "ranks/rank.h"
#include "ranks/recorder.h"

namespace phe {

class Player {
 public:
  explicit Player(double scale) : scale_(scale) {}
  // A MOVED record is not due: the rank sleeps outside CUDA.
  bool sleeps() const { return sleeps_; }
  // Records that other threads sent while one waited do not wait for its answer.
  bool is_due(const ph_record &r) const;
  // Makes the recorded `r` the rank's next record.
  void issue(ph_record &r);
  // A sleep outside CUDA ends when the rank that it waited for, directly or not, is released. False: not yet.
  // `answers`: of the other rank; answers given so far.
  bool wakes(Rank &rank, const ph_record &r, const Rank &other, const Player &of_other);
  void answered(const ph_record &r, int64_t clock);  // the request `r`

 private:
  struct Wait {  // of a thread, for an answer
    uint8_t thread;
    int64_t resumes;  // recorded clock after it
  };
  int64_t clock(int64_t recorded) const;
  void shift(int64_t recorded, int64_t ours);

  double scale_;              // of host time
  std::vector<Wait> waits_;
  int64_t answered_ = 0;  // our clock after the latest answer
  bool sleeps_ = false;
  int64_t then_ = 0, now_ = 0;  // recorded clock and ours, at the last moment that shifted them
  std::vector<std::pair<int64_t, int64_t>> shifts_;  // those moments, as far as they changed anything
  std::vector<int64_t> answers_;                     // our clock after each answer
};

}  // namespace phe
