// Stream capture.
#include "cuda/core/graph.h"
#include "cuda/runtime/entry.h"

#include <stdlib.h>

STREAM(cudaStreamIsCapturing, _ptsz, GET_DEVICE, (void *stream, int *status), (stream, status),
       phc_capture_ask(stream, per_thread, status, NULL, NULL, NULL, NULL))
#define INFO (void *stream, int *status, unsigned long long *id, phc_graph **graph, phc_node ***nodes, size_t *count)
#define INFO_EDGES                                                                                              \
  (void *stream, int *status, unsigned long long *id, phc_graph **graph, phc_node ***nodes, const void **edges, \
   size_t *count)
#define WITH_EDGES (stream, status, id, graph, nodes, edges, count)
static cudaError_t no_edges(const void **edges) { return edges ? (*edges = NULL, 0) : 0; }
#if PH_CUDA_MAJOR >= 13
STREAM(cudaStreamGetCaptureInfo, _ptsz, GET_DEVICE, INFO_EDGES, WITH_EDGES,
       (no_edges(edges), phc_capture_ask(stream, per_thread, status, id, graph, nodes, count)))
#else
STREAM(cudaStreamGetCaptureInfo, _ptsz, GET_DEVICE, (void *stream, int *status, unsigned long long *id),
       (stream, status, id), phc_capture_ask(stream, per_thread, status, id, NULL, NULL, NULL))
STREAM(cudaStreamGetCaptureInfo_v2, _ptsz, GET_DEVICE, INFO, (stream, status, id, graph, nodes, count),
       phc_capture_ask(stream, per_thread, status, id, graph, nodes, count))
STREAM(cudaStreamGetCaptureInfo_v3, _ptsz, GET_DEVICE, INFO_EDGES, WITH_EDGES,
       (no_edges(edges), phc_capture_ask(stream, per_thread, status, id, graph, nodes, count)))
#endif
ENTRY(cudaThreadExchangeStreamCaptureMode, GET_DEVICE, nothing, (int *mode), phc_capture_exchange_mode(mode))
STREAM(cudaStreamBeginCapture, _ptsz, OTHER, (void *stream, int mode), (stream, mode),
       phc_capture_begin(stream, per_thread, mode, NULL, NULL, 0))
STREAM(cudaStreamEndCapture, _ptsz, OTHER, (void *stream, phc_graph **graph), (stream, graph),
       phc_capture_end(stream, per_thread, graph))

static cudaError_t begin_to_graph(void *stream, bool per_thread, phc_graph *graph, phc_node *const *deps, size_t count,
                                  int mode) {
  if (!phc_graph_alive(graph) || (count && !deps)) return cudaErrorInvalidValue;
  unsigned *indices = malloc((count + 1) * sizeof *indices);
  if (!indices) return cudaErrorMemoryAllocation;
  cudaError_t error = 0;
  for (size_t i = 0; i < count && !error; i++) {
    if (phc_node_alive(deps[i]) && deps[i]->graph == graph)
      indices[i] = deps[i]->index;
    else
      error = cudaErrorInvalidValue;
  }
  if (!error) error = phc_capture_begin(stream, per_thread, mode, graph, indices, (unsigned)count);
  free(indices);
  return error;
}
STREAM(cudaStreamBeginCaptureToGraph, _ptsz, OTHER,
       (void *stream, phc_graph *graph, phc_node *const *deps, const void *edges, size_t count, int mode),
       (stream, graph, deps, edges, count, mode),
       ((void)edges, begin_to_graph(stream, per_thread, graph, deps, count, mode)))
#define DEPEND_EDGES (void *stream, phc_node **nodes, const void *edges, size_t count, unsigned flags)
#if PH_CUDA_MAJOR >= 13
STREAM(cudaStreamUpdateCaptureDependencies, _ptsz, OTHER, DEPEND_EDGES, (stream, nodes, edges, count, flags),
       ((void)edges, phc_capture_depend(stream, per_thread, nodes, count, flags)))
#else
STREAM(cudaStreamUpdateCaptureDependencies, _ptsz, OTHER,
       (void *stream, phc_node **nodes, size_t count, unsigned flags), (stream, nodes, count, flags),
       phc_capture_depend(stream, per_thread, nodes, count, flags))
STREAM(cudaStreamUpdateCaptureDependencies_v2, _ptsz, OTHER, DEPEND_EDGES, (stream, nodes, edges, count, flags),
       ((void)edges, phc_capture_depend(stream, per_thread, nodes, count, flags)))
#endif
