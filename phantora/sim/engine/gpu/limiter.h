// The limiter of a GPU's power: it averages what the GPU draws, and moves the clock by how far that is from the budget.
#pragma once
#include "basics.h"

namespace phe {

struct Limiter {
  double mean = 0;  // W drawn of late
  double clock = 1;  // share of the full one
  double lowest = 1;  // clock so far

  // For `ns` something has run that draws `factor` times `dynamic` W at full clock, which fall with it, and `steady`
  // ones. Returns what it has drawn, in nJ.
  double advance(const phe_power_limit &limit, double factor, double dynamic, double steady, double ns);
  // Slowdown of a kernel by the clock as it is now.
  double stretch(const phe_kernel_profile &profile) const;

 private:
  double relax(const phe_power_limit &limit, double factor, double dynamic, double steady, double ns);
};

// Time of kernels on a GPU of another power factor.
struct Trial {
  double factor = 1;
  double load = 0;  // ns of kernels so far
  Limiter limiter;
};

}  // namespace phe
