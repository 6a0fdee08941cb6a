#include "relay/node.h"

#include <string.h>

namespace phr {

namespace {
constexpr int64_t SHORT_SLEEP_US = 500;  // while records come for which no rank rings
constexpr int64_t LONG_SLEEP_US = 2000;
}  // namespace

Node::Node(void *area, int node, int socket, std::vector<int32_t> ranks)
    : area_(area), node_(node), connection_(socket), ranks_(std::move(ranks)), sent_(ranks_.size()) {
  speaker_ = std::thread(&Node::speak, this);
  listener_ = std::thread(&Node::listen, this);
}

Node::~Node() {
  connection_.end();
  ring(&area_.header().doorbell);
  speaker_.join();
  listener_.join();
}

// ---------------------------------------------------------------- to the mirror
void Node::speak() {
  prefer_short_slices();
  ph_header &header = area_.header();
  int64_t pause = SHORT_SLEEP_US;
  while (!connection_.ended()) {
    sleep_on(&header.doorbell, &header.sim_sleeping, pause, [this] { return is_behind(); });
    pause = say() ? SHORT_SLEEP_US : std::min(2 * pause, LONG_SLEEP_US);
  }
}

bool Node::is_behind() const {
  if (connection_.ended() || applied_ != confirmed_) return true;
  for (size_t i = 0; i < ranks_.size(); ++i)
    if (load(&area_.control(ranks_[i]).head) != sent_[i].head) return true;
  return false;
}

bool Node::say() {
  bool news = false;
  if (uint64_t applied = applied_; applied != confirmed_) {
    connection_.add({APPLIED, 0, applied, 0}, nullptr);
    confirmed_ = applied;
    news = true;
  }
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Sent &sent = sent_[i];
    ph_said said = said_by(ranks_[i]);  // first: a clock comes after the records that it counts
    uint64_t head = load(&area_.control(ranks_[i]).head);
    if (head != sent.head) {
      say_records(ranks_[i], sent.head, head);
      sent.head = head;
      news = true;
    }
    if (memcmp(&said, &sent.said, sizeof said)) {
      connection_.add({SAID, ranks_[i], 0, sizeof said}, &said);
      sent.said = said;
      news = true;
    }
  }
  if (news) connection_.flush();
  return news;
}

void Node::say_records(int32_t rank, uint64_t from, uint64_t to) {
  const ph_record *ring = area_.ring(rank);
  uint64_t begin = from & (PH_RING_RECORDS - 1), count = to - from;
  uint64_t first = std::min<uint64_t>(count, PH_RING_RECORDS - begin);
  Frame frame{RECORDS, rank, from, count * sizeof(ph_record)};
  connection_.append(&frame, sizeof frame);
  connection_.append(ring + begin, first * sizeof(ph_record));
  connection_.append(ring, (count - first) * sizeof(ph_record));
}

ph_said Node::said_by(int32_t rank) const {
  const ph_control &control = area_.control(rank);
  ph_said said{};
#define X(field) said.field = load(&control.field);
  PH_SAID_FIELDS(X)
#undef X
  if (said.pid > 0) said.pid |= node_ << PH_PID_BITS;
  return said;
}

// ---------------------------------------------------------------- to the ranks
void Node::listen() {
  prefer_short_slices();
  Frame frame;
  while (connection_.read(&frame, sizeof frame) && apply(frame)) {}
  connection_.end();
  ring(&area_.header().doorbell);
}

bool Node::apply(const Frame &frame) {
  if (frame.rank < 0 || static_cast<uint32_t>(frame.rank) >= area_.ranks()) return false;
  if (frame.kind == ANSWER) {
    if (frame.place >= PH_REPLY_SLOTS || frame.length < REPLY_HEAD || frame.length > sizeof(ph_reply)) return false;
    ph_reply &reply = area_.reply(frame.rank, frame.place);
    ph_reply head;
    if (!connection_.read(&head, REPLY_HEAD) || !connection_.read(reply.data, frame.length - REPLY_HEAD)) return false;
    reply.status = head.status;
    reply.time = head.time;
    reply.value = head.value;
    reply.length = head.length;
    store<uint32_t>(&reply.futex, 1);
    wake(&reply.futex);
  } else if (frame.kind == GIVEN) {
    ph_given given;
    if (frame.length != sizeof given || !connection_.read(&given, sizeof given)) return false;
    give(frame.rank, given);
  } else if (frame.kind == RUN) {
    ph_run run;
    if (frame.length != sizeof run || !connection_.read(&run, sizeof run)) return false;
    announce(run);
  } else if (frame.kind == APPLY && !frame.length) {
    ++applied_;
    ring(&area_.header().doorbell);
  } else {
    return false;
  }
  return true;
}

void Node::give(int32_t rank, const ph_given &given) {
  ph_control &control = area_.control(rank);
#define X(field) store(&control.field, given.field);
  PH_GIVEN_FIELDS(X)
#undef X
  __atomic_thread_fence(__ATOMIC_SEQ_CST);  // the rank sets its flag, then looks at the tail
  if (load(&control.producer_waiting)) ring(&control.tail_futex);
}

void Node::announce(const ph_run &run) {
  ph_header &header = area_.header();
#define X(field) store(&header.field, run.field);
  PH_RUN_FIELDS(X)
#undef X
  if (run.sim_state != PH_SIM_ABORTED) return;
  for (int32_t rank : ranks_) {
    wake(&area_.control(rank).tail_futex);
    for (size_t slot = 0; slot < PH_REPLY_SLOTS; ++slot) wake(&area_.reply(rank, slot).futex);
  }
}

}  // namespace phr
