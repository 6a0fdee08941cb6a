// Texts of all ranks, each kept once under a number.
#pragma once
#include "basics.h"

#include <unordered_map>
#include <vector>

namespace phe {

class Texts {
 public:
  int32_t intern(phe_table table, const std::string &text) {
    auto [it, fresh] = index_[table].try_emplace(text, static_cast<int32_t>(texts_[table].size()));
    if (fresh) texts_[table].push_back(text);
    return it->second;
  }
  int32_t name(const std::string &text) { return intern(PHE_NAMES, text); }
  const std::string &text(phe_table table, int32_t id) const { return texts_[table][static_cast<size_t>(id)]; }
  int64_t count(phe_table table) const { return static_cast<int64_t>(texts_[table].size()); }

 private:
  std::vector<std::string> texts_[PHE_COUNT_PHE_TABLE];
  std::unordered_map<std::string, int32_t> index_[PHE_COUNT_PHE_TABLE];
};

}  // namespace phe
