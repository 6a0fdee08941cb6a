#include "tracer/allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tracer/modules.h"
#include "tracer/places.h"
#include "tracer/races.h"
#include "tracer/uses.h"

namespace tracer {

bool active() { return ph_connected() && !ph_null_mode(); }

namespace cca = c10::cuda::CUDACachingAllocator;

// Allocated bytes come from the allocator's own statistics, so that the log agrees with
// torch.cuda.memory_allocated(). They already hold a free when it is reported but not yet an
// allocation: that one is recorded at the next event or at the end of the operator. How large its block is (larger
// than what was asked for, where a cached block was not worth splitting) tells the sum of all allocations ever made.
// A program may take the memory under a segment and give it back (engines that sleep, by cuMemUnmap and cuMemMap).
// torch counts it on. In the log the segment and its blocks are freed and allocated again.
struct Block {
  uint64_t address;
  int64_t size;
};
struct Segment {
  int64_t size;
  bool asleep = false;
  std::vector<Block> blocks;  // while it is asleep
};
struct Freed {
  uint64_t address;
  int64_t change;
  uint32_t kept;
};
struct Allocator {
  std::mutex lock;
  std::vector<Freed> collected;  // by the collection of garbage that runs
  int64_t collected_change = 0;
  std::map<uint64_t, Segment> segments;  // by address, but for expandable ones
  int64_t asleep = 0, asleep_blocks = 0;  // bytes of segments without memory, and of their blocks
  int64_t allocated = 0, reserved = 0;
  int64_t made = 0;  // sum of all allocations that are recorded
  int64_t retries = 0;  // recorded ones
  bool pending = false;
  uint64_t events = 0;
  uint64_t address = 0;
};
static Allocator allocators[64];
static std::atomic<bool> attached{false};

constexpr size_t LARGE = 1 << 20;  // bytes from which on a block's place in the program is recorded

static void emit_memory(int device, const Allocator &a, uint32_t what, int64_t change, uint64_t address,
                        uint32_t name = 0) {
  ph_record record{};
  record.kind = PH_MEMORY;
  record.id = what;
  record.op = name;
  record.stream = static_cast<uint32_t>(device);
  record.memory.allocated = a.allocated - a.asleep_blocks;
  record.memory.reserved = a.reserved - a.asleep;
  record.memory.change = change;
  record.memory.address = address;
  ph_emit(&record);
}

static c10::CachingAllocator::Stat statistics(int device) {
  return cca::getDeviceStats(static_cast<c10::DeviceIndex>(device)).allocated_bytes[0];
}

// With a.lock held. Python collects garbage in an order that depends on earlier collections and on addresses of its
// objects, which differ between equal runs. So the rows of its frees have the order of their blocks.
static void emit_collected(int device, Allocator &a) {
  std::sort(a.collected.begin(), a.collected.end(),
            [](const Freed &x, const Freed &y) { return x.address < y.address; });
  for (const Freed &each : a.collected) {
    ph_charge(PH_API_BLOCK_FREE);
    a.allocated += each.change;
    emit_memory(device, a, PH_MEM_FREE, each.change, each.address, each.kept);
  }
  a.collected.clear();
  a.collected_change = 0;
}

// With a.lock held; `now` includes the pending allocation, and perhaps a free after it.
static void emit_pending(int device, Allocator &a, const c10::CachingAllocator::Stat &now) {
  a.pending = false;
  int64_t change = now.allocated >= a.made ? now.allocated - a.made : now.allocated;  // else the program set it to 0
  a.made = now.allocated;
  a.allocated += change;
  emit_memory(device, a, PH_MEM_ALLOC, change, a.address);
}

// With a.lock held. The allocator counts a retry before it asks the device again.
static void emit_retries(int device, Allocator &a) {
  int64_t now = cca::getDeviceStats(static_cast<c10::DeviceIndex>(device)).num_alloc_retries;
  for (; a.retries < now; ++a.retries) emit_memory(device, a, PH_MEM_RETRY, 0, 0);
  a.retries = now;  // the program may have set it to 0
}

// Time of a block that goes back now, since a watchdog's poll; 0: no watchdog kept it.
static uint32_t microseconds_kept() {
  int64_t ns = ph_watchdog_kept();
  return ns < 0 ? 0 : 1 + static_cast<uint32_t>(std::min<int64_t>(ns / 1000, UINT32_MAX - 1));
}

// With a.lock held. A block that is freed without its memory: its row is there. False: it has its memory.
static bool freed_asleep(Allocator &a, uint64_t address) {
  if (!a.asleep) return false;
  auto after = a.segments.upper_bound(address);
  if (after == a.segments.begin()) return false;
  auto &blocks = std::prev(after)->second.blocks;
  auto block = std::find_if(blocks.begin(), blocks.end(), [&](const Block &b) { return b.address == address; });
  if (block == blocks.end()) return false;
  a.asleep_blocks -= block->size;
  blocks.erase(block);
  return true;
}

// With a.lock held. Was it asleep? Then its row is there.
static bool forget_segment(Allocator &a, uint64_t address) {
  auto segment = a.segments.find(address);
  if (segment == a.segments.end()) return false;
  bool asleep = segment->second.asleep;
  if (asleep) a.asleep -= segment->second.size;
  a.segments.erase(segment);
  return asleep;
}

static std::vector<Block> blocks_of(uint64_t segment) {
  std::vector<Block> found;
  for (const auto &each : cca::snapshot().segments) {
    if (reinterpret_cast<uint64_t>(each.address) != segment) continue;
    uint64_t at = segment;
    for (const auto &block : each.blocks) {
      if (block.allocated) found.push_back({at, static_cast<int64_t>(block.size)});
      at += block.size;
    }
  }
  return found;
}

static void fall_asleep(int device, Allocator &a, uint64_t address, std::vector<Block> blocks) {
  Segment &segment = a.segments[address];
  segment.asleep = true;
  segment.blocks = std::move(blocks);
  for (const Block &block : segment.blocks) {
    a.asleep_blocks += block.size;
    emit_memory(device, a, PH_MEM_FREE, -block.size, block.address);
  }
  a.asleep += segment.size;
  emit_memory(device, a, PH_MEM_SEGMENT_FREE, -segment.size, address);
}

static void wake(int device, Allocator &a, uint64_t address) {
  Segment &segment = a.segments[address];
  segment.asleep = false;
  a.asleep -= segment.size;
  emit_memory(device, a, PH_MEM_SEGMENT_ALLOC, segment.size, address);
  for (const Block &block : segment.blocks) {
    a.asleep_blocks -= block.size;
    emit_memory(device, a, PH_MEM_ALLOC, block.size, block.address);
  }
  segment.blocks.clear();
}

// The segments of `a` within a piece of memory that are asleep, or are not.
static std::vector<uint64_t> segments_in(Allocator &a, uint64_t from, uint64_t to, bool asleep) {
  std::lock_guard<std::mutex> guard(a.lock);
  std::vector<uint64_t> found;
  for (auto at = a.segments.lower_bound(from); at != a.segments.end() && at->first < to; ++at)
    if (at->second.asleep == asleep) found.push_back(at->first);
  return found;
}

static void on_mapping(const void *pointer, size_t size, bool mapped) {
  if (!active()) return;
  auto from = reinterpret_cast<uint64_t>(pointer);
  for (int device = 0; device < 64; ++device) {
    Allocator &a = allocators[device];
    for (uint64_t address : segments_in(a, from, from + size, mapped)) {
      std::vector<Block> blocks;
      if (!mapped) blocks = blocks_of(address);  // takes the allocator's lock: never under ours
      std::lock_guard<std::mutex> guard(a.lock);
      if (a.pending) emit_pending(device, a, statistics(device));
      if (mapped)
        wake(device, a, address);
      else
        fall_asleep(device, a, address, std::move(blocks));
      ++a.events;
    }
  }
}

static void on_trace(const cca::TraceEntry &entry) {
  if (entry.device_ < 0 || entry.device_ >= 64 || !active()) return;
  ph_enter();
  int device = entry.device_;
  Allocator &a = allocators[device];
  auto size = static_cast<int64_t>(entry.size_);
  {
    std::lock_guard<std::mutex> guard(a.lock);
    bool collects = this_thread().collects && entry.action_ == cca::TraceEntry::FREE_REQUESTED && !a.asleep;
    if (!collects && entry.action_ != cca::TraceEntry::FREE_COMPLETED && !a.collected.empty())
      emit_collected(device, a);
    switch (entry.action_) {
      case cca::TraceEntry::ALLOC:
        if (a.pending) emit_pending(device, a, statistics(device));
        ph_memory_clear(reinterpret_cast<void *>(entry.addr_), entry.size_);
        if (checks_races) races_allocated(entry.addr_, entry.size_);
        a.pending = true;
        a.address = entry.addr_;
        this_thread().allocated = device;
        this_thread().large |= entry.size_ >= LARGE;
        break;
      case cca::TraceEntry::FREE_REQUESTED: {
        if (!collects) ph_charge(PH_API_BLOCK_FREE);
        c10::CachingAllocator::Stat now = statistics(device);
        if (a.pending) emit_pending(device, a, now);
        int64_t change = now.current - a.allocated - a.collected_change;
        if (collects) {
          a.collected.push_back({entry.addr_, change, microseconds_kept()});
          a.collected_change += change;
          break;
        }
        a.allocated = now.current;
        if (freed_asleep(a, entry.addr_)) break;
        emit_memory(device, a, PH_MEM_FREE, change, entry.addr_, microseconds_kept());
        break;
      }
      case cca::TraceEntry::SEGMENT_ALLOC:
      case cca::TraceEntry::SEGMENT_MAP:
      case cca::TraceEntry::SEGMENT_FREE:
      case cca::TraceEntry::SEGMENT_UNMAP: {
        if (a.pending) emit_pending(device, a, statistics(device));
        emit_retries(device, a);
        bool grows = entry.action_ == cca::TraceEntry::SEGMENT_ALLOC || entry.action_ == cca::TraceEntry::SEGMENT_MAP;
        if (checks_races && !grows) races_unmapped(entry.addr_, entry.size_);
        a.reserved += grows ? size : -size;
        if (entry.action_ == cca::TraceEntry::SEGMENT_ALLOC) a.segments[entry.addr_] = {size, false, {}};
        if (entry.action_ == cca::TraceEntry::SEGMENT_FREE && forget_segment(a, entry.addr_)) break;
        emit_memory(device, a, grows ? PH_MEM_SEGMENT_ALLOC : PH_MEM_SEGMENT_FREE, grows ? size : -size, entry.addr_);
        break;
      }
      case cca::TraceEntry::OOM:
        emit_retries(device, a);
        emit_memory(device, a, PH_MEM_OOM, size, entry.addr_);
        this_thread().allocated = device;
        this_thread().large = this_thread().failed = true;
        break;
      default:
        break;
    }
    ++a.events;
  }
  ph_leave();
}

// Where the last failed allocation was asked for; "" if none failed.
static std::mutex no_room_lock;
static auto *no_room_place = new std::string();

static void note_failed(const std::string &text) {
  std::lock_guard<std::mutex> guard(no_room_lock);
  *no_room_place = text;
}

static void tell_place(Thread &thread, int device, Allocator &a) {
  // Takes the interpreter's lock: never under ours. Below a node written in C++ there is no Python.
  const std::string text = thread.native_nodes ? backward_place(thread) : place();
  thread.place = text;
  if (std::exchange(thread.failed, false)) note_failed(text);
  uint32_t name = ph_name(ph_hash(text.data(), text.size(), 0), text.data(), text.size());
  std::lock_guard<std::mutex> guard(a.lock);
  emit_memory(device, a, PH_MEM_SITE, 0, 0, name);
}

bool flush_pending(Thread &thread) {
  int device = thread.allocated;
  bool large = thread.large;
  thread.allocated = -1;
  thread.large = false;
  Allocator &a = allocators[device];
  uint64_t events = 0;
  bool pending = false;
  {
    std::lock_guard<std::mutex> guard(a.lock);
    pending = a.pending;
    events = a.events;
  }
  if (pending) {
    c10::CachingAllocator::Stat now = statistics(device);  // takes the allocator's lock: never under ours
    std::lock_guard<std::mutex> guard(a.lock);
    if (a.pending && a.events == events) emit_pending(device, a, now);
  }
  if (large) tell_place(thread, device, a);
  emit_workspaces();
  return large;
}

static Allocator &current_allocator() { return allocators[std::clamp(ph_current_device(), 0, 63)]; }

int64_t allocated_bytes() {
  Allocator &a = current_allocator();
  std::lock_guard<std::mutex> guard(a.lock);
  return a.allocated;
}

void emit_use(uint64_t address, const std::string &use) {
  Allocator &a = current_allocator();
  uint32_t name = ph_name(ph_hash(use.data(), use.size(), 0), use.data(), use.size());
  std::lock_guard<std::mutex> guard(a.lock);
  emit_memory(ph_current_device(), a, PH_MEM_USE, 0, address, name);
}

// torch initialises its allocator with CUDA; a rank attaches at its first operator after that.
void attach_allocator() {
  if (attached.load(std::memory_order_relaxed)) return;
  cca::CUDAAllocator *allocator = cca::allocator.load();
  if (!allocator || !allocator->initialized() || attached.exchange(true)) return;
  try {
    for (int device = 0; device < c10::cuda::device_count() && device < 64; ++device) {  // those that are visible
      c10::CachingDeviceAllocator::DeviceStats stats = cca::getDeviceStats(static_cast<c10::DeviceIndex>(device));
      allocators[device].allocated = stats.allocated_bytes[0].current;
      allocators[device].made = stats.allocated_bytes[0].allocated;
      allocators[device].retries = stats.num_alloc_retries;
      allocators[device].reserved = stats.reserved_bytes[0].current;
      // For a process that became a rank by its first allocation.
      if (int64_t reserved = allocators[device].reserved)
        emit_memory(device, allocators[device], PH_MEM_SEGMENT_ALLOC, reserved, 0);
    }
    cca::attachAllocatorTraceTracker(on_trace);
    cca::attachOutOfMemoryObserver([](int64_t, size_t, size_t, size_t) { allocation_failed(); });  // without its lock
    ph_mapping_by(on_mapping);
  } catch (const std::exception &) {
    // Another allocator backend (cudaMallocAsync, a pluggable one) reports no events.
  }
}

}  // namespace tracer

// Valid until the next allocation fails.
extern "C" __attribute__((visibility("default"))) const char *phantora_failed_allocation(void) {
  std::lock_guard<std::mutex> guard(tracer::no_room_lock);
  return tracer::no_room_place->c_str();
}

// Python's garbage collector calls it as a callback, with "start" and "stop" alternately.
extern "C" __attribute__((visibility("default"))) void phantora_collects(void *, void *) {
  tracer::Thread &thread = tracer::this_thread();
  thread.collects = !thread.collects;
  if (thread.collects || !tracer::active()) return;
  ph_enter();
  for (int device = 0; device < 64; ++device) {
    tracer::Allocator &a = tracer::allocators[device];
    std::lock_guard<std::mutex> guard(a.lock);
    if (!a.collected.empty()) tracer::emit_collected(device, a);
  }
  ph_leave();
}
