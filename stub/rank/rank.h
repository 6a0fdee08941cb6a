// The rank runtime: what every stub library shares inside one simulated rank.
//
// A stub translates a CUDA call into calls of this interface and returns what CUDA would return.
// The runtime owns the host clock, device memory, the ring to the simulator, streams' and events'
// numbering and the bytes of small tensors. One process is one rank; it may see several devices.
//
// Until ph_connect() has been called (in the fork server, while torch is imported) everything
// works on local state and nothing is recorded; a process that CUDA code runs in without ever
// connecting gets cudaErrorNoDevice-like answers from the stubs (ph_connected() is false).
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "phantora_wire.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------- connection
// Maps the shared area (an open fd) and takes the place of `rank`. Called once per rank, after
// fork, by phantora.rank. Returns 0, or -1 with errno. Installs an atfork handler: a forked
// child (a DataLoader worker) is detached and sees no device.
int ph_connect(int fd, int rank, int local_rank, int devices);
void ph_assume_devices(int devices); // what a process that will only fork ranks says they see
// A process that is no rank yet: it sees `devices` GPUs of the session in `fd` (which stays open), those of the host of
// the rank `near`, and becomes the rank of a GPU at ph_join() if it may `join`; `joined` is called then. 0, or -1 with
// errno.
int ph_attach(int fd, int devices, int near, bool join, void (*joined)(void));
bool ph_attached(void);  // and not yet a rank; one that has ended becomes none again
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
int ph_join(int gpu);  // 0, or -1 when it may not; says why on stderr
bool ph_shares(void);  // do several processes share GPUs?
int ph_home(void);  // its host's number of the GPU of this rank then
void ph_joined_detach(void);  // in a forked child: it is no rank
void ph_exit(int status);  // sends RANK_EXIT; called by phantora.rank as the rank ends
bool ph_connected(void);
bool ph_null_mode(void);  // record nothing, answer at once
void ph_assert_fails(const char *text);  // a kernel's assertion; the host learns of it when it next waits for the GPU
const char *ph_failed_assertion(void);  // the first one's text, or NULL
bool ph_probing(void);  // and the process ends with the first communication whose bytes are not carried
const ph_header *ph_shared(void);  // NULL when not connected
const ph_device *ph_gpu(void);  // the simulated GPU
int ph_rank(void);
bool ph_neighbour(int rank);  // on the same host
uint32_t ph_turn(void);  // processes that were this rank before this one
int ph_devices(void);  // devices visible to this process
int ph_assumed_devices(void);  // 0 unless assumed
void ph_see(int device, int of_host);  // the host's number of a device of this process (CUDA_VISIBLE_DEVICES)
int ph_of_host(int device);  // the same number by default
int ph_current_device(void);  // of this thread
void ph_set_current_device(int device);

// ---------------------------------------------------------------- the host clock
// One clock per rank, moved by the main thread and by autograd threads (named pt_autograd_*);
// other threads (NCCL watchdog, pin-memory threads) see it and do not move it.
int64_t ph_now(void);  // ns
void ph_charge(enum ph_api api);  // advance by the modelled cost of a call (0 in other modes)
void ph_charge_times(enum ph_api api, size_t times);
// A Python frame of `units` of code, which ran `last`, begins: PY_FRAME, and PY_CODE per 1,000 cold units (costs.c).
// What ph_leave_frame gets at its end.
int ph_enter_frame(int64_t *last, size_t units, uint32_t function);
void ph_leave_frame(int called);
void ph_cover_frames(int more);  // frames of this thread are not charged while it is above 0
bool ph_frames_covered(void);
uint32_t ph_note_function(const char *path, const char *function);  // its number in charges.c's file; 0 without one
void ph_called_from_python(void);  // an operator: PY_LOOP if its frame has called several
void ph_enter_backward(void);  // this thread enters the autograd engine
void ph_charge_handover(
    void);  // a node is about to run: BACKWARD_CALL and BACKWARD_WAKE if it is the pass's first on another thread
void ph_charge_cold(enum ph_api api, int64_t *last,
                    size_t times);  // as much of each as the code that ran `last` is cold (costs.c)
const uint64_t *ph_charges(void);  // times that each cost was charged, by enum ph_api
uint64_t ph_charged(enum ph_api api);  // the same for one, from any thread
const uint64_t *ph_charge_levels(void);  // by cold level: operators, then units of code
void ph_advance(int64_t ns);  // advance by ns
void ph_sleep(int64_t ns);  // the same, and NCCL's watchdogs make the rounds that fall into it
void ph_reach(int64_t time);  // something has happened then that this process has waited for
// The clock of a process that sees GPUs and uses none (a driver of workers, a client of an engine).
enum ph_front {
  PH_FRONT_REAL,
  PH_FRONT_LATEST,
  PH_FRONT_REACHED
};  // this machine's; the latest rank's; as ph_reach() says
void ph_follow(enum ph_front how);
enum ph_front ph_follows(void);  // PH_FRONT_REAL of a rank
int64_t ph_latest_clock(void);  // of all ranks
int64_t ph_epoch(void);  // wall clock at virtual time 0, ns
void ph_charge_bytes(enum ph_api api, size_t bytes);  // api's cost is per GiB
int64_t ph_bytes_ns(enum ph_api api, size_t bytes);  // that cost; 0 in other modes
int64_t ph_times_ns(enum ph_api api, size_t times);  // the cost of `times` calls; 0 in other modes
// An operator of the host's CPU that moves `bytes`, of which `fresh` are new memory, on `threads` threads;
// 0: this rank's share of 24.
void ph_charge_memory(size_t moved, size_t fresh, int threads);
// Work of the host takes `first` times as long until `planned`, and `then` times until `until`. Factors are at least 1.
void ph_contend(int64_t planned, double first, int64_t until, double then);
bool ph_moves_clock(void);  // does this thread move it?
// Every stub entry point is bracketed. CPU time between brackets is the program's: the measured mode counts it, the
// modelled one notes what it does not count.
void ph_enter(void);
void ph_leave(void);
void ph_unmodelled_exclude(bool begins);  // what this thread does until it ends is counted elsewhere
void ph_unmodelled_drop_latest(void);  // the stretch that has just ended has a price
void ph_unmodelled_step(void);  // an optimizer's step has ended
// For each step so far: ns of the script's CPU time that were not counted, and the clock's advance.
size_t ph_unmodelled_steps(const int64_t **pairs);

// ---------------------------------------------------------------- names
// Ids are rank-local, start at 1 and are sent to the simulator on first use. Text is copied.
// `key` is a caller-chosen hash: equal keys mean equal texts, so the text is only read when new.
bool ph_name_known(uint64_t key, uint32_t *id);
bool ph_kernel_is_new(uint64_t kernel);  // of a library: true the first time
uint32_t ph_name(uint64_t key, const char *text, size_t length);
// The same for another kind of definition (PH_DEFINE_SIGNATURE); ids come from the same count.
uint32_t ph_define(uint64_t key, enum ph_kind kind, const char *text, size_t length);
// wyhash's constants.
#define PH_HASH_0 0xa0761d6478bd642fULL
#define PH_HASH_1 0xe7037ed1a0b428dbULL
uint64_t ph_hash(const void *data, size_t length, uint64_t seed);  // fast, 64 bit

// ---------------------------------------------------------------- emitting
// Fills time, thread, op and slot; appends to the ring (blocks in real time while it is full).
void ph_emit(ph_record *record);
void ph_emit_blob(ph_record *record, const void *data, size_t length);
// Several records that must stay together (a group, an operator's definition): hold the lock.
// ---- profile.c: a profiler in the rank
// Hears of every record that a thread of the program makes, with the emit lock held, and of requests once more when
// they have been answered. Returns by which number the profiler knows the call; 0: not at all.
typedef uint32_t ph_listener(const ph_record *record, bool answered);
void ph_profile(ph_listener *listener);  // NULL: none listens any longer
uint32_t ph_last_correlation(void);  // of this thread's last record
// Ended launches that the profiler knows: fills `out`, as many as fit; 0: no more.
size_t ph_activities(ph_activity *out, size_t room);
size_t ph_activity_name(int32_t name, char *out, size_t room);  // its length
// While true, this thread's calls of the clocks of torch's profiler tell virtual time.
void ph_profiler_clock(bool on);
int64_t ph_unix_ns(void);  // virtual time since 1970
void ph_emit_lock(void);
void ph_emit_unlock(void);
// A request: emits, waits for the answer, moves the host clock to reply time (if this thread moves
// it) and returns the status. `reply` may be NULL. Never called with the emit lock held.
typedef struct ph_answer {
  int status;  // 0 ok or ready, 1 not ready, <0 error
  int64_t time;  // virtual time of completion
  int64_t value;
} ph_answer;
ph_answer ph_request(ph_record *record, const void *blob, size_t length);
// EXCHANGE: blocks until all `members` have called with the same key. out: malloc'ed, members
// consecutive (uint32 length, bytes). The caller frees.
int ph_exchange(uint64_t key_hi, uint64_t key_lo, int members, int index, const void *mine, size_t length,
                uint8_t **out, size_t *out_length);
// EXCHANGE without bytes between two ranks that send and receive for the first time: blocks until both have called with
// the same key. `peer` is the other's rank in the communicator `comm`, `index` 0 or 1 tells the two apart.
int ph_meet_peer(const uint64_t key[2], uint32_t comm, int peer, int index);

// ---------------------------------------------------------------- operators (set by the tracer)
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
  uint64_t (*launched)(uint32_t stream, ph_stream_kind kind);
  void (*recorded)(const void *event, uint32_t stream, ph_stream_kind kind);
  void (*waits)(uint32_t stream, const void *event);
  void (*host_after_stream)(uint32_t stream);
  void (*host_after_event)(const void *event);
  void (*host_after_all)(void);
} ph_order;
void ph_order_by(const ph_order *order);
const ph_order *ph_ordered(void);  // NULL: nobody asks
ph_stream_kind ph_kind_of_stream(uint32_t id);
void ph_pop_frame(ph_frame *frame);
ph_frame *ph_top_frame(void);
uint32_t ph_next_instance(void);
// Place of the program's Python code, as a name of the tracer; 0 for none.
void ph_site_by(uint32_t (*site)(void));
uint32_t ph_site(void);
// Is this thread in an operator that has begun? Its kernels have no price before it ends, and what has none
// holds up its GPU.
bool ph_operator_open(void);
// Called by stubs for everything that goes to a stream. Sets record->op from the frame.
void ph_launch(ph_record *record);
void ph_launch_blob(ph_record *record, const void *data, size_t length);
// Streams that are captured (stub/cuda/core/capture.c) keep what goes to them: ph_launch asks `keep` before it sends
// a record while ph_capturing(true) outweighs ph_capturing(false).
struct ph_stream;
typedef bool ph_keep(ph_record *record, const void *blob, size_t length);
void ph_capture_by(ph_keep *keep);
void ph_capturing(bool more);
// Values of small tensors are not computed while their stream is captured, but at each launch of the graph: `run` is
// called then, after the launch that this thread made last. It takes the place of all that were kept since the mark,
// by operators inside this one.
uint64_t ph_capture_mark(void);
void ph_capture_value(uint64_t since, void (*run)(void *data, struct ph_stream *stream), void (*drop)(void *data),
                      void *data);
// ph_memory_give, and if this thread's last launch is captured, again at each launch of the graph.
void ph_give(void *pointer, const void *data, size_t bytes);
// A piece of a GPU's memory that an operator reads or writes (l2.c).
typedef struct ph_operand {
  const void *data;
  size_t bytes;
  bool changed, unread;  // written; written only
} ph_operand;
// Touches them, and writes to an operator's end the share that L2 holds of them, and the written share of what they
// displace: 0 if there are none.
void ph_l2_touch(int device, const ph_operand *operands, size_t count, ph_record *end);
// The same at each launch of the graph in which the operator `instance` was captured; the operands are copied.
void ph_capture_operands(uint32_t instance, int device, const ph_operand *operands, size_t count);
// A kernel of a library (cuBLAS, cuDNN): `json` describes the call, e.g.
// {"lib":"cublas","call":"gemm","m":..,"n":..,"k":..,"batch":1,"a":"bf16","b":"bf16","c":"bf16","compute":"f32","trans":"tn","name":"nvjet_..."}
void ph_library_kernel(uint32_t stream, uint64_t key, const char *json, size_t length);

// ---------------------------------------------------------------- streams and events
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

// ---------------------------------------------------------------- memory
// Device memory is reserved address space: readable, zero until written. Accounting is against
// the simulated GPU's capacity (memory_bytes - context_bytes - communicators).
enum ph_space { PH_SPACE_NONE, PH_SPACE_DEVICE, PH_SPACE_PINNED, PH_SPACE_REGISTERED, PH_SPACE_MANAGED };
typedef struct ph_range {
  uintptr_t base;
  size_t size;
  enum ph_space space;
  int device;
} ph_range;
// Address space for the memory of devices, and for mappings of other memory, aligned to PH_GRANULE: the next addresses
// above those of all calls before (space.c). NULL if there is none.
void *ph_map_device(size_t bytes);
void ph_unmap_device(void *base, size_t bytes);  // any mapping
void *ph_memory_alloc(int device, size_t bytes);  // NULL: the simulated GPU is full
int ph_memory_free(void *pointer);  // 0, -1 not an allocation
void ph_host_memory(int64_t bytes, bool is_pinned);  // the process has as many more of the host's memory
void *ph_pinned_alloc(size_t bytes);
int ph_pinned_free(void *pointer);
int ph_register(void *pointer, size_t bytes, enum ph_space space, int device);  // also VMM and IPC mappings
int ph_unregister(void *pointer);
// The program maps memory of a device to addresses, or unmaps it (cuMemMap): `changed` is called then.
void ph_mapping_by(void (*changed)(const void *pointer, size_t bytes, bool mapped));
void ph_mapping_changed(const void *pointer, size_t bytes, bool mapped);
bool ph_memory_find(const void *pointer, ph_range *range);
void ph_memory_info(int device, size_t *free_bytes, size_t *total_bytes);
// Charges or returns bytes that are not an allocation (communicator buffers, cuMemCreate handles).
// Returns false (and charges nothing) when they don't fit.
bool ph_memory_charge(int device, int64_t bytes);
int64_t ph_memory_peak(void);  // most that was taken of any device, with the context: what nvidia-smi shows

#define PH_GRANULE ((size_t)2 << 20)  // the driver hands out device memory in pieces of 2 MiB
#define PH_HOST_PAGE ((size_t)4096)

// The payload rule (docs/values.md). Small data are true, all else reads as zero. PHANTORA_DEFINES sets other limits;
// PH_SMALL_ELEMENTS, PH_KNOWN and the like are in phantora/wire/shared.py.
#ifndef PH_TRUE_COPY_BYTES
#define PH_TRUE_COPY_BYTES (1 << 20)  // host-to-device and device-to-device copies up to this are carried
#endif
#ifndef PH_CARRIED_BYTES
#define PH_CARRIED_BYTES (64 << 10)  // a small collective's bytes are true
#endif
#define PH_INTEGER_BYTES (1 << 30)  // integers of a collective up to this are carried
#define PH_REAL_BYTES (16 << 20)  // known reals of a collective up to this are carried,
#define PH_ALL_REAL_BYTES (256 << 20)  // and those of a rank above PH_CARRIED_BYTES up to this, altogether
void ph_memory_wrote(void *pointer, size_t bytes);  // true bytes were stored: mark dirty
void ph_memory_clear(void *pointer, size_t bytes);  // a kernel "wrote" here: dirty bytes become zero
// Bytes in place of a kernel's result: operators on them are computed whatever their size.
void ph_memory_give(void *pointer, const void *data, size_t bytes);
// Knowledge about a range beyond the rule for small tensors: PH_KNOWN, PH_HOLDS, PH_EQUALS and PH_COMPARES of all of
// it, PH_UNKNOWN of some of it, PH_FRESH of what is not known of it.
unsigned ph_memory_flags(const void *pointer, size_t bytes);
void ph_memory_mark(const void *pointer, size_t bytes, unsigned flags);
bool ph_memory_known(void);  // is anything marked?
bool ph_memory_unseen(void);  // has a kernel without an operator run, which may have written anywhere?
typedef struct ph_known_span {
  size_t from, to;  // bytes from a range's begin
  unsigned flags;  // PH_KNOWN, PH_UNKNOWN
} ph_known_span;
// The first `most` pieces of a range that have one of `flags`.
size_t ph_known_spans(const void *pointer, size_t bytes, unsigned flags, ph_known_span *found, size_t most);
size_t ph_memory_length(const void *pointer, size_t bytes);  // without the zeros at its end
bool ph_memory_true(const void *pointer, size_t bytes);  // do true bytes lie there?
size_t ph_memory_held(void);  // bytes of host memory that true bytes take
// Copies of memory by CUDA semantics for values: from/to any space, obeys the rule above and
// pending payloads. dst and src may be host or device.
void ph_memory_copy(void *dst, const void *src, size_t bytes);
bool ph_read_by_kernels_only(void);  // is a copy from the host one of lists (own_copies)? They take up to 1 MB each
// With nothing simulated: parts were copied one behind the other, to be read together or the first one alone.
void ph_memory_gathered(const void *pointer, size_t bytes, size_t part);
void ph_memory_set(void *pointer, int value, size_t bytes);  // true when small, zero otherwise
// Results of small collectives arrive later: a range that awaits `ticket`. ph_touch() waits (in
// real time) for every pending range that intersects and stores the bytes.
void ph_expect(void *pointer, size_t bytes, uint64_t ticket);
void ph_touch(const void *pointer, size_t bytes);
void ph_touch_arriving(const void *pointer, size_t bytes);  // the same for bytes of other ranks, not for deferred ones
// `dst` becomes a copy of `src`, whose bytes are still to come: it awaits them as well. False: they do not come, or not
// all by one ticket, and the caller copies.
bool ph_expect_copy(void *dst, const void *src, size_t bytes);
void ph_touch_drop(void *pointer, size_t bytes);  // the range is overwritten: forget its payload
void ph_forget_ticket(uint64_t ticket);  // nobody expects its bytes
#define PH_PARTS (UINT64_C(1) << 62)  // in a ticket: parts of the bytes are taken as known
uint64_t ph_next_ticket(void);
// Values that are computed when they are read (stub/tracer/deferred.cpp): their tickets have the bit PH_DEFERRED, and
// their bytes come from `bytes`, which the tracer gives; they stay its own until `drop`. It may touch what awaits
// others.
#define PH_DEFERRED (UINT64_C(1) << 63)
typedef const uint8_t *ph_deferred_bytes(uint64_t ticket, size_t *total, int *knowledge);  // PH_F_UNKNOWN
typedef void ph_deferred_drop(uint64_t ticket);
void ph_deferred_by(ph_deferred_bytes *bytes, ph_deferred_drop *drop);
uint64_t ph_next_deferred(void);
// The first piece of a range that awaits bytes: `bytes` of them from `at` on, which are the ticket's from `offset` on.
typedef struct ph_awaited_piece {
  size_t at, bytes, offset;
  uint64_t ticket;
} ph_awaited_piece;
bool ph_awaited(const void *pointer, size_t bytes, ph_awaited_piece *piece);
uint32_t ph_next_communicator(void);  // from 1

// A library got a block to work in; each once, in the order of the notes; NULL: no more.
void ph_note_workspace(const void *block);
const void *ph_next_workspace(void);

// ---------------------------------------------------------------- torch's helper threads
// NCCL's watchdog threads make their rounds in virtual time from now on. Called once, after torch
// has been imported and before ranks are forked.
void ph_take_watchdogs(void);
void ph_watchdog_work(void);  // a collective was issued, or a round found one that is not done
bool ph_watchdog_undone(void);  // by what found something not done: a watchdog's round? Then there will be another
void ph_watchdog_rounds(void);  // lets NCCL's watchdogs make their round if it is due
// torch calls NCCL under a lock of the communicator, and keeps it while it sleeps until the call is over. A watchdog
// takes the same lock in its round. `locks`: the calling thread's last question was to NCCL, not about an event.
void ph_watchdog_locked(bool locks);
// Time since a round of the watchdog kept what this thread frees now, in ns; -1: no round kept it.
int64_t ph_watchdog_kept(void);
void ph_watchdog_pulse(int64_t ns);  // how often they go round in real time, where they find nothing done
bool ph_watchdog_early(const ph_event *event);  // asked in a round: too soon after its end to find it done
bool ph_watchdog_blind(const ph_event *event);  // asked by a watchdog in real time: the event is not done

// ---------------------------------------------------------------- loud failure
// Reports a call that is not supported: prints one line naming library and call and the remedy
// (once per name), aborts the rank under --unsupported error (exit status 78) unless `soft`,
// records it otherwise. Traps and stubs that answer "not supported" use it. `call` outlives the call.
void ph_unsupported(const char *library, const char *call, bool soft);
// The same for a call that is no no-op when it may pass: `passes` says what it does then ("--unsupported warn to ..."),
// `passed` that it has done so.
void ph_unsupported_result(const char *library, const char *call, const char *passes, const char *passed);
// The same for a call that never ends the rank.
void ph_unsupported_passed(const char *library, const char *call, const char *passed);
const char *ph_refused(void);  // the last call of this process that got an error as not supported, or NULL

#ifdef __cplusplus
}
#endif
