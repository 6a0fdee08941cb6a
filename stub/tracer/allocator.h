// The caching allocator's blocks and segments, as rows of the log.
#pragma once
#include <string>

#include "tracer/frames.h"

namespace tracer {

bool active();  // is this a rank that records?
void attach_allocator();              // at most once, after torch has initialised its allocator
bool flush_pending(Thread &thread);   // records the thread's last allocation; is its place recorded?

int64_t allocated_bytes();            // of the current device
void emit_use(uint64_t address, const std::string &use);  // what the program has the block at `address` for

}  // namespace tracer
