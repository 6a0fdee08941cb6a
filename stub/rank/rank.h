// The rank runtime: what every stub library shares inside one simulated rank.
//
// A stub translates a CUDA call into calls of this interface and returns what CUDA would return.
// The runtime owns the host clock, device memory, the ring to the simulator, streams' and events'
// numbering and the bytes of small tensors. One process is one rank; it may see several devices.
//
// Until ph_connect() has been called (in the fork server, while torch is imported) everything
// works on local state and nothing is recorded; a process that CUDA code runs in without ever
// connecting gets cudaErrorNoDevice-like answers from the stubs (ph_connected() is false).
//
// A header per layer: runtime.h, clock.h, memory.h, torch_hooks.h. This one has the functions above all layers, in the
// files of stub/rank itself. LAYER/LAYER.h has what only the runtime uses.
#pragma once
#include "rank/torch_hooks.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// ---- connect.c
// Maps the shared area (an open fd) and takes the place of `rank`. Called once per rank, after
// fork, by phantora.rank. Returns 0, or -1 with errno. Installs an atfork handler: a forked
// child (a DataLoader worker) is detached and sees no device.
int ph_connect(int fd, int rank, int local_rank, int devices);
void ph_exit(int status);  // sends RANK_EXIT; called by phantora.rank as the rank ends

// ---- joining.c
// A process that is no rank yet: it sees `devices` GPUs of the session in `fd` (which stays open), those of the host of
// the rank `near`, and becomes the rank of a GPU at ph_join() if it may `join`; `joined` is called then. 0, or -1 with
// errno.
int ph_attach(int fd, int devices, int near, bool join, void (*joined)(void));
int ph_join(int gpu);  // 0, or -1 when it may not; says why on stderr
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

// ---- launch.c
// Called by stubs for everything that goes to a stream. Sets record->op from the frame.
void ph_launch(ph_record *record);
void ph_launch_blob(ph_record *record, const void *data, size_t length);
// Streams that are captured (stub/cuda/core/capture.c) keep what goes to them: ph_launch asks `keep` before it sends
// a record while ph_capturing(true) outweighs ph_capturing(false).
typedef bool ph_keep(ph_record *record, const void *blob, size_t length);
void ph_capture_by(ph_keep *keep);
void ph_capturing(bool more);
// A kernel of a library (cuBLAS, cuDNN): `json` describes the call, e.g.
// {"lib":"cublas","call":"gemm","m":..,"n":..,"k":..,"batch":1,"a":"bf16","b":"bf16","c":"bf16","compute":"f32","trans":"tn","name":"nvjet_..."}
void ph_library_kernel(uint32_t stream, uint64_t key, const char *json, size_t length);

// ---- cuda/core/capture.c
// Values of small tensors are not computed while their stream is captured, but at each launch of the graph: `run` is
// called then, after the launch that this thread made last. It takes the place of all that were kept since the mark,
// by operators inside this one.
uint64_t ph_capture_mark(void);
void ph_capture_value(uint64_t since, void (*run)(void *data, struct ph_stream *stream), void (*drop)(void *data),
                      void *data);
// ph_memory_give, and if this thread's last launch is captured, again at each launch of the graph.
void ph_give(void *pointer, const void *data, size_t bytes);
// ph_l2_touch() at each launch of the graph in which the operator `instance` was captured; the operands are copied.
void ph_capture_operands(uint32_t instance, int device, const ph_operand *operands, size_t count);

// ---- unsupported.c
// Reports a call that is not supported: prints one line naming library and call and the remedy
// (once per name), aborts the rank under --unsupported error (exit status 78) unless `soft`,
// records it otherwise. Traps and stubs that answer "not supported" use it. `call` outlives the call.
void ph_unsupported(const char *library, const char *call, bool soft);
// ph_unsupported() for a call that is no no-op when it may pass: `passes` says what it does then ("--unsupported warn
// to ..."), `passed` that it has done so.
void ph_unsupported_result(const char *library, const char *call, const char *passes, const char *passed);
// ph_unsupported() for a call that never ends the rank.
void ph_unsupported_passed(const char *library, const char *call, const char *passed);
const char *ph_refused(void);  // the last call of this process that got an error as not supported, or NULL

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
