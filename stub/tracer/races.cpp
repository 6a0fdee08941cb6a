// Happens-before by vector clocks. Each stream, and the host as one, counts its launches and keeps how far it comes
// after the others. Events carry that from stream to stream and to the host. Two accesses of one piece of memory, at
// least one of them a write, of which neither comes after the other, are a race.
//
// The threads of the host count as one, and an operator as its last launch: races may be missed, orders are never
// missed.
#include "tracer/races.h"

#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "tracer/places.h"
#include "tracer/tensors.h"

namespace tracer {

bool checks_races = false;

namespace races {

using Clock = std::unordered_map<uint32_t, uint64_t>;  // stream -> its launches that come before
constexpr uint32_t HOST = UINT32_MAX;
constexpr size_t MOST_RACES = 50;

struct Line {
  ph_stream_kind kind = PH_STREAM_BLOCKS;
  Clock before;
};
struct Access {
  uint32_t stream = HOST;
  uint64_t at = 0;   // 0: none
  size_t site = 0;   // in `sites`
};
struct Piece {
  uintptr_t end = 0;
  bool reused = false;  // its block was freed and handed out again since
  Access write;
  std::vector<Access> reads;  // since that write, one per stream
};

static std::mutex guard;
static std::unordered_map<uint32_t, Line> lines;
static std::unordered_map<const void *, Clock> events;
static Clock host;
static std::map<uintptr_t, Piece> pieces;
static std::vector<std::string> sites;
static std::unordered_map<std::string, size_t> site_numbers;
static std::set<std::string> found;

static void join(Clock &into, const Clock &from) {
  for (const auto &[stream, at] : from) {
    uint64_t &own = into[stream];
    own = std::max(own, at);
  }
}

// The legacy default stream comes after all streams that block, and they after it.
static Clock covered(const Line &line) {
  Clock all = line.before;
  if (line.kind == PH_STREAM_FREE) return all;
  for (const auto &[id, other] : lines)
    if (other.kind == (line.kind == PH_STREAM_LEGACY ? PH_STREAM_BLOCKS : PH_STREAM_LEGACY)) join(all, other.before);
  return all;
}

// ---------------------------------------------------------------- records of the runtime
static uint64_t launched(uint32_t stream) {
  ph_stream_kind kind = ph_kind_of_stream(stream);
  std::lock_guard<std::mutex> own(guard);
  Line &line = lines[stream];
  line.kind = kind;
  line.before = covered(line);
  join(line.before, host);
  return ++line.before[stream];
}

static void recorded(const void *event, uint32_t stream) {
  ph_stream_kind kind = ph_kind_of_stream(stream);
  std::lock_guard<std::mutex> own(guard);
  Line &line = lines[stream];
  line.kind = kind;
  events[event] = covered(line);
}

static void waits(uint32_t stream, const void *event) {
  std::lock_guard<std::mutex> own(guard);
  auto it = events.find(event);
  if (it != events.end()) join(lines[stream].before, it->second);
}

static void host_after_stream(uint32_t stream) {
  std::lock_guard<std::mutex> own(guard);
  join(host, covered(lines[stream]));
}

static void host_after_event(const void *event) {
  std::lock_guard<std::mutex> own(guard);
  auto it = events.find(event);
  if (it != events.end()) join(host, it->second);
}

static void join_all() {
  for (const auto &[id, line] : lines) join(host, line.before);
}

static void host_after_all() {
  std::lock_guard<std::mutex> own(guard);
  join_all();
}

static const ph_order order = {launched, recorded, waits, host_after_stream, host_after_event, host_after_all};

// ---------------------------------------------------------------- accesses
static void split(uintptr_t at) {
  auto it = pieces.upper_bound(at);
  if (it == pieces.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Piece rest = it->second;
  it->second.end = at;
  pieces.emplace(at, std::move(rest));
}

// Calls visit(piece) for all memory of [from, to), made where there is none.
template <typename F>
static void each_piece(uintptr_t from, uintptr_t to, F visit) {
  split(from);
  split(to);
  for (auto it = pieces.lower_bound(from); from < to; ++it) {
    if (it == pieces.end() || it->first > from) {
      Piece fresh;
      fresh.end = it == pieces.end() ? to : std::min(to, it->first);
      it = pieces.emplace_hint(it, from, std::move(fresh));
    }
    from = it->second.end;
    visit(it->second);
  }
}

static std::string named(uint32_t stream) {
  if (stream == HOST) return "the host";
  return lines[stream].kind == PH_STREAM_LEGACY ? "the default stream" : "stream " + std::to_string(stream);
}

static std::string missing(const Access &first, uint32_t second, bool reused) {
  if (second == HOST) return "the host has not waited for " + named(first.stream);
  if (reused) return "the memory was freed and allocated again without record_stream(" + named(first.stream) + ")";
  return named(second) + " waits for no event of " + named(first.stream);
}

struct Operand {
  uintptr_t from;
  size_t bytes;
  bool changed;
  std::string text;
};

struct Touch {
  uint32_t stream;
  uint64_t at;
  const Clock &before;
  size_t site;
};

static bool comes_after(const Touch &t, const Access &first) {
  if (!first.at || first.stream == t.stream) return true;
  auto it = t.before.find(first.stream);
  return it != t.before.end() && it->second >= first.at;
}

static void touch(const Touch &t, const Operand &o, std::vector<std::string> &reports) {
  auto race = [&](const Access &first, bool wrote, bool reused) {
    if (comes_after(t, first) || found.size() >= MOST_RACES) return;
    std::string text =
        "race: " + sites[t.site] + (o.changed ? " writes " : " reads ") + o.text + " on " + named(t.stream);
    text += ", which " + sites[first.site] + (wrote ? " writes" : " reads") + " on " + named(first.stream) + "; ";
    text += missing(first, t.stream, reused);
    if (found.insert(text).second) reports.push_back(std::move(text));
  };
  each_piece(o.from, o.from + o.bytes, [&](Piece &piece) {
    race(piece.write, true, piece.reused);
    const Access now{t.stream, t.at, t.site};
    if (!o.changed) {
      for (Access &read : piece.reads)
        if (read.stream == t.stream) return void(read = now);
      piece.reads.push_back(now);
      return;
    }
    for (const Access &read : piece.reads) race(read, false, piece.reused);
    piece.write = now;
    piece.reads.clear();
    piece.reused = false;
  });
}

static bool pinned(const Tensor &t) {
  ph_range range;
  return t.defined() && t.device().is_cpu() && t.layout() == at::kStrided && t.has_storage() && t.numel() &&
         ph_memory_find(t.data_ptr(), &range) && (range.space == PH_SPACE_PINNED || range.space == PH_SPACE_REGISTERED);
}

static std::string text_of(const Tensor &t) {
  std::string text = std::string(c10::toString(t.scalar_type())) + "[";
  for (int64_t i = 0; i < t.dim(); ++i) text += (i ? "," : "") + std::to_string(t.size(i));
  return text + "]";
}

// Operators of the host that read no element.
static bool reads_none(const Operator &op) {
  return is_one_of(op.name, {"aten::set_", "aten::resize_", "aten::is_pinned", "aten::record_stream",
                             "aten::lift_fresh", "aten::detach"});
}

// Tensors that are one stretch of memory: gaps of others may belong to another tensor. GPU tensors only if `on_gpu`.
static std::vector<Operand> operands_of(const Frame &f, Values outputs, bool on_gpu) {
  std::vector<Operand> all;
  auto add = [&](const Tensor &t, bool changed) {
    bool gpu = on_device(t);
    if (gpu ? !on_gpu : is_python(t) || !pinned(t)) return;
    if (!t.numel() || !t.is_non_overlapping_and_dense()) return;
    auto *data = gpu ? bytes_of(t) : static_cast<char *>(t.data_ptr());
    size_t bytes = static_cast<size_t>(t.numel()) * t.itemsize();
    if (data) all.push_back({reinterpret_cast<uintptr_t>(data), bytes, changed, text_of(t)});
  };
  size_t place = 0;
  for (const IValue &v : f.args) {
    const Argument &argument = f.op->arguments[place++];
    each_tensor(v, [&](const Tensor &t) { add(t, argument.mutated); });
  }
  size_t count = std::min(outputs.size(), f.op->returns_view.size());
  for (const IValue &v : outputs.slice(outputs.size() - count)) each_tensor(v, [&](const Tensor &t) { add(t, true); });
  return all;
}

// An operator that returns a view reads no element.
static bool returns_view(const Frame &f, Values outputs) {
  bool found = false, changes = false;
  for (size_t i = 0; i < f.args.size(); ++i)
    each_tensor(f.args[i], [&](const Tensor &t) {
      changes |= f.op->arguments[i].mutated;
      if (!pinned(t)) return;
      for (const IValue &out : outputs)
        each_tensor(out, [&](const Tensor &o) { found |= o.defined() && o.is_alias_of(t); });
    });
  return found && !changes;
}

static void note(const Frame &f, Values outputs, bool below_launched) {
  bool own = f.ph.instance && f.ph.order && !f.ph.captured && !f.ph.mixed;
  Thread &thread = this_thread();  // its innermost frame is that of the operator around this one
  if (f.below_accessed && thread.depth) thread.frames[thread.depth - 1]->below_accessed = true;
  if (!own && (below_launched || f.below_accessed || !f.op || reads_none(*f.op) || returns_view(f, outputs))) return;
  std::vector<Operand> operands;
  if (f.op) operands = operands_of(f, outputs, own);
  for (const ph_operand &o : f.operands)  // of a Triton kernel
    if (!f.op)
      operands.push_back({reinterpret_cast<uintptr_t>(o.data), o.bytes, o.changed, std::to_string(o.bytes) + " bytes"});
  if (operands.empty()) return;
  if (!own && thread.depth) thread.frames[thread.depth - 1]->below_accessed = true;
  std::string site = (f.op ? f.op->name.substr(f.op->name.rfind(':') + 1) : "a compiled kernel") + " at " + place();
  std::vector<std::string> reports;
  {
    std::lock_guard<std::mutex> hold(guard);
    auto [it, fresh] = site_numbers.emplace(site, sites.size());
    if (fresh) sites.push_back(site);
    const uint32_t stream = own ? f.ph.stream : HOST;
    const Touch t{stream, own ? f.ph.order : ++host[HOST], own ? lines[stream].before : host, it->second};
    for (const Operand &o : operands)
      if (!o.changed) touch(t, o, reports);
    for (const Operand &o : operands)
      if (o.changed) touch(t, o, reports);
  }
  for (const std::string &text : reports) {
    ph_record record{};
    record.kind = PH_HOST_SPAN;
    record.id = ph_name(ph_hash(text.data(), text.size(), 0), text.data(), text.size());
    record.span.start = ph_now();
    ph_emit(&record);
  }
}

static void allocated(uint64_t address, size_t bytes) {
  std::lock_guard<std::mutex> own(guard);
  auto it = pieces.upper_bound(address);
  if (it != pieces.begin()) --it;
  for (; it != pieces.end() && it->first < address + bytes; ++it)
    if (it->second.end > address) it->second.reused = true;
}

static void unmapped(uint64_t address, size_t bytes) {
  std::lock_guard<std::mutex> own(guard);
  join_all();  // the device has nothing left to do
  split(address);
  split(address + bytes);
  pieces.erase(pieces.lower_bound(address), pieces.lower_bound(address + bytes));
}

}  // namespace races

void note_accesses(const Frame &f, Values outputs, bool launched) { races::note(f, outputs, launched); }
void races_allocated(uint64_t address, size_t bytes) { races::allocated(address, bytes); }
void races_unmapped(uint64_t address, size_t bytes) { races::unmapped(address, bytes); }

}  // namespace tracer

extern "C" __attribute__((visibility("default"))) void phantora_check_races() {
  tracer::checks_races = true;
  ph_order_by(&tracer::races::order);
}
