// Events.
#include "cuda/runtime/entry.h"
#include "cuda/core/event.h"

ENTRY(cudaEventCreate, EVENT_CREATE, phc_context, (void **event), phc_event_create(event, 0))
ENTRY(cudaEventCreateWithFlags, EVENT_CREATE, phc_context, (void **event, unsigned flags),
      phc_event_create(event, flags))
ENTRY(cudaEventDestroy, OTHER, phc_ready, (void *event), phc_event_destroy(event))
ENTRY(cudaEventQuery, EVENT_QUERY, phc_ready, (void *event), phc_event_query(event))
ENTRY(cudaEventSynchronize, STREAM_SYNC, phc_ready, (void *event), phc_event_sync(event))
ENTRY(cudaEventElapsedTime, EVENT_QUERY, phc_ready, (float *ms, void *start, void *end),
      phc_event_elapsed(ms, start, end))
#if PH_CUDA_MAJOR == 12
ENTRY(cudaEventElapsedTime_v2, EVENT_QUERY, phc_ready, (float *ms, void *start, void *end),
      phc_event_elapsed(ms, start, end))
#endif
STREAM(cudaEventRecord, _ptsz, EVENT_RECORD, (void *event, void *stream), (event, stream),
       phc_event_record(event, stream, 0, per_thread))
STREAM(cudaEventRecordWithFlags, _ptsz, EVENT_RECORD, (void *event, void *stream, unsigned flags),
       (event, stream, flags), phc_event_record(event, stream, flags, per_thread))
