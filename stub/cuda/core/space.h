// Address space that CUDA knows.
#pragma once
#include "abi/cuda_abi.h"
#include "cuda/core/table.h"
#include "rank/rank.h"

#pragma GCC visibility push(default)

size_t phc_round_up(size_t value, size_t unit);
// Address space that is not charged to the GPU; NULL when there is none.
void *phc_map(size_t bytes, enum ph_space space, int device);
void *phc_map_device(size_t bytes, int device);
void phc_unmap(void *address, size_t bytes);
// Inside one allocation, or virtual-memory mappings side by side.
bool phc_covered(const void *pointer, size_t bytes);
// Is there memory of the process at both ends? Freed device memory keeps its addresses, but nothing is there.
bool phc_mapped(const void *pointer, size_t bytes);
extern phc_table *phc_mappings;  // phc_mapping by address: driver/virtual_memory.c keeps them
// Device memory that processes map who hold a handle of it.
typedef struct phc_shared {
  uint64_t number;  // the same in every process; 0: shared with nobody
  int32_t owner;    // rank
} phc_shared;
phc_shared phc_new_shared(void);  // this process's
extern phc_table *phc_handed;  // phc_shared by address: memory with a handle of cudaIpc, own and mapped
typedef struct phc_mapping {  // how each entry of phc_mappings begins
  const phc_shared *shared;
} phc_mapping;

#pragma GCC visibility pop
