#include "fold/comparison.h"

#include <string.h>

#include "communication/communication.h"

namespace phe {
namespace {

// Compared fields of a record: work, its sizes, collectives, blocks of memory. Numbers of streams and events, clocks
// and peers differ between ranks that do the same. False: nothing is.
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

void Comparison::expect(int representative, int first, int last, const std::string &axis, bool uneven) {
  int number = static_cast<int>(pairs_.size());
  for (int neighbour : {first, last}) {
    Pair pair;
    pair.ranks[0] = representative;
    pair.ranks[1] = neighbour;
    pair.other = neighbour == first ? number + 1 : number;
    pair.axis = axis;
    pair.uneven = uneven;
    of_rank_[static_cast<size_t>(representative)].emplace_back(static_cast<int>(pairs_.size()), 0);
    of_rank_[static_cast<size_t>(neighbour)].emplace_back(static_cast<int>(pairs_.size()), 1);
    pairs_.push_back(std::move(pair));
  }
}

void Comparison::record(const Rank &rank, const ph_record &r, int32_t name) {
  Entry entry{{}, name};
  if ((r.flags & PH_F_HELPER) || !essence(r, entry.record)) return;
  bool communicates = r.kind == PH_COLLECTIVE || r.kind == PH_SEND || r.kind == PH_RECV || r.kind == PH_COMM_CREATE;
  for (auto [number, side] : of_rank_[static_cast<size_t>(rank.index)]) {
    Pair &pair = pairs_[static_cast<size_t>(number)];
    if (communicates || !pair.uneven) add(pair, side, entry);
  }
}

void Comparison::add(Pair &pair, int side, const Entry &entry) {
  if (!pair.difference.empty()) return;
  if (pair.ahead.empty() || pair.side == side) {
    pair.side = side;
    pair.ahead.push_back(entry);
    if (pair.ended[1 - side]) differ(pair, nullptr, side, &entry);
    return;
  }
  const Entry &theirs = pair.ahead.front();
  ++pair.compared;
  if (theirs.name != entry.name || memcmp(&theirs.record, &entry.record, sizeof entry.record) != 0)
    return differ(pair, &theirs, side, &entry);
  pair.ahead.pop_front();
}

void Comparison::ended(const Rank &rank) {
  for (auto [number, side] : of_rank_[static_cast<size_t>(rank.index)]) {
    Pair &pair = pairs_[static_cast<size_t>(number)];
    pair.ended[side] = true;
    if (!pair.ahead.empty() && pair.side != side && pair.difference.empty())
      differ(pair, &pair.ahead.front(), side, nullptr);
  }
}

// `ours` is the entry of `side`, `theirs` that of the other side in the same place.
void Comparison::differ(Pair &pair, const Entry *theirs, int side, const Entry *ours) {
  const Entry *of_representative = side == 0 ? ours : theirs, *of_neighbour = side == 0 ? theirs : ours;
  pair.difference = "rank " + std::to_string(pair.ranks[1]) + " " + describe(of_neighbour) + " where rank " +
                    std::to_string(pair.ranks[0]) + " " + describe(of_representative) + " (call " +
                    std::to_string(pair.compared) + ")";
  pair.ahead.clear();
  const Pair &other = pairs_[static_cast<size_t>(pair.other)];
  if (other.difference.empty()) return;
  failure_.unlike(
      pair.ranks[0],
      "the axis " + pair.axis + ": rank " + std::to_string(pair.ranks[0]) + " represents the ranks between " +
          std::to_string(std::min(pair.ranks[1], other.ranks[1])) + " and " +
          std::to_string(std::max(pair.ranks[1], other.ranks[1])) + " but matches neither: " + other.difference + "; " +
          pair.difference + ". Run all ranks of this axis (NAME=SIZE:all in --fold)" +
          (pair.uneven ? ""
                       : ", compare only communication if each owns another part of an optimizer (NAME=SIZE:uneven)") +
          ", or use --fold off");
}

std::string Comparison::describe(const Entry *entry) const {
  if (!entry) return "has ended";
  const ph_record &r = entry->record;
  switch (r.kind) {
    case PH_KERNEL: {
      std::string name = entry->name < 0 ? "?" : texts_.text(PHE_NAMES, entry->name);
      return "launches " + name.substr(0, 120) + " of " + std::to_string(r.kernel.grid_x) + " blocks";
    }
    case PH_MEMCPY:
    case PH_MEMSET:
      return (r.kind == PH_MEMCPY ? "copies " : "sets ") +
             std::to_string(r.kind == PH_MEMCPY ? r.copy.bytes : r.fill.bytes) + " bytes";
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
