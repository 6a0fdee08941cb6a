// Addresses for the memory of devices: each allocation has higher ones than all before it, whatever else is mapped.
// torch's allocator orders equal blocks by address, and L2 residency (l2.c) distinguishes allocations by it.
#define _GNU_SOURCE
#include "rank/memory/memory.h"

#include <errno.h>
#include <sys/mman.h>

// Free in any process, also where the address sanitizer has its shadow.
#ifdef __SANITIZE_THREAD__  // lets a program map below 512 GiB, and among libraries and programs
#define FIRST ((uintptr_t)0x001000000000)
#define LAST ((uintptr_t)0x008000000000)
#else
#define FIRST ((uintptr_t)0x200000000000)
#define LAST ((uintptr_t)0x500000000000)
#endif

static uintptr_t top = FIRST;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t whole(size_t bytes) { return (bytes + PH_GRANULE - 1) / PH_GRANULE * PH_GRANULE; }

void *ph_map_device(size_t bytes) {
  if (bytes > LAST - FIRST) return NULL;
  void *base = MAP_FAILED;
  pthread_mutex_lock(&lock);
  // After all have been used they are used again, from the lowest on; addresses that are still in use are passed over.
  for (size_t passed = 0; base == MAP_FAILED && passed < LAST - FIRST; passed += whole(bytes)) {
    if (bytes > LAST - top) top = FIRST;
    base = mmap((void *)top, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (base == MAP_FAILED && errno != EEXIST) break;
    if (base != MAP_FAILED && base != (void *)top) {  // a kernel before 4.17: these are taken
      munmap(base, bytes);
      base = MAP_FAILED;
    }
    top += whole(bytes);
  }
  pthread_mutex_unlock(&lock);
  return base == MAP_FAILED ? NULL : base;
}

void ph_unmap_device(void *base, size_t bytes) { munmap(base, bytes); }
