// Addresses for the memory of devices. They are given in the order in which they are asked for, and again once they are
// free, the lowest first, as in any other run: what L2 holds (reuse.c) goes by addresses, and what libraries, threads and
// the environment have mapped shall not move it.
#define _GNU_SOURCE
#include "rank/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// Free in any process, also beside the shadow of the address sanitizer. Where they are used up, or taken, the system chooses.
#ifdef __SANITIZE_THREAD__  // lets a program map below 512 GiB, and among libraries and programs
#define FIRST ((uintptr_t)0x001000000000)
#define LAST ((uintptr_t)0x008000000000)
#else
#define FIRST ((uintptr_t)0x200000000000)
#define LAST ((uintptr_t)0x500000000000)
#endif

typedef struct hole {
  uintptr_t from, to;
} hole;

static hole *holes;  // below `top`, by address
static size_t count, room;
static uintptr_t top = FIRST;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t whole(size_t bytes) { return (bytes + PH_GRANULE - 1) / PH_GRANULE * PH_GRANULE; }

static void *map_at(uintptr_t at, size_t bytes) {
  return mmap((void *)at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static void remove_hole(size_t at) { memmove(holes + at, holes + at + 1, (--count - at) * sizeof *holes); }

static uintptr_t take(size_t size) {
  for (size_t i = 0; i < count; i++) {
    if (holes[i].to - holes[i].from < size) continue;
    uintptr_t at = holes[i].from;
    holes[i].from += size;
    if (holes[i].from == holes[i].to) remove_hole(i);
    return at;
  }
  if (size > LAST - top) return 0;
  top += size;
  return top - size;
}

static void give(uintptr_t from, uintptr_t to) {
  size_t at = 0;
  while (at < count && holes[at].from < from) at++;
  if (at < count && holes[at].from == to) {
    to = holes[at].to;
    remove_hole(at);
  }
  if (at && holes[at - 1].to == from) {
    from = holes[--at].from;
    remove_hole(at);
  }
  if (to == top) {
    top = from;
    return;
  }
  if (count == room) {
    size_t more = room ? room * 2 : 64;
    hole *grown = realloc(holes, more * sizeof *holes);
    if (!grown) return;  // these addresses are not given again
    holes = grown;
    room = more;
  }
  memmove(holes + at + 1, holes + at, (count++ - at) * sizeof *holes);
  holes[at] = (hole){from, to};
}

void *ph_map_device(size_t bytes) {
  if (bytes > LAST - FIRST) return NULL;
  pthread_mutex_lock(&lock);
  uintptr_t at = take(whole(bytes));
  void *base = map_at(at, bytes);
  if (at && base != (void *)at) give(at, at + whole(bytes));
  pthread_mutex_unlock(&lock);
  if (base != MAP_FAILED && (uintptr_t)base % PH_GRANULE == 0) return base;
  if (base != MAP_FAILED) munmap(base, bytes);
  char *area = map_at(0, bytes + PH_GRANULE);  // the system's choice need not be aligned
  if (area == MAP_FAILED) return NULL;
  char *begin = (char *)whole((uintptr_t)area), *end = area + bytes + PH_GRANULE;
  if (begin > area) munmap(area, (size_t)(begin - area));
  char *rest = begin + (bytes + PH_HOST_PAGE - 1) / PH_HOST_PAGE * PH_HOST_PAGE;
  if (end > rest) munmap(rest, (size_t)(end - rest));
  return begin;
}

void ph_unmap_device(void *base, size_t bytes) {
  uintptr_t at = (uintptr_t)base;
  munmap(base, bytes);
  if (at < FIRST || at >= LAST) return;
  pthread_mutex_lock(&lock);
  give(at, at + whole(bytes));
  pthread_mutex_unlock(&lock);
}
