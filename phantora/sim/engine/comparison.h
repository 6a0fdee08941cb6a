// In a folded run one process stands for ranks between two others, if it does what one of them does. This compares what
// they say, record by record, so that a fold that does not hold ends the run (docs/scale.md).
#pragma once
#include "stage.h"
#include "texts.h"

namespace phe {

class Comparison {
 public:
  Comparison(Stage &stage, Texts &texts, Failure &failure) : texts_(texts), failure_(failure), of_rank_(stage.size()) {}

  // `witness` must do what `first` or `last` does, its fellows at the ends of `axis`. If that is `uneven`, only
  // communication is compared: each rank has a part of its own of what is sharded.
  void expect(int witness, int first, int last, const std::string &axis, bool uneven);
  bool watches(const Rank &rank) const { return !of_rank_[static_cast<size_t>(rank.index)].empty(); }
  // `name`: global, of a kernel.
  void heard(const Rank &rank, const ph_record &r, int32_t name);
  void ended(const Rank &rank);

 private:
  struct Said {
    ph_record record;  // what two ranks may not differ in
    int32_t name;
  };
  struct Pair {
    int ranks[2];              // a witness and one of its fellows
    int other;                 // pair of the same witness with its other fellow
    std::string axis;
    bool uneven;
    std::deque<Said> ahead;    // what one of them has said more than the other
    int who = 0;               // that one
    uint64_t compared = 0;
    bool ended[2] = {false, false};
    std::string difference;    // empty: none so far
  };

  void add(Pair &pair, int side, const Said &said);
  void differ(Pair &pair, const Said *theirs, int side, const Said *ours);
  std::string describe(const Said *said) const;

  Texts &texts_;
  Failure &failure_;
  std::vector<Pair> pairs_;
  std::vector<std::vector<std::pair<int, int>>> of_rank_;  // by rank: (pair, side)
};

}  // namespace phe
