#include "fold/pickles.h"

#include <string.h>

namespace phe {
namespace {

enum Argument { NONE, ONE, TWO, FOUR, EIGHT, TEXT1, TEXT4, TEXT8, TWO_LINES, LONG1, UNKNOWN };
constexpr char FRAME = '\x95', STOP = '.', INT1 = 'K', INT2 = 'M', INT4 = 'J';

// Form of an opcode's argument.
Argument argument(char opcode) {
  static const char plain[] = "()]}l.tasueb0N1o2dR\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94";
  if (memchr(plain, opcode, sizeof plain - 1)) return NONE;
  switch (opcode) {
    case '\x80':  // PROTO
    case 'h':     // BINGET
    case 'q':     // BINPUT
    case INT1:
      return ONE;
    case INT2:
      return TWO;
    case INT4:
    case 'j':  // LONG_BINGET
    case 'r':  // LONG_BINPUT
      return FOUR;
    case 'G':  // BINFLOAT
    case FRAME:
      return EIGHT;
    case '\x8c':  // SHORT_BINUNICODE
    case 'C':     // SHORT_BINBYTES
      return TEXT1;
    case 'X':  // BINUNICODE
    case 'B':  // BINBYTES
      return TEXT4;
    case '\x8d':  // BINUNICODE8
    case '\x8e':  // BINBYTES8
    case '\x96':  // BYTEARRAY8
      return TEXT8;
    case '\x8a':
      return LONG1;
    case 'c':  // GLOBAL
      return TWO_LINES;
    default:
      return UNKNOWN;
  }
}

uint64_t number_at(const std::string &bytes, size_t at, size_t width) {
  uint64_t value = 0;
  if (at + width <= bytes.size()) memcpy(&value, bytes.data() + at, width);
  return value;
}

// As Python's pickler writes an integer.
std::string written(int64_t value) {
  auto little = [](char opcode, int64_t v, size_t width) {
    std::string out(1, opcode);
    return out.append(reinterpret_cast<const char *>(&v), width);
  };
  if (value >= 0 && value <= 0xff) return little(INT1, value, 1);
  if (value >= 0 && value <= 0xffff) return little(INT2, value, 2);
  if (value >= INT32_MIN && value <= INT32_MAX) return little(INT4, value, 4);
  size_t width = 1;  // bytes that keep the sign
  while (width < 8 && value >> (8 * width - 1) != 0 && value >> (8 * width - 1) != -1) ++width;
  return std::string("\x8a").append(1, static_cast<char>(width)).append(reinterpret_cast<const char *>(&value), width);
}

}  // namespace

Pickle::Pickle(const std::string &bytes) { understood_ = cut(bytes); }

bool Pickle::cut(const std::string &bytes) {
  int frames = 0;  // up to 64 KiB are one
  pieces_.emplace_back();
  for (size_t at = 0; at < bytes.size();) {
    char opcode = bytes[at++];
    size_t length = 0;
    switch (argument(opcode)) {
      case NONE:
        break;
      case ONE:
        length = 1;
        break;
      case TWO:
        length = 2;
        break;
      case FOUR:
        length = 4;
        break;
      case EIGHT:
        length = 8;
        break;
      case TEXT1:
        length = 1 + number_at(bytes, at, 1);
        break;
      case TEXT4:
        length = 4 + number_at(bytes, at, 4);
        break;
      case TEXT8:
        length = 8 + number_at(bytes, at, 8);
        break;
      case LONG1:
        length = 1 + number_at(bytes, at, 1);
        break;
      case TWO_LINES: {
        size_t first = bytes.find('\n', at), second = first == std::string::npos ? first : bytes.find('\n', first + 1);
        if (second == std::string::npos) return false;
        length = second + 1 - at;
        break;
      }
      case UNKNOWN:
        return false;
    }
    if (length > bytes.size() - at) return false;
    if (opcode == INT1 || opcode == INT2 || opcode == INT4 || (opcode == '\x8a' && length <= 9)) {
      size_t width = opcode == '\x8a' ? length - 1 : length;
      uint64_t raw = number_at(bytes, at + length - width, width);
      if (opcode == INT4) raw = static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(raw)));
      if (opcode == '\x8a' && width && width < 8) {  // signed
        uint64_t sign = uint64_t{1} << (8 * width - 1);
        raw = (raw ^ sign) - sign;
      }
      numbers_.push_back(static_cast<int64_t>(raw));
      pieces_.emplace_back();
    } else if (opcode == FRAME) {
      if (++frames > 1) return false;
      pieces_.back() += opcode;
    } else {
      pieces_.back().append(1, opcode).append(bytes, at, length);
    }
    at += length;
    if (opcode == STOP) return true;
  }
  return false;
}

std::string Pickle::with(const std::vector<int64_t> &numbers, size_t size) const {
  std::string out;
  if (width_) {
    for (int64_t number : numbers) out.append(reinterpret_cast<const char *>(&number), width_);
    return out;
  }
  // A pickle of protocol 4 and 5 up to 64 KiB is one frame behind its two bytes of protocol.
  for (size_t i = 0; i < pieces_.size(); ++i) {
    out += pieces_[i];
    if (i < numbers.size()) out += written(numbers[i]);
  }
  if (out.size() > 2 && out[2] == FRAME) {
    uint64_t length = out.size() - 3;
    out.insert(3, reinterpret_cast<const char *>(&length), 8);
  }
  if (out.size() < size) out.resize(size, '\0');
  return out;
}

}  // namespace phe
