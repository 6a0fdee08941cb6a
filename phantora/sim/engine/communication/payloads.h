// Bytes between ranks: results of small collectives, by ticket, and exchanges outside any communicator.
#pragma once
#include "ranks/waits.h"

#include <map>
#include <memory>
#include <unordered_set>

namespace phe {

// Members of a collective that all get the same bytes share them.
using Bytes = std::shared_ptr<const std::string>;
constexpr int KNOWLEDGE = PH_F_UNKNOWN | PH_F_ABSENT | PH_F_PARTS;  // flags of a giver of bytes

class Payloads {
 public:
  Payloads(const RankTable &rank_table, Waits &waits, CallNames &names, Failure &failure)
      : waits_(waits), names_(names), failure_(failure), boxes_(rank_table.size()) {}

  // The bytes that `rank` expects under `ticket`, and what their senders know of them.
  void arrived(Rank &rank, uint64_t ticket, Bytes data, int knowledge = 0);
  // It asks for a piece of them.
  void ask(Rank &rank, const ph_record &r);
  // It will not.
  void forget(const Rank &rank, uint64_t ticket);
  // The process of `rank` has gone.
  void forget(const Rank &rank) { box(rank) = {}; }
  // All members of an exchange get all bytes when the last of them has come.
  void exchange(Rank &rank, const ph_record &r, std::string data);

 private:
  struct Payload {
    Bytes data;
    int knowledge = 0;
  };
  struct Box {
    std::unordered_map<uint64_t, Payload> ready;       // by ticket
    std::unordered_set<uint64_t> unwanted;            // tickets given up before their bytes were there
  };
  struct Exchange {
    size_t joined = 0;
    std::vector<std::string> data;
    std::vector<std::pair<Rank *, ph_record>> waiting;
    int64_t latest = -1;
    int last_rank = -1;  // the rank that came then
  };
  bool serve(Rank &rank, const ph_record &r);
  void finish(const Exchange &exchange);
  Box &box(const Rank &rank) { return boxes_[static_cast<size_t>(rank.index)]; }

  Waits &waits_;
  CallNames &names_;
  Failure &failure_;
  std::vector<Box> boxes_;  // by rank
  std::map<std::pair<uint64_t, uint64_t>, Exchange> exchanges_;
};

}  // namespace phe
