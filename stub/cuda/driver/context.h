// Contexts: each device has its primary one.
#pragma once
#include <stdbool.h>

typedef struct driver_context {
  int device;
  bool primary;
} driver_context;
driver_context *driver_primary(int device);
