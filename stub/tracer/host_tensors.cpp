#include "tracer/host_tensors.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "tracer/frames.h"

namespace tracer {

constexpr size_t COUNTED_BYTES = 1 << 20;  // of a tensor that counts
// glibc maps larger blocks apart, and unmaps them when they are freed (M_MMAP_THRESHOLD's largest value). Smaller ones
// are in its heap; it gives the free end back when it is twice as large.
constexpr int64_t MAPPED_BYTES = 32 << 20, TRIMMED_BYTES = 2 * MAPPED_BYTES;

struct HostBlock {
  int64_t bytes, fresh;
  uint64_t number;
};
static std::mutex blocks_lock;
static std::unordered_map<void *, HostBlock> *blocks = new std::unordered_map<void *, HostBlock>();
static int64_t in_heap, heap;  // bytes of blocks there; pages that it has
static uint64_t numbers;       // of blocks so far
static c10::Allocator *original_allocator;

// With the lock held. Of `bytes` more in the heap, those for which it grows.
static int64_t grow_heap(int64_t bytes) {
  in_heap += bytes;
  int64_t fresh = std::max<int64_t>(0, in_heap - heap);
  heap += fresh;
  if (heap - in_heap > TRIMMED_BYTES) heap = in_heap;
  return fresh;
}

static void release_counted(void *data) {
  if (!data) return;
  int64_t bytes = 0;
  {
    std::lock_guard<std::mutex> guard(blocks_lock);
    auto found = blocks->find(data);
    if (found != blocks->end()) {
      bytes = found->second.bytes;
      if (bytes <= MAPPED_BYTES) grow_heap(-bytes);
      blocks->erase(found);
    }
  }
  if (bytes) ph_host_memory(-bytes, false);
  original_allocator->raw_deleter()(data);
}

// torch's allocator of CPU memory. Tensors that the tracer makes do not count.
struct HostTensors final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    c10::DataPtr made = original_allocator->allocate(size);
    if (size < COUNTED_BYTES || this_thread().silent || made.get() != made.get_context()) return made;
    void *data = made.release_context();
    auto bytes = static_cast<int64_t>(size);
    {
      std::lock_guard<std::mutex> guard(blocks_lock);
      (*blocks)[data] = {bytes, bytes > MAPPED_BYTES ? bytes : grow_heap(bytes), ++numbers};
    }
    ph_host_memory(bytes, false);
    return {data, data, &release_counted, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return original_allocator->raw_deleter() ? &release_counted : nullptr;
  }
  void copy_data(void *to, const void *from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

void watch_host_tensors() {
  if (original_allocator) return;
  original_allocator = c10::GetCPUAllocator();
  static HostTensors counted;
  c10::SetCPUAllocator(&counted, 1);
}

size_t take_new(const Tensor &t) {
  if (!t.has_storage()) return 0;  // a batch of vmap's
  std::lock_guard<std::mutex> guard(blocks_lock);
  auto found = blocks->find(const_cast<void *>(t.storage().data()));
  if (found == blocks->end()) return 0;
  int64_t part = std::min(found->second.fresh, static_cast<int64_t>(t.numel()) * static_cast<int64_t>(t.itemsize()));
  found->second.fresh -= part;
  return static_cast<size_t>(part);
}

// Number of the latest tensor on the CPU, and the time of those after `number` that a file was read into.
extern "C" __attribute__((visibility("default"))) uint64_t phantora_host_tensors() {
  std::lock_guard<std::mutex> guard(blocks_lock);
  return numbers;
}

extern "C" __attribute__((visibility("default"))) void phantora_filled_since(uint64_t number) {
  int64_t fresh = 0;
  {
    std::lock_guard<std::mutex> guard(blocks_lock);
    for (auto &[data, block] : *blocks)
      if (block.number > number) fresh += std::exchange(block.fresh, 0);
  }
  ph_charge_memory(0, static_cast<size_t>(fresh), 1);
}

}  // namespace tracer
