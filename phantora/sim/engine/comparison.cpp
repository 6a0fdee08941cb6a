#include "comparison.h"

#include <string.h>

#include "communication.h"

namespace phe {
namespace {

// What is compared of a record: work, its sizes, collectives, blocks of memory. Numbers of streams and events, clocks and
// peers differ between ranks that do the same. False: nothing is.
bool essence(const ph_record &r, ph_record &out) {
  memset(&out, 0, sizeof out);
  out.kind = r.kind;
  switch (r.kind) {
    case PH_KERNEL:
      out.kernel = r.kernel;
      return true;
    case PH_MEMCPY:
      out.id = r.id;
      out.copy.bytes = r.copy.bytes;
      return true;
    case PH_MEMSET:
      out.fill.bytes = r.fill.bytes;
      return true;
    case PH_COLLECTIVE:
      out.collective = r.collective;
      out.collective.ticket = 0;
      out.collective.scalar = 0;
      return true;
    case PH_SEND:
    case PH_RECV:
      out.transfer = r.transfer;
      out.transfer.ticket = 0;
      out.transfer.peer = 0;
      return true;
    case PH_COMM_CREATE:
      out.comm.members = r.comm.members;
      return true;
    case PH_MEMORY:
      out.id = r.id;
      out.memory.change = r.memory.change;
      return r.id == PH_MEM_ALLOC;
    case PH_EXCHANGE:
    case PH_STREAM_SYNC:
    case PH_DEVICE_SYNC:
    case PH_EVENT_SYNC:
    case PH_EVENT_RECORD:
    case PH_STREAM_WAIT:
      return true;
    default:
      return false;
  }
}

}  // namespace

void Comparison::expect(int witness, int first, int last, const std::string &axis, bool uneven) {
  int number = static_cast<int>(pairs_.size());
  for (int fellow : {first, last}) {
    Pair pair;
    pair.ranks[0] = witness;
    pair.ranks[1] = fellow;
    pair.other = fellow == first ? number + 1 : number;
    pair.axis = axis;
    pair.uneven = uneven;
    of_rank_[static_cast<size_t>(witness)].emplace_back(static_cast<int>(pairs_.size()), 0);
    of_rank_[static_cast<size_t>(fellow)].emplace_back(static_cast<int>(pairs_.size()), 1);
    pairs_.push_back(std::move(pair));
  }
}

void Comparison::heard(const Rank &rank, const ph_record &r, int32_t name) {
  Said said{{}, name};
  if ((r.flags & PH_F_HELPER) || !essence(r, said.record)) return;
  bool communicates = r.kind == PH_COLLECTIVE || r.kind == PH_SEND || r.kind == PH_RECV || r.kind == PH_COMM_CREATE;
  for (auto [number, side] : of_rank_[static_cast<size_t>(rank.index)]) {
    Pair &pair = pairs_[static_cast<size_t>(number)];
    if (communicates || !pair.uneven) add(pair, side, said);
  }
}

void Comparison::add(Pair &pair, int side, const Said &said) {
  if (!pair.difference.empty()) return;
  if (pair.ahead.empty() || pair.who == side) {
    pair.who = side;
    pair.ahead.push_back(said);
    if (pair.ended[1 - side]) differ(pair, nullptr, side, &said);
    return;
  }
  const Said &theirs = pair.ahead.front();
  ++pair.compared;
  if (theirs.name != said.name || memcmp(&theirs.record, &said.record, sizeof said.record) != 0)
    return differ(pair, &theirs, side, &said);
  pair.ahead.pop_front();
}

void Comparison::ended(const Rank &rank) {
  for (auto [number, side] : of_rank_[static_cast<size_t>(rank.index)]) {
    Pair &pair = pairs_[static_cast<size_t>(number)];
    pair.ended[side] = true;
    if (!pair.ahead.empty() && pair.who != side && pair.difference.empty()) differ(pair, &pair.ahead.front(), side, nullptr);
  }
}

// `ours` is what `side` says, `theirs` what the other one said in its place.
void Comparison::differ(Pair &pair, const Said *theirs, int side, const Said *ours) {
  const Said *of_witness = side == 0 ? ours : theirs, *of_fellow = side == 0 ? theirs : ours;
  pair.difference = "rank " + std::to_string(pair.ranks[1]) + " " + describe(of_fellow) + " where rank " +
                    std::to_string(pair.ranks[0]) + " " + describe(of_witness) + " (call " + std::to_string(pair.compared) + ")";
  pair.ahead.clear();
  const Pair &other = pairs_[static_cast<size_t>(pair.other)];
  if (other.difference.empty()) return;
  failure_.set("cannot fold the axis " + pair.axis + ": rank " + std::to_string(pair.ranks[0]) +
               " stands for the ranks between " + std::to_string(std::min(pair.ranks[1], other.ranks[1])) + " and " +
               std::to_string(std::max(pair.ranks[1], other.ranks[1])) + " but does what neither does: " + other.difference +
               "; " + pair.difference + ". Run all ranks of this axis (NAME=SIZE* in --fold)" +
               (pair.uneven ? "" : ", compare their communication alone if each has a part of its own of an optimizer (NAME=SIZE~)") +
               ", or use --fold off");
}

std::string Comparison::describe(const Said *said) const {
  if (!said) return "has ended";
  const ph_record &r = said->record;
  switch (r.kind) {
    case PH_KERNEL: {
      std::string name = said->name < 0 ? "?" : texts_.text(PHE_NAMES, said->name);
      return "launches " + name.substr(0, 120) + " of " + std::to_string(r.kernel.grid_x) + " blocks";
    }
    case PH_MEMCPY:
    case PH_MEMSET:
      return (r.kind == PH_MEMCPY ? "copies " : "sets ") + std::to_string(r.kind == PH_MEMCPY ? r.copy.bytes : r.fill.bytes) + " bytes";
    case PH_COLLECTIVE:
      return "calls " + Communication::describe(r);
    case PH_SEND:
    case PH_RECV:
      return (r.kind == PH_SEND ? "sends " : "receives ") + std::to_string(r.transfer.bytes) + " bytes";
    case PH_COMM_CREATE:
      return "makes a communicator of " + std::to_string(r.comm.members) + " ranks";
    case PH_MEMORY:
      return "allocates " + std::to_string(r.memory.change) + " bytes";
    case PH_EXCHANGE:
      return "meets the other members of a new communicator";
    case PH_EVENT_RECORD:
      return "records an event";
    default:
      return r.kind == PH_STREAM_WAIT ? "has a stream wait" : "waits for its GPU";
  }
}

}  // namespace phe
