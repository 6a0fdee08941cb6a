// Memory of one GPU that several processes share: what each takes and gives back, in the order of their clocks.
#pragma once
#include "gpu/context.h"

#include <map>
#include <vector>

namespace phe {

class SharedMemory {
 public:
  struct Entry {
    Rank *rank;
    int64_t bytes;  // below 0: given back
    bool all;       // given back by a process that ends
    bool asks;
    ph_record record;
    int64_t time = 0;  // when it is taken or given back
  };

  void add(int64_t time, Entry entry);
  // Can none of the `contexts` say any longer what comes before the first entry? False where there is none.
  bool ready(const std::vector<Context *> &contexts) const;
  // Takes that entry.
  Entry next();
  // When memory is given back, by what has been said so far, of which the entry has enough; -1: never, or there is
  // enough.
  int64_t room_at(const Entry &entry, int64_t capacity) const;
  // False: the GPU has less than the entry takes.
  bool apply(const Entry &entry, int64_t capacity);
  int64_t used() const { return used_; }
  int64_t peak() const { return peak_; }

 private:
  bool pending(const Rank &rank, int64_t time) const;
  // When a request of `rank` is due, before which it does nothing; -1: it has none.
  int64_t asks_at(const Rank &rank) const;

  std::map<std::tuple<int64_t, int, uint64_t>, Entry> entries_;  // by time, rank and number
  std::map<int, int64_t> taken_;                                  // by rank
  uint64_t count_ = 0;
  int64_t used_ = 0, peak_ = 0;
};

}  // namespace phe
