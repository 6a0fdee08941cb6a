// The connection to the simulator: its begin, its end, and the child that a rank forks.
#define _GNU_SOURCE
#include "rank/rank.h"
#include "rank/torch_hooks/torch_hooks.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// A forked child (a DataLoader worker) must not speak on its parent's ring. It keeps the parent's
// memory, copy on write, and sees no device.
static void detach(void) {
  if (!ph_live()) return;
  atomic_store(&ph_rt.connected, false);
  ph_rt.generation++;
  munmap(ph_rt.header, ph_rt.map_size);
  ph_rt.header = NULL;
  ph_rt.control = NULL;
  ph_rt.ring = NULL;
  ph_rt.replies = NULL;
  if (ph_rt.session >= 0) close(ph_rt.session);
  ph_rt.session = -1;
  ph_clock_detach();
  ph_charges_detach();
  ph_ring_reset();
  ph_payload_reset();
  ph_known_reset();
  ph_copied_reset();
}

static int refuse(int error) {
  errno = error;
  return -1;
}

int ph_connect(int fd, int rank, int local_rank, int devices) {
  static bool forks_watched;
  if (ph_live()) return refuse(EISCONN);
  if (devices < 0 || devices > PH_MAX_DEVICES) return refuse(EINVAL);
  struct stat file;
  if (fstat(fd, &file)) return -1;
  if ((size_t)file.st_size < sizeof(ph_header)) return refuse(EPROTO);
  size_t size = (size_t)file.st_size;
  ph_header *header = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (header == MAP_FAILED) return -1;
  int error = 0;
  bool ours = header->magic == PH_MAGIC && header->version == PH_WIRE_VERSION && header->layout == PH_LAYOUT;
  if (!ours || header->size > size)
    error = EPROTO;
  else if (rank < 0 || (uint32_t)rank >= header->world_size)
    error = EINVAL;
  else if (!forks_watched && pthread_atfork(NULL, NULL, detach))
    error = ENOMEM;
  if (error) {
    munmap(header, size);
    return refuse(error);
  }
  forks_watched = true;
  char *base = (char *)header;
  ph_rt.map_size = size;
  ph_rt.header = header;
  ph_rt.control = (ph_control *)(base + header->control_offset) + rank;
  ph_rt.ring = (ph_record *)(base + header->ring_offset) + (size_t)rank * PH_RING_RECORDS;
  ph_rt.replies = (ph_reply *)(base + header->reply_offset) + (size_t)rank * PH_REPLY_SLOTS;
  ph_rt.rank = rank;
  ph_rt.devices = devices;
  ph_rt.null_mode = header->null_mode != 0;
  ph_rt.modelled = !ph_rt.null_mode && header->host_mode == PH_HOST_MODELLED;
  ph_rt.measured = !ph_rt.null_mode && header->host_mode == PH_HOST_MEASURED;
  ph_rt.generation++;
  ph_clock_reset();
  ph_costs_reset();
  ph_apart_reset();
  ph_rivals_reset();
  ph_charges_open();
  ph_ring_reset();
  ph_handles_reset(devices);
  ph_payload_reset();
  ph_watchdogs_reset();
  ph_rt.control->memory = 0;  // of one that was killed
  ph_rt.control->pid = getpid();
  atomic_store(&ph_rt.connected, true);
  ph_record record = {
      .kind = PH_RANK_START,
      .start = {.pid = (uint64_t)getpid(), .local_rank = (uint64_t)local_rank, .devices = (uint64_t)devices}};
  ph_rt.predecessors = __atomic_fetch_add(&ph_rt.control->processes, 1, __ATOMIC_SEQ_CST);
  ph_rt.control->waiting = ph_rt.control->holding = ph_rt.control->producer_waiting =
      0;  // the one before may have been killed while it waited
  if (ph_rt.predecessors)
    ph_request(&record, NULL, 0);  // another process was this rank: ours begins when its work is done
  else
    ph_emit(&record);
  ph_flush_names();
  return 0;
}

void ph_exit(int status) {
  if (!ph_recording()) return;
  ph_memory_withdraw();
  __atomic_store_n(&ph_rt.control->left, getpid(), __ATOMIC_SEQ_CST);
  ph_record record = {.kind = PH_RANK_EXIT, .exit = {.status = status, .device_peak = ph_memory_peak()}};
  ph_emit(&record);
  ph_charges_close();
  atomic_store(&ph_rt.ended, true);
  atomic_store(&ph_rt.connected, false);  // nothing follows an exit; the mapping stays for other threads
  ph_rt.generation++;
}
