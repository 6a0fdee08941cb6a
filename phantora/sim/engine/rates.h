// How kernels, copies and memsets that run on one GPU share it.
#pragma once
#include "work.h"

#include <vector>

namespace phe {

enum class Beside : uint8_t { NOTHING, COMMUNICATION, EARLIER_COMMUNICATION };

// Sets the rates (ns of work per ns) of `running`, which it puts in the order in which they are served. Each kernel
// demands a part of the SMs: streams of higher priority and earlier admission go first, the rest waits. Copies to
// and from other memory go through copy engines, one per direction.
void share_device(std::vector<Item *> &running, Beside beside);

}  // namespace phe
