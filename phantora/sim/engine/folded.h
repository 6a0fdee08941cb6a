// Ranks of a folded run that are no processes: which there are, and what they would have said (docs/scale.md).
//
// Groups that differ in their place along folded axes alone are a family. The one that is first there has the most
// processes: what these say is a law, by which the bytes of the others follow as well.
#pragma once
#include "operation.h"

#include <string>
#include <tuple>

namespace phe {

// Members say the same, but for integers that grow evenly along the mesh.
struct Rule {
  bool equal = true;
  std::vector<std::vector<int64_t>> slopes;  // by integer, by axis
};

// What the members of a group say: all by one rule, or those at each place of the whole axes (a stage) by one of their own.
struct Law {
  bool by_place = false;
  std::map<std::vector<int>, Rule> rules;  // by place; of all: under none
  std::vector<std::string> given;          // by own rank, if all members are processes: each says what its like does
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
  // By (source, destination, is it the source?): examples in order, and transfers that follow one that is yet to come.
  using Way = std::tuple<int, int, bool>;
  std::map<Way, std::vector<Example>> examples;
  std::map<std::pair<Way, int64_t>, std::vector<std::shared_ptr<Transfer>>> followers;
};

class FoldedRanks {
 public:
  using Parts = std::vector<const std::string *>;  // by own rank; null: of a member that is no process

  FoldedRanks() = default;
  // Of the mesh's axes, the outermost first: their sizes, and whether all their ranks are processes, or the first alone.
  FoldedRanks(std::vector<int> sizes, std::vector<bool> whole, std::vector<bool> lone)
      : sizes_(std::move(sizes)), whole_(std::move(whole)), lone_(std::move(lone)) {}

  // The members that a communicator's label has behind its text: global ranks in order, or none.
  static std::vector<int> members_in(const std::string &label, size_t most);
  // The rank at the first place of all folded axes.
  int origin(int rank) const;
  // The same group at the first place of the folded axes along which its members don't differ.
  std::vector<int> at_first_place(const std::vector<int> &ranks) const;
  // What the processes of a group have in common; false, with the reason: nothing.
  bool learn(const Communicator &comm, int coll, int dtype, const Parts &parts, Law &law, std::string &why) const;
  // Fills the `parts` of members that are no processes; `made` keeps what is new. False, with the reason: the law does
  // not hold for the processes.
  bool fill(const Communicator &comm, int dtype, const Law &law, Parts &parts, std::vector<std::string> &made,
             std::string &why) const;

 private:
  struct Said;

  std::vector<int> coordinates(int rank) const;
  std::vector<int> place(const std::vector<int> &point) const;
  bool along_lone_axis(const std::vector<int> &ranks) const;
  std::map<std::vector<int>, Said> said(const Communicator &comm, const Parts &parts, bool by_place) const;
  static bool read(Said &said, int dtype, std::string &why);
  bool learn(Said &said, int dtype, bool lone, const Rule *like, Rule &rule, std::string &why) const;
  bool fill(Said &said, const Communicator &comm, int dtype, const Rule &rule, Parts &parts, std::vector<std::string> &made,
             std::string &why) const;

  std::vector<int> sizes_;
  std::vector<bool> whole_, lone_;
};

}  // namespace phe
