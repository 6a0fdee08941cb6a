// The places of ranks: a GPU each, taken by one process at a time.
#include "rank/runtime/runtime.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

ph_control *ph_place(int device) {
  ph_header *header = ph_rt.header;
  if (!header || (uint32_t)device >= header->ranks_per_host) return NULL;
  uint32_t place = (uint32_t)ph_rt.rank / header->ranks_per_host * header->ranks_per_host + (uint32_t)device;
  return place < header->world_size ? (ph_control *)((char *)header + header->control_offset) + place : NULL;
}

// Has the process that was the rank of this place gone?
static bool vacant(const ph_control *control, int32_t owner) {
  return owner <= 0 || owner == __atomic_load_n(&control->left, __ATOMIC_SEQ_CST) || (kill((pid_t)owner, 0) && errno == ESRCH);
}

// Takes the place, unless a living process has it: then the pid of that one.
int32_t ph_take_place(ph_control *control) {
  int32_t owner = __atomic_load_n(&control->pid, __ATOMIC_SEQ_CST);
  while (vacant(control, owner))
    if (__atomic_compare_exchange_n(&control->pid, &owner, getpid(), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 0;
  return owner;
}

int32_t ph_occupant(int device) {
  const ph_control *control = ph_place(device);
  int32_t owner = control ? __atomic_load_n(&control->pid, __ATOMIC_SEQ_CST) : 0;
  return control && !vacant(control, owner) ? owner : 0;
}

int64_t ph_occupied(int device) {
  return ph_occupant(device) ? __atomic_load_n(&ph_place(device)->memory, __ATOMIC_RELAXED) : 0;
}

int64_t ph_drawn_mj(int device) {
  const ph_control *control = ph_place(device);
  return control ? __atomic_load_n(&control->drawn_mj, __ATOMIC_ACQUIRE) : 0;
}

int64_t ph_drawn_mw(int device) {
  const ph_control *control = ph_place(device);
  int64_t noted = control ? __atomic_load_n(&control->drawn_mw, __ATOMIC_ACQUIRE) : 0;
  return noted ? noted : ph_gpu()->idle_mw;
}
