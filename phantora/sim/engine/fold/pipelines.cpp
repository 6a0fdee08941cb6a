#include "fold/pipelines.h"

#include <algorithm>

namespace phe {

constexpr size_t FACTORS = 5;        // for which loads are counted; between them they are taken to be straight
constexpr double MICRO_BATCHES =
    4;  // of a stage: from four on GPipe (Huang et al. 2019, 2.3) found pipelines well filled

void Pipelines::add(const std::vector<int32_t> &ranks, const std::vector<int32_t> &stages,
                    std::vector<double> factors) {
  pipelines_.push_back({ranks, stages, std::move(factors)});
  const Pipeline &p = pipelines_.back();
  for (size_t seat = 0; seat < ranks.size(); ++seat) {
    double least = p.factors[seat], most = least;
    for (size_t at = seat; at < p.factors.size(); at += ranks.size()) {
      least = std::min(least, p.factors[at]);
      most = std::max(most, p.factors[at]);
    }
    Rank &rank = rank_table_[static_cast<size_t>(ranks[seat])];
    rank.power_factor = most;  // until more is known
    if (p.factors.size() == ranks.size()) continue;  // there is no choice
    rank.trials.resize(FACTORS);
    for (size_t i = 0; i < FACTORS; ++i)
      rank.trials[i].factor = least + (most - least) * static_cast<double>(i) / (FACTORS - 1);
    Member &member = members_[rank.index];
    member.pipeline = &p;
    member.seat = seat;
  }
}

void Pipelines::handed_on(const Rank &rank) {
  auto it = members_.find(rank.index);
  if (it != members_.end()) it->second.moved = true;
}

// Several optimizers may follow each other at the end of a step. Between steps a stage sends and receives, and what it
// gets then was computed behind the last step of all others: so their loads of that are known, whoever was heard first.
void Pipelines::at_mark(Rank &rank) {
  auto it = members_.find(rank.index);
  if (it == members_.end() || !it->second.moved) return;
  Member &member = it->second;
  member.moved = false;
  member.loads[++member.steps % 2] = rank.trials;
  for (Trial &t : rank.trials) t.load = 0;
  const Pipeline &p = *member.pipeline;
  int last = member.steps - 1;
  if (last > 0 && known(p, last)) rank.power_factor = p.factors[slowest(p, last) * p.ranks.size() + member.seat];
}

// Have all that count done this step, and not more than the next?
bool Pipelines::known(const Pipeline &p, int step) const {
  for (size_t seat = 0; seat < p.ranks.size(); ++seat) {
    int steps = members_.at(p.ranks[seat]).steps;
    if (p.stages[seat] >= 0 && (steps < step || steps > step + 1)) return false;
  }
  return true;
}

// ns of a step are those of the stage with the most to do, and one micro-batch of each other.
size_t Pipelines::slowest(const Pipeline &p, int step) const {
  size_t found = 0, count = p.ranks.size();
  double longest = 0;
  std::vector<double> loads;
  for (size_t candidate = 0; candidate * count < p.factors.size(); ++candidate) {
    loads.clear();
    for (size_t seat = 0; seat < count; ++seat) {
      if (p.stages[seat] < 0) continue;
      size_t at = static_cast<size_t>(p.stages[seat]);
      if (at >= loads.size()) loads.resize(at + 1);
      loads[at] =
          std::max(loads[at], load(members_.at(p.ranks[seat]).loads[step % 2], p.factors[candidate * count + seat]));
    }
    double most = *std::max_element(loads.begin(), loads.end()), sum = 0;
    for (double ns : loads) sum += ns;
    double takes = most + (sum - most) / MICRO_BATCHES;
    if (takes <= longest) continue;
    longest = takes;
    found = candidate;
  }
  return found;
}

double Pipelines::load(const std::vector<Trial> &loads, double factor) {
  size_t upper = 1;
  while (upper + 1 < loads.size() && loads[upper].factor < factor) ++upper;
  const Trial &a = loads[upper - 1], &b = loads[upper];
  return b.factor > a.factor ? a.load + (b.load - a.load) * (factor - a.factor) / (b.factor - a.factor) : a.load;
}

}  // namespace phe
