// A process that was not started as a rank (by mp.spawn, subprocess, a notebook) and may become one.
// Processes can be a rank one after the other; at a time as many use a GPU as --processes-per-gpu lets.
//
// It sees the simulated host's GPUs as soon as torch is imported, and asks for their properties without being
// anything. When it first uses a GPU it takes a place of that GPU.
#include "rank/rank.h"
#include "rank/torch_hooks/torch_hooks.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool may_join;            // false: every place belongs to a rank that has its own process
static void (*on_join)(void);
static pthread_mutex_t joining = PTHREAD_MUTEX_INITIALIZER;

int ph_attach(int fd, int devices, int near, bool join, void (*joined)(void)) {
  if (ph_live() || ph_rt.session >= 0) return errno = EISCONN, -1;
  if (devices < 0 || devices > PH_MAX_DEVICES || near < 0) return errno = EINVAL, -1;
  struct stat file;
  if (fstat(fd, &file)) return -1;
  if ((size_t)file.st_size < sizeof(ph_header)) return errno = EPROTO, -1;
  ph_header *header = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (header == MAP_FAILED) return -1;
  if (header->magic != PH_MAGIC || header->version != PH_WIRE_VERSION || header->layout != PH_LAYOUT) {
    munmap(header, (size_t)file.st_size);
    return errno = EPROTO, -1;
  }
  // ph_connect() maps the area once more; this mapping stays, since another thread may be reading it.
  ph_rt.header = header;
  ph_rt.map_size = (size_t)file.st_size;
  ph_rt.devices = devices;
  ph_rt.rank = near;
  may_join = join;
  on_join = joined;
  ph_rt.session = fd;
  return 0;
}

static int refuse(int gpu, int64_t owner) {
  if (may_join)
    dprintf(STDERR_FILENO,
            "phantora: process %d wants GPU %d, which process %lld uses: give `phantora trace` one more by "
            "--processes-per-gpu, or let only one of them use it\n",
            (int)getpid(), gpu, (long long)owner);
  else
    dprintf(STDERR_FILENO,
            "phantora: process %d, started by a rank, wants GPU %d: every GPU of the run belongs to a rank; use it in "
            "the rank itself, or let the script start its processes under `phantora trace -- python SCRIPT`\n",
            (int)getpid(), gpu);
  return -1;
}

int ph_join(int gpu) {
  pthread_mutex_lock(&joining);
  int result = 0;
  if (!ph_live()) {
    ph_control *first = (ph_control *)((char *)ph_rt.header + ph_rt.header->control_offset), *place = NULL;
    int32_t owner = 0;
    for (int i = 0; may_join && (place = ph_place(gpu, i)); i++)
      if (!(owner = ph_take_place(place))) break;
    int rank = place ? (int)(place - first) : -1;
    if (!place)
      result = refuse(gpu, owner);
    else if (ph_connect(ph_rt.session, rank, rank, ph_rt.devices))
      result = -1;
    else if (on_join)
      on_join();
  }
  pthread_mutex_unlock(&joining);
  return result;
}

// ---------------------------------------------------------------- the clock of a process that uses no GPU
static _Atomic int follows;

void ph_follow(enum ph_front how) { atomic_store(&follows, how); }

enum ph_front ph_follows(void) {
  return ph_attached() && !ph_rt.header->null_mode ? (enum ph_front)atomic_load(&follows) : PH_FRONT_REAL;
}

int64_t ph_latest_clock(void) {
  const ph_header *header = ph_rt.header;
  int64_t latest = 0;
  for (uint32_t i = 0; header && i < header->world_size; i++) {
    const ph_control *control = (const ph_control *)((const char *)header + header->control_offset) + i;
    int64_t clock = __atomic_load_n(&control->clock, __ATOMIC_ACQUIRE),
            floor = __atomic_load_n(&control->floor, __ATOMIC_ACQUIRE);
    if (clock > latest) latest = clock;
    if (floor > latest) latest = floor;
  }
  return latest;
}

int64_t ph_epoch(void) { return ph_rt.header ? ph_rt.header->epoch_ns : 0; }

void ph_reach(int64_t time) {
  if (!ph_live())
    ph_raise_clock(time);
  else if (time > ph_now())
    ph_sleep(time - ph_now());
}
