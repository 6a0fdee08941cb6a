#include "ghosts.h"

#include <string.h>

#include <charconv>

#include "pickles.h"

namespace phe {
namespace {

constexpr int INT8 = 0, UINT8 = 1, INT64 = 4, UINT64 = 5;  // ncclDataType_t; between them int32 and uint32

// Numbers that grow evenly along every axis of a mesh: value = base + sum of slope * coordinate.
class Even {
 public:
  Even(const std::vector<std::vector<int>> &points, const std::vector<int64_t> &values)
      : slopes_(points[0].size()), fits_(solve(points, values)) {}
  bool fits() const { return fits_; }
  int64_t at(const std::vector<int> &point) const {
    int64_t value = base_;
    for (size_t axis = 0; axis < slopes_.size(); ++axis) value += slopes_[axis] * point[axis];
    return value;
  }

 private:
  // Two points that differ in one axis alone give its slope; all others must then agree.
  bool solve(const std::vector<std::vector<int>> &points, const std::vector<int64_t> &values) {
    std::vector<bool> known(slopes_.size(), false);
    for (size_t i = 1; i < points.size(); ++i)
      for (size_t j = 0; j < i; ++j) {
        size_t differing = 0, axis = 0;
        for (size_t a = 0; a < slopes_.size(); ++a)
          if (points[i][a] != points[j][a]) ++differing, axis = a;
        if (differing != 1 || known[axis]) continue;
        int64_t rise = values[i] - values[j], run = points[i][axis] - points[j][axis];
        if (rise % run) return false;
        slopes_[axis] = rise / run;
        known[axis] = true;
      }
    base_ = 0;
    base_ = values[0] - at(points[0]);
    for (size_t i = 0; i < points.size(); ++i)
      if (at(points[i]) != values[i]) return false;
    return true;
  }

  std::vector<int64_t> slopes_;
  int64_t base_ = 0;
  bool fits_;
};

int64_t load(const std::string &data, size_t index, size_t width) {
  int64_t value = 0;
  memcpy(&value, data.data() + index * width, width);
  return width == 4 ? static_cast<int32_t>(value) : value;
}

}  // namespace

std::vector<int> Ghosts::members_in(const std::string &label) {
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
    for (int i = 0; i < part[2]; ++i) ranks.push_back(part[0] + i * part[1]);
  }
  return ranks;
}

std::vector<int> Ghosts::coordinates(int rank) const {
  std::vector<int> point(sizes_.size());
  for (size_t axis = sizes_.size(); axis-- > 0; rank /= sizes_[axis]) point[axis] = rank % sizes_[axis];
  return point;
}

bool Ghosts::speak(const Communicator &comm, int dtype, std::vector<const std::string *> &parts,
                   std::vector<std::string> &made, std::string &why) const {
  std::vector<std::vector<int>> points;
  std::vector<const std::string *> said;
  bool equal = true;
  for (int own : comm.seats) {
    points.push_back(coordinates(comm.ranks[static_cast<size_t>(own)]));
    said.push_back(parts[static_cast<size_t>(own)]);
    equal = equal && *said.back() == *said[0];
  }
  if (equal) {
    for (auto &part : parts)
      if (!part) part = said[0];
    return true;
  }
  auto who = [&](size_t seat) { return "rank " + std::to_string(comm.rank_at(seat)); };
  if (said.size() < 3) {
    why = who(0) + " and " + who(1) + " give different bytes, and two do not tell what the others give";
    return false;
  }
  // What each process said, taken apart into numbers and the rest, which must be the same.
  bool pickled = dtype == INT8 || dtype == UINT8;
  if (!pickled && (dtype > UINT64 || said[0]->size() % (dtype >= INT64 ? 8 : 4))) {
    why = "ranks give numbers that differ and are no integers";
    return false;
  }
  std::vector<Pickle> read;
  for (size_t seat = 0; seat < said.size(); ++seat) {
    if (pickled) {
      read.emplace_back(*said[seat]);
      if (!read.back().understood()) {
        why = who(seat) + " gives bytes that differ from the others' and are no pickled object of integers and texts";
        return false;
      }
    } else {
      size_t width = dtype >= INT64 ? 8 : 4;
      std::vector<int64_t> numbers;
      for (size_t i = 0; i < said[seat]->size() / width; ++i) numbers.push_back(load(*said[seat], i, width));
      read.emplace_back(std::move(numbers), width);
    }
    if (!read[seat].like(read[0])) {
      why = who(seat) + " gives another object than " + who(0);
      return false;
    }
  }
  std::vector<Even> laws;
  for (size_t i = 0; i < read[0].numbers().size(); ++i) {
    std::vector<int64_t> values;
    for (const Pickle &one : read) values.push_back(one.numbers()[i]);
    laws.emplace_back(points, values);
    if (laws.back().fits()) continue;
    why = "the integers that its ranks give (" + std::to_string(values[0]) + " by " + who(0) + ", " + std::to_string(values[1]) +
          " by " + who(1) + ", " + std::to_string(values[2]) + " by " + who(2) + ") do not grow evenly with the rank";
    return false;
  }
  made.reserve(parts.size());
  for (size_t own = 0; own < parts.size(); ++own) {
    if (parts[own]) continue;
    std::vector<int> point = coordinates(comm.ranks[own]);
    std::vector<int64_t> numbers;
    for (const Even &law : laws) numbers.push_back(law.at(point));
    made.push_back(read[0].with(numbers, said[0]->size()));
    parts[own] = &made.back();
  }
  return true;
}

}  // namespace phe
