// Noise of GPUs and links in one sample of a run (docs/spread.md). Each number is a function of the seed and of what it
// belongs to, so that it depends neither on the order of calls nor on real time.
#pragma once
#include "phantora_engine.h"

#include <math.h>

#include <algorithm>

namespace phe {

class Noise {
 public:
  void set(const phe_noise &given) { given_ = given; }
  // Factor on kernel `id` of `rank`, which takes `ns` on average.
  double kernel(int rank, int64_t id, double ns) const {
    return on() ? exp(share(ns) * normal(whose(rank), static_cast<uint64_t>(id))) : 1.0;
  }
  // Factor on the time of a kernel that the clock bounds, on a GPU that its power limits.
  double clock(int rank, int64_t now) const {
    if (!on() || given_.clock_ns <= 0) return 1.0;
    return exp(given_.clock_share * normal(~whose(rank), static_cast<uint64_t>(now / given_.clock_ns)));
  }
  // Factor on all kernels of a GPU at this time.
  double drift(int rank, int64_t now) const {
    if (!on() || given_.drift_ns <= 0) return 1.0;
    return exp(given_.drift_share * normal(mix(~whose(rank)), static_cast<uint64_t>(now / given_.drift_ns)));
  }
  // ns by which the communication that began at `since` on `rank` ends later than its `ns` on average.
  int64_t transfer(int rank, int64_t since, int64_t ns) const {
    if (!on() || ns <= 0) return 0;
    auto whole = static_cast<double>(ns);
    return static_cast<int64_t>(whole * share(whole) * fabs(normal(whose(rank), ~static_cast<uint64_t>(since))));
  }

 private:
  bool on() const { return given_.seed != 0; }
  uint64_t whose(int rank) const { return given_.common ? 0 : static_cast<uint64_t>(rank) + 1; }
  // Standard deviation: long kernels consist of many waves, whose noise averages out.
  double share(double ns) const { return given_.share * std::min(1.0, sqrt(given_.full_ns / std::max(ns, 1.0))); }

  // The finaliser of MurmurHash3.
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccd;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53;
    return x ^ (x >> 33);
  }
  static double uniform(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }
  double normal(uint64_t a, uint64_t b) const {
    uint64_t first = mix(given_.seed ^ mix(a ^ mix(b + 1))), second = mix(first + 1);
    return sqrt(-2 * log(uniform(first))) * cos(2 * M_PI * uniform(second));
  }

  phe_noise given_{};
};

}  // namespace phe
