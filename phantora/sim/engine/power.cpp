#include "power.h"

#include "operation.h"

#include <math.h>

#include <algorithm>

namespace phe {

constexpr double FINE = 8;         // steps of the integration within the shorter of the limiter's two times
constexpr double REMEMBERED = 40;  // of the longer one, after which nothing is left of what was before

void Power::advance(int64_t now) {
  if (limit_.budget_watts <= 0 || now == now_) return;
  double left = static_cast<double>(now - now_);
  now_ = now;
  double full = factor_ * (dynamic_ + steady_);
  if (clock_ == 1.0 && mean_ <= limit_.budget_watts && full <= limit_.budget_watts)
    mean_ = full + (mean_ - full) * exp(-left / limit_.response_ns);
  else
    relax(left);
}

// The clock and the mean follow each other.
void Power::relax(double left) {
  left = std::min(left, REMEMBERED * std::max(limit_.response_ns, limit_.reaction_ns));
  double fine = std::min(limit_.response_ns, limit_.reaction_ns) / FINE;
  while (left > 0) {
    double step = std::min(left, fine), kept = exp(-step / limit_.response_ns);
    double drawn = factor_ * (dynamic_ * pow(clock_, limit_.exponent) + steady_);
    double mean = drawn + (mean_ - drawn) * (1 - kept) * limit_.response_ns / step;  // within the step
    mean_ = drawn + (mean_ - drawn) * kept;
    clock_ = std::clamp(clock_ + step / limit_.reaction_ns * (1 - mean / limit_.budget_watts), limit_.lowest_clock, 1.0);
    left -= step;
  }
}

void Power::draw_alone(const Item &item) {
  dynamic_ = item.profile.dynamic_watts;
  steady_ = item.profile.steady_watts;
}

double Power::drawn_by(const Launch &communication) const {
  if (communication.copies) return 0;
  double channels = std::max(1.0, limit_.communication_blocks);
  return limit_.communication_watts * (communication.blocks ? std::min(1.0, communication.blocks / channels) : 1.0);
}

void Power::draw(const std::vector<Stream *> &busy) {
  dynamic_ = steady_ = 0;
  if (limit_.budget_watts <= 0) return;
  for (const Stream *s : busy) {
    const Item &item = s->queue.front();
    if (!item.running) continue;
    dynamic_ += item.profile.dynamic_watts * item.rate;
    steady_ += item.type == Item::COMM ? drawn_by(*item.comm) : item.profile.steady_watts * item.rate;
  }
}

double Power::stretch(const Item &item) const {
  const phe_kernel_profile &p = item.profile;
  double clock = p.clock_bound > 0 ? clock_ : 1.0;
  return clock < p.clock ? 1.0 + p.clock_bound * (p.clock / clock - 1.0) : 1.0;
}

}  // namespace phe
