#include "tracer/uses.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>

#include "tracer/allocator.h"

namespace tracer {

// Reads the program's objects after `step` steps of optimizers; `grows`: memory grows from step to step, or every few.
// Returns whether it does so again after the next step. A step of NO_ROOM: an allocation fails.
using Read = int (*)(int64_t step, int grows);
static std::atomic<Read> read_by{nullptr};
constexpr int64_t NO_ROOM = -1;

constexpr int64_t GROWTH = 1 << 20;  // bytes, from which on memory grows
constexpr size_t TIMES = 3;          // in a row that it does
constexpr size_t LATEST = 64;        // steps that are looked at; the first one makes state and buckets

struct Levels {
  std::mutex lock;
  int64_t steps = 0;
  std::deque<int64_t> after_step;  // bytes
  bool told = false;
};
static Levels step_levels;

// About as much more was allocated each time than `every` steps before.
static bool grew_every(const std::deque<int64_t> &level, size_t every) {
  int64_t least = INT64_MAX, most = INT64_MIN;
  for (size_t i = level.size() - TIMES * every; i < level.size(); ++i) {
    int64_t growth = level[i] - level[i - every];
    least = std::min(least, growth);
    most = std::max(most, growth);
  }
  return least >= GROWTH && most <= 2 * least;
}

static bool grew(int64_t allocated) {
  std::deque<int64_t> &level = step_levels.after_step;
  if (step_levels.steps > 1) level.push_back(allocated);
  if (level.size() > LATEST) level.pop_front();
  for (size_t every = 1; (TIMES + 1) * every <= level.size(); ++every)
    if (grew_every(level, every)) return true;
  return false;
}

static bool read(Read ask, int64_t step, bool grows) {
  Thread &thread = this_thread();
  ++thread.silent;  // what reads is not the program
  ph_cover_frames(1);
  bool again = ask(step, grows) != 0;
  ph_cover_frames(-1);
  --thread.silent;
  return again;
}

void allocation_failed() {
  if (Read ask = read_by) read(ask, NO_ROOM, true);
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
  if (grows || again) again = read(ask, step, grows);
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
