#include "tracer/frames.h"

namespace tracer {

Thread &this_thread() {
  static thread_local Thread *thread = nullptr;
  static thread_local std::unique_ptr<Thread> owner;
  if (C10_UNLIKELY(!thread)) {
    owner = std::make_unique<Thread>();
    thread = owner.get();
  }
  return *thread;
}

}  // namespace tracer
