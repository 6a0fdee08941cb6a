#include "tracer/uses.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "tracer/allocator.h"

namespace tracer {

// Reads the program's objects after `step` steps of optimizers; `grows`: memory grows from step to step.
// Returns whether it does so again after the next step.
using Read = int (*)(int64_t step, int grows);
static std::atomic<Read> read_by{nullptr};

constexpr int64_t GROWTH = 1 << 20;  // bytes a step, from which on memory grows
constexpr size_t STEPS = 3;          // in a row that do; the first two steps make state and buckets

struct Levels {
  std::mutex lock;
  int64_t steps = 0, last = 0;
  std::array<int64_t, STEPS> growth{};
  bool told = false;
};
static Levels step_levels;

// Of the last steps each took about as much.
static bool grew(int64_t allocated) {
  step_levels.growth[static_cast<size_t>(step_levels.steps) % STEPS] =
      step_levels.steps > 2 ? allocated - step_levels.last : 0;
  step_levels.last = allocated;
  auto [least, most] = std::minmax_element(step_levels.growth.begin(), step_levels.growth.end());
  return *least >= GROWTH && *most <= 2 * *least;
}

void optimizer_stepped() {
  static std::atomic<bool> again{true};
  Read ask = read_by;
  if (!ask) return;
  int64_t step;
  bool grows;
  {
    std::lock_guard<std::mutex> guard(step_levels.lock);
    step = ++step_levels.steps;
    grows = grew(allocated_bytes()) && !step_levels.told;
    step_levels.told |= grows;
  }
  if (!grows && !again) return;
  Thread &thread = this_thread();
  ++thread.silent;  // what reads is not the program
  ph_cover_frames(1);
  again = ask(step, grows) != 0;
  ph_cover_frames(-1);
  --thread.silent;
}

void emit_workspaces() {
  for (const void *block; (block = ph_next_workspace());) emit_use(reinterpret_cast<uint64_t>(block), "workspaces");
}

}  // namespace tracer

extern "C" __attribute__((visibility("default"))) void phantora_uses_by(tracer::Read by) { tracer::read_by = by; }

extern "C" __attribute__((visibility("default"))) void phantora_use(uint64_t address, const char *use) {
  if (!tracer::active()) return;
  ph_enter();
  tracer::emit_use(address, use);
  ph_leave();
}
