// Ranks of a folded run that are no processes: which there are, and what they would have said (docs/scale.md).
#pragma once
#include "operation.h"

#include <string>

namespace phe {

class Ghosts {
 public:
  Ghosts() = default;
  // Of the mesh's axes, the outermost first.
  explicit Ghosts(std::vector<int> sizes) : sizes_(std::move(sizes)) {}

  // The members that a communicator's label tells behind its text: global ranks in order, or none.
  static std::vector<int> members_in(const std::string &label);
  // Fills the `parts` (by own rank) of members that are no processes; `made` keeps what is new. They say what the
  // processes do, if these agree, but for integers that grow evenly along the mesh. False, with the reason: they don't.
  bool speak(const Communicator &comm, int dtype, std::vector<const std::string *> &parts,
             std::vector<std::string> &made, std::string &why) const;

 private:
  std::vector<int> coordinates(int rank) const;

  std::vector<int> sizes_;
};

}  // namespace phe
