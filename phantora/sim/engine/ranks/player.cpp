#include "ranks/player.h"

#include <algorithm>
#include <math.h>
#include <utility>

namespace phe {

bool Player::is_due(const ph_record &r) const {
  auto before = [&](const Wait &wait) { return r.time < wait.resumes; };
  return meets(r) || std::all_of(waits_.begin(), waits_.end(), before);
}

void Player::issue(ph_record &r) {
  int64_t time = clock(r.time);
  if (!(r.flags & PH_F_HELPER)) time = std::max(time, answered_);
  if (r.kind == PH_OP_BEGIN) r.op_begin.start = std::min(clock(r.op_begin.start), time);
  if (r.kind == PH_ANNOTATION || r.kind == PH_HOST_SPAN) r.span.start = std::min(clock(r.span.start), time);
  r.time = time;
  if (!asks(r)) return;
  waits_.push_back({r.thread, std::exchange(r.asked.resumes, 0)});
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

void Player::answered(const ph_record &r, int64_t clock) {
  answers_.push_back(clock);
  auto wait = std::find_if(waits_.begin(), waits_.end(), [&](const Wait &own) { return own.thread == r.thread; });
  if (wait == waits_.end()) return;
  answered_ = std::max(answered_, clock);
  int64_t resumes = wait->resumes;
  waits_.erase(wait);
  if (resumes >= then_) return shift(resumes, clock);
  if (clock > now_) shift(then_, clock);  // threads have one clock: the later of two answers moves it
}

int64_t Player::clock(int64_t recorded) const {
  auto from = std::make_pair(then_, now_);
  int64_t latest = NEVER;  // a moment in a wait that is shorter now is its end
  if (recorded < then_) {
    auto next = std::upper_bound(shifts_.begin(), shifts_.end(), std::make_pair(recorded, NEVER));
    from = next == shifts_.begin() ? std::make_pair<int64_t, int64_t>(0, 0) : *(next - 1);
    latest = next == shifts_.end() ? now_ : next->second;
  }
  int64_t spent = recorded - from.first;
  if (scale_ != 1) spent = llround(static_cast<double>(spent) * scale_);
  return std::min(latest, from.second + spent);
}

void Player::shift(int64_t recorded, int64_t ours) {
  if (ours - recorded != now_ - then_ || scale_ != 1) shifts_.emplace_back(recorded, ours);
  then_ = recorded;
  now_ = ours;
}

}  // namespace phe
