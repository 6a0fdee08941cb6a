// Stream capture and graphs, as far as programs use them through the driver: those of the runtime under other names.
#include "cuda/core/capture.h"
#include "cuda/core/graph.h"
#include "cuda/driver/entry.h"

static cudaError_t is_capturing(void *stream, bool per_thread, int *status) {
  phc_capture_info info;
  if (!status) return cudaErrorInvalidValue;
  cudaError_t error = phc_capture_status(stream, per_thread, &info);
  if (!error) *status = info.status;
  return error;
}
static cudaError_t capture_info(void *stream, bool per_thread, int *status, uint64_t *id, phc_graph **graph,
                                phc_node ***nodes, size_t *count) {
  phc_capture_info info;
  if (!status) return cudaErrorInvalidValue;
  cudaError_t error = phc_capture_status(stream, per_thread, &info);
  if (error) return error;
  *status = info.status;
  if (info.status != PHC_CAPTURE_ACTIVE) return 0;
  if (id) *id = info.id;
  if (graph) *graph = info.graph;
  if (nodes) *nodes = info.deps;
  if (count) *count = info.count;
  return 0;
}
STREAM(cuStreamIsCapturing, _ptsz, GET_DEVICE, (void *stream, int *status), (stream, status),
       is_capturing(stream, per_thread, status))
STREAM(cuStreamGetCaptureInfo_v2, _ptsz, GET_DEVICE,
       (void *stream, int *status, uint64_t *id, phc_graph **graph, phc_node ***nodes, size_t *count),
       (stream, status, id, graph, nodes, count), capture_info(stream, per_thread, status, id, graph, nodes, count))
STREAM(cuStreamGetCaptureInfo_v3, _ptsz, GET_DEVICE,
       (void *stream, int *status, uint64_t *id, phc_graph **graph, phc_node ***nodes, const void **edges,
        size_t *count),
       (stream, status, id, graph, nodes, edges, count),
       (edges ? (void)(*edges = NULL) : (void)0, capture_info(stream, per_thread, status, id, graph, nodes, count)))
STREAM(cuStreamBeginCapture_v2, _ptsz, OTHER, (void *stream, int mode), (stream, mode),
       phc_capture_begin(stream, per_thread, mode, NULL, NULL, 0))
STREAM(cuStreamEndCapture, _ptsz, OTHER, (void *stream, phc_graph **graph), (stream, graph),
       phc_capture_end(stream, per_thread, graph))
ENTRY(cuThreadExchangeStreamCaptureMode, GET_DEVICE, nothing, (int *mode), phc_capture_exchange_mode(mode))

static cudaError_t create(phc_graph **graph, unsigned flags) {
  if (!graph || flags) return cudaErrorInvalidValue;
  *graph = phc_graph_create();
  return *graph ? 0 : cudaErrorMemoryAllocation;
}
static cudaError_t list_nodes(phc_graph *graph, phc_node **list, size_t *count) {
  if (!phc_graph_alive(graph) || !count) return cudaErrorInvalidValue;
  for (size_t i = 0; list && i < *count; i++) list[i] = i < graph->count ? graph->nodes[i] : NULL;
  if (!list || graph->count < *count) *count = graph->count;
  return 0;
}
ENTRY(cuGraphCreate, OTHER, driver_current, (phc_graph * *graph, unsigned flags), create(graph, flags))
ENTRY(cuGraphDestroy, OTHER, phc_ready, (phc_graph * graph), phc_graph_destroy(graph))
ENTRY(cuGraphGetNodes, OTHER, phc_ready, (phc_graph * graph, phc_node **list, size_t *count),
      list_nodes(graph, list, count))
ENTRY(cuGraphInstantiateWithFlags, OTHER, driver_current,
      (phc_exec * *exec, phc_graph *graph, unsigned long long flags),
      flags ? driver_unsupported("cuGraphInstantiateWithFlags with flags") : phc_graph_instantiate(exec, graph))
ENTRY(cuGraphExecDestroy, OTHER, phc_ready, (phc_exec * exec), phc_exec_destroy(exec))
STREAM(cuGraphLaunch, _ptsz, OTHER, (phc_exec * exec, void *stream), (exec, stream),
       phc_exec_launch(exec, stream, per_thread))
STREAM(cuGraphUpload, _ptsz, OTHER, (phc_exec * exec, void *stream), (exec, stream),
       phc_exec_upload(exec, stream, per_thread))
