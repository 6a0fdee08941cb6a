// Memory: allocation, pools, address space, memory that processes share.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "abi/cuda_abi.h"
#include "cuda/core/table.h"
#include "rank/rank.h"

#pragma GCC visibility push(default)

// ---- memory.c: allocation of device, page-locked and managed memory.
cudaError_t phc_malloc(void **pointer, size_t bytes);
cudaError_t phc_free(void *pointer);
cudaError_t phc_pinned_alloc(void **pointer, size_t bytes, unsigned flags);
cudaError_t phc_pinned_free(void *pointer);
cudaError_t phc_managed_alloc(void **pointer, size_t bytes, unsigned flags);
cudaError_t phc_pitch_alloc(void **pointer, size_t *pitch, size_t width, size_t height);
cudaError_t phc_host_register(void *pointer, size_t bytes, unsigned flags);
cudaError_t phc_host_unregister(void *pointer);
cudaError_t phc_host_device_pointer(void **device, void *host, unsigned flags);

// ---- pool.c: pools of the stream-ordered allocator.
typedef struct phc_pool {
  int device;
  bool is_default;
  int reuse[3];  // cudaMemPoolReuse*: kept and reported
  uint64_t threshold, used, used_high, reserved, reserved_high;
} phc_pool;
// Each checks the device: cudaErrorInvalidDevice for a bad ordinal.
cudaError_t phc_default_pool(phc_pool **pool, int device);
cudaError_t phc_current_pool(phc_pool **pool, int device);
cudaError_t phc_set_current_pool(int device, phc_pool *pool);
bool phc_pool_alive(const phc_pool *pool);
cudaError_t phc_pool_create(phc_pool **pool, const cudaMemPoolProps *props);
cudaError_t phc_pool_destroy(phc_pool *pool);
cudaError_t phc_pool_alloc(void **pointer, size_t bytes, phc_pool *pool, void *stream, bool per_thread);
cudaError_t phc_alloc_async(void **pointer, size_t bytes, void *stream, bool per_thread);  // current pool
cudaError_t phc_pool_free(void *pointer, void *stream, bool per_thread);
bool phc_pool_release(void *pointer);  // false: no block of a pool
cudaError_t phc_pool_attribute(phc_pool *pool, int attribute, void *value, bool set);
cudaError_t phc_pool_trim(phc_pool *pool, size_t keep);
// Checks a wish for access, which every device has anyway.
cudaError_t phc_pool_access(const phc_pool *pool, const cudaMemAccessDesc *list, size_t count);

// ---- space.c: address space of CUDA.
size_t phc_round_up(size_t value, size_t unit);
// Address space that is not charged to the GPU; NULL when there is none.
void *phc_map(size_t bytes, enum ph_space space, int device);
void *phc_map_device(size_t bytes, int device);
void phc_unmap(void *address, size_t bytes);
// Inside one allocation, or virtual-memory mappings side by side.
bool phc_covered(const void *pointer, size_t bytes);
// True if there is memory of the process at both ends. Freed device memory keeps its addresses, but nothing is there.
bool phc_mapped(const void *pointer, size_t bytes);
extern phc_table *phc_mappings;  // phc_mapping by address: driver/virtual_memory.c keeps them
// Device memory that processes with a handle of it map.
typedef struct phc_shared {
  uint64_t number;  // the same in every process; 0: not shared
  int32_t owner;    // rank
} phc_shared;
phc_shared phc_new_shared(void);  // this process's
extern phc_table *phc_handed;  // phc_shared by address: memory with a handle of cudaIpc, own and mapped
typedef struct phc_mapping {  // how each entry of phc_mappings begins
  const phc_shared *shared;
} phc_mapping;

// ---- scrub.c: clearing of device memory that was given back.
void phc_scrub_later(int device, size_t bytes);  // which were freed now
void phc_scrub_wait(int device);                 // behind an allocation, until what it took has been cleared

// ---- ipc.c: memory and events shared with other processes.
cudaError_t phc_ipc_handle(cudaIpcHandle *handle, void *pointer);
cudaError_t phc_ipc_open(void **pointer, const cudaIpcHandle *handle);
cudaError_t phc_ipc_close(void *pointer);
void phc_ipc_freed(const void *pointer);  // its handles mean nothing any longer
cudaError_t phc_ipc_event_handle(cudaIpcHandle *handle, void *event);
cudaError_t phc_ipc_event_open(void **event, const cudaIpcHandle *handle);

// ---- peers.c: memory that processes share by handles: who is whose peer, and copies between peers.
#define PHC_MOST_PEERS 72  // the largest NVLink domain

typedef struct phc_peers {  // a block of memory of each of several GPUs, which their processes have all mapped
  struct phc_peers *next;
  int members, rank;
  phc_shared parts[PHC_MOST_PEERS];
  uint32_t comm;
} phc_peers;

// May this process take such a handle of the driver? Else the run ends with the reason.
cudaError_t phc_importable(const phc_shared *shared);
// Bytes came to the device: if they are addresses of the same memory on each of several GPUs, these are peers now, who
// meet here.
cudaError_t phc_learn_peers(const void *table, size_t bytes);
// The peers of a table of addresses, who meet if they have not yet, NULL if it is none.
phc_peers *phc_peers_of(void *const *table, int members, cudaError_t *error);
// Those to whom the memory at this address belongs, and whose of them it is; NULL: it is nobody's who is known.
phc_peers *phc_peers_at(const void *pointer, int *member);
// Puts the copy on the stream if one side is a peer's memory.
bool phc_peer_copy(const void *dst, const void *src, size_t bytes, const ph_stream *stream);

#pragma GCC visibility pop
