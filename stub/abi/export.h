// Marks what a stub library exports; everything else is compiled with hidden visibility.
#pragma once
#define PH_EXPORT __attribute__((visibility("default")))
