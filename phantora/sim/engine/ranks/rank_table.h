// The ranks, with their recorders and players, if the run is recorded or replayed.
#pragma once
#include "gpu/device.h"
#include "ranks/player.h"
#include "ranks/recorder.h"

#include <functional>

namespace phe {

class RankTable {
 public:
  explicit RankTable(char *area);
  // Ranks that are processes: all, unless the run is folded.
  const std::vector<std::reference_wrapper<Rank>> &ranks() { return real_; }
  bool folded(int rank) const { return ranks_[static_cast<size_t>(rank)].control->folded != 0; }
  bool folded() const { return real_.size() < ranks_.size(); }
  Rank &operator[](size_t index) { return ranks_[index]; }
  size_t size() const { return ranks_.size(); }

  void record();
  void play(double scale);
  bool plays() const { return !players_.empty(); }
  Recorder *recorder(const Rank &rank) {
    return recorders_.empty() ? nullptr : &recorders_[static_cast<size_t>(rank.index)];
  }
  Player *player(const Rank &rank) { return players_.empty() ? nullptr : &players_[static_cast<size_t>(rank.index)]; }
  // A request of the host has its answer; `clock`: of the host after it.
  void answered(Rank &rank, const ph_record &r, int64_t clock);

 private:
  std::vector<Rank> ranks_;
  std::vector<std::reference_wrapper<Rank>> real_;
  std::vector<Recorder> recorders_;
  std::vector<Player> players_;
};

}  // namespace phe
