#include "ranks/rank_table.h"

namespace phe {

RankTable::RankTable(char *area) {
  const auto *header = reinterpret_cast<const ph_header *>(area);
  ranks_ = std::vector<Rank>(header->world_size);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].index = static_cast<int>(r);
    ranks_[r].control = reinterpret_cast<ph_control *>(area + header->control_offset) + r;
    ranks_[r].ring = reinterpret_cast<const ph_record *>(area + header->ring_offset) + r * PH_RING_RECORDS;
    ranks_[r].replies = reinterpret_cast<ph_reply *>(area + header->reply_offset) + r * PH_REPLY_SLOTS;
    ranks_[r].exited = ranks_[r].control->folded != 0;
    if (!ranks_[r].exited) real_.push_back(ranks_[r]);
  }
}

void RankTable::record() { recorders_.resize(ranks_.size()); }
void RankTable::play(double scale) { players_.assign(ranks_.size(), Player(scale)); }

void RankTable::answered(Rank &rank, const ph_record &r, int64_t clock) {
  if (!asks(r) || r.kind == PH_PAYLOAD || of_profiler(r)) return;
  ++rank.answered;
  if (Recorder *to = recorder(rank)) to->answered(r, clock);
  if (Player *p = player(rank)) p->answered(r, clock);
}

}  // namespace phe
