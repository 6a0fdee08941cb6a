// Virtual memory management: a reservation is address space, a handle is charged memory, a mapping
// joins the two. None of it needs a context (as on an H100).
#define _GNU_SOURCE
#include "cuda/core/device.h"
#include "cuda/core/memory.h"
#include "cuda/core/table.h"
#include "cuda/driver/entry.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct vm_physical {
  phc_shared shared;
  bool imported;  // another process's, which is charged for it
  CUmemAllocationProp prop;
  size_t size;
  int references;  // cuMemCreate and cuMemRetainAllocationHandle
  int mappings;
} vm_physical;
typedef struct vm_mapped {
  phc_mapping is;
  vm_physical *physical;
  size_t size;
  bool accessible;
} vm_mapped;
static phc_table *reservations;  // base -> size; phc_mappings: base -> vm_mapped
static phc_table *physicals;
static pthread_mutex_t vmm_lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct vm_search {
  uintptr_t address;
  size_t size;
  bool found;
} vm_search;
static void search_reservation(uintptr_t base, void *size, void *data) {
  vm_search *search = data;
  if (search->address >= base && search->address + search->size <= base + (uintptr_t)size) search->found = true;
}
static bool reserved(uintptr_t address, size_t size) {
  vm_search search = {address, size, false};
  phc_table_each(&reservations, search_reservation, &search);
  return search.found;
}

// Alignments beyond a page are met by reserving more and giving back the ends.
static void *reserve(size_t size, size_t alignment) {
  size_t room = size + alignment;
  char *at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return NULL;
  char *start = (char *)phc_round_up((uintptr_t)at, alignment);
  if (start > at) munmap(at, (size_t)(start - at));
  if (at + room > start + size) munmap(start + size, (size_t)(at + room - start - size));
  return start;
}

static cudaError_t address_reserve(CUdeviceptr *address, size_t size, size_t alignment, uint64_t flags) {
  if (!address || !size || size % PH_GRANULE || flags || (alignment & (alignment - 1))) return cudaErrorInvalidValue;
  void *start = reserve(size, alignment > PH_GRANULE ? alignment : PH_GRANULE);
  if (!start) return cudaErrorMemoryAllocation;
  phc_table_set(&reservations, (uintptr_t)start, (void *)size);
  *address = (CUdeviceptr)start;
  return 0;
}

static cudaError_t address_free(CUdeviceptr address, size_t size) {
  if (!size || (size_t)phc_table_get(&reservations, address) != size) return cudaErrorInvalidValue;
  for (uintptr_t at = address; at < address + size; at += PH_GRANULE)
    if (phc_table_get(&phc_mappings, at)) return cudaErrorInvalidValue;  // still mapped
  phc_table_set(&reservations, address, NULL);
  munmap((void *)address, size);
  return 0;
}

static cudaError_t prop_check(const CUmemAllocationProp *prop) {
  if (!prop || prop->type != 1) return cudaErrorInvalidValue;
  if (prop->location.type != 1)
    return prop->location.type == 2 || prop->location.type == 3 ? cudaErrorNotSupported : cudaErrorInvalidValue;
  return phc_device_check(prop->location.id);
}

static cudaError_t memory_create(vm_physical **handle, size_t size, const CUmemAllocationProp *prop, uint64_t flags) {
  if (!handle || !size || size % PH_GRANULE || flags) return cudaErrorInvalidValue;
  cudaError_t error = prop_check(prop);
  if (error) return error;
  vm_physical *made = calloc(1, sizeof *made);
  if (!made || size > INT64_MAX || !ph_memory_charge(prop->location.id, (int64_t)size)) {
    free(made);
    return cudaErrorMemoryAllocation;
  }
  *made = (vm_physical){.prop = *prop, .size = size, .references = 1};
  phc_table_set(&physicals, (uintptr_t)made, made);
  phc_scrub_wait(prop->location.id);
  *handle = made;
  return 0;
}

// The memory goes back to the device when neither a handle nor a mapping holds it.
static void physical_settle(vm_physical *physical) {
  if (!physical->references) phc_table_set(&physicals, (uintptr_t)physical, NULL);
  if (physical->references || physical->mappings) return;
  if (!physical->imported) {
    ph_memory_charge(physical->prop.location.id, -(int64_t)physical->size);
    phc_scrub_later(physical->prop.location.id, physical->size);
  }
  free(physical);
}

static cudaError_t memory_release(vm_physical *physical) {
  pthread_mutex_lock(&vmm_lock);
  bool alive = phc_table_get(&physicals, (uintptr_t)physical) != NULL;
  if (alive) {
    physical->references--;
    physical_settle(physical);
  }
  pthread_mutex_unlock(&vmm_lock);
  return alive ? 0 : cudaErrorInvalidValue;
}

static cudaError_t memory_map(CUdeviceptr address, size_t size, size_t offset, vm_physical *physical, uint64_t flags) {
  ph_range range;
  if (!phc_table_get(&physicals, (uintptr_t)physical) || flags) return cudaErrorInvalidValue;
  if (size % PH_GRANULE) return cudaErrorNotSupported;
  if (!size || address % PH_GRANULE || offset || size != physical->size) return cudaErrorInvalidValue;
  if (!reserved(address, size) || ph_memory_find((void *)address, &range)) return cudaErrorInvalidValue;
  for (uintptr_t at = address; at < address + size; at += PH_GRANULE)
    if (phc_table_get(&phc_mappings, at)) return cudaErrorInvalidValue;
  vm_mapped *mapped = calloc(1, sizeof *mapped);
  if (!mapped) return cudaErrorMemoryAllocation;
  pthread_mutex_lock(&vmm_lock);
  *mapped = (vm_mapped){.is.shared = &physical->shared, .physical = physical, .size = size};
  physical->mappings++;
  phc_table_set(&phc_mappings, address, mapped);
  pthread_mutex_unlock(&vmm_lock);
  return 0;
}

// Memory is readable once access is set, on the device that owns it or on a peer.
static cudaError_t set_access(CUdeviceptr address, size_t size, const cudaMemAccessDesc *list, size_t count) {
  if (!list || !count || !size) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; i++) {
    if (list[i].location.type == 1 && phc_device_check(list[i].location.id)) return cudaErrorInvalidDevice;
    if (list[i].flags != 0 && list[i].flags != 1 && list[i].flags != 3) return cudaErrorInvalidValue;
  }
  for (uintptr_t at = address; at < address + size;) {
    vm_mapped *mapped = phc_table_get(&phc_mappings, at);
    if (!mapped) return cudaErrorInvalidValue;
    at += mapped->size;
  }
  for (uintptr_t at = address; at < address + size;) {
    vm_mapped *mapped = phc_table_get(&phc_mappings, at);
    if (!mapped->accessible) {
      if (mprotect((void *)at, mapped->size, PROT_READ | PROT_WRITE)) return cudaErrorMemoryAllocation;
      int device = mapped->physical->imported ? list->location.id : mapped->physical->prop.location.id;
      if (ph_register((void *)at, mapped->size, PH_SPACE_DEVICE, device)) return cudaErrorInvalidValue;
      mapped->accessible = true;
    }
    at += mapped->size;
  }
  ph_mapping_changed((void *)address, size, true);
  return 0;
}

static cudaError_t memory_unmap(CUdeviceptr address, size_t size) {
  if (!size || size % PH_GRANULE || !reserved(address, size)) return cudaErrorInvalidValue;
  pthread_mutex_lock(&vmm_lock);
  for (uintptr_t at = address; at < address + size;) {
    vm_mapped *mapped = phc_table_get(&phc_mappings, at);
    if (!mapped) {
      at += PH_GRANULE;
      continue;
    }
    if (mapped->accessible) {
      ph_unregister((void *)at);
      // Fresh pages: what is mapped here next must read as zero.
      mmap((void *)at, mapped->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
    phc_table_set(&phc_mappings, at, NULL);
    at += mapped->size;
    mapped->physical->mappings--;
    physical_settle(mapped->physical);
    free(mapped);
  }
  pthread_mutex_unlock(&vmm_lock);
  ph_mapping_changed((void *)address, size, false);
  return 0;
}

static cudaError_t memory_retain(vm_physical **handle, void *address) {
  ph_range range;
  vm_mapped *mapped = ph_memory_find(address, &range) ? phc_table_get(&phc_mappings, range.base) : NULL;
  if (!handle || !mapped) return cudaErrorInvalidValue;
  pthread_mutex_lock(&vmm_lock);
  if (!mapped->physical->references++) phc_table_set(&physicals, (uintptr_t)mapped->physical, mapped->physical);
  *handle = mapped->physical;
  pthread_mutex_unlock(&vmm_lock);
  return 0;
}
static cudaError_t memory_props(CUmemAllocationProp *prop, vm_physical *physical) {
  return phc_table_get(&physicals, (uintptr_t)physical) ? give(prop, &physical->prop, sizeof *prop)
                                                        : cudaErrorInvalidValue;
}
static cudaError_t granularity(size_t *size, const CUmemAllocationProp *prop, int option) {
  cudaError_t error = prop_check(prop);
  return error ? error : option < 0 || option > 1 ? cudaErrorInvalidValue : GIVE(size, size_t, PH_GRANULE);
}
static cudaError_t get_access(unsigned long long *flags, const cudaMemLocation *location, CUdeviceptr address) {
  if (!location || !phc_covered((void *)address, 1)) return cudaErrorInvalidValue;
  return GIVE(flags, unsigned long long, 3);
}

// ---------------------------------------------------------------- handles for other processes
// A handle is a file that names its memory. The bytes are not shared: a peer's memory reads as zero.
#define POSIX_FD 1
#define HANDLE_MAGIC 0x706876686e643031ULL
typedef struct vm_handle {
  uint64_t magic;
  phc_shared shared;
  CUmemAllocationProp prop;
  uint64_t size;
} vm_handle;

static cudaError_t handle_export(int *out, vm_physical *physical, int type, uint64_t flags) {
  if (!out || flags || !phc_table_get(&physicals, (uintptr_t)physical)) return cudaErrorInvalidValue;
  if (type != POSIX_FD) return driver_unsupported("cuMemExportToShareableHandle of a kind that is no file descriptor");
  if (!(physical->prop.requestedHandleTypes & POSIX_FD)) return cudaErrorInvalidValue;
  if (ph_probing()) _Exit(0);  // what comes now is communication
  pthread_mutex_lock(&vmm_lock);
  if (!physical->shared.number) physical->shared = phc_new_shared();
  pthread_mutex_unlock(&vmm_lock);
  vm_handle handle = {HANDLE_MAGIC, physical->shared, physical->prop, physical->size};
  int fd = memfd_create("phantora-memory", MFD_CLOEXEC);
  if (fd < 0) return cudaErrorOperatingSystem;
  if (pwrite(fd, &handle, sizeof handle, 0) != (ssize_t)sizeof handle) {
    close(fd);
    return cudaErrorOperatingSystem;
  }
  *out = fd;
  return 0;
}

static cudaError_t handle_import(vm_physical **out, void *os_handle, int type) {
  vm_handle handle;
  if (!out) return cudaErrorInvalidValue;
  if (type != POSIX_FD)
    return driver_unsupported("cuMemImportFromShareableHandle of a kind that is no file descriptor");
  if (pread((int)(intptr_t)os_handle, &handle, sizeof handle, 0) != (ssize_t)sizeof handle ||
      handle.magic != HANDLE_MAGIC)
    return cudaErrorInvalidValue;
  cudaError_t error = phc_importable(&handle.shared);
  if (error) return error;
  vm_physical *made = calloc(1, sizeof *made);
  if (!made) return cudaErrorMemoryAllocation;
  *made = (vm_physical){
      .shared = handle.shared, .imported = true, .prop = handle.prop, .size = handle.size, .references = 1};
  phc_table_set(&physicals, (uintptr_t)made, made);
  *out = made;
  return 0;
}

ENTRY(cuMemExportToShareableHandle, MEM_CREATE, driver_ready,
      (int *out, vm_physical *handle, int type, unsigned long long flags), handle_export(out, handle, type, flags))
ENTRY(cuMemImportFromShareableHandle, MEM_CREATE, driver_ready, (vm_physical * *handle, void *os_handle, int type),
      handle_import(handle, os_handle, type))
ENTRY(cuMemAddressReserve, MEM_MAP, driver_ready,
      (CUdeviceptr * address, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags),
      ((void)hint, address_reserve(address, size, alignment, flags)))
ENTRY(cuMemAddressFree, MEM_MAP, driver_ready, (CUdeviceptr address, size_t size), address_free(address, size))
ENTRY(cuMemCreate, MEM_CREATE, driver_ready,
      (vm_physical * *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags),
      memory_create(handle, size, prop, flags))
ENTRY(cuMemRelease, MEM_CREATE, driver_ready, (vm_physical * handle), memory_release(handle))
ENTRY(cuMemMap, MEM_MAP, driver_ready,
      (CUdeviceptr address, size_t size, size_t offset, vm_physical *handle, unsigned long long flags),
      memory_map(address, size, offset, handle, flags))
ENTRY(cuMemUnmap, MEM_UNMAP, driver_ready, (CUdeviceptr address, size_t size), memory_unmap(address, size))
ENTRY(cuMemSetAccess, MEM_ACCESS, driver_ready,
      (CUdeviceptr address, size_t size, const cudaMemAccessDesc *list, size_t count),
      set_access(address, size, list, count))
ENTRY(cuMemGetAccess, GET_DEVICE, driver_ready,
      (unsigned long long *flags, const cudaMemLocation *location, CUdeviceptr address),
      get_access(flags, location, address))
ENTRY(cuMemGetAllocationGranularity, GET_DEVICE, driver_ready,
      (size_t *size, const CUmemAllocationProp *prop, int option), granularity(size, prop, option))
ENTRY(cuMemGetAllocationPropertiesFromHandle, GET_DEVICE, driver_ready,
      (CUmemAllocationProp * prop, vm_physical *handle), memory_props(prop, handle))
ENTRY(cuMemRetainAllocationHandle, GET_DEVICE, driver_ready, (vm_physical * *handle, void *address),
      memory_retain(handle, address))
