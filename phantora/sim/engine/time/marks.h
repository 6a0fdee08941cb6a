// Marks: ends of optimizers on the hosts of ranks, and when their GPUs get there.
#pragma once
#include "network/links.h"
#include "fold/pipelines.h"
#include "gpu/settled_power.h"

namespace phe {

class Marks {
 public:
  Marks(Links &links, Pipelines &pipelines, SettledPower &settled_power)
      : links_(links), pipelines_(pipelines), settled_power_(settled_power) {}

  // Ends of annotations with names that begin with `prefix` are marks.
  void name(std::string prefix) { prefix_ = std::move(prefix); }
  bool named(const std::string &annotation) const { return !prefix_.empty() && annotation.rfind(prefix_, 0) == 0; }
  // True if anything depends on the marks of this rank.
  bool matter(const Rank &rank) const { return rank.index == 0 || pipelines_.has(rank) || settled_power_.has(rank); }
  // Its host is at the next mark. If something changes there, it does when its GPU gets there.
  void host_at(Rank &rank, int64_t time);
  void gpu_at(Rank &rank, Device &device, int mark);
  // Marks of rank 0's host so far.
  int count() const { return count_; }

 private:
  void change(Rank &rank, int mark, int64_t time);

  Links &links_;
  Pipelines &pipelines_;
  SettledPower &settled_power_;
  std::string prefix_;
  int count_ = 0;
};

}  // namespace phe
