// The part of CUPTI's activity records that profilers read. Later versions of a record only append fields.
#pragma once
#include <stdint.h>

enum {
  CUPTI_KIND_MEMCPY = 1,
  CUPTI_KIND_MEMSET = 2,
  CUPTI_KIND_DRIVER = 4,
  CUPTI_KIND_RUNTIME = 5,
  CUPTI_KIND_CONCURRENT_KERNEL = 10,
  CUPTI_KIND_EXTERNAL_CORRELATION = 39,
  CUPTI_KINDS = 64,
};
#define CUPTI_PACKED __attribute__((packed, aligned(8)))

typedef struct CUPTI_PACKED cupti_kernel {  // CUpti_ActivityKernel4
  uint32_t kind;
  uint8_t cache_config, shared_memory_config;
  uint16_t registers;
  uint32_t partitioned_requested, partitioned_executed;
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3], static_shared, dynamic_shared;
  uint32_t local_per_thread, local_total, correlation;
  int64_t grid_id;
  const char *name;
  void *reserved;
  uint64_t queued, submitted;
  uint8_t launch_type, carveout_requested, carveout, padding;
  uint32_t shared_executed;
} cupti_kernel;

typedef struct CUPTI_PACKED cupti_memcpy {  // CUpti_ActivityMemcpy
  uint32_t kind;
  uint8_t copy, source, destination, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation, runtime_correlation, pad;
  void *reserved;
} cupti_memcpy;

typedef struct CUPTI_PACKED cupti_memset {  // CUpti_ActivityMemset
  uint32_t kind, value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
  uint16_t flags, memory;
  uint32_t pad;
  void *reserved;
} cupti_memset;

typedef struct CUPTI_PACKED cupti_api {  // CUpti_ActivityAPI
  uint32_t kind, call;
  uint64_t start, end;
  uint32_t process, thread, correlation, result;
} cupti_api;

typedef struct CUPTI_PACKED cupti_external {  // CUpti_ActivityExternalCorrelation
  uint32_t kind, external_kind;
  uint64_t external;
  uint32_t correlation, reserved;
} cupti_external;

// Size of one record in our buffers: room for the fields that a later version appended, which are zero.
typedef union cupti_record {
  uint32_t kind;
  cupti_kernel kernel;
  cupti_memcpy copy;
  cupti_memset set;
  cupti_api api;
  cupti_external external;
  uint8_t room[256];
} cupti_record;
