// In a folded run a pipeline of processes stands for many, each on GPUs of its own: of these the slowest counts.
//
// Pipelines wait for each other once a step. Which one is the slowest depends on what the stages have to do and on how
// far the power limit holds each of them, so it is found by the loads of a step that is over.
#pragma once
#include "ranks/rank_table.h"

namespace phe {

class Pipelines {
 public:
  explicit Pipelines(RankTable &rank_table) : rank_table_(rank_table) {}

  // `ranks` are processes at these stages (-1: it follows, and its load does not count); `factors` the power factors of
  // all of them, for one pipeline after the other.
  void add(const std::vector<int32_t> &ranks, const std::vector<int32_t> &stages, std::vector<double> factors);
  bool has(const Rank &rank) const { return members_.count(rank.index) != 0; }
  // A send or receive of the rank's GPU has ended.
  void handed_on(const Rank &rank);
  // Its GPU has done all up to the end of an optimizer.
  void at_mark(Rank &rank);

 private:
  struct Pipeline {
    std::vector<int32_t> ranks, stages;
    std::vector<double> factors;
  };
  struct Member {
    const Pipeline *pipeline = nullptr;
    size_t seat = 0;              // in it
    bool moved = false;           // has sent or received since its last step
    int steps = 0;                // that are over
    std::vector<Trial> loads[2];  // of the last two, by factor; ascending
  };

  bool known(const Pipeline &pipeline, int step) const;
  size_t slowest(const Pipeline &pipeline, int step) const;
  static double load(const std::vector<Trial> &loads, double factor);

  RankTable &rank_table_;
  std::deque<Pipeline> pipelines_;
  std::unordered_map<int, Member> members_;  // by rank
};

}  // namespace phe
