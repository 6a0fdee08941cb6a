#include "power.h"

#include "operation.h"

#include <algorithm>

namespace phe {

void Power::advance(int64_t now) {
  if (limit_.budget_watts <= 0 || now == now_) return;
  double left = static_cast<double>(now - now_);
  now_ = now;
  limiter_.advance(limit_, factor_, dynamic_, steady_, left);
  for (Trial &t : trials_) t.limiter.advance(limit_, t.factor, dynamic_, steady_, left);
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

void Power::slow(Item &item) {
  for (Trial &t : trials_) t.load += item.work * t.limiter.stretch(item.profile);
  item.work *= limiter_.stretch(item.profile);
}

}  // namespace phe
