// Sharing of one GPU by kernels, copies and memsets.
#pragma once
#include "gpu/work.h"

#include <vector>

namespace phe {

// The communication on the GPU.
struct Concurrent {
  bool nccl = false;     // a kernel of NCCL runs,
  bool earlier = false;  // and was there when no product filled the GPU
  int blocks = 0;        // of kernels on the memory of peers, each of which has an SM
  int sms = 0;           // of the GPU
};

// Sets the rates (ns of work per ns) of `running`, which it puts in the order in which they are served. Each kernel
// demands a part of the SMs: streams of higher priority and earlier admission go first, the rest waits. Copies to
// and from other memory go through copy engines, one per direction.
void share_device(std::vector<Item *> &running, const Concurrent &concurrent);

}  // namespace phe
