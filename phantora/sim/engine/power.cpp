// Power: what runs on a GPU draws watts, and a limiter moves the clock by how far their mean is from the cap.
#include "state.h"

#include <math.h>

namespace phc {

constexpr double FINE = 8;    // steps of the limiter within the shorter of its two times
constexpr double REMEMBERED = 40;  // of the longer one, after which nothing is left of what was before
constexpr double LOWEST_CLOCK = 0.3;

// Brings the mean and the clock up to the GPU's time, before anything changes at it.
void Core::feel(Gpu &gpu) {
  if (power.budget <= 0 || gpu.now == gpu.felt) return;
  double left = static_cast<double>(gpu.now - gpu.felt);
  gpu.felt = gpu.now;
  double appetite = gpu.rank->appetite, full = appetite * (gpu.dynamic + gpu.steady);
  if (gpu.clock == 1.0 && gpu.mean <= power.budget && full <= power.budget) {
    gpu.mean = full + (gpu.mean - full) * exp(-left / power.response);
    return;
  }
  left = std::min(left, REMEMBERED * std::max(power.response, power.reaction));
  double fine = std::min(power.response, power.reaction) / FINE;
  while (left > 0) {
    double step = std::min(left, fine), kept = exp(-step / power.response);
    double drawn = appetite * (gpu.dynamic * pow(gpu.clock, power.exponent) + gpu.steady);
    double mean = drawn + (gpu.mean - drawn) * (1 - kept) * power.response / step;  // within the step
    gpu.mean = drawn + (gpu.mean - drawn) * kept;
    gpu.clock = std::clamp(gpu.clock + step / power.reaction * (1 - mean / power.budget), LOWEST_CLOCK, 1.0);
    left -= step;
  }
}

// What runs now draws at full clock, by the speed that each has.
void Core::draw(Gpu &gpu) {
  gpu.dynamic = gpu.steady = 0;
  if (power.budget <= 0) return;
  for (Stream *s : gpu.busy) {
    const Item &item = s->queue.front();
    if (!item.running) continue;
    gpu.dynamic += item.nature.dynamic * item.rate;
    gpu.steady += item.type == COMM ? power.communication : item.nature.steady * item.rate;
  }
}

}  // namespace phc
