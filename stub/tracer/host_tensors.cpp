#include "tracer/host_tensors.h"

#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <unordered_map>

#include "tracer/frames.h"

namespace tracer {

constexpr size_t COUNTED_BYTES = 1 << 20;  // bytes of a tensor that counts

static std::mutex sizes_lock;
static std::unordered_map<void *, size_t> *sizes = new std::unordered_map<void *, size_t>();
static c10::Allocator *original_allocator;

static void release_counted(void *data) {
  if (!data) return;
  size_t size = 0;
  {
    std::lock_guard<std::mutex> guard(sizes_lock);
    auto found = sizes->find(data);
    if (found != sizes->end()) {
      size = found->second;
      sizes->erase(found);
    }
  }
  if (size) ph_host_memory(-static_cast<int64_t>(size), false);
  original_allocator->raw_deleter()(data);
}

// torch's allocator of CPU memory. Tensors that the tracer makes do not count.
struct HostTensors final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr made = original_allocator->allocate(bytes);
    if (bytes < COUNTED_BYTES || this_thread().silent || made.get() != made.get_context()) return made;
    void *data = made.release_context();
    {
      std::lock_guard<std::mutex> guard(sizes_lock);
      (*sizes)[data] = bytes;
    }
    ph_host_memory(static_cast<int64_t>(bytes), false);
    return {data, data, &release_counted, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return original_allocator->raw_deleter() ? &release_counted : nullptr; }
  void copy_data(void *to, const void *from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

void watch_host_tensors() {
  if (original_allocator) return;
  original_allocator = c10::GetCPUAllocator();
  static HostTensors counted;
  c10::SetCPUAllocator(&counted, 1);
}

}  // namespace tracer
