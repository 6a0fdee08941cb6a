// Operations of several ranks: communicators, collectives, transfers, and the kernels in which they wait for each
// other.
#pragma once
#include "gpu/work.h"

#include <map>
#include <memory>
#include <tuple>
#include <vector>

namespace phe {

struct Family;

struct Post {  // one side of a send and a receive
  std::shared_ptr<Launch> launch;
  int rank = 0;
  int64_t bytes = 0;
  uint64_t ticket = 0;
  std::string data;
  int knowledge = 0;  // of the data: PH_F_UNKNOWN, PH_F_ABSENT, PH_F_PARTS
  uint32_t dtype = 0;
  int32_t site = -1;  // where the program calls it, a global name
};

// A collective, or a pair of a send and a receive.
struct Operation {
  bool transfer = false;
  int32_t comm = -1, price = -1;
  int64_t seq =
      0;  // of a collective in its communicator, from 2^32 times its channel on; of a transfer among those of its way
  bool begun = false;  // all members are there and it has a price
  bool aborted = false;  // a member has given it up: it never begins
  int32_t open = -1;  // place among the open operations
  // State in the conservative clock:
  uint64_t pass = 0;  // the last that saw it
  int missing = 0;  // members that have not reached it and may still say when
};

struct Transfer : Operation {
  phe_transfer_kind kind =
      PHE_PAIR;  // all others are one-sided: one member's kernel or copy, which may wait for another's
  int src = 0, dst = 0;  // ranks in the communicator
  Post send, recv;
  int64_t sent = -1;  // when a send without a receive has put its bytes into NCCL's buffers; -1: it waits
  bool one_sided = false;  // one side is a rank of a folded run that is no process, or does nothing
  int like = -1;  // of a one-sided one: the rank that shows when that side comes, -1: it is there when the other is
  std::shared_ptr<Launch> there;  // what it shows, once it is known

  Post &own() { return send.launch ? send : recv; }  // of a one-sided one
};

struct Member {
  std::shared_ptr<Launch> launch;
  ph_record record{};
  std::string data;
  int32_t site = -1;  // where the program calls it, a global name
};

struct Collective : Operation {
  std::vector<Member> members;  // by seat in the communicator
  int joined = 0, arrived = 0;
  int64_t latest = 0;  // arrival
  int64_t begin = 0;  // and end of the collective before it in the same kernel
  bool held = false;  // that one has not ended

  int64_t number() const { return seq & UINT32_MAX; }  // on its channel
};

struct Launch {  // one communication kernel on one rank, or a copy from or to a peer
  Context *context = nullptr;
  int32_t comm = -1;
  int64_t seq = -1;
  int64_t arrival = -1;  // -1: the stream has not reached it
  int64_t id = -1;  // of its row
  int64_t ready = -1, end = -1;
  int64_t least_end = 0;  // it ends no earlier
  int64_t limit = 0;  // ns that it waits at most, 0: for ever
  int64_t gives_up = NEVER;  // when it does, unless what it waits for begins before
  int64_t part_end = 0;  // latest end among the parts that have ended
  int64_t last_at = -1;  // when the launch that holds this one up longest came, or was through
  int last_rank = -1;  // the rank of it
  int64_t last_id = -1;
  int waiting = 0;  // parts that have no end yet
  int sends = 0, recvs = 0;
  bool p2p = false;
  bool copies = false;  // by a copy engine: no SM has to do with it
  bool counted = false;  // of the signals of which any number may be under way
  int blocks = 0;  // of a kernel on the memory of peers; 0: NCCL's
  bool aborted = false;  // what had not begun of it never does
  int64_t bytes = 0, peer = -1;  // peer: rank in the communicator, -1: several
  int64_t measured = UNTIMED;  // ns that the transfer took in a real run,
  double crowd = 1;  // and how many shared its links
  int32_t name = -1, price = -1;
  uint8_t sub = 0;
  std::vector<std::shared_ptr<Collective>> collectives;
  std::vector<std::shared_ptr<Transfer>> transfers;
  std::vector<std::shared_ptr<Transfer>> followers;  // one-sided ones with another side like this
};

// An operation that is under way.
struct Activity {
  int32_t comm = -1, price = -1;
  int64_t seq = -1;
  std::vector<std::shared_ptr<Launch>> launches;
  int64_t since = 0;  // when it began
  int64_t slowed_end = 0;  // latest end of a flow that has ended, with what kernels at its ends cost it
  std::shared_ptr<Launch> signal;  // that it waited for, NULL if that was there before
};

// Signals from one member to another on one channel. The k-th is taken by the k-th wait; it is given when the one
// before has been taken.
struct Signals {
  struct Side {
    std::deque<std::shared_ptr<Launch>> launches;  // that none goes by yet,
    std::deque<std::shared_ptr<Transfer>> followers;  // or those that go by the next: one of the two is empty
  };
  Side puts, waits;
  bool used = false;  // one has been given
};

struct Communicator {
  int members = 0, created = 0;
  std::vector<int> ranks;  // global rank by own rank, -1 unknown
  std::vector<int> seats;  // own ranks of those that are processes: all, unless the run is folded
  std::vector<uint32_t> local;  // local ids by seat, 0: has not joined
  std::map<int, std::vector<int64_t>>
      sequence;  // next sequence number by channel (0: all but symmetric memory's) and seat
  std::string label;
  std::vector<std::pair<int, int64_t>> waiting_rows;  // (rank, time) of those that joined, until all have
  int32_t number = -1;  // what the log shows: independent of real time
  std::shared_ptr<Family> family;  // in a folded run
  std::vector<int> first_place;  // members of the first of the family
  std::map<int64_t, std::shared_ptr<Collective>> open;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Transfer>>> sends, recvs;  // unmatched, (src, dst)
  std::map<std::pair<int, int>, int64_t> transfers;  // so far, (src, dst)
  std::map<std::tuple<int, int, uint32_t>, Signals> signals;  // (src, dst, channel)

  int rank_at(size_t seat) const { return ranks[static_cast<size_t>(seats[seat])]; }
  int seat_of(int global) const {
    for (size_t seat = 0; seat < seats.size(); ++seat)
      if (rank_at(seat) == global) return static_cast<int>(seat);
    return -1;
  }
  int own_rank(int global) const {
    int seat = seat_of(global);
    return seat < 0 ? -1 : seats[static_cast<size_t>(seat)];
  }
};

}  // namespace phe
