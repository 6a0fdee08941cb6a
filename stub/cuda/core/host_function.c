// Functions of the host that a stream calls.
#define _GNU_SOURCE
#include "cuda/core/copy.h"
#include "cuda/core/device.h"
#include "cuda/core/graph.h"
#include "cuda/core/stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

// One queue and thread per group of streams, so that a function that is due does not wait behind
// one that is not. A function runs when the gate, an event recorded just before it, has completed.
#define WORKERS 3
typedef struct host_call {
  struct host_call *next;
  cudaHostFn_t function;
  void *data;
  ph_event *gate;
} host_call;
typedef struct worker_queue {
  pthread_t thread;
  bool started;
  host_call *head, *tail;  // `head` is being waited for or run
} worker_queue;
static worker_queue workers[WORKERS];
static pthread_mutex_t worker_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t worker_wake = PTHREAD_COND_INITIALIZER, worker_done = PTHREAD_COND_INITIALIZER;
static _Atomic int unfinished;  // queued and not yet finished
static __thread bool in_host_function;

static void *worker_main(void *argument) {
  worker_queue *worker = argument;
  in_host_function = true;
  pthread_mutex_lock(&worker_lock);
  for (;;) {
    while (!worker->head) pthread_cond_wait(&worker_wake, &worker_lock);
    host_call *call = worker->head;
    pthread_mutex_unlock(&worker_lock);
    ph_record record = {.kind = PH_EVENT_SYNC, .id = call->gate->id, .flags = PH_F_HELPER};
    ph_answer answer = ph_request(&record, NULL, 0);
    if (answer.status < 0) phc_request_failed();
    phc_waited_for_event(call->gate);
    call->function(call->data);
    ph_event_destroy(call->gate);
    pthread_mutex_lock(&worker_lock);
    worker->head = call->next;
    if (!worker->head) worker->tail = NULL;
    free(call);
    atomic_fetch_sub(&unfinished, 1);
    pthread_cond_broadcast(&worker_done);
  }
  return NULL;
}

void phc_finish_host_calls(void) {
  if (!atomic_load_explicit(&unfinished, memory_order_relaxed) || in_host_function) return;
  pthread_mutex_lock(&worker_lock);
  for (int i = 0; i < WORKERS; i++) {
    while (workers[i].head) {
      host_call *call = workers[i].head;
      uint32_t gate = call->gate->id;
      pthread_mutex_unlock(&worker_lock);
      ph_record record = {.kind = PH_EVENT_QUERY, .id = gate, .flags = phc_helper_flag()};
      bool due = ph_request(&record, NULL, 0).status == 0;
      pthread_mutex_lock(&worker_lock);
      if (!due) break;
      while (workers[i].head == call && call->gate->id == gate) pthread_cond_wait(&worker_done, &worker_lock);
    }
  }
  pthread_mutex_unlock(&worker_lock);
}

cudaError_t phc_host_function(void *handle, bool per_thread, cudaHostFn_t function, void *data) {
  ph_stream *stream = NULL;
  if (!function) return cudaErrorInvalidValue;
  cudaError_t error = phc_stream_use(handle, per_thread, &stream);
  if (error) return error;
  if (phc_captured(stream)) {
    phc_node *node = phc_capture_add(stream, PHC_NODE_HOST);
    if (node) {
      node->host = function;
      node->host_data = data;
    }
    return 0;
  }
  host_call *call = calloc(1, sizeof *call);
  if (!call) return cudaErrorMemoryAllocation;
  call->function = function;
  call->data = data;
  call->gate = ph_event_create(stream->device, cudaEventDisableTiming);
  if (!call->gate) {
    free(call);
    return cudaErrorMemoryAllocation;
  }
  phc_event_emit(call->gate, stream);
  phc_order_record(call->gate, stream);
  ph_record record = {.kind = PH_HOST_FUNC, .stream = stream->id};
  const ph_header *header = ph_shared();
  if (header && header->host_mode == PH_HOST_MODELLED) record.host_func.duration = header->api_ns[PH_API_HOST_FUNC];
  ph_emit(&record);
  worker_queue *worker = &workers[stream->id % WORKERS];
  pthread_mutex_lock(&worker_lock);
  if (!worker->started) {
    worker->started = pthread_create(&worker->thread, NULL, worker_main, worker) == 0;
    if (worker->started) pthread_setname_np(worker->thread, "cuda-host-func");
  }
  bool started = worker->started;
  if (started) {
    if (worker->tail)
      worker->tail->next = call;
    else
      worker->head = call;
    worker->tail = call;
    atomic_fetch_add(&unfinished, 1);
    pthread_cond_broadcast(&worker_wake);
  }
  pthread_mutex_unlock(&worker_lock);
  if (started) return 0;
  ph_event_destroy(call->gate);
  free(call);
  return cudaErrorMemoryAllocation;
}

typedef struct callback {
  cudaStreamCallback_t function;
  void *stream, *data;
} callback;

static void run_callback(void *data) {
  callback call = *(callback *)data;
  free(data);
  call.function(call.stream, 0, call.data);
}

cudaError_t phc_callback(void *stream, bool per_thread, cudaStreamCallback_t function, void *data, unsigned flags) {
  ph_stream *own = NULL;
  if (!function || flags) return cudaErrorInvalidValue;
  if (!phc_stream_find(stream, per_thread, &own) && phc_captured(own)) return cudaErrorStreamCaptureUnsupported;
  callback *call = malloc(sizeof *call);
  if (!call) return cudaErrorMemoryAllocation;
  *call = (callback){function, stream, data};
  cudaError_t error = phc_host_function(stream, per_thread, run_callback, call);
  if (error) free(call);
  return error;
}
