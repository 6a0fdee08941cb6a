// Power: what runs on a GPU draws watts, and a limiter lowers the clock while their mean is above the cap.
#include "core_state.h"

#include <math.h>

namespace phc {

// Brings the means up to the GPU's time, before anything changes at it: running averages that forget at the limiter's rate.
void Core::feel(Gpu &gpu) {
  if (power.budget <= 0 || gpu.now == gpu.felt) return;
  double kept = exp(-static_cast<double>(gpu.now - gpu.felt) / power.response);
  gpu.mean_dynamic = gpu.dynamic + (gpu.mean_dynamic - gpu.dynamic) * kept;
  gpu.mean_steady = gpu.steady + (gpu.mean_steady - gpu.steady) * kept;
  gpu.felt = gpu.now;
}

// What runs now draws, by the speed that each has.
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

// Share of the full clock that the limiter allows: dynamic power falls with a power of it.
double Core::clock_of(const Gpu &gpu) const {
  double appetite = gpu.rank->appetite;
  double room = power.budget - appetite * gpu.mean_steady, wanted = appetite * gpu.mean_dynamic;
  return power.budget <= 0 || wanted <= room ? 1.0 : std::max(0.3, pow(std::max(room, 0.0) / wanted, 1.0 / power.exponent));
}

}  // namespace phc
