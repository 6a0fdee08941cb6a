// Power: what runs on a GPU draws watts, and a limiter moves the clock by how far their mean is from the budget.
#pragma once
#include "limiter.h"
#include "work.h"

#include <vector>

namespace phe {

class Power {
 public:
  // `factor`: what runs draws so many times the power of the usual GPU's. `trials` go on beside.
  Power(const phe_power_limit &limit, const double &factor, std::vector<Trial> &trials)
      : limit_(limit), factor_(factor), trials_(trials) {}
  // Brings the mean and the clock up to `now`, before anything changes at it.
  void advance(int64_t now);
  // What runs from now on: one item alone, or the heads of `busy` by the rate that each has.
  void draw_alone(const Item &item);
  void draw(const std::vector<Stream *> &busy);
  // `item` begins: it takes as much longer as the clock is lower now.
  void slow(Item &item);
  phe_power_state state() const { return {limiter_.mean, limiter_.clock, limiter_.lowest}; }
  void start(const phe_power_state &state) { limiter_ = {state.mean_watts, state.clock, state.clock}; }
  void forget_lowest() { limiter_.lowest = limiter_.clock; }

 private:
  double drawn_by(const Launch &communication) const;

  const phe_power_limit &limit_;
  const double &factor_;
  std::vector<Trial> &trials_;
  double dynamic_ = 0, steady_ = 0;  // W that what runs draws at full clock
  Limiter limiter_;
  int64_t now_ = 0;
};

}  // namespace phe
