// Layer 1 of the rank runtime: the connection's state, the host clock's value, the ring, and the names, streams, events
// and operators that its records refer to. A layer calls only itself and those below; the files in stub/rank itself are
// above all.
//   state    the connection's state, each thread's own
//   places   which process has which GPU
//   charges  what is charged to the host clock, in a file
//   time     the host clock, and the lock under which records are written and it is published
//   frames   operators, which launches belong to
//   ring     records to the simulator, requests and their answers
//   names, handles (streams, events)
#pragma once
#include "rank/runtime.h"

#include <pthread.h>
#include <stdatomic.h>

#pragma GCC visibility push(hidden)

typedef struct ph_runtime {
  atomic_bool connected;
  atomic_bool ended;  // has sent its last record
  bool null_mode, modelled, measured;
  _Atomic uint32_t generation;  // number of connects and detaches: what threads cached before is void
  int rank, devices;
  int session;  // descriptor of the session that this process may join, -1 for none
  uint32_t predecessors;  // processes that were this rank before
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
  bool borrows_clock;  // speaks for the thread that moves the clock, and charges nothing
  bool apart;  // what it is charged moves a time of its own (clock/apart.c)
  int64_t apart_ns;  // that time
  bool passes_waits;  // and it waits for no GPU
  uint8_t index;
  int device;
  int lock_depth;  // of the emit lock
  int bracket_depth;  // of ph_enter
  int64_t cpu_mark;  // thread CPU time at the last ph_leave, -1 before the first; modelled: when it was last read
  int64_t clock_mark;  // the host clock then (unmodelled_cpu.c)
  uint64_t marked, left;  // the time-stamp counter then, and at the last ph_leave; 0 before the first
  int excluded;  // what it does now is not modelled
  ph_frame *frame;
  int called;  // operators by the innermost Python frame
  int covered;  // of ph_cover_frames
  int64_t unmodelled;  // CPU time of the stretch that has just ended (unmodelled_cpu.c)
  struct ph_stream **own_streams;  // per-thread default streams by device
  uint32_t correlation;  // of its last record that a profiler knows
} ph_thread;
extern _Thread_local ph_thread ph_self __attribute__((tls_model("initial-exec")));
ph_thread *ph_this_thread(void);  // with the cached fields filled in

// Is this thread charged for what it does?
static inline bool ph_charged_thread(void) {
  return (ph_this_thread()->moves_clock || ph_self.apart) && !ph_self.borrows_clock;
}

static inline bool ph_live(void) { return atomic_load_explicit(&ph_rt.connected, memory_order_relaxed); }
static inline bool ph_recording(void) { return ph_live() && !ph_rt.null_mode; }

// Functions of upper layers that the clock and the ring call; each sets its own.
typedef struct ph_hooks {
  void (*clock_moved)(int64_t now);  // while a profiler listens
  void (*watchdog_asks)(bool asks);  // the watchdog that calls waits for an answer, or has it
  void (*watchdog_work)(void);  // it found a collective that is not done
  void (*sleep)(int64_t ns);  // the clock moves on, and watchdogs make the polls that fall into it
} ph_hooks;
extern ph_hooks ph_upper;
extern _Atomic(ph_listener *) ph_listens;

// places.c
ph_control *ph_place(int device, int number);  // the number-th of a GPU by its host's number; NULL without one
int32_t ph_take_place(ph_control *control);  // 0, or the pid of the process that has it

// charges.c
#define PH_API_COSTS (sizeof((ph_header *)0)->api_ns / sizeof(int64_t))
void ph_charges_open(void);  // at the connection
void ph_charges_close(void);
void ph_charges_detach(void);  // in a forked child
void ph_note_charge(uint32_t id);  // of a cost or a function
void ph_note_clock(char how, int64_t ns);
// time.c
void ph_clock_reset(void);  // at the connection
void ph_clock_detach(void);  // in a forked child
void ph_move_clock(int64_t ns);  // by threads that move it
void ph_raise_clock(int64_t time);  // clock = max(clock, time), by threads that move it
void ph_publish_clock(void);  // with the emit lock held
int64_t ph_stalled(void);  // real ns for which no rank could go on
int64_t ph_group_clock(void);  // by which the timeouts of collectives are counted
// frames.c
void ph_attribute(ph_record *record);  // sets op from the frame and counts the launch
// ring.c
void ph_ring_reset(void);
// As ph_request; the reply's bytes go to `data` (PH_REPLY_BYTES of room) and their number to `got`.
ph_answer ph_ask(ph_record *record, const void *blob, size_t length, uint8_t *data, size_t *got);
// Asks for bytes without moving a clock; what they were cut to `room` is returned, and the reply's value in `value`.
size_t ph_ask_bytes(ph_record *record, void *out, size_t room, int64_t *value);
// Fetches what is left of a payload from `offset` on. 0, or the negative status of the answer.
int ph_fetch(uint64_t ticket, uint8_t *data, size_t total, size_t offset);
// names.c
void ph_flush_names(void);  // sends names that were defined before the connection
// handles.c
void ph_handles_reset(int devices);

#pragma GCC visibility pop
