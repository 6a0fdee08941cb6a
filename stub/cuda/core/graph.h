// Graphs, and the capture of streams into them.
#pragma once
#include "abi/cuda_abi.h"
#include "cuda/core/kernel.h"
#include "rank/rank.h"

#pragma GCC visibility push(default)

// ---- graph.c: nodes with their dependencies, and what each puts on a stream when the graph is launched.
// cudaGraphNodeType, as CUDA numbers it.
enum {
  PHC_NODE_KERNEL,
  PHC_NODE_MEMCPY,
  PHC_NODE_MEMSET,
  PHC_NODE_HOST,
  PHC_NODE_GRAPH,
  PHC_NODE_EMPTY,
  PHC_NODE_WAIT,
  PHC_NODE_RECORD
};

// Something that happens each time a node's turn comes in a launch: a copy of true bytes, an operator on small
// tensors that is computed again, a call of NCCL. `run` is given the stream that the node goes to.
typedef struct phc_action {
  void (*run)(void *data, ph_stream *stream);
  void (*drop)(void *data);  // frees `data`
  void *data;
  uint64_t serial;  // 0, or its number among the computed values of the process
} phc_action;

typedef struct phc_node {
  struct phc_graph *graph;
  int type;
  unsigned index;  // in its graph
  unsigned *deps, dep_count;  // indices of nodes before it
  ph_record record;           // kind 0: nothing is sent
  uint32_t op, signature;     // the operator that launched it: its instance in the capture, 0 for none
  uint8_t op_flags;
  ph_operand *operands;       // of that operator, if this is its last node
  uint32_t operand_count;
  int operand_device;
  uint32_t stream;            // that was captured, plus one; 0 for a node that was added by a call
  int priority;               // of that stream
  phc_kernel *kernel;         // of a kernel node
  dim3 grid, block;
  unsigned shared;
  cudaHostFn_t host;          // of a host node
  void *host_data;
  ph_event *event;            // of an external record or wait
  phc_action *actions;
  unsigned action_count;
} phc_node;

typedef struct phc_graph {
  int references;
  uint64_t id;
  uint32_t origin;            // the stream whose capture made it, plus one; 0 for none
  bool captured;              // a capture that made it still adds to it: it may not be destroyed
  phc_node **nodes;
  unsigned count, room;
} phc_graph;

phc_graph *phc_graph_create(void);
// The same as a call of CUDA; there are no flags yet.
cudaError_t phc_graph_make(phc_graph **graph, unsigned flags);
bool phc_graph_alive(const phc_graph *graph);
phc_graph *phc_graph_keep(phc_graph *graph);
void phc_graph_drop(phc_graph *graph);  // the last one to drop it frees it
cudaError_t phc_graph_destroy(phc_graph *graph);
// Adds a node that comes after the nodes `deps`. Fills everything but what the type needs.
phc_node *phc_graph_add(phc_graph *graph, int type, const unsigned *deps, unsigned count);
void phc_node_action(phc_node *node, phc_action action);
// The graph's nodes, or only those without dependencies. As CUDA lists: `count` is the room on entry and what there is
// on return; without a list only the latter.
cudaError_t phc_graph_list(phc_graph *graph, phc_node **list, size_t *count, bool roots);
bool phc_node_alive(const phc_node *node);
// A bit for each node: is it among `from` or before one of them?
bool *phc_graph_before(const phc_graph *graph, const unsigned *from, unsigned count);
cudaError_t phc_graph_dot(const phc_graph *graph, const char *path);

// ---- graph_exec.c: executable graphs.
typedef struct phc_exec phc_exec;
cudaError_t phc_graph_instantiate(phc_exec **exec, phc_graph *graph);
bool phc_exec_alive(const phc_exec *exec);
cudaError_t phc_exec_destroy(phc_exec *exec);
cudaError_t phc_exec_upload(phc_exec *exec, void *stream, bool per_thread);
cudaError_t phc_exec_launch(phc_exec *exec, void *stream, bool per_thread);
// Takes over the nodes of `graph`. `failed`: the first node that differs in more than its parameters; `why`: as
// cudaGraphExecUpdateResult.
cudaError_t phc_exec_update(phc_exec *exec, phc_graph *graph, phc_node **failed, int *why);

// ---- capture.c: what goes to a stream becomes nodes of a graph instead of work.
enum { PHC_CAPTURE_GLOBAL, PHC_CAPTURE_THREAD_LOCAL, PHC_CAPTURE_RELAXED };
enum { PHC_CAPTURE_NONE, PHC_CAPTURE_ACTIVE, PHC_CAPTURE_INVALIDATED };

// `into` NULL: a new graph. Else the capture adds to it, after the nodes `deps`.
cudaError_t phc_capture_begin(void *stream, bool per_thread, int mode, phc_graph *into, const unsigned *deps,
                              unsigned count);
cudaError_t phc_capture_end(void *stream, bool per_thread, phc_graph **graph);
typedef struct phc_capture_info {
  int status;
  uint64_t id;
  phc_graph *graph;
  phc_node **deps;  // after which the stream's next node comes; until the thread asks again
  size_t count;
} phc_capture_info;
cudaError_t phc_capture_status(void *stream, bool per_thread, phc_capture_info *info);
// Status, id, graph and dependencies, each where it is asked for; but for the status only of an active capture.
// `status` NULL: cudaErrorInvalidValue.
cudaError_t phc_capture_ask(void *stream, bool per_thread, int *status, unsigned long long *id, phc_graph **graph,
                            phc_node ***deps, size_t *count);
// flags 0: adds the nodes to those after which the stream's next one comes; 1: puts them in their place.
cudaError_t phc_capture_depend(void *stream, bool per_thread, phc_node **nodes, size_t count, unsigned flags);
cudaError_t phc_capture_exchange_mode(int *mode);

// The stream of a handle, for a call that puts work on it: fails where a capture does not allow that.
cudaError_t phc_stream_use(void *handle, bool per_thread, ph_stream **stream);
// The same for a call that waits for the stream or asks what it has done.
cudaError_t phc_stream_observe(void *handle, bool per_thread, ph_stream **stream);
// Calls that CUDA holds unsafe while something is captured (cudaMalloc): fail by the modes of the captures and of the
// thread, and end these captures.
cudaError_t phc_capture_unsafe(void);
// Calls that wait for the whole device: fail while anything on it is captured.
cudaError_t phc_capture_whole_device(void);
// A copy that waits uses the legacy stream: fails while a stream that synchronises with it is captured.
cudaError_t phc_capture_implicit(void);
cudaError_t phc_event_observe(const ph_event *event);  // cudaErrorCapturedEvent for one recorded in a capture

bool phc_captured(const ph_stream *stream);
// A node at the end of what is captured of the stream. NULL: the capture has become invalid.
phc_node *phc_capture_add(ph_stream *stream, int type);
phc_node *phc_capture_latest(void);  // that this thread added, NULL for none
cudaError_t phc_capture_record(ph_stream *stream, ph_event *event, bool external);
cudaError_t phc_capture_wait(ph_stream *stream, ph_event *event, bool external);
void phc_capture_forget(ph_event *event);  // it is recorded outside a capture, or destroyed

#pragma GCC visibility pop
