// The caching allocator's blocks and segments, as rows of the log.
#pragma once
#include "tracer/frames.h"

namespace tracer {

bool active();  // is this a rank that records?
void attach_allocator();              // at most once, after torch has initialised its allocator
void flush_pending(Thread &thread);   // records the thread's last allocation

}  // namespace tracer
