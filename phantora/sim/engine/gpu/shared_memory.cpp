#include "gpu/shared_memory.h"

#include <algorithm>
#include <tuple>

namespace phe {

void SharedMemory::add(int64_t time, Entry entry) {
  entry.time = time;
  entries_.emplace(std::make_tuple(time, entry.rank->index, ++count_), std::move(entry));
}

bool SharedMemory::pending(const Rank &rank, int64_t time) const {
  auto it = entries_.lower_bound({time, rank.index, 0});
  return it != entries_.end() && std::get<0>(it->first) == time && std::get<1>(it->first) == rank.index;
}

int64_t SharedMemory::asks_at(const Rank &rank) const {
  auto asks = [&](const auto &one) { return one.second.asks && one.second.rank == &rank; };
  auto it = std::find_if(entries_.begin(), entries_.end(), asks);
  return it == entries_.end() ? -1 : it->second.time;
}

bool SharedMemory::ready(const std::vector<Context *> &contexts) const {
  if (entries_.empty()) return false;
  const auto &[key, first] = *entries_.begin();
  int64_t time = std::get<0>(key);
  return std::all_of(contexts.begin(), contexts.end(), [&, own = first.rank](const Context *c) {
    if (&c->rank == own) return true;
    int64_t limit = std::max(c->rank.host_limit(), asks_at(c->rank));
    return limit > time || (limit == time && pending(c->rank, time));
  });
}

SharedMemory::Entry SharedMemory::next() { return std::move(entries_.extract(entries_.begin()).mapped()); }

int64_t SharedMemory::room_at(const Entry &entry, int64_t capacity) const {
  int64_t missing = used_ + entry.bytes - capacity;
  if (entry.bytes <= 0 || missing <= 0) return -1;
  for (const auto &[key, other] : entries_) {
    auto taken = taken_.find(other.rank->index);
    missing += other.all ? (taken == taken_.end() ? 0 : -taken->second) : std::min<int64_t>(other.bytes, 0);
    if (missing <= 0) return other.time;
  }
  return -1;
}

bool SharedMemory::apply(const Entry &entry, int64_t capacity) {
  int64_t &taken = taken_[entry.rank->index], bytes = entry.all ? -taken : entry.bytes;
  if (bytes > 0 && used_ + bytes > capacity) return false;
  taken += bytes;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return true;
}

}  // namespace phe
