// Common parts of the engine: constants, atomics, the state of an iteration.
#pragma once
#include "network/network.h"
#include "phantora_engine.h"
#include "time/slices.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <stdint.h>

#include <string>
#include <utility>

namespace phe {

using phn::NEVER;

// Work of the engine since the last poll.
struct Progress {
  bool moved = false;  // something has happened or was answered
  bool news = true;    // something has come in since the last pass
  int released = -1;   // rank of the host that was answered last
  int64_t late = 0;    // launches that came after their GPU's time
  bool to_relay = false;  // an answer, a moved clock or room in a ring, of which a node may have to hear
};

constexpr uint64_t ROOM = PH_RING_RECORDS / 8;  // records that are reported to a rank on another node together

// The first thing that went wrong ends the run.
class Failure {
 public:
  void set(std::string text, phe_failure kind = PHE_FAILURE_OTHER) {
    if (!text_.empty()) return;
    text_ = std::move(text);
    kind_ = kind;
  }
  void cannot_fold(const std::string &text) { set("cannot fold " + text, PHE_FAILURE_CANNOT_FOLD); }
  // `representative` matches none of its neighbours.
  void unlike(int representative, const std::string &text) {
    if (none()) unlike_ = representative;
    cannot_fold(text);
  }
  bool none() const { return text_.empty(); }
  const std::string &text() const { return text_; }
  phe_failure kind() const { return kind_; }
  int unlike() const { return unlike_; }

 private:
  std::string text_;
  phe_failure kind_ = PHE_FAILURE_OTHER;
  int unlike_ = -1;
};

// The bytes by which a price is found.
class Key {
 public:
  template <typename T>
  Key &add(T value) {
    bytes_.append(reinterpret_cast<const char *>(&value), sizeof value);
    return *this;
  }
  const std::string &bytes() const { return bytes_; }
  void clear() { bytes_.clear(); }

 private:
  std::string bytes_;
};

inline long futex(const uint32_t *address, int op, uint32_t value, const timespec *timeout) {
  return syscall(SYS_futex, address, op, value, timeout, nullptr, 0);
}
template <typename T>
T load(const T *p) {
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
template <typename T>
void store(T *p, T v) {
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

}  // namespace phe
