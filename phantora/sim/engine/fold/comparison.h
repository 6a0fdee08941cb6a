// In a folded run one process represents the ranks between two others. This compares their records one by one. The run
// ends where the representative matches neither (docs/scale.md).
#pragma once
#include "ranks/rank_table.h"
#include "texts.h"

namespace phe {

class Comparison {
 public:
  Comparison(RankTable &rank_table, Texts &texts, Failure &failure)
      : texts_(texts), failure_(failure), of_rank_(rank_table.size()) {}

  // `representative` must match `first` or `last`, its neighbours along `axis`. If that is `uneven`, only communication
  // is compared: each rank owns another part of an optimizer.
  void expect(int representative, int first, int last, const std::string &axis, bool uneven);
  bool watches(const Rank &rank) const { return !of_rank_[static_cast<size_t>(rank.index)].empty(); }
  // `name`: global, of a kernel.
  void record(const Rank &rank, const ph_record &r, int32_t name);
  void ended(const Rank &rank);

 private:
  struct Entry {
    ph_record record;  // the fields that must be equal
    int32_t name;
  };
  struct Pair {
    int ranks[2];              // a representative and one of its neighbours
    int other;                 // pair of the same representative with its other neighbour
    std::string axis;
    bool uneven;
    std::deque<Entry> ahead;    // records of the one that is ahead
    int side = 0;              // that is ahead
    uint64_t compared = 0;
    bool ended[2] = {false, false};
    std::string difference;    // empty: none so far
  };

  void add(Pair &pair, int side, const Entry &said);
  void differ(Pair &pair, const Entry *theirs, int side, const Entry *ours);
  std::string describe(const Entry *said) const;

  Texts &texts_;
  Failure &failure_;
  std::vector<Pair> pairs_;
  std::vector<std::vector<std::pair<int, int>>> of_rank_;  // by rank: (pair, side)
};

}  // namespace phe
