// Names of calls and copies as a profiler shows them.
#pragma once
#include "texts.h"

namespace phe {

class CallNames {
 public:
  explicit CallNames(Texts &texts);
  // Name of the call that a kind of record stands for; -1: it has none.
  int32_t call(int kind) const { return calls_[kind]; }
  int32_t exchange(const ph_record &r) const { return r.id ? connection_ : calls_[PH_EXCHANGE]; }
  int32_t copy(uint32_t kind);
  int32_t fill() { return texts_.name("Memset (Device)"); }

 private:
  Texts &texts_;
  int32_t connection_;
  int32_t calls_[PH_COUNT_PH_KIND];
};

}  // namespace phe
