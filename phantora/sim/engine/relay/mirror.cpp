#include "relay/mirror.h"

#include <string.h>

#include <algorithm>

namespace phr {

namespace {
constexpr int64_t SLEEP_US = 20000;               // the header's fields change without a ring
}  // namespace

Mirror::~Mirror() {
  ended_ = true;
  for (auto &peer : peers_) peer->connection.end();
  ring(&area_.header().relay_bell);
  if (speaker_.joinable()) speaker_.join();
  for (auto &peer : peers_)
    if (peer->listener.joinable()) peer->listener.join();
}

void Mirror::add(int socket, std::vector<int32_t> ranks) {
  peers_.push_back(std::make_unique<Peer>(socket, std::move(ranks)));
}

void Mirror::start() {
  speaker_ = std::thread(&Mirror::speak, this);
  for (auto &peer : peers_) peer->listener = std::thread(&Mirror::listen, this, std::ref(*peer));
}

int Mirror::lost() const {
  for (size_t i = 0; i < peers_.size(); ++i)
    if (peers_[i]->connection.ended()) return static_cast<int>(i);
  return -1;
}

Traffic Mirror::traffic() const {
  Traffic all;
  for (auto &peer : peers_) all += peer->connection.traffic();
  return all;
}

// ---------------------------------------------------------------- from the nodes
void Mirror::listen(Peer &peer) {
  prefer_short_slices();
  Frame frame;
  while (peer.connection.read(&frame, sizeof frame) && apply(peer, frame))
    if (peer.connection.drained()) wake_engine();
  peer.connection.end();
  ring(&area_.header().relay_bell);
}

bool Mirror::apply(Peer &peer, const Frame &frame) {
  if (frame.rank < 0 || static_cast<uint32_t>(frame.rank) >= area_.ranks()) return false;
  if (frame.kind == RECORDS) return take_records(peer, frame);
  if (frame.kind == SAID) {
    ph_said said;
    if (frame.length != sizeof said || !peer.connection.read(&said, sizeof said)) return false;
    ph_control &control = area_.control(frame.rank);
#define X(field) store(&control.field, said.field);
    PH_SAID_FIELDS(X)
#undef X
    if (said.producer_waiting) ring(&area_.header().relay_bell);  // the room that it waits for may be here
  } else if (frame.kind == APPLIED && !frame.length) {
    peer.applied = frame.place;
    ring(&area_.header().relay_bell);
  } else {
    return false;
  }
  return true;
}

bool Mirror::take_records(Peer &peer, const Frame &frame) {
  ph_control &control = area_.control(frame.rank);
  uint64_t count = frame.length / sizeof(ph_record), begin = frame.place & (PH_RING_RECORDS - 1);
  if (frame.length % sizeof(ph_record) || frame.place != control.head) return false;
  if (frame.place + count - load(&control.tail) > PH_RING_RECORDS) return false;  // their rank saw an older tail
  ph_record *ring = area_.ring(frame.rank);
  uint64_t first = std::min<uint64_t>(count, PH_RING_RECORDS - begin);
  if (!peer.connection.read(ring + begin, first * sizeof(ph_record))) return false;
  if (!peer.connection.read(ring, (count - first) * sizeof(ph_record))) return false;
  for (uint64_t i = 0; i < count; ++i) {
    uint8_t slot = ring[(frame.place + i) & (PH_RING_RECORDS - 1)].slot;
    if (slot >= PH_REPLY_SLOTS) continue;
    store<uint32_t>(&area_.reply(frame.rank, slot).futex, 0);
    asked_[static_cast<size_t>(frame.rank)].fetch_or(static_cast<uint8_t>(1 << slot));
  }
  store(&control.head, frame.place + count);
  return true;
}

void Mirror::wake_engine() {
  ph_header &header = area_.header();
  __atomic_thread_fence(__ATOMIC_SEQ_CST);  // what has come is visible before we read which side sleeps
  if (load(&header.sim_sleeping)) ring(&header.doorbell);
}

// ---------------------------------------------------------------- to the nodes
void Mirror::speak() {
  prefer_short_slices();
  ph_header &header = area_.header();
  while (!ended_) {
    sleep_on(&header.relay_bell, &header.relay_sleeping, SLEEP_US, [this] { return has_news(); });
    say();
  }
}

// An answer may let its rank wake one of another node, outside of CUDA. So clocks that were moved before the answer was
// given reach the other nodes first. Frames to its own node arrive in their order.
bool Mirror::may_go(const Peer &to) const {
  return std::none_of(peers_.begin(), peers_.end(), [&](auto &peer) { return peer.get() != &to && peer->is_behind(); });
}

std::vector<Mirror::Answer> Mirror::answers() const {
  std::vector<Answer> found;
  for (auto &peer : peers_) {
    if (!may_go(*peer)) continue;
    for (int32_t rank : peer->ranks) {
      uint8_t asked = asked_[static_cast<size_t>(rank)];
      for (size_t slot = 0; asked >> slot; ++slot)
        if (asked >> slot & 1 && load(&area_.reply(rank, slot).futex)) found.push_back({peer.get(), rank, slot});
    }
  }
  return found;
}

ph_given Mirror::given_to(int32_t rank) const {
  const ph_control &control = area_.control(rank);
  ph_given given{};
#define X(field) given.field = load(&control.field);
  PH_GIVEN_FIELDS(X)
#undef X
  return given;
}

// True if the rank need not be told: it has the same, or some room in its ring.
bool Mirror::is_given(int32_t rank, const ph_given &now) const {
  ph_given old = given_[static_cast<size_t>(rank)];
  uint64_t more = now.tail - old.tail;
  old.tail = now.tail;
  if (memcmp(&old, &now, sizeof now)) return false;
  return more < ROOM && !(more && load(&area_.control(rank).producer_waiting));
}

bool Mirror::has_news() {
  if (ended_) return true;
  for (auto &peer : peers_)
    for (int32_t rank : peer->ranks)
      if (!is_given(rank, given_to(rank))) return true;
  return !answers().empty();
}

void Mirror::say() {
  std::vector<Answer> answered = answers();  // first: the clocks that were moved before them are read after them
  announce();
  for (auto &peer : peers_) {
    bool moved = false;
    for (int32_t rank : peer->ranks) moved |= give(*peer, rank);
    if (moved) peer->connection.add({APPLY, 0, ++peer->wanted, 0}, nullptr);
  }
  for (const Answer &a : answered) {
    if (!may_go(*a.peer)) continue;  // it goes when the other nodes have confirmed
    asked_[static_cast<size_t>(a.rank)].fetch_and(static_cast<uint8_t>(~(1 << a.slot)));
    const ph_reply &reply = area_.reply(a.rank, a.slot);
    uint64_t length = REPLY_HEAD + std::min<uint64_t>(reply.length, PH_REPLY_BYTES);
    a.peer->connection.add({ANSWER, a.rank, a.slot, length}, &reply);
  }
  for (auto &peer : peers_) peer->connection.flush();
}

// Adds what is new for the rank to the next frames; true if its clock was moved.
bool Mirror::give(Peer &peer, int32_t rank) {
  ph_given now = given_to(rank), &old = given_[static_cast<size_t>(rank)];
  if (is_given(rank, now)) return false;
  peer.connection.add({GIVEN, rank, 0, sizeof now}, &now);
  bool floor = now.floor != old.floor;
  old = now;
  return floor;
}

void Mirror::announce() {
  const ph_header &header = area_.header();
  ph_run run{};
#define X(field) run.field = load(&header.field);
  PH_RUN_FIELDS(X)
#undef X
  if (!memcmp(&run, &run_, sizeof run)) return;
  run_ = run;
  for (auto &peer : peers_) peer->connection.add({RUN, 0, 0, sizeof run}, &run);
}

}  // namespace phr
