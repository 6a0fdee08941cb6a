#include "ranks/recorder.h"

namespace phe {
namespace {

bool forgotten(const ph_record &r) {
  if (r.kind == PH_PAYLOAD || r.kind == PH_NOP || r.kind == PH_SITE || r.kind == PH_CLOCK) return true;
  if (r.kind == PH_CORRELATE || of_profiler(r) || of_watchdog(r)) return true;
  if (r.kind == PH_MEMCPY || r.kind == PH_MEMSET || meets(r)) return false;
  return r.slot != PH_NO_SLOT && (r.flags & PH_F_HELPER);
}

bool takes_text(const ph_record &r) {
  return r.kind == PH_DEFINE_NAME || r.kind == PH_DEFINE_SIGNATURE || r.kind == PH_COMM_CREATE;
}

}  // namespace

void Recorder::add(const ph_record &said, int64_t block) {
  if (said.kind == PH_BLOB) {
    pieces_.push_back(said);
    return;
  }
  ph_record r = said;
  if (takes_text(r))
    for (const ph_record &piece : pieces_) kept_.push_back(piece);
  pieces_.clear();
  if (forgotten(r)) return;
  if (r.slot != PH_NO_SLOT) r.slot = 0;
  if (r.kind == PH_RANK_START) r.start.pid = 0;
  if (r.kind == PH_COLLECTIVE) r.collective.ticket = 0;
  if (r.kind == PH_SEND || r.kind == PH_RECV) r.transfer.ticket = 0;
  if (r.kind == PH_MEMORY) r.memory.address = static_cast<uint64_t>(block);  // addresses differ between runs
  if (asks(r)) r.asked.resumes = NEVER_RESUMED;
  kept_.push_back(r);
  if (asks(r)) asked_[said.slot % PH_REPLY_SLOTS] = taken_ + kept_.size();
}

void Recorder::add_move(const Sleep &sleep) {
  ph_record r{};
  r.kind = PH_MOVED;
  r.slot = PH_NO_SLOT;
  r.time = sleep.until;
  r.moved.since = sleep.since;
  r.moved.by = sleep.by < 0 ? 0 : static_cast<uint64_t>(sleep.by);
  r.moved.answer = sleep.by < 0 ? 0 : sleep.answers;
  kept_.push_back(r);
}

void Recorder::answered(const ph_record &r, int64_t clock) {
  uint64_t &position = asked_[r.slot % PH_REPLY_SLOTS];
  if (position > taken_) kept_[position - 1 - taken_].asked.resumes = clock;
  position = 0;
}

int64_t Recorder::take(ph_record *out, int64_t capacity, bool everything) {
  uint64_t count = std::min<uint64_t>(static_cast<uint64_t>(capacity), kept_.size());
  if (!everything)
    for (uint64_t position : asked_)
      if (position) count = std::min(count, position - 1 - taken_);
  for (uint64_t i = 0; i < count; ++i, kept_.pop_front()) out[i] = kept_.front();
  taken_ += count;
  return static_cast<int64_t>(count);
}

}  // namespace phe
