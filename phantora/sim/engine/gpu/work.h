// Items of streams: kernels, copies, waits and the rest.
#pragma once
#include "basics.h"
#include "queue.h"

#include <memory>

namespace phe {

class Device;
struct Context;
struct Stream;
struct Launch;

constexpr int64_t UNTIMED = -1;

struct Dep {
  Stream *stream = nullptr;  // nullptr: none
  uint64_t seq = 0;          // done when stream->completed >= seq
};

struct Item {
  enum Type : uint8_t {
    KERNEL,
    COPY,
    MEMSET,
    COMM,
    RECORD,
    WAIT,
    HOSTFUNC,
    MARK
  };  // MARK: all before lies before a mark

  Type type = KERNEL;
  uint8_t sub = 0, flags = 0;
  bool priced = true;
  bool running = false;
  bool begun = false;         // has had a rate above zero
  bool waited = false;        // communication: for room on the GPU
  bool first = false;         // communication: came when no product filled the GPU
  int32_t name = -1, sig = -1, price = -1, part = 0;
  uint32_t event = 0;
  int64_t launch = 0, ready = 0, start = 0, updated = 0;
  double work = 0, rate = 0;  // ns of work left, ns per ns
  int64_t measured = UNTIMED, delay = 0;  // of a launch of a real run, in ns: its duration, and what it begins later
  float demand = 0;           // share of the SMs
  phe_kernel_profile profile = {1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0};
  int64_t id = 0, link = -1, bytes = 0, peer = -1;
  int priority = 0;           // of the stream; lower is served first
  uint64_t admitted = 0;      // order of admission
  uint64_t issued = 0;        // place in the device's one hardware queue; 0: takes none
  uint32_t correlation = 0;   // of a profiler in the rank, 0: none
  Dep dep;
  std::shared_ptr<Launch> comm;

  // Kernels, copies and memsets: what shares the GPU's SMs and engines, and has gaps before it.
  bool shares() const { return type <= MEMSET; }
  bool waits() const { return dep.stream && !done(dep); }
  static bool done(const Dep &dep);
};

struct Stream {
  Device *device = nullptr;
  Context *context = nullptr;
  uint32_t id = 0;
  int priority = 0;
  bool blocking = true;     // synchronises with the legacy default stream
  bool legacy = false;
  uint64_t enqueued = 0, completed = 0;
  uint64_t commands = 0;    // of those enqueued: without waits that the rules of the default stream imply
  int64_t free_at = 0;      // when the last item ended
  int64_t gap = 0;          // before the next kernel, copy or memset can start
  int64_t last_id = -1;     // id of the last item enqueued
  int64_t done_id = -1;     // and of the last one completed
  Queue<Item> queue;

  // The `seq`-th item, nullptr if it is done or yet to come.
  Item *at(uint64_t seq) {
    uint64_t first = enqueued - queue.size() + 1;
    return seq < first || seq > enqueued ? nullptr : &queue[seq - first];
  }
  Dep all() { return {this, enqueued}; }
  // The command with `count` commands behind it; 0: it is done. The number of implied waits is chance, so they do not
  // count.
  uint64_t command_before_last(uint64_t count) const {
    uint64_t seq = enqueued;
    for (size_t left = queue.size(); left-- > 0; --seq)
      if (queue[left].id > 0 && count-- == 0) return seq;
    return 0;
  }
};

inline bool Item::done(const Dep &dep) { return dep.stream->completed >= dep.seq; }

}  // namespace phe
