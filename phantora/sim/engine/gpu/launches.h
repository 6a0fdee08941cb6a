// Launches and their prices: an operator's kernels are priced together, a bare launch alone.
#pragma once
#include "prices.h"
#include "rows.h"
#include "ranks/rank_table.h"

namespace phe {

class Launches {
 public:
  Launches(Prices &prices, RowLog &rows, size_t ranks) : prices_(prices), rows_(rows), open_(ranks) {}

  void begin_operator(Rank &rank, const ph_record &r, int32_t sig);
  // `sig`: its signature now that it has returned, -1 if that is still the one it began with.
  void end_operator(Rank &rank, const ph_record &r, int32_t sig);
  // Gives an item the operator that issued it, if one did.
  void attribute(const Rank &rank, uint32_t instance, Item &item) const;
  // The kernel that is last on `s`.
  void kernel(const Rank &rank, uint32_t instance, Stream &s, const phe_price_kernel &launch);
  // The copy or memset that is last on `s`; `sub`: enum ph_copy.
  void copy(Stream &s, phe_price_kind kind, uint32_t sub, uint64_t bytes);
  // A wait cuts operators: what they have launched so far is priced by itself.
  void cut(Rank &rank);
  // The process of `rank` has gone.
  void forget(const Rank &rank) { open_[static_cast<size_t>(rank.index)].clear(); }
  // The price is known: passes it to the kernels that await it.
  void priced(Price &price);

 private:
  struct Launched {
    Stream *stream;
    uint64_t seq;
    phe_price_kernel kernel;
  };
  struct Operator {
    int32_t sig = -1;
    int64_t start = 0, row = -1;
    int pieces = 0;
    int32_t l2_hits = 0, l2_written = 0;  // from its end; 0 before
    uint8_t flags = 0, thread = 0;
    std::vector<Launched> kernels;  // not yet priced
  };
  const Operator *of(const Rank &rank, uint32_t instance) const;
  void close_piece(Operator &op);
  void want(Stream &s, uint64_t seq, int32_t price, int part);

  Prices &prices_;
  RowLog &rows_;
  std::vector<std::unordered_map<uint32_t, Operator>> open_;  // by rank and instance
};

}  // namespace phe
