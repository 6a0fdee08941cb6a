// Clearing of device memory that was given back.
#pragma once
#include <stddef.h>

#pragma GCC visibility push(default)

void phc_scrub_later(int device, size_t bytes);  // which were freed now
void phc_scrub_wait(int device);                 // behind an allocation, until what it took has been cleared

#pragma GCC visibility pop
