// What one process has on a GPU: its CUDA context.
#pragma once
#include "gpu/interference.h"
#include "ranks/rank.h"

namespace phe {

struct Context {
  Context(Rank &rank_, int number_, Device &device_) : rank(rank_), number(number_), device(device_) {}

  Rank &rank;
  int number;     // of the GPU in its rank
  int place = 0;  // among the contexts of the GPU
  Device &device;
  Stream *default_stream = nullptr;
  Interference interference;
  int communications = 0;    // communication kernels of it on the GPU
  bool failed = false;       // it has ended with an error: nothing of it happens any more
  // CUDA_DEVICE_MAX_CONNECTIONS; only 1 is simulated: all streams share a queue, and no kernel, copy or memset begins
  // before those issued earlier have begun. Waits and records of events take no place in it (measured on H200, see
  // docs/virtual-time.md).
  bool one_queue = false;
  uint64_t next_issued = 0;  // that may begin, where there is one queue
};

}  // namespace phe
