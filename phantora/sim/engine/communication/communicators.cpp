// Communicators: their members, and their names in the log.
#include "communication/communication.h"

namespace phe {

void Communication::create(Rank &rank, const ph_record &r, const std::string &label) {
  const ph_comm_fields &call = r.comm;
  auto [it, fresh] = by_key_.try_emplace({call.key_hi, call.key_lo}, static_cast<int32_t>(communicators_.size()));
  if (fresh) {
    communicators_.push_back(std::make_unique<Communicator>());
    found(*communicators_.back(), static_cast<int>(call.members), label);
    ++unnumbered_;
  }
  Communicator &c = *communicators_[static_cast<size_t>(it->second)];
  std::string who = std::to_string(rank.index);
  if (call.rank >= c.ranks.size()) return failure_.set("rank " + who + " joined a communicator beyond its size");
  auto seat = std::lower_bound(c.seats.begin(), c.seats.end(), static_cast<int>(call.rank)) - c.seats.begin();
  if (seat == static_cast<long>(c.seats.size()) || c.seats[static_cast<size_t>(seat)] != static_cast<int>(call.rank))
    return failure_.set("rank " + who + " joined a communicator as a member that is no process");
  int before = c.seat_of(rank.index);
  if (before >= 0 && before != seat)
    return failure_.set(
        "rank " + who +
        " is two members of one communicator: NCCL between GPUs of one process (torch.nn.DataParallel, "
        "ncclCommInitAll) is not simulated; run one process for each GPU, as DistributedDataParallel does");
  uint32_t &local = c.local[static_cast<size_t>(seat)];
  if (local)
    return failure_.set("ranks " + std::to_string(c.ranks[call.rank]) + " and " + who +
                        " are the same member of a communicator");
  c.ranks[call.rank] = rank.index;
  rank.communicators = std::max(rank.communicators, rank.first_communicator + r.id);
  local = rank.first_communicator + r.id;
  local_[static_cast<size_t>(rank.index)][r.id] = it->second;
  c.waiting_rows.emplace_back(rank.index, r.time);
  if (r.flags & PH_F_SHARED) {  // its members are named behind the label
    if (std::count(c.ranks.begin(), c.ranks.end(), -1))
      return failure_.set("rank " + who + " shares memory in a communicator, and does not say with whom");
    links_.share(c.ranks);
  }
  if (++c.created < static_cast<int>(c.seats.size())) return;
  --unnumbered_;
  write_rows(c);
}

// A communicator that nobody has joined yet. In a folded run the members come behind the label: who joined before all
// have cannot know who is only spoken for.
void Communication::found(Communicator &c, int members, const std::string &label) {
  c.members = members;
  c.label = label.substr(0, label.find('\0'));
  c.ranks = FoldedRanks::members_in(label, static_cast<size_t>(members));
  auto unknown = [&](int rank) { return rank < 0 || static_cast<size_t>(rank) >= rank_table_.size(); };
  if (static_cast<int>(c.ranks.size()) != members || std::any_of(c.ranks.begin(), c.ranks.end(), unknown))
    c.ranks.assign(static_cast<size_t>(members), -1);
  for (int own = 0; own < members; ++own) {
    int global = c.ranks[static_cast<size_t>(own)];
    if (global < 0 || !rank_table_.folded(global)) c.seats.push_back(own);
  }
  if (rank_table_.folded() && c.ranks[0] >= 0) {
    c.first_place = folded_.at_first_place(c.ranks);
    std::shared_ptr<Family> &family = families_[{c.first_place, equal_groups_[c.ranks]++}];
    if (!family) family = std::make_shared<Family>();
    c.family = family;
  }
  c.local.assign(c.seats.size(), 0);
}

void Communication::write_rows(Communicator &c) {
  // A number that depends on the program alone: the lowest process's count of communicators.
  size_t lowest = 0;
  for (size_t seat = 0; seat < c.seats.size(); ++seat)
    if (c.rank_at(seat) < c.rank_at(lowest)) lowest = seat;
  c.number = static_cast<int32_t>(c.local[lowest] * rank_table_.size() + static_cast<size_t>(c.rank_at(lowest)));
  std::string members;
  for (size_t i = 0; i < c.ranks.size(); ++i) members += (i ? "," : "") + std::to_string(c.ranks[i]);
  int32_t sig = texts_.intern(PHE_SIGNATURES, "{\"op\":\"communicator\",\"args\":[[" + members + "]]}");
  int32_t name = texts_.name(c.label.empty() ? "communicator" : c.label);
  for (auto &[index, time] : c.waiting_rows) {
    ph_row row = RowLog::row(PH_ROW_COMMUNICATOR, index, time, time);
    row.comm = c.number;
    row.name = name;
    row.sig = sig;
    row.id = -static_cast<int64_t>(c.number) - 2;
    rows_.communicator(row);
  }
  c.waiting_rows.clear();
}

const Communicator *Communication::find(const Rank &rank, uint32_t id) const {
  const auto &mine = local_[static_cast<size_t>(rank.index)];
  auto found = mine.find(id);
  return found == mine.end() ? nullptr : &communicator(found->second);
}

// The same for a member that uses it: fails if there is none.
Communicator *Communication::used(const Rank &rank, uint32_t id, int32_t &number) {
  const auto &mine = local_[static_cast<size_t>(rank.index)];
  auto found = mine.find(id);
  if (found == mine.end()) {
    failure_.set("rank " + std::to_string(rank.index) + " used communicator " + std::to_string(id) +
                 ", which it does not have");
    return nullptr;
  }
  number = found->second;
  return communicators_[static_cast<size_t>(number)].get();
}

void Communication::rename(ph_row &row) const {
  const Communicator &comm = communicator(row.comm);
  row.comm = comm.number;
  if (row.kind == PH_ROW_SENDRECV && row.value >= 0) row.value = comm.ranks[static_cast<size_t>(row.value)];
}

int64_t Communication::first_unnumbered() const {
  int64_t first = NEVER;
  if (!unnumbered_) return first;
  for (const auto &comm : communicators_)
    for (auto &[rank, joined] : comm->waiting_rows) first = std::min(first, joined);
  return first;
}

}  // namespace phe
