// Power: what runs on a GPU draws watts, and a limiter moves the clock by how far their mean is from the budget.
#pragma once
#include "work.h"

#include <vector>

namespace phe {

class Power {
 public:
  // `factor`: what runs draws so many times the power of the usual GPU's.
  Power(const phe_power_limit &limit, const double &factor) : limit_(limit), factor_(factor) {}
  // Brings the mean and the clock up to `now`, before anything changes at it.
  void advance(int64_t now);
  // What runs from now on: one item alone, or the heads of `busy` by the rate that each has.
  void draw_alone(const Item &item);
  void draw(const std::vector<Stream *> &busy);
  // How many times as long `item` takes by the clock as it is now.
  double stretch(const Item &item) const;

 private:
  void relax(double ns);
  double drawn_by(const Launch &communication) const;

  const phe_power_limit &limit_;
  const double &factor_;
  double dynamic_ = 0, steady_ = 0;  // W that what runs draws at full clock
  double mean_ = 0;                  // W drawn of late
  double clock_ = 1;                 // share of the full one
  int64_t now_ = 0;
};

}  // namespace phe
