// State that every file of the rank runtime reads: that of the connection, and each thread's own.
#define _GNU_SOURCE
#include "rank/runtime/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AUTOGRAD_NAME "pt_autograd"

ph_runtime ph_rt = {.session = -1};
ph_hooks ph_upper;
_Atomic(ph_listener *) ph_listens;
_Thread_local ph_thread ph_self __attribute__((tls_model("initial-exec"))) = {.cpu_mark = -1};

static atomic_int last_thread;

static int autograd_index(const char *name) {
  const char *digits = name + strlen(AUTOGRAD_NAME);
  while (*digits && (*digits < '0' || *digits > '9')) digits++;
  int index = 1 + atoi(digits);
  return index < PH_OTHER_THREADS ? index : PH_OTHER_THREADS - 1;
}

static void identify(ph_thread *self, uint32_t generation) {
  self->generation = generation;
  self->own_streams = NULL;
  if (syscall(SYS_gettid) == getpid()) {
    self->moves_clock = true;
    self->index = 0;
    return;
  }
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  self->moves_clock = !strncmp(name, AUTOGRAD_NAME, strlen(AUTOGRAD_NAME));
  if (self->moves_clock) {
    self->index = (uint8_t)autograd_index(name);
  } else {
    int index = PH_OTHER_THREADS + atomic_fetch_add(&last_thread, 1);
    self->index = (uint8_t)(index < 255 ? index : 255);
  }
}

ph_thread *ph_this_thread(void) {
  uint32_t generation = atomic_load_explicit(&ph_rt.generation, memory_order_relaxed);
  if (ph_self.generation != generation) identify(&ph_self, generation);
  return &ph_self;
}

bool ph_moves_clock(void) { return ph_this_thread()->moves_clock; }
bool ph_pays(void) { return ph_charged_thread(); }
int ph_current_device(void) { return ph_self.device; }
void ph_set_current_device(int device) { ph_self.device = device; }

bool ph_connected(void) { return ph_live(); }
bool ph_null_mode(void) { return ph_rt.null_mode; }
bool ph_probing(void) { return ph_rt.header && ph_rt.header->null_mode == PH_PROBE; }
const ph_header *ph_shared(void) { return ph_rt.header; }
const ph_device *ph_gpu(void) {
  return ph_rt.header ? &ph_rt.header->devices[ph_rt.control ? ph_rt.control->gpu_kind : 0] : NULL;
}
int ph_rank(void) { return ph_rt.rank; }
bool ph_neighbour(int rank) {
  int per_host = ph_rt.header ? (int)ph_rt.header->ranks_per_host : 0;
  return per_host <= 0 || rank / per_host == ph_rt.rank / per_host;
}
static int host_numbers[PH_MAX_DEVICES];  // + 1; 0: the same
void ph_see(int device, int of_host) { host_numbers[device] = of_host + 1; }
int ph_of_host(int device) { return host_numbers[device] ? host_numbers[device] - 1 : device; }

static char assertion[512];
static _Atomic bool asserted;
void ph_assert_fails(const char *text) {
  snprintf(assertion, sizeof assertion, "%s", text);
  atomic_store(&asserted, true);
}
const char *ph_failed_assertion(void) { return atomic_load(&asserted) ? assertion : NULL; }

uint32_t ph_predecessors(void) { return ph_rt.predecessors; }
int ph_devices(void) { return ph_live() || ph_attached() ? ph_rt.devices : 0; }

bool ph_attached(void) {
  return ph_rt.session >= 0 && !ph_live() && !atomic_load_explicit(&ph_rt.ended, memory_order_relaxed);
}

static int assumed_devices;
void ph_assume_devices(int devices) { assumed_devices = devices; }
int ph_assumed_devices(void) { return assumed_devices; }
