// Pools of the stream-ordered allocator.
//
// A pool takes memory from the device in steps of 32 MiB (as an H200's does) and returns what its
// release threshold lets go. The pool's reserve is what is charged; its blocks are address space.
#include "cuda/core/device.h"
#include "cuda/core/graph.h"
#include "cuda/core/memory.h"
#include "cuda/core/table.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct pool_block {
  phc_pool *pool;
  size_t size;
} pool_block;
static phc_table *pool_blocks;     // address -> pool_block
#define POOL_STEP ((uint64_t)32 << 20)
static phc_pool default_pools[PH_MAX_DEVICES];
static phc_pool *current_pools[PH_MAX_DEVICES];
static phc_table *pools;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

static phc_pool *default_of(int device) {
  phc_pool *pool = &default_pools[device];
  if (!pool->is_default) {
    *pool = (phc_pool){.device = device, .is_default = true, .reuse = {1, 1, 1}};
    phc_table_set(&pools, (uintptr_t)pool, pool);
  }
  return pool;
}

cudaError_t phc_default_pool(phc_pool **pool, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  return pool ? (*pool = default_of(device), 0) : cudaErrorInvalidValue;
}

cudaError_t phc_current_pool(phc_pool **pool, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!pool) return cudaErrorInvalidValue;
  *pool = current_pools[device] ? current_pools[device] : default_of(device);
  return 0;
}

cudaError_t phc_set_current_pool(int device, phc_pool *pool) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!phc_pool_alive(pool)) return cudaErrorInvalidValue;
  current_pools[device] = pool;
  return 0;
}

bool phc_pool_alive(const phc_pool *pool) { return phc_table_get(&pools, (uintptr_t)pool) != NULL; }

cudaError_t phc_pool_create(phc_pool **pool, const cudaMemPoolProps *props) {
  if (!pool || !props || props->allocType != 1 || props->location.type != 1) return cudaErrorInvalidValue;
  cudaError_t error = phc_device_check(props->location.id);
  if (error) return error;
  if (props->handleTypes) {
    ph_unsupported("libcudart", "cudaMemPoolCreate with shareable handles", true);
    return cudaErrorNotSupported;
  }
  if (!(*pool = calloc(1, sizeof **pool))) return cudaErrorMemoryAllocation;
  **pool = (phc_pool){.device = props->location.id, .reuse = {1, 1, 1}};
  phc_table_set(&pools, (uintptr_t)*pool, *pool);
  return 0;
}

// Brings the reserve to `target` bytes, at least what is used.
static bool pool_resize(phc_pool *pool, uint64_t target) {
  if (target != pool->reserved && !ph_memory_charge(pool->device, (int64_t)target - (int64_t)pool->reserved))
    return false;
  pool->reserved = target;
  if (target > pool->reserved_high) pool->reserved_high = target;
  return true;
}

static uint64_t pool_floor(const phc_pool *pool, uint64_t keep) {
  uint64_t used = phc_round_up(pool->used, POOL_STEP);
  uint64_t kept = keep > pool->reserved ? pool->reserved : keep;
  return used > kept ? used : kept / POOL_STEP * POOL_STEP;
}

bool phc_pool_release(void *pointer) {
  pool_block *block = phc_table_get(&pool_blocks, (uintptr_t)pointer);
  if (!block) return false;
  phc_pool *pool = block->pool;
  phc_table_set(&pool_blocks, (uintptr_t)pointer, NULL);
  phc_unmap(pointer, block->size);
  pthread_mutex_lock(&pool_lock);
  pool->used -= block->size;
  pool_resize(pool, pool_floor(pool, pool->threshold));
  pthread_mutex_unlock(&pool_lock);
  free(block);
  return true;
}

cudaError_t phc_pool_destroy(phc_pool *pool) {
  if (!phc_pool_alive(pool) || pool->is_default) return cudaErrorInvalidValue;
  pthread_mutex_lock(&pool_lock);
  pool->threshold = 0;
  pool_resize(pool, pool_floor(pool, 0));
  pthread_mutex_unlock(&pool_lock);
  for (int i = 0; i < PH_MAX_DEVICES; i++)
    if (current_pools[i] == pool) current_pools[i] = NULL;
  phc_table_set(&pools, (uintptr_t)pool, NULL);  // blocks still out keep the object alive
  return 0;
}

cudaError_t phc_pool_alloc(void **pointer, size_t bytes, phc_pool *pool, void *stream_handle, bool per_thread) {
  ph_stream *stream = NULL;
  if (!pointer || !phc_pool_alive(pool)) return cudaErrorInvalidValue;
  cudaError_t error = phc_stream_use(stream_handle, per_thread, &stream);
  if (error) return error;
  if (phc_captured(stream)) {
    ph_unsupported("libcudart", "cudaMallocAsync on a stream that is captured", true);
    return cudaErrorStreamCaptureUnsupported;
  }
  *pointer = NULL;
  if (!bytes) return 0;
  if (bytes > (size_t)ph_gpu()->memory_bytes) return cudaErrorMemoryAllocation;
  pool_block *block = calloc(1, sizeof *block);
  void *address = block ? phc_map_device(phc_round_up(bytes, 512), pool->device) : NULL;
  if (!address) {
    free(block);
    return cudaErrorMemoryAllocation;
  }
  *block = (pool_block){pool, phc_round_up(bytes, 512)};
  pthread_mutex_lock(&pool_lock);
  uint64_t needed = pool->used + block->size;
  bool fits =
      needed <= pool->reserved || pool_resize(pool, phc_round_up(needed, POOL_STEP)) || pool_resize(pool, needed);
  if (fits) pool->used = needed;
  if (pool->used > pool->used_high) pool->used_high = pool->used;
  pthread_mutex_unlock(&pool_lock);
  if (!fits) {
    phc_unmap(address, block->size);
    free(block);
    return cudaErrorMemoryAllocation;
  }
  phc_table_set(&pool_blocks, (uintptr_t)address, block);
  *pointer = address;
  return 0;
}

cudaError_t phc_alloc_async(void **pointer, size_t bytes, void *stream, bool per_thread) {
  phc_pool *pool = NULL;
  cudaError_t error = phc_current_pool(&pool, ph_current_device());
  return error ? error : phc_pool_alloc(pointer, bytes, pool, stream, per_thread);
}

// The memory is free for reuse at once: streams order its users, and nothing reads it in between.
cudaError_t phc_pool_free(void *pointer, void *stream_handle, bool per_thread) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_use(stream_handle, per_thread, &stream);
  if (error || !pointer) return error;
  if (phc_captured(stream)) {
    ph_unsupported("libcudart", "cudaFreeAsync on a stream that is captured", true);
    return cudaErrorStreamCaptureUnsupported;
  }
  if (phc_pool_release(pointer)) return 0;
  ph_range range;  // memory of cudaMalloc may be freed in stream order too
  if (!ph_memory_find(pointer, &range) || range.base != (uintptr_t)pointer || range.space != PH_SPACE_DEVICE)
    return cudaErrorInvalidValue;
  return ph_memory_free(pointer) ? cudaErrorInvalidValue : 0;
}

cudaError_t phc_pool_attribute(phc_pool *pool, int attribute, void *value, bool set) {
  if (!phc_pool_alive(pool) || !value) return cudaErrorInvalidValue;
  if (attribute >= 1 && attribute <= 3) {
    int *field = &pool->reuse[attribute - 1];
    if (set)
      *field = *(int *)value;
    else
      *(int *)value = *field;
    return 0;
  }
  uint64_t *fields[] = {&pool->threshold, &pool->reserved, &pool->reserved_high, &pool->used, &pool->used_high};
  if (attribute < 4 || attribute > 8) return cudaErrorInvalidValue;
  uint64_t *field = fields[attribute - 4];
  if (!set) {
    *(uint64_t *)value = *field;
    return 0;
  }
  if (attribute == 5 || attribute == 7) return cudaErrorInvalidValue;      // current values can only be read
  if (attribute != 4 && *(uint64_t *)value) return cudaErrorInvalidValue;  // high marks can only be reset
  pthread_mutex_lock(&pool_lock);
  *field = attribute == 4 ? *(uint64_t *)value : attribute == 6 ? pool->reserved : pool->used;
  pthread_mutex_unlock(&pool_lock);
  return 0;
}

cudaError_t phc_pool_trim(phc_pool *pool, size_t keep) {
  if (!phc_pool_alive(pool)) return cudaErrorInvalidValue;
  pthread_mutex_lock(&pool_lock);
  pool_resize(pool, pool_floor(pool, keep));
  pthread_mutex_unlock(&pool_lock);
  return 0;
}

cudaError_t phc_pool_access(const phc_pool *pool, const cudaMemAccessDesc *list, size_t count) {
  if (!phc_pool_alive(pool) || (count && !list)) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; i++) {
    if (list[i].location.type != 1 || phc_device_check(list[i].location.id)) return cudaErrorInvalidDevice;
    if (list[i].flags != 0 && list[i].flags != 3) return cudaErrorInvalidValue;
  }
  return 0;
}
