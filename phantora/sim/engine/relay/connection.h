// The connection between the memory of a node's ranks and its mirror: frames over a socket.
#pragma once
#include "basics.h"

#include <stddef.h>

#include <atomic>
#include <vector>

namespace phr {

using phe::futex;
using phe::load;
using phe::prefer_short_slices;
using phe::ROOM;
using phe::store;

enum Kind : uint32_t {
  RECORDS,  // of a rank's ring, from `place` on
  SAID,     // ph_said of a rank: follows its records
  GIVEN,    // ph_given of a rank
  ANSWER,   // the head of a ph_reply and its data, to slot `place` of a rank
  RUN,      // ph_run
  APPLY,    // all before has been applied when the APPLIED comes back
  APPLIED,
};
struct Frame {
  uint32_t kind;
  int32_t rank;
  uint64_t place;
  uint64_t length;  // bytes that follow
};
constexpr size_t REPLY_HEAD = offsetof(ph_reply, data);
constexpr uint64_t MOST_BYTES = uint64_t{PH_RING_RECORDS} * sizeof(ph_record);  // of a frame

// The shared memory of one side.
class Area {
 public:
  explicit Area(void *area) : bytes_(static_cast<char *>(area)) {}
  ph_header &header() const { return *reinterpret_cast<ph_header *>(bytes_); }
  ph_control &control(int32_t rank) const { return at<ph_control>(header().control_offset)[rank]; }
  ph_record *ring(int32_t rank) const {
    return at<ph_record>(header().ring_offset) + static_cast<size_t>(rank) * PH_RING_RECORDS;
  }
  ph_reply &reply(int32_t rank, size_t slot) const {
    return at<ph_reply>(header().reply_offset)[static_cast<size_t>(rank) * PH_REPLY_SLOTS + slot];
  }
  uint32_t ranks() const { return header().world_size; }

 private:
  template <typename T>
  T *at(uint64_t offset) const {
    return reinterpret_cast<T *>(bytes_ + offset);
  }
  char *bytes_;
};

// What connections have carried: bytes, and calls that sent or received some.
struct Traffic {
  int64_t sent = 0, received = 0, messages_sent = 0, messages_received = 0;
  Traffic &operator+=(const Traffic &other) {
    sent += other.sent;
    received += other.received;
    messages_sent += other.messages_sent;
    messages_received += other.messages_received;
    return *this;
  }
};

// One thread writes, another one reads.
class Connection {
 public:
  explicit Connection(int socket) : socket_(socket) {}
  void add(const Frame &frame, const void *data);
  void append(const void *data, size_t length);
  bool flush();
  bool read(void *out, size_t length);
  void end();  // wakes the reader; from any thread
  bool ended() const { return ended_; }
  bool drained() const { return at_ == have_; }  // all that has come is read
  Traffic traffic() const { return {sent_, received_, messages_sent_, messages_received_}; }

 private:
  int socket_;
  std::vector<char> out_, in_ = std::vector<char>(1 << 20);
  size_t at_ = 0, have_ = 0;
  std::atomic<bool> ended_{false};
  std::atomic<int64_t> sent_{0}, received_{0}, messages_sent_{0}, messages_received_{0};
};

inline void wake(uint32_t *word) { futex(word, FUTEX_WAKE, INT32_MAX, nullptr); }
inline void ring(uint32_t *bell) {
  __atomic_fetch_add(bell, 1, __ATOMIC_SEQ_CST);
  wake(bell);
}

// Sleeps on `bell`, whose ringers look at `sleeping` first, unless `busy` has something to do.
template <typename Busy>
void sleep_on(uint32_t *bell, uint32_t *sleeping, int64_t timeout_us, Busy busy) {
  store<uint32_t>(sleeping, 1);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  uint32_t seen = load(bell);
  if (!busy()) {
    timespec t{timeout_us / 1000000, timeout_us % 1000000 * 1000};
    futex(bell, FUTEX_WAIT, seen, &t);
  }
  store<uint32_t>(sleeping, 0);
}

// Both sides of a relay.
class Relay {
 public:
  virtual ~Relay() = default;
  virtual int lost() const = 0;
  virtual Traffic traffic() const = 0;
};

}  // namespace phr
