#include "shared_memory.h"

#include <algorithm>
#include <tuple>

namespace phe {

void SharedMemory::add(int64_t time, Entry entry) {
  entries_.emplace(std::make_tuple(time, entry.rank->index, ++count_), std::move(entry));
}

bool SharedMemory::pending(const Rank &rank, int64_t time) const {
  auto it = entries_.lower_bound({time, rank.index, 0});
  return it != entries_.end() && std::get<0>(it->first) == time && std::get<1>(it->first) == rank.index;
}

bool SharedMemory::ready(const std::vector<Context *> &contexts) const {
  if (entries_.empty()) return false;
  const auto &[key, first] = *entries_.begin();
  int64_t time = std::get<0>(key);
  return std::all_of(contexts.begin(), contexts.end(), [&, own = first.rank](const Context *c) {
    if (&c->rank == own) return true;
    int64_t limit = c->rank.host_limit();
    return limit > time || (limit == time && pending(c->rank, time));
  });
}

SharedMemory::Entry SharedMemory::next() { return std::move(entries_.extract(entries_.begin()).mapped()); }

bool SharedMemory::apply(const Entry &entry, int64_t capacity) {
  int64_t &taken = taken_[entry.rank->index], bytes = entry.all ? -taken : entry.bytes;
  if (bytes > 0 && used_ + bytes > capacity) return false;
  taken += bytes;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return true;
}

}  // namespace phe
