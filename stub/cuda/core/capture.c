// Stream capture, by the rules of the CUDA programming guide ("Creating a graph using stream capture") and of the
// runtime's manual; which error each breach gives follows the descriptions of cudaErrorStreamCapture*.
#include "rank/rank.h"
#include "cuda/core/graph.h"
#include "cuda/core/stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

// One cudaStreamBeginCapture and what has joined it.
typedef struct phc_capture {
  struct phc_capture *next;
  uint64_t id;
  int mode;
  const void *owner;  // the thread that began it
  ph_stream *origin;
  bool invalid, added_to;  // added_to: the graph is the caller's
  phc_graph *graph;
} phc_capture;

// The part of a stream, or of an event that was recorded on one: its next node comes after these.
typedef struct phc_branch {
  uint64_t capture;
  ph_stream *stream;
  struct phc_branch *next;  // of all streams that take part in some capture
  unsigned *deps, count;
} phc_branch;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static phc_capture *captures;
static phc_branch *branches;
static uint64_t last_capture;
static atomic_int active;  // captures under way
static _Atomic uint64_t last_value;
static __thread int thread_mode;  // of cudaThreadExchangeStreamCaptureMode
static __thread phc_node *latest;  // that this thread added
static __thread phc_node **reported;   // by cudaStreamGetCaptureInfo

static const void *this_thread(void) { return &thread_mode; }
static bool any(void) { return atomic_load_explicit(&active, memory_order_relaxed) > 0; }

// ---------------------------------------------------------------- with the lock held
static phc_capture *capture_of(uint64_t id) {
  for (phc_capture *capture = captures; capture; capture = capture->next)
    if (capture->id == id) return capture;
  return NULL;
}

static phc_branch *branch_make(uint64_t capture, ph_stream *stream, const unsigned *deps, unsigned count) {
  phc_branch *branch = calloc(1, sizeof *branch);
  if (branch) branch->deps = malloc((count + 1) * sizeof *deps);
  if (!branch || !branch->deps) abort();
  branch->capture = capture;
  branch->stream = stream;
  branch->count = count;
  if (count) memcpy(branch->deps, deps, count * sizeof *deps);
  return branch;
}

static void branch_free(phc_branch *branch) {
  if (branch) free(branch->deps);
  free(branch);
}

static void join(ph_stream *stream, uint64_t capture, const unsigned *deps, unsigned count) {
  phc_branch *branch = branch_make(capture, stream, deps, count);
  branch->next = branches;
  branches = stream->branch = branch;
}

static void depend(phc_branch *branch, const unsigned *deps, unsigned count) {
  branch->deps = realloc(branch->deps, (branch->count + count + 1) * sizeof *deps);
  if (!branch->deps) abort();
  for (unsigned i = 0; i < count; i++) {
    bool known = false;
    for (unsigned j = 0; j < branch->count; j++) known |= branch->deps[j] == deps[i];
    if (!known) branch->deps[branch->count++] = deps[i];
  }
}

static phc_node *add(ph_stream *stream, int type) {
  phc_branch *branch = stream->branch;
  phc_capture *capture = branch ? capture_of(branch->capture) : NULL;
  if (!capture || capture->invalid) return NULL;
  phc_node *node = phc_graph_add(capture->graph, type, branch->deps, branch->count);
  node->stream = stream->id + 1;
  node->priority = stream->priority;
  branch->deps[0] = node->index;
  branch->count = 1;
  ph_frame *frame = ph_top_frame();
  if (frame) frame->captured = true;
  return latest = node;
}

// The capture of a stream; NULL for none.
static phc_capture *own(const ph_stream *stream) { return stream->branch ? capture_of(stream->branch->capture) : NULL; }

static bool is_legacy(const ph_stream *stream) { return ph_stream_of((void *)1, false) == stream; }

// The legacy stream waits for streams that are not non-blocking: work on it would have to wait for what is captured.
static cudaError_t implicit(void) {
  cudaError_t error = 0;
  for (phc_branch *branch = branches; branch; branch = branch->next) {
    if (branch->stream->flags & cudaStreamNonBlocking || branch->stream->device != ph_current_device()) continue;
    capture_of(branch->capture)->invalid = true;
    error = cudaErrorStreamCaptureImplicit;
  }
  return error;
}

// ---------------------------------------------------------------- records of a captured stream
static bool keep(ph_record *record, const void *blob, size_t length) {
  (void)blob, (void)length;  // only NCCL's records have bytes with them, and it keeps its calls itself
  pthread_mutex_lock(&lock);
  phc_branch *branch = branches;
  while (branch && branch->stream->id != record->stream) branch = branch->next;
  if (branch) {
    int type = record->kind == PH_MEMCPY   ? PHC_NODE_MEMCPY
               : record->kind == PH_MEMSET ? PHC_NODE_MEMSET
                                           : PHC_NODE_KERNEL;
    phc_node *node = add(branch->stream, type);
    ph_frame *frame = ph_top_frame();
    if (node) {
      node->record = *record;
      node->op = record->op;
      if (frame) {
        node->signature = frame->signature;
        node->op_flags = frame->flags;
      }
    }
  }
  pthread_mutex_unlock(&lock);
  return branch != NULL;
}

phc_node *phc_capture_add(ph_stream *stream, int type) {
  pthread_mutex_lock(&lock);
  phc_node *node = add(stream, type);
  pthread_mutex_unlock(&lock);
  return node;
}

phc_node *phc_capture_latest(void) { return phc_node_alive(latest) ? latest : NULL; }

uint64_t ph_capture_mark(void) { return atomic_load(&last_value); }

// Drops the values that `graph` got after `since`: what computes them as a whole takes their place.
static void forget_values(phc_graph *graph, uint64_t since) {
  for (unsigned i = graph->count; i-- > 0;) {
    phc_node *node = graph->nodes[i];
    while (node->action_count && node->actions[node->action_count - 1].serial > since) {
      phc_action *action = &node->actions[--node->action_count];
      action->drop(action->data);
    }
    if (node->action_count && node->actions[node->action_count - 1].serial) break;
  }
}

void ph_capture_value(uint64_t since, void (*run)(void *, ph_stream *), void (*drop)(void *), void *data) {
  phc_node *node = phc_capture_latest();
  if (!node) {
    drop(data);
    return;
  }
  pthread_mutex_lock(&lock);
  forget_values(node->graph, since);
  phc_node_action(node, (phc_action){run, drop, data, atomic_fetch_add(&last_value, 1) + 1});
  pthread_mutex_unlock(&lock);
}

typedef struct given {
  void *pointer;
  size_t bytes;
  char data[];
} given;

static void give_again(void *data, ph_stream *stream) {
  (void)stream;
  given *value = data;
  ph_memory_give(value->pointer, value->data, value->bytes);
}

void ph_give(void *pointer, const void *data, size_t bytes) {
  ph_memory_give(pointer, data, bytes);
  phc_node *node = any() ? phc_capture_latest() : NULL;
  if (!node || !node->graph->captured) return;
  given *value = malloc(sizeof *value + bytes);
  if (!value) abort();
  value->pointer = pointer;
  value->bytes = bytes;
  memcpy(value->data, data, bytes);
  ph_capture_value(UINT64_MAX, give_again, free, value);
}

void ph_capture_operands(uint32_t instance, int device, const ph_operand *operands, size_t count) {
  phc_node *node = phc_capture_latest();
  if (!node || node->op != instance || node->operands || !count) return;
  node->operands = malloc(count * sizeof *operands);
  if (!node->operands) abort();
  memcpy(node->operands, operands, count * sizeof *operands);
  node->operand_count = (uint32_t)count;
  node->operand_device = device;
}

// ---------------------------------------------------------------- begin and end
cudaError_t phc_capture_begin(void *handle, bool per_thread, int mode, phc_graph *into, const unsigned *deps,
                              unsigned count) {
  ph_stream *stream = NULL;
  if (mode < PHC_CAPTURE_GLOBAL || mode > PHC_CAPTURE_RELAXED) return cudaErrorInvalidValue;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  if (error) return error;
  if (is_legacy(stream)) return cudaErrorStreamCaptureUnsupported;
  phc_capture *capture = calloc(1, sizeof *capture);
  if (!capture) return cudaErrorMemoryAllocation;
  pthread_mutex_lock(&lock);
  if (stream->branch) {
    error = cudaErrorIllegalState;
    free(capture);
  } else {
    *capture = (phc_capture){.next = captures,
                             .id = ++last_capture,
                             .mode = mode,
                             .owner = this_thread(),
                             .origin = stream,
                             .added_to = into != NULL};
    capture->graph = into ? phc_graph_keep(into) : phc_graph_create();
    if (!into) {
      capture->graph->origin = stream->id + 1;
      capture->graph->captured = true;
    }
    captures = capture;
    join(stream, capture->id, deps, count);
    atomic_fetch_add(&active, 1);
    ph_capture_by(keep);
    ph_capturing(true);
  }
  pthread_mutex_unlock(&lock);
  return error;
}

// With the lock held: every stream leaves the capture.
static void leave(uint64_t capture) {
  for (phc_branch **at = &branches; *at;) {
    phc_branch *branch = *at;
    if (branch->capture != capture) {
      at = &branch->next;
      continue;
    }
    *at = branch->next;
    branch->stream->branch = NULL;
    branch_free(branch);
  }
}

static bool joined(const phc_capture *capture) {
  const phc_branch *branch = capture->origin->branch;
  bool *before = phc_graph_before(capture->graph, branch->deps, branch->count), all = true;
  for (unsigned i = 0; i < capture->graph->count && !capture->added_to; i++) all = all && before[i];
  free(before);
  return all;
}

cudaError_t phc_capture_end(void *handle, bool per_thread, phc_graph **graph) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  if (error || !graph) return error ? error : cudaErrorInvalidValue;
  *graph = NULL;
  pthread_mutex_lock(&lock);
  phc_capture *capture = own(stream);
  if (!capture)
    error = cudaErrorIllegalState;
  else if (capture->mode != PHC_CAPTURE_RELAXED && capture->owner != this_thread())
    error = cudaErrorStreamCaptureWrongThread;
  else if (capture->origin != stream) {
    error = cudaErrorStreamCaptureUnmatched;
    capture->invalid = true;
  }
  if (error) {
    pthread_mutex_unlock(&lock);
    return error;
  }
  if (capture->invalid)
    error = cudaErrorStreamCaptureInvalidated;
  else if (!joined(capture))
    error = cudaErrorStreamCaptureUnjoined;
  leave(capture->id);
  phc_capture **at = &captures;
  while (*at != capture) at = &(*at)->next;
  *at = capture->next;
  atomic_fetch_sub(&active, 1);
  ph_capturing(false);
  capture->graph->captured = false;
  if (capture->added_to) {
    *graph = error ? NULL : capture->graph;
    phc_graph_drop(capture->graph);
  } else if (error) {
    phc_graph_destroy(capture->graph);
  } else {
    *graph = capture->graph;
  }
  pthread_mutex_unlock(&lock);
  free(capture);
  return error;
}

cudaError_t phc_capture_status(void *handle, bool per_thread, phc_capture_info *info) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  *info = (phc_capture_info){.status = PHC_CAPTURE_NONE};
  if (error || !any()) return error;
  pthread_mutex_lock(&lock);
  phc_capture *capture = own(stream);
  if (is_legacy(stream) && !capture) {
    for (phc_branch *branch = branches; branch && !error; branch = branch->next)
      if (!(branch->stream->flags & cudaStreamNonBlocking)) error = cudaErrorStreamCaptureImplicit;
  }
  if (capture) {
    info->status = capture->invalid ? PHC_CAPTURE_INVALIDATED : PHC_CAPTURE_ACTIVE;
    info->id = capture->id;
    info->graph = capture->graph;
    info->count = stream->branch->count;
    reported = realloc(reported, (info->count + 1) * sizeof *reported);
    if (!reported) abort();
    for (size_t i = 0; i < info->count; i++) reported[i] = capture->graph->nodes[stream->branch->deps[i]];
    info->deps = reported;
  }
  pthread_mutex_unlock(&lock);
  return error;
}

cudaError_t phc_capture_ask(void *stream, bool per_thread, int *status, unsigned long long *id, phc_graph **graph,
                            phc_node ***deps, size_t *count) {
  if (!status) return cudaErrorInvalidValue;
  phc_capture_info info;
  cudaError_t error = phc_capture_status(stream, per_thread, &info);
  if (error) return error;
  *status = info.status;
  if (info.status != PHC_CAPTURE_ACTIVE) return 0;
  if (id) *id = info.id;
  if (graph) *graph = info.graph;
  if (deps) *deps = info.deps;
  if (count) *count = info.count;
  return 0;
}

cudaError_t phc_capture_depend(void *handle, bool per_thread, phc_node **nodes, size_t count, unsigned flags) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  if (error || flags > 1 || (count && !nodes)) return error ? error : cudaErrorInvalidValue;
  pthread_mutex_lock(&lock);
  phc_capture *capture = own(stream);
  if (!capture)
    error = cudaErrorIllegalState;
  else if (capture->invalid)
    error = cudaErrorStreamCaptureInvalidated;
  for (size_t i = 0; i < count && !error; i++)
    if (!phc_node_alive(nodes[i]) || nodes[i]->graph != capture->graph) error = cudaErrorInvalidValue;
  if (!error) {
    if (flags) stream->branch->count = 0;
    for (size_t i = 0; i < count; i++) depend(stream->branch, &nodes[i]->index, 1);
  }
  pthread_mutex_unlock(&lock);
  return error;
}

cudaError_t phc_capture_exchange_mode(int *mode) {
  if (!mode || *mode < PHC_CAPTURE_GLOBAL || *mode > PHC_CAPTURE_RELAXED) return cudaErrorInvalidValue;
  int old = thread_mode;
  thread_mode = *mode;
  *mode = old;
  return 0;
}

// ---------------------------------------------------------------- what a capture forbids
bool phc_captured(const ph_stream *stream) { return any() && stream->branch; }

cudaError_t phc_stream_use(void *handle, bool per_thread, ph_stream **stream) {
  cudaError_t error = phc_stream_find(handle, per_thread, stream);
  if (error || !any()) return error;
  pthread_mutex_lock(&lock);
  phc_capture *capture = own(*stream);
  if (capture && capture->invalid)
    error = cudaErrorStreamCaptureInvalidated;
  else if (is_legacy(*stream))
    error = implicit();
  pthread_mutex_unlock(&lock);
  return error;
}

cudaError_t phc_stream_observe(void *handle, bool per_thread, ph_stream **stream) {
  cudaError_t error = phc_stream_find(handle, per_thread, stream);
  if (error || !any()) return error;
  pthread_mutex_lock(&lock);
  phc_capture *capture = own(*stream);
  if (capture) {
    error = capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnsupported;
    capture->invalid = true;
  } else if (is_legacy(*stream)) {
    error = implicit();
  }
  pthread_mutex_unlock(&lock);
  return error;
}

cudaError_t phc_capture_unsafe(void) {
  cudaError_t error = 0;
  if (!any() || thread_mode == PHC_CAPTURE_RELAXED) return 0;
  pthread_mutex_lock(&lock);
  for (phc_capture *capture = captures; capture; capture = capture->next) {
    bool mine = capture->owner == this_thread() && capture->mode != PHC_CAPTURE_RELAXED;
    bool another = thread_mode == PHC_CAPTURE_GLOBAL && capture->mode == PHC_CAPTURE_GLOBAL;
    if (!mine && !another) continue;
    capture->invalid = true;
    error = cudaErrorStreamCaptureUnsupported;
  }
  pthread_mutex_unlock(&lock);
  return error;
}

cudaError_t phc_capture_whole_device(void) {
  cudaError_t error = 0;
  if (!any()) return 0;
  pthread_mutex_lock(&lock);
  for (phc_branch *branch = branches; branch; branch = branch->next) {
    if (branch->stream->device != ph_current_device()) continue;
    capture_of(branch->capture)->invalid = true;
    error = cudaErrorStreamCaptureUnsupported;
  }
  pthread_mutex_unlock(&lock);
  return error;
}

cudaError_t phc_capture_implicit(void) {
  if (!any()) return 0;
  pthread_mutex_lock(&lock);
  cudaError_t error = implicit();
  pthread_mutex_unlock(&lock);
  return error ? error : phc_capture_unsafe();
}

// ---------------------------------------------------------------- events
cudaError_t phc_event_observe(const ph_event *event) {
  if (!event->captured) return 0;
  pthread_mutex_lock(&lock);
  phc_capture *capture = capture_of(event->captured->capture);
  if (capture) capture->invalid = true;
  pthread_mutex_unlock(&lock);
  return cudaErrorCapturedEvent;
}

void phc_capture_forget(ph_event *event) {
  if (!event->captured) return;
  pthread_mutex_lock(&lock);
  branch_free(event->captured);
  event->captured = NULL;
  pthread_mutex_unlock(&lock);
}

cudaError_t phc_capture_record(ph_stream *stream, ph_event *event, bool external) {
  if (external) {
    phc_node *node = phc_capture_add(stream, PHC_NODE_RECORD);
    if (node) node->event = event;
    return 0;
  }
  pthread_mutex_lock(&lock);
  phc_branch *branch = stream->branch;
  branch_free(event->captured);
  event->captured = branch_make(branch->capture, stream, branch->deps, branch->count);
  pthread_mutex_unlock(&lock);
  return 0;
}

static cudaError_t merge(ph_stream *stream, const phc_branch *from) {
  phc_capture *capture = capture_of(from->capture), *mine = own(stream);
  if (!capture) return cudaErrorCapturedEvent;  // it has ended
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (is_legacy(stream)) {
    capture->invalid = true;
    return cudaErrorStreamCaptureImplicit;
  }
  if (mine && mine != capture) {
    mine->invalid = capture->invalid = true;
    return cudaErrorStreamCaptureMerge;
  }
  if (mine)
    depend(stream->branch, from->deps, from->count);
  else
    join(stream, capture->id, from->deps, from->count);
  return 0;
}

cudaError_t phc_capture_wait(ph_stream *stream, ph_event *event, bool external) {
  if (external) {
    phc_node *node = phc_capture_add(stream, PHC_NODE_WAIT);
    if (node) node->event = event;
    return 0;
  }
  pthread_mutex_lock(&lock);
  cudaError_t error = 0;
  if (event->captured) {
    error = merge(stream, event->captured);
  } else if (event->recorded) {  // work outside the capture
    own(stream)->invalid = true;
    error = cudaErrorStreamCaptureIsolation;
  }
  pthread_mutex_unlock(&lock);
  return error;
}
