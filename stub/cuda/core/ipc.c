// Memory and events shared with other processes.
#include "cuda/core/memory.h"
#include "cuda/core/stream.h"
#include "cuda/core/table.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IPC_MAGIC 0x7068697063303031ULL
typedef struct ipc_name {
  uint64_t magic;
  int64_t pid;
  uint64_t address, size;
  int32_t device;
  uint32_t event;
  phc_shared shared;
  char pad[8];
} ipc_name;
_Static_assert(sizeof(ipc_name) == 64, "an IPC handle has 64 bytes");
static phc_table *ipc_mappings;  // own address -> ipc_mapping
typedef struct ipc_mapping {
  ipc_name from;
  void *address;
  int opens;
} ipc_mapping;
static pthread_mutex_t ipc_lock = PTHREAD_MUTEX_INITIALIZER;

cudaError_t phc_ipc_handle(cudaIpcHandle *handle, void *pointer) {
  ph_range range;
  if (!handle || !ph_memory_find(pointer, &range) || range.space != PH_SPACE_DEVICE)
    return cudaErrorInvalidValue;
  pthread_mutex_lock(&ipc_lock);
  phc_shared *shared = phc_table_get(&phc_handed, range.base);
  if (!shared && (shared = malloc(sizeof *shared))) {
    *shared = phc_new_shared();
    phc_table_set(&phc_handed, range.base, shared);
  }
  pthread_mutex_unlock(&ipc_lock);
  if (!shared) return cudaErrorMemoryAllocation;
  ipc_name ipc = {.magic = IPC_MAGIC, .pid = getpid(), .address = range.base, .size = range.size, .device = range.device,
                  .shared = *shared};
  memcpy(handle, &ipc, sizeof ipc);
  return 0;
}

void phc_ipc_freed(const void *pointer) {
  pthread_mutex_lock(&ipc_lock);
  bool mapped = phc_table_get(&ipc_mappings, (uintptr_t)pointer) != NULL;  // a peer's, which its mapping keeps
  phc_shared *shared = mapped ? NULL : phc_table_get(&phc_handed, (uintptr_t)pointer);
  if (shared) phc_table_set(&phc_handed, (uintptr_t)pointer, NULL);
  pthread_mutex_unlock(&ipc_lock);
  free(shared);
}

typedef struct ipc_search {
  const ipc_name *wanted;
  ipc_mapping *found;
} ipc_search;

static void ipc_match(uintptr_t key, void *value, void *data) {
  (void)key;
  ipc_search *search = data;
  ipc_mapping *mapping = value;
  if (!memcmp(&mapping->from, search->wanted, sizeof mapping->from)) search->found = mapping;
}

cudaError_t phc_ipc_open(void **pointer, const cudaIpcHandle *handle) {
  ipc_name ipc;
  if (!pointer) return cudaErrorInvalidValue;
  memcpy(&ipc, handle, sizeof ipc);
  if (ipc.magic != IPC_MAGIC || ipc.event || !ipc.size) return cudaErrorInvalidValue;
  if (ph_probing()) _Exit(0);                                    // what comes now is communication
  if (ipc.pid == getpid()) return cudaErrorDeviceUninitialized;  // a process cannot open its own
  cudaError_t error = phc_importable(&ipc.shared);
  if (error) return error;
  pthread_mutex_lock(&ipc_lock);
  ipc_search search = {&ipc, NULL};
  phc_table_each(&ipc_mappings, ipc_match, &search);
  ipc_mapping *mapping = search.found;
  if (!mapping) {
    // The peer's bytes are not shared: its memory reads as zero here, like any large kernel's result.
    void *address = phc_map_device(ipc.size, ph_current_device());
    mapping = address ? calloc(1, sizeof *mapping) : NULL;
    if (mapping) {
      *mapping = (ipc_mapping){.from = ipc, .address = address};
      phc_table_set(&ipc_mappings, (uintptr_t)address, mapping);
      phc_table_set(&phc_handed, (uintptr_t)address, &mapping->from.shared);
    }
  }
  if (mapping) {
    mapping->opens++;
    *pointer = mapping->address;
  }
  pthread_mutex_unlock(&ipc_lock);
  return mapping ? 0 : cudaErrorMemoryAllocation;
}

cudaError_t phc_ipc_close(void *pointer) {
  pthread_mutex_lock(&ipc_lock);
  ipc_mapping *mapping = phc_table_get(&ipc_mappings, (uintptr_t)pointer);
  if (mapping && --mapping->opens == 0) {
    phc_table_set(&ipc_mappings, (uintptr_t)pointer, NULL);
    phc_table_set(&phc_handed, (uintptr_t)pointer, NULL);
    phc_unmap(pointer, mapping->from.size);
    free(mapping);
  }
  pthread_mutex_unlock(&ipc_lock);
  return mapping ? 0 : cudaErrorInvalidValue;
}

cudaError_t phc_ipc_event_handle(cudaIpcHandle *handle, void *event) {
  if (!handle) return cudaErrorInvalidValue;
  if (!ph_event_alive(event) || !(((ph_event *)event)->flags & cudaEventInterprocess))
    return cudaErrorInvalidResourceHandle;
  ipc_name ipc = {.magic = IPC_MAGIC, .pid = getpid(), .event = ((ph_event *)event)->id};
  memcpy(handle, &ipc, sizeof ipc);
  return 0;
}

cudaError_t phc_ipc_event_open(void **event, const cudaIpcHandle *handle) {
  ipc_name ipc;
  memcpy(&ipc, handle, sizeof ipc);
  if (!event || ipc.magic != IPC_MAGIC || !ipc.event) return cudaErrorInvalidValue;
  if (ipc.pid == getpid()) return cudaErrorDeviceUninitialized;
  // Orders two processes' streams, which the simulator does not follow: the event is always complete.
  ph_unsupported("libcudart", "cudaIpcOpenEventHandle", true);
  return phc_event_create(event, cudaEventDisableTiming | cudaEventInterprocess);
}
