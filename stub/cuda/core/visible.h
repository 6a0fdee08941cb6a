// Which of its host's GPUs a process sees.
#pragma once
#include <stdbool.h>

#pragma GCC visibility push(default)

void phc_see(int devices);     // of the host's, those that CUDA_VISIBLE_DEVICES names
bool phc_use(void);            // the current GPU is about to be used: a process that is no rank yet becomes one
int phc_devices(void);         // that this process sees; once phc_ready() has been called
int phc_physical(int device);  // the host's number of one that is seen

#pragma GCC visibility pop
