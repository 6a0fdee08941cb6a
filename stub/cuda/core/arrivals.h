// Copies to the host that are not waited for: their bytes arrive when the host has waited for them.
#pragma once
#include "rank/rank.h"

#pragma GCC visibility push(default)

// The bytes at `src` arrive at `dst` once the host waits for `stream`, or for what comes after this on the GPU. False:
// there is no memory to keep them.
bool phc_arrive_later(void *dst, const void *src, size_t bytes, const ph_stream *stream);
// Before the range is read or written by something that the GPU orders behind the copy: what is still to come arrives.
void phc_arrive(const void *pointer, size_t bytes);
// The order of what is on the GPU: an event, and what waits for it, come after the copies of its stream.
void phc_order_record(ph_event *event, const ph_stream *stream);
void phc_order_wait(const ph_stream *stream, const ph_event *event);
// The host has waited: all that comes before arrives.
void phc_waited_for_stream(const ph_stream *stream);
void phc_waited_for_event(const ph_event *event);
void phc_waited_for_all(void);

#pragma GCC visibility pop
