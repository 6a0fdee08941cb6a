// Graphs: made, looked at, made executable, launched.
#include "cuda/core/graph.h"
#include "cuda/runtime/entry.h"

#include <stdlib.h>

ENTRY(cudaGraphCreate, OTHER, phc_ready, (phc_graph * *graph, unsigned flags), phc_graph_make(graph, flags))
ENTRY(cudaGraphDestroy, OTHER, phc_ready, (phc_graph * graph), phc_graph_destroy(graph))

// ---------------------------------------------------------------- nodes
ENTRY(cudaGraphGetNodes, OTHER, phc_ready, (phc_graph * graph, phc_node **list, size_t *count),
      phc_graph_list(graph, list, count, false))
ENTRY(cudaGraphGetRootNodes, OTHER, phc_ready, (phc_graph * graph, phc_node **list, size_t *count),
      phc_graph_list(graph, list, count, true))

static cudaError_t list_deps(phc_node *node, phc_node **list, size_t *count) {
  if (!phc_node_alive(node) || !count) return cudaErrorInvalidValue;
  for (unsigned i = 0; list && i < *count; i++)
    list[i] = i < node->dep_count ? node->graph->nodes[node->deps[i]] : NULL;
  if (!list || node->dep_count < *count) *count = node->dep_count;
  return 0;
}
// The nodes that come right after `node`.
static cudaError_t list_dependents(phc_node *node, phc_node **list, size_t *count) {
  if (!phc_node_alive(node) || !count) return cudaErrorInvalidValue;
  size_t found = 0;
  for (unsigned i = node->index + 1; i < node->graph->count; i++) {
    phc_node *other = node->graph->nodes[i];
    for (unsigned d = 0; d < other->dep_count; d++) {
      if (other->deps[d] != node->index) continue;
      if (list && found < *count) list[found] = other;
      found++;
      break;
    }
  }
  if (list)
    for (size_t i = found; i < *count; i++) list[i] = NULL;
  if (!list || found < *count) *count = found;
  return 0;
}
static cudaError_t list_edges(phc_graph *graph, phc_node **from, phc_node **to, size_t *count) {
  if (!phc_graph_alive(graph) || !count || !from != !to) return cudaErrorInvalidValue;
  size_t found = 0;
  for (unsigned i = 0; i < graph->count; i++)
    for (unsigned d = 0; d < graph->nodes[i]->dep_count; d++, found++) {
      if (!from || found >= *count) continue;
      from[found] = graph->nodes[graph->nodes[i]->deps[d]];
      to[found] = graph->nodes[i];
    }
  if (!from || found < *count) *count = found;
  return 0;
}
#if PH_CUDA_MAJOR >= 13
ENTRY(cudaGraphNodeGetDependencies, OTHER, phc_ready, (phc_node * node, phc_node **list, void *edges, size_t *count),
      ((void)edges, list_deps(node, list, count)))
ENTRY(cudaGraphNodeGetDependentNodes, OTHER, phc_ready, (phc_node * node, phc_node **list, void *edges, size_t *count),
      ((void)edges, list_dependents(node, list, count)))
ENTRY(cudaGraphGetEdges, OTHER, phc_ready,
      (phc_graph * graph, phc_node **from, phc_node **to, void *edges, size_t *count),
      ((void)edges, list_edges(graph, from, to, count)))
#else
ENTRY(cudaGraphNodeGetDependencies, OTHER, phc_ready, (phc_node * node, phc_node **list, size_t *count),
      list_deps(node, list, count))
ENTRY(cudaGraphNodeGetDependencies_v2, OTHER, phc_ready, (phc_node * node, phc_node **list, void *edges, size_t *count),
      ((void)edges, list_deps(node, list, count)))
ENTRY(cudaGraphNodeGetDependentNodes, OTHER, phc_ready, (phc_node * node, phc_node **list, size_t *count),
      list_dependents(node, list, count))
ENTRY(cudaGraphNodeGetDependentNodes_v2, OTHER, phc_ready,
      (phc_node * node, phc_node **list, void *edges, size_t *count), ((void)edges, list_dependents(node, list, count)))
ENTRY(cudaGraphGetEdges, OTHER, phc_ready, (phc_graph * graph, phc_node **from, phc_node **to, size_t *count),
      list_edges(graph, from, to, count))
ENTRY(cudaGraphGetEdges_v2, OTHER, phc_ready,
      (phc_graph * graph, phc_node **from, phc_node **to, void *edges, size_t *count),
      ((void)edges, list_edges(graph, from, to, count)))
#endif
static cudaError_t node_type(phc_node *node, int *type) {
  return phc_node_alive(node) ? GIVE(type, int, node->type) : cudaErrorInvalidValue;
}
ENTRY(cudaGraphNodeGetType, OTHER, phc_ready, (phc_node * node, int *type), node_type(node, type))

// Arguments of kernels are not kept: their number and sizes are known to the kernel's code alone.
static cudaError_t kernel_params(phc_node *node, cudaKernelNodeParams *params) {
  if (!phc_node_alive(node) || !params || node->type != PHC_NODE_KERNEL) return cudaErrorInvalidValue;
  if (!node->kernel) return cudaErrorInvalidDeviceFunction;  // a library's
  const void *function = node->kernel->host ? node->kernel->host : node->kernel;
  *params = (cudaKernelNodeParams){
      .func = (void *)function, .gridDim = node->grid, .blockDim = node->block, .sharedMemBytes = node->shared};
  return 0;
}
ENTRY(cudaGraphKernelNodeGetParams, OTHER, phc_ready, (phc_node * node, cudaKernelNodeParams *params),
      kernel_params(node, params))

static cudaError_t add_node(phc_node **made, phc_graph *graph, phc_node *const *deps, size_t count, int type) {
  if (!made || !phc_graph_alive(graph) || (count && !deps)) return cudaErrorInvalidValue;
  unsigned *indices = malloc((count + 1) * sizeof *indices);
  if (!indices) return cudaErrorMemoryAllocation;
  bool known = true;
  for (size_t i = 0; i < count && known; i++) {
    known = phc_node_alive(deps[i]) && deps[i]->graph == graph;
    if (known) indices[i] = deps[i]->index;
  }
  if (known) *made = phc_graph_add(graph, type, indices, (unsigned)count);
  free(indices);
  return known ? 0 : cudaErrorInvalidValue;
}
ENTRY(cudaGraphAddEmptyNode, OTHER, phc_ready,
      (phc_node * *node, phc_graph *graph, phc_node *const *deps, size_t count),
      add_node(node, graph, deps, count, PHC_NODE_EMPTY))
typedef struct cudaHostNodeParams {
  cudaHostFn_t fn;
  void *userData;
} cudaHostNodeParams;
static cudaError_t add_host(phc_node **node, phc_graph *graph, phc_node *const *deps, size_t count,
                            const cudaHostNodeParams *params) {
  if (!params || !params->fn) return cudaErrorInvalidValue;
  cudaError_t error = add_node(node, graph, deps, count, PHC_NODE_HOST);
  if (error) return error;
  (*node)->host = params->fn;
  (*node)->host_data = params->userData;
  return 0;
}
ENTRY(cudaGraphAddHostNode, OTHER, phc_ready,
      (phc_node * *node, phc_graph *graph, phc_node *const *deps, size_t count, const cudaHostNodeParams *params),
      add_host(node, graph, deps, count, params))
ENTRY(cudaGraphDebugDotPrint, OTHER, phc_ready, (phc_graph * graph, const char *path, unsigned flags),
      ((void)flags, phc_graph_alive(graph) && path ? phc_graph_dot(graph, path) : cudaErrorInvalidValue))

// ---------------------------------------------------------------- executable graphs
#define KNOWN_FLAGS 15ULL  // cudaGraphInstantiateFlag*: free on launch, upload, device launch, node priority
#define DEVICE_LAUNCH 4ULL
static cudaError_t instantiate(phc_exec **exec, phc_graph *graph, unsigned long long flags) {
  if (flags & ~KNOWN_FLAGS) return cudaErrorInvalidValue;
  if (flags & DEVICE_LAUNCH)
    return cudart_unsupported("cudaGraphInstantiate for launches by kernels", cudaErrorNotSupported);
  return phc_graph_instantiate(exec, graph);
}
typedef struct cudaGraphInstantiateParams {
  unsigned long long flags;
  void *uploadStream;
  phc_node *errNode_out;
  int result_out;
} cudaGraphInstantiateParams;
static cudaError_t instantiate_with(phc_exec **exec, phc_graph *graph, cudaGraphInstantiateParams *params) {
  if (!params) return cudaErrorInvalidValue;
  params->errNode_out = NULL;
  cudaError_t error = instantiate(exec, graph, params->flags);
  params->result_out = error ? 1 : 0;
  return error;
}
ENTRY(cudaGraphInstantiate, OTHER, phc_context, (phc_exec * *exec, phc_graph *graph, unsigned long long flags),
      instantiate(exec, graph, flags))
ENTRY(cudaGraphInstantiateWithFlags, OTHER, phc_context, (phc_exec * *exec, phc_graph *graph, unsigned long long flags),
      instantiate(exec, graph, flags))
ENTRY(cudaGraphInstantiateWithParams, OTHER, phc_context,
      (phc_exec * *exec, phc_graph *graph, cudaGraphInstantiateParams *params), instantiate_with(exec, graph, params))
ENTRY(cudaGraphExecDestroy, OTHER, phc_ready, (phc_exec * exec), phc_exec_destroy(exec))
STREAM(cudaGraphUpload, _ptsz, OTHER, (phc_exec * exec, void *stream), (exec, stream),
       phc_exec_upload(exec, stream, per_thread))
STREAM(cudaGraphLaunch, _ptsz, OTHER, (phc_exec * exec, void *stream), (exec, stream),
       phc_exec_launch(exec, stream, per_thread))
typedef struct cudaGraphExecUpdateResultInfo {
  int result;
  phc_node *errorNode, *errorFromNode;
} cudaGraphExecUpdateResultInfo;
static cudaError_t update(phc_exec *exec, phc_graph *graph, cudaGraphExecUpdateResultInfo *info) {
  if (!info) return cudaErrorInvalidValue;
  *info = (cudaGraphExecUpdateResultInfo){0};
  return phc_exec_update(exec, graph, &info->errorNode, &info->result);
}
ENTRY(cudaGraphExecUpdate, OTHER, phc_context, (phc_exec * exec, phc_graph *graph, cudaGraphExecUpdateResultInfo *info),
      update(exec, graph, info))

// ---------------------------------------------------------------- objects that live as long as a graph
// Never freed: it is unknown how long a graph's launches need one.
typedef struct user_object {
  void *pointer;
} user_object;
static cudaError_t user_object_create(user_object **object, void *pointer) {
  if (!object) return cudaErrorInvalidValue;
  *object = malloc(sizeof **object);
  if (!*object) return cudaErrorMemoryAllocation;
  (*object)->pointer = pointer;
  return 0;
}
ENTRY(cudaUserObjectCreate, OTHER, phc_ready,
      (user_object * *object, void *pointer, cudaHostFn_t destroy, unsigned references, unsigned flags),
      ((void)destroy, (void)references, (void)flags, user_object_create(object, pointer)))
ENTRY(cudaUserObjectRetain, OTHER, phc_ready, (user_object * object, unsigned count),
      object &&count ? 0 : cudaErrorInvalidValue)
ENTRY(cudaUserObjectRelease, OTHER, phc_ready, (user_object * object, unsigned count),
      object &&count ? 0 : cudaErrorInvalidValue)
ENTRY(cudaGraphRetainUserObject, OTHER, phc_ready,
      (phc_graph * graph, user_object *object, unsigned count, unsigned flags),
      ((void)flags, phc_graph_alive(graph) && object && count ? 0 : cudaErrorInvalidValue))
ENTRY(cudaGraphReleaseUserObject, OTHER, phc_ready, (phc_graph * graph, user_object *object, unsigned count),
      phc_graph_alive(graph) && object && count ? 0 : cudaErrorInvalidValue)
