// Mutations for engine_fuzzer.cpp that keep records whole: bytes changed blindly hardly get past validation.cpp.
#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine_cells.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

namespace {

struct Cell {
  uint8_t rank = 0;
  ph_record record{};
};
using Cells = std::vector<Cell>;
static_assert(sizeof(ph_blob) == sizeof(ph_record));

Cells read(const uint8_t *data, size_t size) {
  Cells cells(size / CELL);
  for (size_t i = 0; i < cells.size(); ++i) {
    cells[i].rank = data[i * CELL];
    std::memcpy(&cells[i].record, data + i * CELL + 1, sizeof(ph_record));
  }
  return cells;
}

size_t write(const Cells &cells, uint8_t *data, size_t most) {
  size_t count = std::min(cells.size(), most / CELL);
  for (size_t i = 0; i < count; ++i) {
    data[i * CELL] = cells[i].rank;
    std::memcpy(data + i * CELL + 1, &cells[i].record, sizeof(ph_record));
  }
  return count * CELL;
}

constexpr char FOUR[] = "a\0000+1x4";  // a communicator of all ranks of a folded run, as its label names them

class Mutator {
 public:
  Mutator(Cells &cells, unsigned seed) : cells_(cells), random_(seed) {}

  void change() {
    for (size_t left = 1 + below(below(4) ? 2 : 8); left; --left) one();
  }

  // Cells of another input between those of this one.
  void mix(const Cells &other) {
    if (other.empty()) return;
    size_t begin = below(other.size()), end = begin + 1 + below(other.size() - begin);
    size_t at = below(cells_.size() + 1), kept = below(2) ? at : cells_.size();
    cells_.resize(below(3) ? cells_.size() : kept);
    cells_.insert(cells_.begin() + static_cast<long>(at), other.begin() + static_cast<long>(begin),
                  other.begin() + static_cast<long>(end));
  }

 private:
  size_t below(size_t limit) { return limit ? random_() % limit : 0; }
  template <typename T, size_t N>
  T pick(const T (&from)[N]) {
    return from[below(N)];
  }

  uint64_t number() {
    static constexpr uint64_t small[] = {0, 1, 2, 3, 4, 5, 7, 8, 12, 64, 100, 1000, 4096};
    static constexpr uint64_t large[] = {65535,      65536,      1U << 20,   0x7fffffff,       0x80000000,
                                         0xffffffff, 1ULL << 40, 1ULL << 50, (1ULL << 50) + 1, 1ULL << 61,
                                         1ULL << 62, INT64_MAX,  1ULL << 63, UINT64_MAX};
    return below(8) ? pick(small) : pick(large);
  }
  uint32_t stream() {
    static constexpr uint32_t known[] = {0, 64, 64, 65, 66, 1, 127};
    return pick(known);
  }
  uint8_t flags() {
    static constexpr uint8_t bits[] = {0,           PH_F_NONBLOCKING, PH_F_TIMING,  PH_F_SYNC, PH_F_LIBRARY,
                                       PH_F_HELPER, PH_F_BACKWARD,    PH_F_BLOCKED, PH_F_GRAPH};
    return below(2) ? 0 : static_cast<uint8_t>(pick(bits) | (below(3) ? 0 : pick(bits)));
  }
  int64_t time_at(size_t at) {
    static constexpr int64_t steps[] = {0, 0, 1, 10, 1000, 5000, 1000000};
    int64_t before =
        at && at <= cells_.size() && cells_[at - 1].record.kind != PH_BLOB ? cells_[at - 1].record.time : 0;
    return std::min(std::max<int64_t>(before, 0), int64_t{1} << 60) + pick(steps);
  }
  uint8_t slot() { return static_cast<uint8_t>(below(PH_REPLY_SLOTS)); }
  size_t place() { return below(cells_.size() + 1); }

  // ------------------------------------------------------------------ records
  static bool asks(uint8_t kind) {
    static constexpr uint8_t kinds[] = {PH_STREAM_SYNC, PH_DEVICE_SYNC, PH_EVENT_SYNC,  PH_STREAM_QUERY,
                                        PH_EVENT_QUERY, PH_EVENT_TIME,  PH_EXCHANGE,    PH_PAYLOAD,
                                        PH_ROOM,        PH_PROFILE,     PH_PROFILE_NAME};
    return std::find(std::begin(kinds), std::end(kinds), kind) != std::end(kinds);
  }

  ph_record record(uint8_t kind, size_t at) {
    ph_record r{};
    r.kind = kind;
    r.flags = flags();
    r.slot = asks(kind) || !below(12) ? slot() : static_cast<uint8_t>(PH_NO_SLOT);
    r.thread = static_cast<uint8_t>(below(3));
    r.id = static_cast<uint32_t>(below(6));
    r.time = time_at(at);
    r.stream = stream();
    r.op = static_cast<uint32_t>(below(3));
    for (uint64_t &word : r.words) word = number();
    if (asks(kind)) r.flags = static_cast<uint8_t>(r.flags | (below(4) ? PH_F_BLOCKED : 0));
    fit(r);
    return r;
  }

  // Fields that are mostly as their handlers expect them.
  void fit(ph_record &r) {
    static constexpr double limits[] = {0, 0, 1, 1000, 1e9, -1, 1e300};
    switch (r.kind) {
      case PH_COLLECTIVE:
        r.collective = {static_cast<uint8_t>(below(PH_COLL_COUNT_PH_COLL)),
                        static_cast<uint8_t>(below(12)),
                        static_cast<uint8_t>(below(7)),
                        static_cast<uint8_t>(below(3)),
                        static_cast<int32_t>(below(WORLD + 1)),
                        number(),
                        static_cast<int64_t>(number()),
                        below(5),
                        pick(limits)};
        break;
      case PH_SEND:
      case PH_RECV:
        r.transfer = {static_cast<int32_t>(below(WORLD + 1)),
                      static_cast<uint32_t>(below(12)),
                      number(),
                      static_cast<int64_t>(number()),
                      below(5),
                      {}};
        break;
      case PH_PEER_COPY:
        r.peer_copy = {static_cast<int32_t>(below(WORLD + 1)), static_cast<uint32_t>(below(2)), number(), below(3), {}};
        break;
      case PH_PUT_SIGNAL:
      case PH_WAIT_SIGNAL:
        r.signal = {static_cast<int32_t>(below(WORLD + 1)),
                    static_cast<uint32_t>(below(2)),
                    static_cast<int64_t>(number()),
                    {}};
        break;
      case PH_COMM_CREATE:
        r.comm = {below(3), below(3), 1 + below(WORLD + 1), below(WORLD + 1), {}};
        break;
      case PH_EXCHANGE:
        r.exchange = {below(3), below(3), 1 + below(WORLD), below(5), below(WORLD)};
        break;
      case PH_KERNEL:
        r.kernel = {static_cast<uint32_t>(number()),
                    static_cast<uint16_t>(1 + below(4)),
                    1,
                    static_cast<uint16_t>(32 << below(6)),
                    1,
                    1,
                    0,
                    number(),
                    {}};
        break;
      case PH_MOVED:
        r.moved = {static_cast<int64_t>(number()), below(WORLD), below(4), {}};
        break;
      case PH_STREAM_CREATE:
        r.stream_create.device = below(3);
        break;
      case PH_OP_BEGIN:
        r.op_begin.start = std::max<int64_t>(0, r.time - static_cast<int64_t>(below(100)));
        break;
      default:
        break;
    }
    if (asks(r.kind) && below(2)) r.asked.resumes = below(4) ? r.time + static_cast<int64_t>(below(10000)) : -1;
  }

  Cell blob(size_t which = SIZE_MAX) {
    using namespace std::string_literals;
    static const std::string WHOLE(FOUR, sizeof FOUR - 1);
    static const std::array<std::string, 10> texts = {WHOLE,
                                                      "a\0000+2x2"s,
                                                      "k:1000"s,
                                                      "name"s,
                                                      "a\0000+1x3"s,
                                                      "a\0000+2x2,1+1x1"s,
                                                      R"({"lib":"cublas","name":"x","call":"y"})"s,
                                                      "{\"op\":\"aten::mm\"}"s,
                                                      "\x80\x05K\x01."s,
                                                      "\x80\x05\x95\x0b\0\0\0\0\0\0\0]\x94(K\x01K\x02"
                                                      "e."s};
    ph_blob b{};
    b.kind = PH_BLOB;
    b.slot = PH_NO_SLOT;
    const std::string &text = texts[which < texts.size() ? which : below(texts.size())];
    b.used = static_cast<uint32_t>(std::min<size_t>(text.size(), PH_BLOB_BYTES));
    std::memcpy(b.data, text.data(), b.used);
    if (which == SIZE_MAX && !below(3)) b.used = static_cast<uint32_t>(below(PH_BLOB_BYTES + 2));
    Cell cell;
    std::memcpy(&cell.record, &b, sizeof b);
    return cell;
  }

  // ------------------------------------------------------------------ changes
  void insert(size_t at, Cell cell) { cells_.insert(cells_.begin() + static_cast<long>(at), cell); }

  void add() {
    size_t at = place();
    Cell cell{static_cast<uint8_t>(below(WORLD)), record(static_cast<uint8_t>(below(PH_COUNT_PH_KIND)), at)};
    if (cell.record.kind == PH_BLOB) cell = {cell.rank, blob().record};
    insert(at, cell);
    if (below(3)) return;
    Cell before = blob();
    before.rank = cell.rank;
    insert(at, before);
  }

  // A communicator in which one member is no process.
  void add_folded() {
    size_t at = place();
    ph_record r = record(PH_COMM_CREATE, at);
    for (uint8_t rank = 0; rank < WORLD; ++rank) {
      r.comm.members = WORLD + 1;
      r.comm.rank = static_cast<uint64_t>(REAL[rank]);
      insert(at, {rank, r});
      Cell label = blob(0);
      label.rank = rank;
      insert(at, label);
    }
  }

  // What only all ranks together can do.
  void add_together() {
    static constexpr uint8_t kinds[] = {PH_COMM_CREATE, PH_COLLECTIVE, PH_EXCHANGE, PH_SEND,
                                        PH_PUT_SIGNAL,  PH_COLLECTIVE, PH_PEER_COPY};
    size_t at = place(), ranks = below(4) ? WORLD : 1 + below(WORLD);
    ph_record r = record(pick(kinds), at);
    if (r.kind == PH_COMM_CREATE) r.comm.members = ranks;
    if (r.kind == PH_EXCHANGE) r.exchange.members = ranks;
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (r.kind == PH_COMM_CREATE) r.comm.rank = rank;
      if (r.kind == PH_EXCHANGE) r.exchange.index = rank;
      if (r.kind == PH_SEND || r.kind == PH_RECV) {
        r.kind = rank % 2 ? PH_RECV : PH_SEND;
        r.transfer.peer = rank % 2 ? 0 : 1;
      }
      if (r.kind == PH_PUT_SIGNAL || r.kind == PH_WAIT_SIGNAL) {
        r.kind = rank % 2 ? PH_WAIT_SIGNAL : PH_PUT_SIGNAL;
        r.signal.peer = rank % 2 ? 0 : 1;
      }
      insert(at, {static_cast<uint8_t>(rank), r});
    }
  }

  void change_field(Cell &cell) {
    ph_record &r = cell.record;
    size_t which = below(14);
    if (which == 0) cell.rank = static_cast<uint8_t>(below(WORLD) + WORLD * (&cell == cells_.data() ? below(85) : 0));
    if (which == 1) r.kind = static_cast<uint8_t>(below(PH_COUNT_PH_KIND + 1));
    if (which == 2) r.flags = below(2) ? flags() : static_cast<uint8_t>(r.flags ^ (1U << below(8)));
    if (which == 3) r.slot = below(4) ? slot() : static_cast<uint8_t>(below(256));
    if (which == 4) r.id = static_cast<uint32_t>(below(4) ? below(8) : number());
    if (which == 5)
      r.time = below(4) ? time_at(static_cast<size_t>(&cell - cells_.data())) : static_cast<int64_t>(number());
    if (which == 6) r.stream = below(8) ? stream() : static_cast<uint32_t>(number());
    if (which == 7) r.op = static_cast<uint32_t>(below(4));
    if (which == 8) fit(r);
    if (which == 9) {
      auto *byte = reinterpret_cast<uint8_t *>(&r) + below(sizeof r);
      *byte = static_cast<uint8_t>(*byte ^ (1U << below(8)));
    }
    if (which == 10) LLVMFuzzerMutate(reinterpret_cast<uint8_t *>(&r.words), sizeof r.words, sizeof r.words);
    if (which > 10) r.words[below(5)] = number();
  }

  void remove() {
    size_t at = below(cells_.size()), most = below(8) ? 16 : cells_.size();  // small inputs run sooner
    size_t count = std::min(cells_.size() - at, below(4) ? 1 : 1 + below(most));
    cells_.erase(cells_.begin() + static_cast<long>(at), cells_.begin() + static_cast<long>(at + count));
  }

  void repeat() {
    size_t at = below(cells_.size()), count = std::min(cells_.size() - at, 1 + below(8));
    Cells piece(cells_.begin() + static_cast<long>(at), cells_.begin() + static_cast<long>(at + count));
    size_t rank = below(WORLD + 1);
    for (Cell &cell : piece)
      if (rank < WORLD) cell.rank = static_cast<uint8_t>(rank);
    cells_.insert(cells_.begin() + static_cast<long>(place()), piece.begin(), piece.end());
  }

  void one() {
    size_t kind = below(16);
    if (cells_.empty() || kind < 3) return add();
    if (kind < 5) return below(8) ? add_together() : add_folded();
    if (kind < 11) return change_field(cells_[below(cells_.size())]);
    if (kind < 13) return remove();
    if (kind < 14) return repeat();
    std::swap(cells_[below(cells_.size())], cells_[below(cells_.size())]);
  }

  Cells &cells_;
  std::minstd_rand random_;
};

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
  if (seed % 16 == 0) return LLVMFuzzerMutate(data, size, most);
  Cells cells = read(data, size);
  Mutator(cells, seed).change();
  return write(cells, data, most);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t *first, size_t first_size, const uint8_t *second,
                                            size_t second_size, uint8_t *out, size_t most, unsigned seed) {
  Cells cells = read(first, first_size);
  Mutator(cells, seed).mix(read(second, second_size));
  return write(cells, out, most);
}
