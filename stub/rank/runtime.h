// Layer 1 of the rank runtime, for stubs and the tracer: the state of the connection, the host clock's value, records
// to the simulator, and the names, streams, events and operators that they refer to.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "phantora_wire.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// ---- state.c
void ph_assume_devices(int devices); // what a process that will only fork ranks says they see
bool ph_attached(void);  // and not yet a rank; one that has ended becomes none again
bool ph_connected(void);
bool ph_null_mode(void);  // record nothing, answer at once
void ph_assert_fails(const char *text);  // a kernel's assertion; the host learns of it when it next waits for the GPU
const char *ph_failed_assertion(void);  // the first one's text, or NULL
bool ph_probing(void);  // and the process ends with the first communication of which bytes are not carried
const ph_header *ph_shared(void);  // NULL when not connected
const ph_device *ph_gpu(void);  // the simulated GPU
int ph_rank(void);
bool ph_neighbour(int rank);  // on the same host
uint32_t ph_predecessors(void);  // processes that were this rank before this one
int ph_devices(void);  // devices visible to this process
int ph_assumed_devices(void);  // 0 unless assumed
void ph_see(int device, int of_host);  // the host's number of a device of this process (CUDA_VISIBLE_DEVICES)
int ph_of_host(int device);  // what ph_see() gave, by default `device`
int ph_current_device(void);  // of this thread
void ph_set_current_device(int device);
bool ph_moves_clock(void);  // does this thread move it?
bool ph_pays(void);  // does it move the clock, or a time of its own (clock.h)?
// Gets every record that a thread of the program makes, with the emit lock held, and requests once more when they have
// been answered. Returns the number by which the profiler knows the call; 0: not at all. ph_profile() sets it.
typedef uint32_t ph_listener(const ph_record *record, bool answered);

// ---- places.c
typedef struct ph_occupant {
  int32_t pid;
  int64_t bytes;  // that it takes there, its context among them
} ph_occupant;
int ph_occupants(int device, ph_occupant *out,
                 int room);  // how many processes have a GPU of this host; the first `room`
int64_t ph_occupied(int device);  // bytes that they take there
bool ph_has_place(int device);  // may another process have it?
int64_t ph_drawn_mj(int device);  // what the GPU had drawn by the last time that the simulator noted it
int64_t ph_drawn_mw(int device);  // and on average before that
bool ph_shares(void);  // do several processes share GPUs?
int ph_home(void);  // its host's number of the GPU of this rank then

// ---- time.c
// One clock per rank, moved by the main thread and by autograd threads (named pt_autograd_*);
// other threads (NCCL watchdog, pin-memory threads) see it and do not move it.
int64_t ph_now(void);  // ns
void ph_advance(int64_t ns);  // advance by ns
// Several records that must stay together (a group, an operator's definition): hold the lock.
void ph_emit_lock(void);
void ph_emit_unlock(void);

// ---- charges.c
uint32_t ph_note_function(const char *path, const char *function);  // its number in charges.c's file; 0 without one

// ---- names.c
// Ids are rank-local, start at 1 and are sent to the simulator on first use. Text is copied.
// `key` is a caller-chosen hash: equal keys mean equal texts, so the text is only read when new.
bool ph_name_known(uint64_t key, uint32_t *id);
bool ph_kernel_is_new(uint64_t kernel);  // of a library: true the first time
uint32_t ph_name(uint64_t key, const char *text, size_t length);
// As ph_name(), for another kind of definition (PH_DEFINE_SIGNATURE); ids come from one count.
uint32_t ph_define(uint64_t key, enum ph_kind kind, const char *text, size_t length);
// wyhash's constants.
#define PH_HASH_0 0xa0761d6478bd642fULL
#define PH_HASH_1 0xe7037ed1a0b428dbULL
uint64_t ph_hash(const void *data, size_t length, uint64_t seed);  // fast, 64 bit

// ---- frames.c
// The tracer keeps a per-thread operator frame. The first launch in a frame calls its `begin`.
typedef struct ph_frame {
  struct ph_frame *parent;
  uint32_t instance;  // 0 until begun
  uint32_t launches;  // kernels, copies, memsets issued directly in this frame
  void (*begin)(struct ph_frame *frame);  // sends OP_BEGIN (and DEFINE_SIGNATURE), sets instance
  void *data;
  uint32_t kernels;  // of the launches, those that are kernels (ph_launch counts both)
  uint32_t readback;  // the operator reads answers of up to this many 8-byte words back (the size of
  int64_t readback_value;  // nonzero's result): ph_memory_copy() of that size from device to host, in this
                           // frame or one below it, stores this value and zeros
  uint32_t signature;  // set by begin, with PH_F_BACKWARD or 0: what a graph's launches say again
  uint8_t flags;
  bool captured;  // what was launched went to a stream that is captured: nothing has been computed
  uint64_t order;  // of its last launch, by ph_order
  uint32_t stream;  // of that launch
  bool mixed;  // it launched to several streams
  bool own_copies;  // what it copies from the host only its own kernels read: lists of addresses and sizes
  int64_t timed;  // when the operator began, or last asked how long kernels took: it tries candidates since
} ph_frame;
void ph_push_frame(ph_frame *frame);
// Order of the program's streams and host: called where a program orders them. Of `launched` the result goes to the
// frame.
typedef enum ph_stream_kind { PH_STREAM_FREE, PH_STREAM_BLOCKS, PH_STREAM_LEGACY } ph_stream_kind;
typedef struct ph_order {
  uint64_t (*launched)(uint32_t stream);
  void (*recorded)(const void *event, uint32_t stream);
  void (*waits)(uint32_t stream, const void *event);
  void (*host_after_stream)(uint32_t stream);
  void (*host_after_event)(const void *event);
  void (*host_after_all)(void);
} ph_order;
void ph_order_by(const ph_order *order);
const ph_order *ph_ordered(void);  // NULL: nothing asks
void ph_pop_frame(ph_frame *frame);
ph_frame *ph_top_frame(void);
uint32_t ph_next_instance(void);
// Place of the program's Python code, as a name of the tracer; 0 for none.
void ph_site_by(uint32_t (*site)(void));
uint32_t ph_site(void);
// Is this thread in an operator that has begun? Its kernels have no price before it ends, and what has none
// holds up its GPU.
bool ph_operator_open(void);

// ---- handles.c
ph_stream_kind ph_kind_of_stream(uint32_t id);
// Handles are pointers to these; ids are what the ring carries.
typedef struct ph_stream {
  uint64_t magic;  // PH_STREAM_MAGIC while alive
  uint32_t id;
  int device, priority;
  unsigned flags;  // cudaStreamNonBlocking
  struct ph_stream *next;
  struct phc_branch *branch;  // of the capture that the stream takes part in, NULL for none
  uint64_t events;  // recorded so far
  uint64_t undone;  // by its place among these, one that was not done when the host clock was `undone_at`; 0: none
  int64_t undone_at;
} ph_stream;
typedef struct ph_event {
  uint64_t magic;  // PH_EVENT_MAGIC while alive
  uint32_t id;
  int device;
  unsigned flags;  // cudaEventDisableTiming, cudaEventBlockingSync, cudaEventInterprocess
  bool recorded;
  int64_t done_at;  // completion time once known, -1 before (a cache: spares round trips)
  ph_stream *stream;  // where it was recorded,
  uint64_t place;  // and its place among the stream's events, from 1
  struct phc_branch *captured;  // where it was recorded in a capture, NULL when it was not
} ph_event;
#define PH_STREAM_MAGIC 0x70687374726d3031ULL
#define PH_EVENT_MAGIC 0x7068657665743031ULL
ph_stream *ph_stream_create(int device, unsigned flags, int priority);
int ph_stream_destroy(ph_stream *stream);  // 0, -1 bad handle
// Translates a cudaStream_t (0, 1 = legacy, 2 = per-thread, or a handle) for the current device.
// NULL when the handle is dead. Per-thread default streams are made on first use.
ph_stream *ph_stream_of(void *handle, bool per_thread_default);
bool ph_stream_alive(const ph_stream *stream);
ph_event *ph_event_create(int device, unsigned flags);
int ph_event_destroy(ph_event *event);
bool ph_event_alive(const ph_event *event);

// ---- ring.c
// Fills time, thread, op and slot; appends to the ring (blocks in real time while it is full).
void ph_emit(ph_record *record);
void ph_emit_blob(ph_record *record, const void *data, size_t length);
// A request: emits, waits for the answer, moves the host clock to reply time (if this thread moves
// it) and returns the status. `reply` may be NULL. Never called with the emit lock held.
typedef struct ph_answer {
  int status;  // 0 ok or ready, 1 not ready, <0 error
  int64_t time;  // virtual time of completion
  int64_t value;
} ph_answer;
ph_answer ph_request(ph_record *record, const void *blob, size_t length);
bool ph_asking(void);  // does a thread wait for an answer?
// EXCHANGE: blocks until all `members` have called with the same key. out: malloc'ed, members
// consecutive (uint32 length, bytes). The caller frees.
int ph_exchange(uint64_t key_hi, uint64_t key_lo, int members, int index, const void *mine, size_t length,
                uint8_t **out, size_t *out_length);
// EXCHANGE without bytes between two ranks that send and receive for the first time: blocks until both have called with
// the same key. `peer` is the other's rank in the communicator `comm`, `index` 0 or 1 tells the two apart.
int ph_meet_peer(const uint64_t key[2], uint32_t comm, int peer, int index);
uint64_t ph_next_ticket(void);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
