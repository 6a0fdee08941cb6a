// Accesses to memory that nothing orders (phantora trace --check races, docs/howto/find-races.md).
#pragma once
#include "tracer/frames.h"

namespace tracer {

extern bool checks_races;  // set once, before the script runs

// An operator has ended: `outputs` are its results, `launched` whether it or one below it launched something.
void note_accesses(const Frame &f, Values outputs, bool launched);
// The framework's allocator hands out a block again, or returns memory to the device.
void races_allocated(uint64_t address, size_t bytes);
void races_unmapped(uint64_t address, size_t bytes);

}  // namespace tracer
