// Pickled objects as bytes: their integers, and all the rest. Nothing is unpickled.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

namespace phe {

// A pickle of protocol 2 to 5 (https://docs.python.org/3/library/pickletools.html) cut into the integers that it holds
// and the pieces between them; or an array of integers, without pieces.
class Pickle {
 public:
  explicit Pickle(const std::string &bytes);
  Pickle(std::vector<int64_t> numbers, size_t width)
      : understood_(true), width_(width), numbers_(std::move(numbers)), pieces_(numbers_.size() + 1) {}

  bool understood() const { return understood_; }
  // The same but for the integers?
  bool like(const Pickle &other) const { return pieces_ == other.pieces_; }
  const std::vector<int64_t> &numbers() const { return numbers_; }
  // The bytes with other integers; a pickle is filled up to `size` with zeros, which stand behind its end.
  std::string with(const std::vector<int64_t> &numbers, size_t size) const;

 private:
  bool cut(const std::string &bytes);

  bool understood_ = false;
  size_t width_ = 0;  // of the integers of an array; 0: a pickle
  std::vector<int64_t> numbers_;
  std::vector<std::string> pieces_;  // without the lengths of frames, which depend on the integers
};

}  // namespace phe
