// The places of ranks, each taken by one process at a time. A GPU has one, or several where processes share it: those
// of local ranks that are equal modulo the number of GPUs.
#include "rank/runtime/runtime.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

static uint32_t gpus_per_host(void) {
  const ph_header *header = ph_rt.header;
  return header->gpus_per_host ? header->gpus_per_host : header->ranks_per_host;
}

bool ph_shares(void) { return ph_rt.header && ph_rt.header->gpus_per_host; }
int ph_home(void) { return (int)((uint32_t)ph_rt.rank % ph_rt.header->ranks_per_host % gpus_per_host()); }

ph_control *ph_place(int device, int number) {
  ph_header *header = ph_rt.header;
  if (!header || device < 0 || (uint32_t)device >= gpus_per_host()) return NULL;
  uint32_t local = (uint32_t)device + (uint32_t)number * gpus_per_host();
  uint32_t place = (uint32_t)ph_rt.rank / header->ranks_per_host * header->ranks_per_host + local;
  bool there = local < header->ranks_per_host && place < header->world_size;
  return there ? (ph_control *)((char *)header + header->control_offset) + place : NULL;
}

// True if the process that was the rank of this place is gone.
static bool vacant(const ph_control *control, int32_t owner) {
  return owner <= 0 || owner == __atomic_load_n(&control->left, __ATOMIC_SEQ_CST) ||
         (kill((pid_t)owner, 0) && errno == ESRCH);
}

// Takes the place, unless a living process has it: then the pid of that one.
int32_t ph_take_place(ph_control *control) {
  int32_t owner = __atomic_load_n(&control->pid, __ATOMIC_SEQ_CST);
  while (vacant(control, owner))
    if (__atomic_compare_exchange_n(&control->pid, &owner, getpid(), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      return 0;
  return owner;
}

static int32_t occupant(const ph_control *control) {
  int32_t owner = __atomic_load_n(&control->pid, __ATOMIC_SEQ_CST);
  return vacant(control, owner) ? 0 : owner;
}

int ph_occupants(int device, ph_occupant *out, int room) {
  int count = 0;
  const ph_control *control;
  for (int i = 0; (control = ph_place(device, i)); i++) {
    int32_t pid = occupant(control);
    if (pid && count < room) out[count] = (ph_occupant){pid, __atomic_load_n(&control->memory, __ATOMIC_RELAXED)};
    count += pid != 0;
  }
  return count;
}

bool ph_has_place(int device) {
  const ph_control *control;
  for (int i = 0; (control = ph_place(device, i)); i++)
    if (!occupant(control)) return true;
  return false;
}

int64_t ph_occupied(int device) {
  int64_t bytes = 0;
  const ph_control *control;
  for (int i = 0; (control = ph_place(device, i)); i++)
    if (occupant(control)) bytes += __atomic_load_n(&control->memory, __ATOMIC_RELAXED);
  return bytes;
}

int64_t ph_drawn_mj(int device) {
  const ph_control *control = ph_place(device, 0);
  return control ? __atomic_load_n(&control->drawn_mj, __ATOMIC_ACQUIRE) : 0;
}

int64_t ph_drawn_mw(int device) {
  const ph_control *control = ph_place(device, 0);
  int64_t noted = control ? __atomic_load_n(&control->drawn_mw, __ATOMIC_ACQUIRE) : 0;
  return noted ? noted : ph_gpu()->idle_mw;
}
