// Which of its host's GPUs a process sees.
#pragma once

#pragma GCC visibility push(default)

void phc_see(int devices);     // of the host's, those that CUDA_VISIBLE_DEVICES names
int phc_devices(void);         // that this process sees; once phc_ready() has been called
int phc_physical(int device);  // the host's number of one that is seen

#pragma GCC visibility pop
