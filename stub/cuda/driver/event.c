// Events.
#include "cuda/driver/entry.h"
#include "cuda/core/event.h"

ENTRY(cuEventCreate, EVENT_CREATE, driver_current, (void **event, unsigned flags), phc_event_create(event, flags))
ENTRY(cuEventDestroy_v2, OTHER, driver_ready, (void *event), phc_event_destroy(event))
ALSO(cuEventDestroy_v2, cuEventDestroy)
ENTRY(cuEventQuery, EVENT_QUERY, driver_ready, (void *event), phc_event_query(event))
ENTRY(cuEventSynchronize, STREAM_SYNC, driver_ready, (void *event), phc_event_sync(event))
ENTRY(cuEventElapsedTime, EVENT_QUERY, driver_ready, (float *ms, void *start, void *end),
      phc_event_elapsed(ms, start, end))
ALSO(cuEventElapsedTime, cuEventElapsedTime_v2)
STREAM(cuEventRecord, _ptsz, EVENT_RECORD, (void *event, void *stream), (event, stream),
       phc_event_record(event, stream, 0, per_thread))
STREAM(cuEventRecordWithFlags, _ptsz, EVENT_RECORD, (void *event, void *stream, unsigned flags),
       (event, stream, flags), phc_event_record(event, stream, flags, per_thread))
