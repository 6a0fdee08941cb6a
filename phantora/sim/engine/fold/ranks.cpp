#include "fold/ranks.h"

#include <string.h>

#include <algorithm>
#include <charconv>

#include "fold/pickles.h"

namespace phe {
namespace {

constexpr int INT8 = 0, UINT8 = 1, INT64 = 4, UINT64 = 5;  // ncclDataType_t; between them int32 and uint32

using Points = std::vector<std::vector<int>>;

// Growth of a number along each axis of a mesh: two points that differ in one axis alone decide, and all others must
// agree. False: they don't.
bool even(const Points &points, const std::vector<int64_t> &values, std::vector<int64_t> &slopes) {
  std::vector<bool> known(slopes.size(), false);
  for (size_t i = 1; i < points.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      size_t differing = 0, axis = 0;
      for (size_t a = 0; a < slopes.size(); ++a)
        if (points[i][a] != points[j][a]) ++differing, axis = a;
      if (differing != 1 || known[axis]) continue;
      int64_t rise = values[i] - values[j], run = points[i][axis] - points[j][axis];
      if (rise % run) return false;
      slopes[axis] = rise / run;
      known[axis] = true;
    }
  return true;
}

int64_t at(const std::vector<int> &point, const std::vector<int> &from, int64_t value,
           const std::vector<int64_t> &slopes) {
  for (size_t axis = 0; axis < slopes.size(); ++axis) value += slopes[axis] * (point[axis] - from[axis]);
  return value;
}

int64_t load(const std::string &data, size_t index, size_t width) {
  int64_t value = 0;
  memcpy(&value, data.data() + index * width, width);
  return width == 4 ? static_cast<int32_t>(value) : value;
}

}  // namespace

std::vector<int> FoldedRanks::members_in(const std::string &label, size_t most) {
  std::vector<int> ranks;
  size_t at = label.find('\0');
  if (at == std::string::npos) return ranks;
  const char *p = label.data() + at + 1, *end = label.data() + label.size();
  while (p < end) {  // START+STRIDExCOUNT,...
    int part[3] = {0, 0, 0};
    for (int &number : part) {
      p = std::from_chars(p, end, number).ptr;
      if (p < end) ++p;
    }
    for (int64_t i = 0; i < part[2] && ranks.size() <= most; ++i)
      ranks.push_back(static_cast<int>(part[0] + i * part[1]));
  }
  return ranks;
}

std::vector<int> FoldedRanks::coordinates(int rank) const {
  std::vector<int> point(sizes_.size());
  for (size_t axis = sizes_.size(); axis-- > 0; rank /= sizes_[axis]) point[axis] = rank % sizes_[axis];
  return point;
}

int FoldedRanks::origin(int rank) const {
  std::vector<int> point = coordinates(rank);
  int origin = 0;
  for (size_t axis = 0; axis < sizes_.size(); ++axis)
    origin = origin * sizes_[axis] + (expanded_[axis] ? point[axis] : 0);
  return origin;
}

std::vector<int> FoldedRanks::at_first_place(const std::vector<int> &ranks) const {
  std::vector<int> first = coordinates(ranks[0]);
  std::vector<bool> still = expanded_;
  for (size_t axis = 0; axis < still.size(); ++axis) still[axis] = !still[axis];
  for (int rank : ranks) {
    std::vector<int> point = coordinates(rank);
    for (size_t axis = 0; axis < still.size(); ++axis) still[axis] = still[axis] && point[axis] == first[axis];
  }
  int shift = 0, stride = 1;
  for (size_t axis = sizes_.size(); axis-- > 0; stride *= sizes_[axis]) shift += still[axis] ? first[axis] * stride : 0;
  std::vector<int> moved = ranks;
  for (int &rank : moved) rank -= shift;
  return moved;
}

std::vector<int> FoldedRanks::place(const std::vector<int> &point) const {
  std::vector<int> place;
  for (size_t axis = 0; axis < sizes_.size(); ++axis)
    if (expanded_[axis]) place.push_back(point[axis]);
  return place;
}

// Do its members differ along an axis whose first rank alone is a process?
bool FoldedRanks::along_first_only_axis(const std::vector<int> &ranks) const {
  std::vector<int> first = coordinates(ranks[0]);
  for (int rank : ranks) {
    std::vector<int> point = coordinates(rank);
    for (size_t axis = 0; axis < first_only_.size(); ++axis)
      if (first_only_[axis] && point[axis] != first[axis]) return true;
  }
  return false;
}

// The bytes of a group's processes (or of those at one place), cut into integers and the rest, which must be equal.
struct FoldedRanks::Given {
  Points points;
  std::vector<std::string> who;
  std::vector<const std::string *> bytes;
  std::vector<Pickle> read;
  std::vector<size_t> missing;  // own ranks of folded members
  bool equal = true;
};

bool FoldedRanks::takes_zeros(const Communicator &comm, int dtype) const {
  return dtype > UINT64 && along_first_only_axis(comm.ranks);
}

std::map<std::vector<int>, FoldedRanks::Given> FoldedRanks::given(const Communicator &comm, const Parts &parts,
                                                                  bool by_place) const {
  std::map<std::vector<int>, Given> all;
  for (size_t own = 0; own < parts.size(); ++own) {
    std::vector<int> point = coordinates(comm.ranks[own]);
    Given &given = all[by_place ? place(point) : std::vector<int>()];
    if (!parts[own]) {
      given.missing.push_back(own);
      continue;
    }
    given.points.push_back(std::move(point));
    given.who.push_back("rank " + std::to_string(comm.ranks[own]));
    given.bytes.push_back(parts[own]);
    given.equal = given.equal && *given.bytes.back() == *given.bytes[0];
  }
  return all;
}

bool FoldedRanks::read(Given &given, int dtype, std::string &why) {
  bool pickled = dtype == INT8 || dtype == UINT8;
  if (!pickled && (dtype > UINT64 || given.bytes[0]->size() % (dtype >= INT64 ? 8 : 4))) {
    why = "ranks give numbers that differ and are no integers";
    return false;
  }
  for (size_t seat = 0; seat < given.bytes.size(); ++seat) {
    if (pickled) {
      given.read.emplace_back(*given.bytes[seat]);
      if (!given.read.back().understood()) {
        why = given.who[seat] +
              " gives bytes that differ from the others' and are no pickled object of integers and texts";
        return false;
      }
    } else {
      size_t width = dtype >= INT64 ? 8 : 4;
      std::vector<int64_t> numbers;
      for (size_t i = 0; i < given.bytes[seat]->size() / width; ++i)
        numbers.push_back(load(*given.bytes[seat], i, width));
      given.read.emplace_back(std::move(numbers), width);
    }
    if (!given.read[seat].like(given.read[0])) {
      why = given.who[seat] + " gives another object than " + given.who[0];
      return false;
    }
  }
  return true;
}

bool FoldedRanks::learn(const Communicator &comm, int coll, int dtype, const Parts &parts, Law &law,
                        std::string &why) const {
  law = {};
  if (comm.seats.size() == parts.size()) {
    for (const std::string *part : parts) law.values.push_back(*part);
    return true;
  }
  bool first_only = along_first_only_axis(comm.ranks), one = comm.seats.size() == 1;
  bool reduced = coll == PH_COLL_ALL_REDUCE || coll == PH_COLL_REDUCE || coll == PH_COLL_REDUCE_SCATTER;
  bool nothing =
      std::all_of(parts.begin(), parts.end(), [](const std::string *part) { return !part || part->empty(); });
  bool equal = reduced || dtype > UINT64 || nothing;  // sums, reals and zeros are taken to be those of the only process
  if ((first_only || one) && !equal) {
    why = "integers and objects may grow with the rank, which " +
          std::string(
              first_only
                  ? "only the first rank of an axis (NAME=SIZE:first in --fold)"
                  : "the only process of a stage between the first and the last (pp=SIZE:all in --fold runs more)") +
          " does not show";
    return false;
  }
  for (bool by_place : {false, true}) {
    auto all = given(comm, parts, by_place);
    if (by_place && all.size() < 2) return false;  // the same as before
    law.by_place = by_place;
    law.rules.clear();
    bool learned = true;
    const Rule *like = nullptr;
    for (auto &[place, given] : all) {
      Rule &rule = law.rules[place];
      learned = learned && learn(given, dtype, first_only || equal, like, rule, why);
      if (!like && !rule.equal) like = &rule;
    }
    if (learned) return true;
  }
  return false;
}

// `first_only`: one process may represent all others. `like`: the rule of another place, for one with too few processes
// to show a rule of its own.
bool FoldedRanks::learn(Given &given, int dtype, bool first_only, const Rule *like, Rule &rule,
                        std::string &why) const {
  if (given.missing.empty()) return true;
  if (given.bytes.size() < (first_only ? 1 : 2)) {
    why = given.bytes.empty() ? "of the ranks of one of its stages none is a process"
                              : "only " + given.who[0] + " is a process, and one does not show the bytes of the others";
    return false;
  }
  bool like_others = given.bytes.size() == 1 && like;  // one alone is equal to itself
  if (given.equal && !like_others) return true;
  if (given.bytes.size() < 3 && !like) {
    why = given.who[0] + " and " + given.who[1] + " give different bytes, and two do not show the bytes of the others";
    return false;
  }
  if (!read(given, dtype, why)) return false;
  rule.equal = false;
  if (given.bytes.size() < 3) {
    rule.slopes = like->slopes;
    return true;  // `fill` checks it
  }
  for (size_t i = 0; i < given.read[0].numbers().size(); ++i) {
    std::vector<int64_t> values, slopes(sizes_.size());
    for (const Pickle &one : given.read) values.push_back(one.numbers()[i]);
    bool fits = even(given.points, values, slopes);
    for (size_t one = 0; one < values.size(); ++one)
      fits = fits && at(given.points[one], given.points[0], values[0], slopes) == values[one];
    rule.slopes.push_back(std::move(slopes));
    if (fits) continue;
    why = "the integers that its ranks give (" + std::to_string(values[0]) + " by " + given.who[0] + ", " +
          std::to_string(values[1]) + " by " + given.who[1] + ", " + std::to_string(values[2]) + " by " + given.who[2] +
          ") do not grow evenly with the rank";
    return false;
  }
  return true;
}

bool FoldedRanks::fill(const Communicator &comm, int dtype, const Law &law, Parts &parts,
                       std::vector<std::string> &made, std::string &why) const {
  for (size_t own = 0; own < law.values.size(); ++own) {
    if (!parts[own]) {
      parts[own] = &law.values[own];
    } else if (*parts[own] != law.values[own]) {
      why = "rank " + std::to_string(comm.ranks[own]) + " gives other bytes than rank " +
            std::to_string(comm.first_place[own]) + ", its like at the first place of the mesh";
      return false;
    }
  }
  if (!law.values.empty()) return true;
  made.reserve(parts.size());
  for (auto &[place, given] : given(comm, parts, law.by_place))
    if (!given.missing.empty() && !fill(given, comm, dtype, law.rules.at(place), parts, made, why)) return false;
  return true;
}

bool FoldedRanks::fill(Given &given, const Communicator &comm, int dtype, const Rule &rule, Parts &parts,
                       std::vector<std::string> &made, std::string &why) const {
  if (given.bytes.empty()) {
    why = "of the ranks of one of its stages none is a process";
    return false;
  }
  if (rule.equal) {
    if (!given.equal)
      why = "its ranks give different bytes, those of the same group at the first place of the mesh equal ones";
    for (size_t own : given.missing) parts[own] = given.bytes[0];
    return given.equal;
  }
  if (!read(given, dtype, why)) return false;
  const std::vector<int64_t> &base = given.read[0].numbers();
  auto numbers_at = [&](const std::vector<int> &point) {
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < base.size(); ++i) numbers.push_back(at(point, given.points[0], base[i], rule.slopes[i]));
    return numbers;
  };
  bool fits = base.size() == rule.slopes.size();
  for (size_t one = 0; fits && one < given.read.size(); ++one)
    fits = numbers_at(given.points[one]) == given.read[one].numbers();
  if (!fits) {
    why = "its integers do not grow with the rank as those at the first place of the mesh";
    return false;
  }
  for (size_t own : given.missing) {
    made.push_back(given.read[0].with(numbers_at(coordinates(comm.ranks[own])), given.bytes[0]->size()));
    parts[own] = &made.back();
  }
  return true;
}

}  // namespace phe
