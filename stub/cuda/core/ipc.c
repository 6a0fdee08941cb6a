// Memory and events shared with other processes.
#define _GNU_SOURCE
#include "cuda/core/memory.h"
#include "cuda/core/stream.h"
#include "cuda/core/table.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#define IPC_MAGIC 0x7068697063303031ULL
#define MOST_BYTES \
  ((size_t)32 << 20)  // of memory whose bytes are copied: torch puts small tensors into blocks below this
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

// ---------------------------------------------------------------- bytes
// A process that opens a handle gets a copy of the bytes that are true by then.

// Values of the owner that are computed when they are read, are. Other processes may read.
static void lay_open(const ph_range *range) {
  ph_awaited_piece piece;
  for (size_t done = 0; range->size <= MOST_BYTES && done < range->size; done += piece.at + piece.bytes) {
    const char *rest = (const char *)range->base + done;
    if (!ph_awaited(rest, range->size - done, &piece)) break;
    if (piece.ticket & PH_DEFERRED) ph_touch(rest + piece.at, piece.bytes);
  }
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // fails where the kernel asks for no permission
}

// If the owner has ended or is another user's, all bytes read as zero.
static void copy_bytes(const ipc_name *from, char *to) {
  if (from->size > MOST_BYTES) return;
  ph_memory_clear(to, from->size);
  char page[PH_HOST_PAGE];
  for (size_t done = 0; done < from->size; done += sizeof page) {
    size_t length = from->size - done < sizeof page ? from->size - done : sizeof page;
    struct iovec here = {page, length}, there = {(void *)(from->address + done), length};
    if (process_vm_readv((pid_t)from->pid, &here, 1, &there, 1, 0) != (ssize_t)length) return;
    if (!page[0] && !memcmp(page, page + 1, length - 1)) continue;
    memcpy(to + done, page, length);
    ph_memory_wrote(to + done, length);
  }
}

// ---------------------------------------------------------------- memory
cudaError_t phc_ipc_handle(cudaIpcHandle *handle, void *pointer) {
  ph_range range;
  if (!handle || !ph_memory_find(pointer, &range) || range.space != PH_SPACE_DEVICE) return cudaErrorInvalidValue;
  pthread_mutex_lock(&ipc_lock);
  phc_shared *shared = phc_table_get(&phc_handed, range.base);
  if (!shared && (shared = malloc(sizeof *shared))) {
    *shared = phc_new_shared();
    phc_table_set(&phc_handed, range.base, shared);
  }
  pthread_mutex_unlock(&ipc_lock);
  if (!shared) return cudaErrorMemoryAllocation;
  ipc_name ipc = {.magic = IPC_MAGIC,
                  .pid = getpid(),
                  .address = range.base,
                  .size = range.size,
                  .device = range.device,
                  .shared = *shared};
  memcpy(handle, &ipc, sizeof ipc);
  lay_open(&range);
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
    void *address = phc_map_device(ipc.size, ph_current_device());
    mapping = address ? calloc(1, sizeof *mapping) : NULL;
    if (mapping) {
      *mapping = (ipc_mapping){.from = ipc, .address = address};
      phc_table_set(&ipc_mappings, (uintptr_t)address, mapping);
      phc_table_set(&phc_handed, (uintptr_t)address, &mapping->from.shared);
    }
  }
  if (mapping) {
    copy_bytes(&mapping->from, mapping->address);
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

// ---------------------------------------------------------------- events
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
  // Orders two processes' streams, which the simulator does not follow.
  ph_unsupported_passed("libcudart", "cudaIpcOpenEventHandle", "the event counts as complete");
  return phc_event_create(event, cudaEventDisableTiming | cudaEventInterprocess);
}
