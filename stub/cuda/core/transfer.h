// How a call that copies or fills memory behaves.
#pragma once
#include <stdbool.h>

#pragma GCC visibility push(default)

enum { PHC_ASYNC = 1, PHC_PER_THREAD = 2 };
static inline int phc_async(bool per_thread) { return PHC_ASYNC | (per_thread ? PHC_PER_THREAD : 0); }
static inline int phc_sync(bool per_thread) { return per_thread ? PHC_PER_THREAD : 0; }

#pragma GCC visibility pop
