#include "gpu/power.h"

#include "communication/operation.h"
#include "rows.h"

#include <math.h>

#include <algorithm>

namespace phe {

constexpr double SETTLED = 5;  // times the limiter's two times, after which 0.7 % of its first state is left

void Power::advance(int64_t now) {
  if (limit_.budget_watts <= 0 || now == now_) return;
  double left = static_cast<double>(now - now_);
  now_ = now;
  double drawn = limiter_.advance(limit_, factor_, dynamic_, steady_, left);
  drawn_ += drawn;
  energy_ += base() * left + drawn;
  for (Trial &t : trials_) t.limiter.advance(limit_, t.factor, dynamic_, steady_, left);
}

void Power::draw_alone(const Item &item) {
  dynamic_ = item.profile.dynamic_watts;
  steady_ = item.profile.steady_watts * item.demand;
  runs_ = true;
}

double Power::drawn_by(const Launch &communication) const {
  if (communication.copies) return 0;
  double channels = std::max(1.0, limit_.communication_blocks);
  return limit_.communication_watts * (communication.blocks ? std::min(1.0, communication.blocks / channels) : 1.0);
}

void Power::draw(const std::vector<Stream *> &busy) {
  dynamic_ = steady_ = 0;
  runs_ = false;
  if (limit_.budget_watts <= 0) return;
  for (const Stream *s : busy) {
    const Item &item = s->queue.front();
    if (!item.running) continue;
    runs_ = true;
    dynamic_ += item.profile.dynamic_watts * item.rate;
    steady_ += item.type == Item::COMM ? drawn_by(*item.comm) : item.profile.steady_watts * item.demand * item.rate;
  }
}

void Power::slow(Item &item, double wobble) {
  for (Trial &t : trials_) t.load += item.work * t.limiter.stretch(item.profile);
  item.work *= limiter_.stretch(item.profile);
  if (limiter_.clock < 1) item.work *= 1 + item.profile.clock_bound * (wobble - 1);
}

phe_power_state Power::repeated(const Moment &begin) const {
  Limiter limiter = limiter_;
  auto passed = static_cast<double>(now_ - begin.time);
  double left = SETTLED * (limit_.response_ns + limit_.reaction_ns) - passed;
  if (passed > 0 && left > 0) {
    double watts = (drawn_ - begin.drawn) / passed;
    limiter.advance(limit_, 1, watts / pow(limiter.clock, limit_.exponent), 0, left);
  }
  return {limiter.mean, limiter.clock, limiter.lowest};
}

Power::Reading Power::at(int64_t time) const {
  Limiter limiter = limiter_;
  double energy = energy_;
  time = std::max(time, now_);
  auto left = static_cast<double>(time - now_);
  if (left > 0) energy += base() * left + limiter.advance(limit_, factor_, dynamic_, steady_, left);
  return {energy * 1e-9, base() + limiter.mean};
}

ph_row Power::row(int rank, int64_t until) {
  ph_row r = RowLog::row(PH_ROW_POWER, rank, written_, until);
  auto total = static_cast<int64_t>(at(until).joules * 1e6 + 0.5);
  r.value = total - written_uj_;
  written_ = until;
  written_uj_ = total;
  return r;
}

}  // namespace phe
