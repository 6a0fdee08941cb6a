// Power: what runs on a GPU draws watts, and a limiter moves the clock by how far their mean is from the budget. Watts
// add up to energy, which the log has row by row and NVML tells.
#pragma once
#include "gpu/limiter.h"
#include "gpu/work.h"

#include <vector>

namespace phe {

constexpr int64_t METERED_NS = 1'000'000;  // a row of the log covers at least this much time

class Power {
 public:
  struct Reading {
    double joules, watts;  // since the start of the run; the limiter's mean
  };
  struct Moment {
    int64_t time = 0;
    double drawn = 0;  // nJ until then, without those of an idle GPU
  };
  // `factor`: what runs draws this multiple of the power of the usual GPU's. `trials` go on concurrently.
  Power(const phe_power_limit &limit, const double &factor, std::vector<Trial> &trials)
      : limit_(limit), factor_(factor), trials_(trials) {}
  // Brings the mean and the clock up to `now`, before anything changes at it.
  void advance(int64_t now);
  // Work from now on: one item alone, or the heads of `busy` by the rate that each has.
  void draw_alone(const Item &item);
  void draw(const std::vector<Stream *> &busy);
  // `item` begins: it takes as much longer as the clock is lower now.
  // `wobble`: factor on that, where power limits the GPU.
  void slow(Item &item, double wobble);
  // Where the limiter is once it has settled, if all that ran since `begin` is repeated until then.
  phe_power_state repeated(const Moment &begin) const;
  Moment moment() const { return {now_, drawn_}; }
  void start(const phe_power_state &state) { limiter_ = {state.mean_watts, state.clock, state.clock}; }
  void forget_lowest() { limiter_.lowest = limiter_.clock; }
  // Nothing changes from advance()'s time until `time`.
  Reading at(int64_t time) const;
  // True if the log has had no row for long enough, up to `until`.
  bool due(int64_t until) const { return owes(until) && until >= written_ + METERED_NS; }
  bool owes(int64_t until) const { return limit_.budget_watts > 0 && until > written_; }
  // The row of `rank` up to there, with what was drawn in microjoules.
  ph_row row(int rank, int64_t until);

 private:
  double drawn_by(const Launch &communication) const;

  const phe_power_limit &limit_;
  const double &factor_;
  std::vector<Trial> &trials_;
  double base() const { return runs_ ? limit_.idle_watts : limit_.resting_watts; }

  double dynamic_ = 0, steady_ = 0;  // W that what runs draws at full clock
  bool runs_ = false;
  Limiter limiter_;
  int64_t now_ = 0;
  double energy_ = 0, drawn_ = 0;  // nJ so far; without those of an idle GPU
  int64_t written_ = 0, written_uj_ = 0;  // up to when and how much the log has
};

}  // namespace phe
