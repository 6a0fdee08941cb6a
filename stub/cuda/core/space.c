// Address space of CUDA.
#define _GNU_SOURCE
#include "cuda/core/memory.h"
#include "cuda/core/table.h"

#include <stdatomic.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

size_t phc_round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

static void *map_host(size_t bytes) {
  void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? NULL : base;
}

void *phc_map(size_t bytes, enum ph_space space, int device) {
  size_t pages = phc_round_up(bytes ? bytes : 1, PH_HOST_PAGE);
  void *address = space == PH_SPACE_DEVICE ? ph_map_device(pages) : map_host(pages);
  if (!address) return NULL;
  if (!ph_register(address, bytes ? bytes : 1, space, device)) return address;
  ph_unmap_device(address, pages);
  return NULL;
}
void *phc_map_device(size_t bytes, int device) { return phc_map(bytes, PH_SPACE_DEVICE, device); }
void phc_unmap(void *address, size_t bytes) {
  ph_unregister(address);
  ph_unmap_device(address, phc_round_up(bytes ? bytes : 1, PH_HOST_PAGE));
}

phc_table *phc_mappings, *phc_handed;

phc_shared phc_new_shared(void) {
  static atomic_uint given;
  uint64_t number =
      (uint64_t)ph_predecessors() << 48 | (uint64_t)(uint32_t)ph_rank() << 24 | (atomic_fetch_add(&given, 1) + 1);
  return (phc_shared){number, ph_rank()};
}

bool phc_covered(const void *pointer, size_t bytes) {
  uintptr_t at = (uintptr_t)pointer;
  if (at + bytes < at) return false;
  for (size_t left = bytes; left;) {
    ph_range range;
    if (!ph_memory_find((void *)at, &range)) return false;
    // Memory of the host that was registered is not ours: it may have been given back since.
    if (range.space == PH_SPACE_REGISTERED && !phc_mapped(pointer, bytes)) return false;
    if (left != bytes && !phc_table_get(&phc_mappings, range.base)) return false;  // another allocation begins
    size_t inside = range.base + range.size - at;
    if (inside >= left) return true;
    if (!phc_table_get(&phc_mappings, range.base)) return false;
    left -= inside;
    at += inside;
  }
  return true;
}

static bool is_mapped(const char *address) {
  char byte;
  struct iovec here = {&byte, 1}, there = {(void *)address, 1};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1 || errno != EFAULT;
}

bool phc_mapped(const void *pointer, size_t bytes) {
  if (!bytes) return true;
  if ((uintptr_t)pointer + bytes < bytes) return false;
  return is_mapped(pointer) && is_mapped((const char *)pointer + bytes - 1);
}
