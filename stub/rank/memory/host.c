// The host's memory that this process has: pinned, and in large tensors on the CPU.
#include "rank/memory/memory.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t held, pinned;  // bytes; `pinned` is a part of `held`

void ph_host_memory(int64_t bytes, bool is_pinned) {
  pthread_mutex_lock(&lock);
  held += bytes;
  if (is_pinned) pinned += bytes;
  ph_control *control = ph_connected() ? ph_rt.control : NULL;
  if (control && held > control->host_memory) {
    control->host_memory = held;
    control->host_pinned = pinned;
  }
  pthread_mutex_unlock(&lock);
}

void ph_data(int64_t cpu, int64_t counted, int64_t apart) {
  if (!ph_connected()) return;
  ph_rt.control->data_cpu = cpu;
  ph_rt.control->data_counted = counted;
  ph_rt.control->data_apart = apart;
}

void ph_loader(int64_t batch, int64_t used, int64_t workers, int64_t starts) {
  if (!ph_connected()) return;
  ph_rt.control->data_batch = batch;
  ph_rt.control->data_used = used;
  ph_rt.control->data_workers = workers;
  ph_rt.control->data_starts = starts;
}

void ph_uncounted(int64_t cpu) {
  if (ph_connected()) ph_rt.control->cpu_uncounted = cpu;
}
