// Stream capture: what goes to a stream becomes nodes of a graph instead of work.
#pragma once
#include "cuda/core/graph.h"

#pragma GCC visibility push(default)

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
