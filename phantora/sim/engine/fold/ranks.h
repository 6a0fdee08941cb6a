// Folded ranks (ranks without a process): which there are, and the bytes that they contribute (docs/scale.md).
//
// Groups that differ only in their place along folded axes are a family. The one at the first place has the most
// processes. Their bytes give a law, from which the bytes of all others follow.
#pragma once
#include "communication/operation.h"

#include <string>
#include <tuple>

namespace phe {

// Members give equal bytes, except for integers that grow evenly along the mesh.
struct Rule {
  bool equal = true;
  std::vector<std::vector<int64_t>> slopes;  // by integer, by axis
};

// The bytes of a group's members: by one rule for all, or by one for each place of the expanded axes (a stage).
struct Law {
  bool by_place = false;
  std::map<std::vector<int>, Rule> rules;  // by place; of all: under none
  std::vector<std::string> values;  // by own rank, if all members are processes: other groups of the family repeat them
};

// One side of a send and a receive of the first of a family.
struct Example {
  std::shared_ptr<Launch> launch;
  int64_t bytes = 0;
  std::string data;
};

struct Family {
  std::map<int64_t, Law> laws;  // by sequence number
  std::map<int64_t, std::vector<std::shared_ptr<Collective>>> waiting;
  // Examples in order, and transfers that follow one that is yet to come, by (source, destination, is it the source?).
  using Way = std::tuple<int, int, bool>;
  std::map<Way, std::vector<Example>> examples;
  std::map<std::pair<Way, int64_t>, std::vector<std::shared_ptr<Transfer>>> followers;
};

class FoldedRanks {
 public:
  using Parts = std::vector<const std::string *>;  // by own rank; null: of a member that is no process

  FoldedRanks() = default;
  // Axes of the mesh, the outermost first: their sizes, and whether all their ranks are processes, or only the first.
  FoldedRanks(std::vector<int> sizes, std::vector<bool> expanded, std::vector<bool> first_only)
      : sizes_(std::move(sizes)), expanded_(std::move(expanded)), first_only_(std::move(first_only)) {}

  // The members that a communicator's label has behind its text: global ranks in order, or none.
  static std::vector<int> members_in(const std::string &label, size_t most);
  // The rank at the first place of all folded axes.
  int origin(int rank) const;
  // The same group at the first place of the folded axes along which its members don't differ.
  std::vector<int> at_first_place(const std::vector<int> &ranks) const;
  // Common part of a group's processes; false, with the reason: nothing.
  bool learn(const Communicator &comm, int coll, int dtype, const Parts &parts, Law &law, std::string &why) const;
  // Fills the `parts` of members that are no processes; `made` keeps what is new. False, with the reason: the law does
  // not hold for the processes.
  bool fill(const Communicator &comm, int dtype, const Law &law, Parts &parts, std::vector<std::string> &made,
            std::string &why) const;
  // Do small receives from members that are no processes read as zeros? Reals do, where the first rank of an axis is
  // all.
  bool takes_zeros(const Communicator &comm, int dtype) const;

 private:
  struct Given;

  std::vector<int> coordinates(int rank) const;
  std::vector<int> place(const std::vector<int> &point) const;
  bool along_first_only_axis(const std::vector<int> &ranks) const;
  std::map<std::vector<int>, Given> given(const Communicator &comm, const Parts &parts, bool by_place) const;
  static bool read(Given &given, int dtype, std::string &why);
  bool learn(Given &given, int dtype, bool first_only, const Rule *like, Rule &rule, std::string &why) const;
  bool fill(Given &given, const Communicator &comm, int dtype, const Rule &rule, Parts &parts,
            std::vector<std::string> &made, std::string &why) const;

  std::vector<int> sizes_;
  std::vector<bool> expanded_, first_only_;
};

}  // namespace phe
