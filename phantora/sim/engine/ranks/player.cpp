#include "ranks/player.h"

#include <math.h>

namespace phe {

void Player::issue(ph_record &r) {
  if (r.kind == PH_OP_BEGIN) r.op_begin.start = clock(r.op_begin.start);
  if (r.kind == PH_ANNOTATION || r.kind == PH_HOST_SPAN) r.span.start = clock(r.span.start);
  r.time = clock(r.time);
  if (!asks(r)) return;
  waits_ = true;
  resumes_ = r.asked.resumes;
  r.asked.resumes = 0;
}

bool Player::wakes(Rank &rank, const ph_record &r, const Rank &other, const Player &of_other) {
  if (r.time <= then_ || !r.moved.answer) return true;  // a wait has seen to it
  int64_t began = clock(r.moved.since);
  rank.host = std::max(rank.host, began);
  sleeps_ = other.answered < r.moved.answer;
  if (sleeps_) return false;
  bool released = rank.sleep.since >= 0 && rank.sleep.by == other.index;
  int64_t until = released ? rank.sleep.until : std::max(rank.sleep.until, of_other.answers_[r.moved.answer - 1]);
  shift(r.time, std::max(began, until));
  return true;
}

void Player::answered(int64_t clock) {
  waits_ = false;
  answers_.push_back(clock);
  shift(resumes_, clock);
}

int64_t Player::clock(int64_t recorded) const {
  auto from = std::make_pair(then_, now_);
  if (recorded < then_) {
    auto next = std::upper_bound(shifts_.begin(), shifts_.end(), std::make_pair(recorded, NEVER));
    from = next == shifts_.begin() ? std::make_pair<int64_t, int64_t>(0, 0) : *(next - 1);
  }
  int64_t spent = recorded - from.first;
  return from.second + (scale_ == 1 ? spent : llround(static_cast<double>(spent) * scale_));
}

void Player::shift(int64_t recorded, int64_t ours) {
  if (ours - recorded != now_ - then_ || scale_ != 1) shifts_.emplace_back(recorded, ours);
  then_ = recorded;
  now_ = ours;
}

}  // namespace phe
