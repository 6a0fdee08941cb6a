#include "gpu/limiter.h"

#include <math.h>

#include <algorithm>

namespace phe {

constexpr double FINE = 8;         // steps of the integration within the shorter of the limiter's two times
constexpr double REMEMBERED = 40;  // of the longer one, after which nothing is left of what was before

double Limiter::advance(const phe_power_limit &limit, double factor, double dynamic, double steady, double left) {
  double full = factor * (dynamic + steady);
  if (clock < 1.0 || mean > limit.budget_watts || full > limit.budget_watts)
    return relax(limit, factor, dynamic, steady, left);
  mean = full + (mean - full) * exp(-left / limit.response_ns);
  return full * left;
}

// The clock and the mean follow each other.
double Limiter::relax(const phe_power_limit &limit, double factor, double dynamic, double steady, double left) {
  double followed = std::min(left, REMEMBERED * std::max(limit.response_ns, limit.reaction_ns));
  double forgotten = left - followed, drawn = 0, energy = 0;
  left = followed;
  double fine = std::min(limit.response_ns, limit.reaction_ns) / FINE;
  while (left > 0) {
    double step = std::min(left, fine), kept = exp(-step / limit.response_ns);
    drawn = factor * (dynamic * pow(clock, limit.exponent) + steady);
    double within = drawn + (mean - drawn) * (1 - kept) * limit.response_ns / step;  // of the mean, in the step
    mean = drawn + (mean - drawn) * kept;
    clock = std::clamp(clock + step / limit.reaction_ns * (1 - within / limit.budget_watts), limit.lowest_clock, 1.0);
    left -= step;
    energy += drawn * step;
    lowest = std::min(lowest, clock);
  }
  return energy + drawn * forgotten;
}

double Limiter::stretch(const phe_kernel_profile &p) const {
  double at = p.clock_bound > 0 ? clock : 1.0;
  return at < p.clock ? 1.0 + p.clock_bound * (p.clock / at - 1.0) : 1.0;
}

}  // namespace phe
