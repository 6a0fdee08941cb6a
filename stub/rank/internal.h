// What the files of the rank runtime share: rank.c (connection, clock, operators), rank_ring.c,
// rank_names.c, rank_handles.c (streams, events), rank_memory.c, rank_known.c
// and rank_payload.c.
#pragma once
#pragma GCC visibility push(default)
#include "rank/rank.h"
#pragma GCC visibility pop

#include <pthread.h>
#include <stdatomic.h>

#define PH_MAX_DEVICES 64

#pragma GCC visibility push(hidden)

typedef struct ph_runtime {
  atomic_bool connected;
  bool null_mode, modelled, measured;
  uint32_t generation;  // number of connects and detaches: what threads cached before is void
  int rank, devices;
  size_t map_size;
  ph_header *header;
  ph_control *control;
  ph_record *ring;
  ph_reply *replies;
} ph_runtime;
extern ph_runtime ph_rt;

// A thread's own state. Initial-exec: an access is one instruction; the library is loaded before
// torch, when the loader's surplus for such storage is still free.
typedef struct ph_thread {
  uint32_t generation;  // of ph_rt when the fields below were found out
  bool moves_clock;
  bool borrows_clock;   // speaks for the thread that moves the clock, and charges nothing
  uint8_t index;
  int device;
  int lock_depth;       // of the emit lock
  int bracket_depth;    // of ph_enter
  int64_t cpu_mark;     // thread CPU time at the last ph_leave, -1 before the first
  ph_frame *frame;
  struct ph_stream **own_streams;  // per-thread default streams by device
} ph_thread;
extern _Thread_local ph_thread ph_self __attribute__((tls_model("initial-exec")));
ph_thread *ph_this_thread(void);  // with the cached fields filled in

static inline bool ph_live(void) { return atomic_load_explicit(&ph_rt.connected, memory_order_relaxed); }
static inline bool ph_recording(void) { return ph_live() && !ph_rt.null_mode; }

// rank.c
void ph_check_simulator(void);         // ends the process when the simulator is gone or aborts
static inline void ph_check_aborted(void) {
  if (__atomic_load_n(&ph_rt.header->sim_state, __ATOMIC_RELAXED) == PH_SIM_ABORTED) ph_check_simulator();
}
void ph_raise_clock(int64_t time);     // clock = max(clock, time), by threads that move it
void ph_publish_clock(void);
void ph_attribute(ph_record *record);  // sets op from the frame and counts the launch
// rank_ring.c
void ph_ring_reset(void);
// As ph_request; the reply's bytes go to `data` (PH_REPLY_BYTES of room) and their number to `got`.
ph_answer ph_ask(ph_record *record, const void *blob, size_t length, uint8_t *data, size_t *got);
// Fetches what is left of a payload from `offset` on. 0, or the negative status of the answer.
int ph_fetch(uint64_t ticket, uint8_t *data, size_t total, size_t offset);
void ph_flush_names(void);             // sends names that were defined before the connection
// rank_handles.c
void ph_handles_reset(int devices);
// rank_memory.c
void ph_memory_store(void *pointer, const void *data, size_t bytes);  // payload bytes: marks, drops nothing
// rank_payload.c
void ph_payload_reset(void);
// rank_known.c
void ph_known_reset(void);
void ph_known_drop(const void *pointer, size_t bytes);  // it is overwritten
// rank_watchdog.c
void ph_watchdog_rounds(void);  // lets NCCL's watchdogs make their round if it is due
void ph_watchdogs_reset(void);
void ph_watchdog_asks(bool asks);  // the watchdog that calls waits for an answer, or has it

#pragma GCC visibility pop
