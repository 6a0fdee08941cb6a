// Executable graphs. A launch sends the kernels, copies and calls of the graph's nodes again, in the order in which
// they were added: what was captured of the first stream goes to the stream of the launch, what was captured of
// another one to a stream of its own (a lane), and events of the graph's own order them.
#include "cuda/core/device.h"
#include "cuda/core/graph.h"
#include "cuda/core/stream.h"
#include "cuda/core/table.h"

#include <stdlib.h>
#include <string.h>

// Kernels of graphs that may lie in a GPU's queues before a launch waits: bounds what the simulator keeps, and is more
// than programs reach that read a result now and then.
#define QUEUED_KERNELS 65536

#define NONE UINT32_MAX
typedef struct plan {     // of a node
  uint32_t lane;
  uint32_t *waits, wait_count;  // nodes on other lanes
  bool after_begin;       // first of its lane, and after no other node
  ph_event *done;         // recorded after it, NULL when no lane waits for it
  uint32_t op;            // which of the graph's operators launched it, NONE for none
  bool first, last;       // of that operator
} plan;

struct phc_exec {
  phc_graph *graph;
  uint32_t count, lanes, ops, kernels;
  plan *plans;
  uint32_t *tails;        // last node of each lane
  uint32_t *sources;      // captured stream of each lane, plus one
  ph_stream **streams;    // of the lanes from 1 on
  uint32_t *instances;    // of the operators in this launch
  ph_event *begin;        // what lanes wait for that begin with the graph
  ph_stream *last;        // where it was launched last
  ph_event *before;       // orders launches on different streams
  int device;
  bool uploaded;          // the device has it
};
static phc_table *execs;

bool phc_exec_alive(const phc_exec *exec) { return phc_table_get(&execs, (uintptr_t)exec) != NULL; }

static void *zeroed(size_t count, size_t size) {
  void *memory = calloc(count + 1, size);
  if (!memory) abort();
  return memory;
}

// ---------------------------------------------------------------- planning
static uint32_t add_lane(phc_exec *exec, uint32_t source) {
  exec->tails = realloc(exec->tails, (exec->lanes + 1) * sizeof *exec->tails);
  exec->sources = realloc(exec->sources, (exec->lanes + 1) * sizeof *exec->sources);
  if (!exec->tails || !exec->sources) abort();
  exec->tails[exec->lanes] = NONE;
  exec->sources[exec->lanes] = source;
  return exec->lanes++;
}

// That of its captured stream. Of a node without: the lane whose last node it follows; else one whose last node is
// before it anyway; else a new one.
static uint32_t lane_for(phc_exec *exec, const phc_node *node) {
  for (uint32_t lane = 0; lane < exec->lanes && node->stream; lane++)
    if (exec->sources[lane] == node->stream) return lane;
  if (node->stream) return add_lane(exec, node->stream);
  for (unsigned d = 0; d < node->dep_count; d++) {
    uint32_t lane = exec->plans[node->deps[d]].lane;
    if (exec->tails[lane] == node->deps[d]) return lane;
  }
  if (node->dep_count) {
    bool *before = phc_graph_before(node->graph, node->deps, node->dep_count);
    uint32_t found = NONE;
    for (uint32_t lane = 0; lane < exec->lanes && found == NONE; lane++)
      if (exec->tails[lane] != NONE && before[exec->tails[lane]]) found = lane;
    free(before);
    if (found != NONE) return found;
  }
  return exec->tails[0] == NONE ? 0 : add_lane(exec, 0);
}

static void wait_for(phc_exec *exec, plan *waiter, uint32_t node) {
  for (uint32_t i = 0; i < waiter->wait_count; i++)
    if (waiter->waits[i] == node) return;
  waiter->waits = realloc(waiter->waits, (waiter->wait_count + 1) * sizeof node);
  if (!waiter->waits) abort();
  waiter->waits[waiter->wait_count++] = node;
  if (!exec->plans[node].done) exec->plans[node].done = ph_event_create(exec->device, cudaEventDisableTiming);
}

// Numbers the operators, which may have been captured by several threads at a time.
static void plan_operators(phc_exec *exec) {
  uint32_t least = NONE, most = 0;
  for (uint32_t i = 0; i < exec->count; i++) {
    uint32_t op = exec->graph->nodes[i]->op;
    if (op && op < least) least = op;
    if (op > most) most = op;
  }
  uint32_t *seen = zeroed(most >= least ? most - least + 1 : 0, sizeof *seen);  // by instance: last node + 1
  for (uint32_t i = 0; i < exec->count; i++) {
    const phc_node *node = exec->graph->nodes[i];
    plan *p = &exec->plans[i];
    p->op = NONE;
    if (!node->op || !node->record.kind) continue;
    uint32_t last = seen[node->op - least];
    p->first = !last;
    p->last = true;
    p->op = last ? exec->plans[last - 1].op : exec->ops++;
    if (last) exec->plans[last - 1].last = false;
    seen[node->op - least] = i + 1;
  }
  free(seen);
  exec->instances = zeroed(exec->ops, sizeof *exec->instances);
}

static void make_plan(phc_exec *exec, phc_graph *graph) {
  exec->graph = phc_graph_keep(graph);
  exec->count = graph->count;
  exec->lanes = exec->ops = exec->kernels = 0;
  exec->plans = zeroed(exec->count, sizeof *exec->plans);
  exec->tails = exec->sources = NULL;
  add_lane(exec, graph->origin);
  for (uint32_t i = 0; i < exec->count; i++) {
    const phc_node *node = graph->nodes[i];
    plan *p = &exec->plans[i];
    p->lane = lane_for(exec, node);
    p->after_begin = exec->tails[p->lane] == NONE && p->lane;
    for (unsigned d = 0; d < node->dep_count; d++)
      if (exec->plans[node->deps[d]].lane != p->lane) wait_for(exec, p, node->deps[d]);
    exec->tails[p->lane] = i;
    exec->kernels += node->record.kind != 0;
  }
  for (uint32_t lane = 1; lane < exec->lanes; lane++) {  // what the launch's stream waits for in the end
    plan *p = &exec->plans[exec->tails[lane]];
    if (!p->done) p->done = ph_event_create(exec->device, cudaEventDisableTiming);
  }
  plan_operators(exec);
  exec->streams = zeroed(exec->lanes, sizeof *exec->streams);
  for (uint32_t i = 0; i < exec->count; i++) {
    uint32_t lane = exec->plans[i].lane;
    if (lane && !exec->streams[lane])
      exec->streams[lane] = ph_stream_create(exec->device, cudaStreamNonBlocking, graph->nodes[i]->priority);
  }
  if (exec->lanes > 1) exec->begin = ph_event_create(exec->device, cudaEventDisableTiming);
}

static void drop_plan(phc_exec *exec) {
  for (uint32_t i = 0; i < exec->count; i++) {
    free(exec->plans[i].waits);
    if (exec->plans[i].done) ph_event_destroy(exec->plans[i].done);
  }
  for (uint32_t lane = 1; lane < exec->lanes; lane++) ph_stream_destroy(exec->streams[lane]);
  if (exec->begin) ph_event_destroy(exec->begin);
  exec->begin = NULL;
  free(exec->plans);
  free(exec->tails);
  free(exec->sources);
  free(exec->streams);
  free(exec->instances);
  phc_graph_drop(exec->graph);
}

cudaError_t phc_graph_instantiate(phc_exec **exec, phc_graph *graph) {
  if (!exec || !phc_graph_alive(graph)) return cudaErrorInvalidValue;
  phc_exec *made = calloc(1, sizeof *made);
  if (!made) return cudaErrorMemoryAllocation;
  made->device = ph_current_device();
  make_plan(made, graph);
  ph_charge(PH_API_GRAPH_INSTANTIATE);
  ph_charge_times(PH_API_GRAPH_INSTANTIATE_NODE, made->count);
  phc_table_set(&execs, (uintptr_t)made, made);
  *exec = made;
  return 0;
}

cudaError_t phc_exec_destroy(phc_exec *exec) {
  if (!phc_exec_alive(exec)) return cudaErrorInvalidValue;
  phc_table_set(&execs, (uintptr_t)exec, NULL);
  drop_plan(exec);
  if (exec->before) ph_event_destroy(exec->before);
  free(exec);
  return 0;
}

cudaError_t phc_exec_update(phc_exec *exec, phc_graph *graph, phc_node **failed, int *why) {
  enum { TOPOLOGY = 2, TYPE = 3 };
  if (!phc_exec_alive(exec) || !phc_graph_alive(graph)) return cudaErrorInvalidValue;
  *failed = NULL;
  *why = graph->count == exec->count ? 0 : TOPOLOGY;
  for (uint32_t i = 0; i < exec->count && !*why; i++) {
    const phc_node *old = exec->graph->nodes[i], *new = graph->nodes[i];
    bool same = old->dep_count == new->dep_count && !memcmp(old->deps, new->deps, old->dep_count * sizeof *old->deps);
    *why = old->type != new->type ? TYPE : same ? 0 : TOPOLOGY;
    if (*why) *failed = graph->nodes[i];
  }
  if (*why) return cudaErrorGraphExecUpdateFailure;
  drop_plan(exec);
  make_plan(exec, graph);
  ph_charge_times(PH_API_GRAPH_INSTANTIATE_NODE, exec->count);
  return 0;
}

static void upload(phc_exec *exec) {
  if (exec->uploaded) return;
  exec->uploaded = true;
  ph_charge(PH_API_GRAPH_UPLOAD);
  ph_charge_times(PH_API_GRAPH_UPLOAD_NODE, exec->count);
}

cudaError_t phc_exec_upload(phc_exec *exec, void *handle, bool per_thread) {
  ph_stream *stream = NULL;
  if (!phc_exec_alive(exec)) return cudaErrorInvalidValue;
  cudaError_t error = phc_stream_use(handle, per_thread, &stream);
  if (!error) upload(exec);
  return error;
}

// ---------------------------------------------------------------- launching
static void wait_event(ph_stream *stream, const ph_event *event, uint8_t flags) {
  ph_record record = {.kind = PH_STREAM_WAIT, .flags = flags, .stream = stream->id, .id = event->id};
  if (event->recorded) ph_emit(&record);
}

// The operator of a captured kernel, once more: its price is that of the operator's signature.
static void begin_operator(phc_exec *exec, const phc_node *node, uint32_t op) {
  exec->instances[op] = ph_next_instance();
  ph_record record = {.kind = PH_OP_BEGIN,
                      .flags = (uint8_t)(node->op_flags | PH_F_GRAPH),
                      .id = node->signature,
                      .op = exec->instances[op],
                      .op_begin.start = ph_now()};
  ph_emit(&record);
}

static void run_node(phc_exec *exec, uint32_t index, ph_stream *stream) {
  const phc_node *node = exec->graph->nodes[index];
  const plan *p = &exec->plans[index];
  if (p->after_begin && !node->dep_count) wait_event(stream, exec->begin, 0);
  for (uint32_t i = 0; i < p->wait_count; i++) wait_event(stream, exec->plans[p->waits[i]].done, PH_F_GRAPH);
  if (node->record.kind) {
    if (p->first) begin_operator(exec, node, p->op);
    ph_record record = node->record;
    record.stream = stream->id;
    record.flags |= PH_F_GRAPH;
    record.op = p->op == NONE ? 0 : exec->instances[p->op];
    ph_emit(&record);
    if (p->last && p->op != NONE) {
      ph_record end = {.kind = PH_OP_END, .op = exec->instances[p->op]};
      ph_l2_touch(node->operand_device, node->operands, node->operand_count, &end);
      ph_emit(&end);
    }
  }
  if (node->type == PHC_NODE_HOST) phc_host_function(stream, false, node->host, node->host_data);
  if (node->type == PHC_NODE_RECORD && ph_event_alive(node->event)) {
    phc_capture_forget(node->event);
    phc_event_emit(node->event, stream);
  }
  if (node->type == PHC_NODE_WAIT && ph_event_alive(node->event)) wait_event(stream, node->event, 0);
  for (unsigned a = 0; a < node->action_count; a++) node->actions[a].run(node->actions[a].data, stream);
  if (p->done) phc_event_emit(p->done, stream);
}

static void wait_for_room(const phc_exec *exec, const ph_stream *stream) {
  static uint64_t queued;  // since the last look
  queued += exec->kernels;
  if (queued < QUEUED_KERNELS / 4 || !ph_moves_clock() || ph_operator_open()) return;
  queued = 0;
  ph_record record = {.kind = PH_ROOM, .stream = stream->id, .room.depth = QUEUED_KERNELS};
  ph_request(&record, NULL, 0);
}

cudaError_t phc_exec_launch(phc_exec *exec, void *handle, bool per_thread) {
  ph_stream *stream = NULL;
  if (!phc_exec_alive(exec)) return cudaErrorInvalidValue;
  cudaError_t error = phc_stream_use(handle, per_thread, &stream);
  if (error) return error;
  if (phc_captured(stream)) {
    ph_unsupported("libcudart", "cudaGraphLaunch on a stream that is captured (a graph inside a graph)", true);
    return cudaErrorStreamCaptureUnsupported;
  }
  int64_t start = ph_now();
  upload(exec);
  ph_charge(PH_API_GRAPH_LAUNCH);
  ph_charge_times(PH_API_GRAPH_LAUNCH_NODE, exec->count);
  static const char name[] = "cudaGraphLaunch";
  ph_record span = {.kind = PH_HOST_SPAN,
                    .flags = PH_F_GRAPH,
                    .id = ph_name(ph_hash(name, sizeof name - 1, 1), name, sizeof name - 1)};
  span.span.start = start;
  ph_emit(&span);
  if (exec->last && exec->last != stream && ph_stream_alive(exec->last)) {
    if (!exec->before) exec->before = ph_event_create(exec->device, cudaEventDisableTiming);
    phc_event_emit(exec->before, exec->last);
    wait_event(stream, exec->before, 0);
  }
  exec->last = stream;
  if (exec->begin) phc_event_emit(exec->begin, stream);
  for (uint32_t i = 0; i < exec->count; i++) {
    uint32_t lane = exec->plans[i].lane;
    run_node(exec, i, lane ? exec->streams[lane] : stream);
  }
  for (uint32_t lane = 1; lane < exec->lanes; lane++)
    wait_event(stream, exec->plans[exec->tails[lane]].done, PH_F_GRAPH);
  wait_for_room(exec, stream);
  return 0;
}
