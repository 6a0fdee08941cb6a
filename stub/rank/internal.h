// What the files of the rank runtime share. Each uses only those above it:
//   state    the connection's state, each thread's own
//   charges  what is charged to the host clock, for who asks
//   clock    the host clock, and the lock under which records are written and it is published
//   uncounted CPU time of the script that no cost covers
//   watchdog NCCL's watchdog threads in virtual time
//   group_time the clock of collectives' timeouts
//   frames   operators, which launches belong to
//   l2       L2 residency of their operands
//   ring     records to the simulator, requests and their answers
//   space    addresses for the memory of devices
//   names, handles (streams, events), memory (ranges, accounts, true bytes), known, copied
//   payload  bytes that arrive later
//   values   the payload rule: copies, sets, clears
//   launch   what goes to a stream
//   connect  begin and end of the connection
//   unsupported
#pragma once
#pragma GCC visibility push(default)
#include "rank/rank.h"
#pragma GCC visibility pop

#include <pthread.h>
#include <stdatomic.h>


#pragma GCC visibility push(hidden)

typedef struct ph_runtime {
  atomic_bool connected;
  atomic_bool ended;    // has said its last to the simulator
  bool null_mode, modelled, measured;
  _Atomic uint32_t generation;  // number of connects and detaches: what threads cached before is void
  int rank, devices;
  uint32_t turn;        // processes that were this rank before
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
  int64_t cpu_mark;     // thread CPU time at the last ph_leave, -1 before the first; modelled: when it was last read
  int64_t clock_mark;   // the host clock then (uncounted.c)
  uint64_t marked, left;  // the time-stamp counter then, and at the last ph_leave; 0 before the first
  int aside;            // what it does now is nobody's work
  ph_frame *frame;
  int called;           // operators by the innermost Python frame
  struct ph_stream **own_streams;  // per-thread default streams by device
  uint32_t correlation; // of its last record that a profiler knows
} ph_thread;
extern _Thread_local ph_thread ph_self __attribute__((tls_model("initial-exec")));
ph_thread *ph_this_thread(void);  // with the cached fields filled in

static inline bool ph_live(void) { return atomic_load_explicit(&ph_rt.connected, memory_order_relaxed); }
static inline bool ph_recording(void) { return ph_live() && !ph_rt.null_mode; }

// state.c
ph_control *ph_place(int device);   // of a GPU by its host's number: the rank's that has it; NULL without one

// charges.c
void ph_charges_open(void);          // at the connection
void ph_charges_close(void);
void ph_charges_detach(void);        // in a forked child
void ph_note_charge(uint32_t id);    // of a cost or a function
void ph_note_clock(char how, int64_t ns);
// clock.c
#define PH_API_COSTS (sizeof ((ph_header *)0)->api_ns / sizeof(int64_t))
void ph_clock_reset(void);          // at the connection
void ph_clock_detach(void);         // in a forked child
void ph_raise_clock(int64_t time);  // clock = max(clock, time), by threads that move it
void ph_publish_clock(void);        // with the emit lock held
// uncounted.c
void ph_uncounted_reset(void);
void ph_uncounted_enter(void);
void ph_uncounted_leave(void);
// frames.c
void ph_attribute(ph_record *record);  // sets op from the frame and counts the launch
// profile.c
extern _Atomic(ph_listener *) ph_listens;
void ph_clock_moved(int64_t now);
// joining.c
void ph_joined_detach(void);  // after a fork: the child of a rank is none
// ring.c
void ph_ring_reset(void);
// As ph_request; the reply's bytes go to `data` (PH_REPLY_BYTES of room) and their number to `got`.
// Asks for bytes without moving a clock; what they were cut to `room` is returned, and the reply's value in `value`.
size_t ph_ask_bytes(ph_record *record, void *out, size_t room, int64_t *value);
ph_answer ph_ask(ph_record *record, const void *blob, size_t length, uint8_t *data, size_t *got);
// Fetches what is left of a payload from `offset` on. 0, or the negative status of the answer.
int ph_fetch(uint64_t ticket, uint8_t *data, size_t total, size_t offset);
// names.c
void ph_flush_names(void);  // sends names that were defined before the connection
// handles.c
void ph_handles_reset(int devices);
// memory.c
void ph_memory_withdraw(void);    // this process takes nothing any longer
size_t ph_memory_release(void *pointer);  // frees an allocation; its size, 0 for none
bool ph_memory_on_device(const void *pointer);
void ph_memory_zero(void *pointer, size_t bytes);  // what is true of the device's memory there becomes zero
void ph_memory_store(void *pointer, const void *data, size_t bytes);  // payload bytes: marks, drops nothing
// The first run of true bytes in a piece of memory: [from, to), empty where there is
// none. It ends at most where the allocation at `pointer` ends: go on from there.
void ph_memory_run(const void *pointer, size_t bytes, const char **from, const char **to);
// known.c
void ph_known_reset(void);
void ph_known_drop(const void *pointer, size_t bytes);  // it is overwritten
bool ph_known_piece(const void *pointer, const void *end, const char **from, const char **to);  // the first, if any
// copied.c
void ph_copied_reset(void);
void ph_copied_launch(void);  // a kernel
void ph_copied_note(const void *at, size_t bytes);  // the program copied so many bytes there
bool ph_copied(const void *at, size_t bytes);       // was that the last copy to there, and of late?
// payload.c
void ph_payload_reset(void);
// watchdog.c
void ph_watchdogs_reset(void);
void ph_watchdog_asks(bool asks);  // the watchdog that calls waits for an answer, or has it
// Does a watchdog call? Then the moment by which it may hold collectives to be late.
bool ph_watchdog_sees(int64_t *moment);
// What the system clock shows to the calling thread: `now`, or the moment until which a watchdog has just waited.
int64_t ph_watchdog_moment(int64_t now);
// group_time.c
int64_t ph_stalled(void);      // real ns for which no rank could go on
int64_t ph_group_clock(void);  // by which the timeouts of collectives are counted
// imports.c
typedef struct ph_import {
  const char *name;
  void *function;
  void **real;  // becomes what the function replaces, unless NULL
} ph_import;
extern const ph_import ph_group_imports[], ph_watchdog_imports[];  // of libtorch_cuda, taken over; the last has no name
extern const ph_import ph_clock_imports[];                         // of all of torch's libraries
void ph_take_imports(void);

#pragma GCC visibility pop
