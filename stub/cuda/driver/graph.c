// Stream capture and graphs, as far as programs use them through the driver: those of the runtime under other names.
#include "cuda/core/graph.h"
#include "cuda/driver/entry.h"

STREAM(cuStreamIsCapturing, _ptsz, GET_DEVICE, (void *stream, int *status), (stream, status),
       phc_capture_ask(stream, per_thread, status, NULL, NULL, NULL, NULL))
STREAM(cuStreamGetCaptureInfo_v2, _ptsz, GET_DEVICE,
       (void *stream, int *status, unsigned long long *id, phc_graph **graph, phc_node ***nodes, size_t *count),
       (stream, status, id, graph, nodes, count), phc_capture_ask(stream, per_thread, status, id, graph, nodes, count))
STREAM(cuStreamGetCaptureInfo_v3, _ptsz, GET_DEVICE,
       (void *stream, int *status, unsigned long long *id, phc_graph **graph, phc_node ***nodes, const void **edges,
        size_t *count),
       (stream, status, id, graph, nodes, edges, count),
       (edges ? (void)(*edges = NULL) : (void)0, phc_capture_ask(stream, per_thread, status, id, graph, nodes, count)))
STREAM(cuStreamBeginCapture_v2, _ptsz, OTHER, (void *stream, int mode), (stream, mode),
       phc_capture_begin(stream, per_thread, mode, NULL, NULL, 0))
STREAM(cuStreamEndCapture, _ptsz, OTHER, (void *stream, phc_graph **graph), (stream, graph),
       phc_capture_end(stream, per_thread, graph))
ENTRY(cuThreadExchangeStreamCaptureMode, GET_DEVICE, nothing, (int *mode), phc_capture_exchange_mode(mode))

ENTRY(cuGraphCreate, OTHER, driver_current, (phc_graph * *graph, unsigned flags), phc_graph_make(graph, flags))
ENTRY(cuGraphDestroy, OTHER, driver_ready, (phc_graph * graph), phc_graph_destroy(graph))
ENTRY(cuGraphGetNodes, OTHER, driver_ready, (phc_graph * graph, phc_node **list, size_t *count),
      phc_graph_list(graph, list, count, false))
ENTRY(cuGraphInstantiateWithFlags, OTHER, driver_current,
      (phc_exec * *exec, phc_graph *graph, unsigned long long flags),
      flags ? driver_unsupported("cuGraphInstantiateWithFlags with flags") : phc_graph_instantiate(exec, graph))
ENTRY(cuGraphExecDestroy, OTHER, driver_ready, (phc_exec * exec), phc_exec_destroy(exec))
STREAM(cuGraphLaunch, _ptsz, OTHER, (phc_exec * exec, void *stream), (exec, stream),
       phc_exec_launch(exec, stream, per_thread))
STREAM(cuGraphUpload, _ptsz, OTHER, (phc_exec * exec, void *stream), (exec, stream),
       phc_exec_upload(exec, stream, per_thread))
