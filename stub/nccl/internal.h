// Common parts of libnccl.so.2: communicators, groups and collectives of the simulated cluster. The functions
// declared here are private to the library.
//
// A call checks its arguments as NCCL does, turns into a record for the simulator and returns. Like NCCL,
// initialisation blocks in real time until every member has called; everything else only enqueues.
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "abi/export.h"
#include "abi/nccl_abi.h"
#include "rank/rank.h"

#define COMM_MAGIC 0x7068636f6d6d3031ULL
#define PREMULSUM 5  // redop in records; 0..4 are NCCL's own

// Every entry point exists under both of NCCL's names.
#define NCCL_API(type, name, ...)                                    \
  PH_EXPORT type name(__VA_ARGS__);                                  \
  PH_EXPORT type p##name(__VA_ARGS__) __attribute__((alias(#name))); \
  type name(__VA_ARGS__)

typedef struct user_op {
  bool alive, on_device;
  ncclDataType_t dtype;
  double scalar;
  const void *address;  // of a device-resident scalar
} user_op;

// Never freed, so that a stale handle is recognised by its magic; a run makes few of them.
struct ncclComm {
  uint64_t magic;
  uint32_t id;
  uint64_t key[2];
  int nranks, rank, device;
  uint32_t splits, shrinks;  // children made so far, equal on all members
  bool finalized, revoked;
  int64_t charged;  // device bytes
  bool ring;        // the ring's connections exist
  uint8_t *peers;   // by rank: memory of connections for sends and receives is charged
  uint32_t *met;    // by rank: the state of a peer in connections.c
  char name[64];
  char network[32];  // that the program asked for; empty: none
  int *world;       // global ranks of the members; NULL unless the run is folded
  user_op *ops;
  int op_count;
};

typedef struct operation {
  const char *name;
  ncclComm_t comm;
  ph_stream *stream;
  uint8_t kind;  // PH_COLLECTIVE, PH_SEND, PH_RECV
  uint8_t coll;
  ncclDataType_t dtype;
  int redop, peer;  // peer: root or the other end
  double scalar;
  const void *scalar_address;
  const void *send;
  void *recv;  // NULL: this rank receives nothing
  size_t count;
  uint64_t bytes, send_bytes, recv_bytes;
  bool carried;           // the bytes, known or not
  bool carried_if_known;  // reals that are too many to be carried in any case
  bool launched;
  uint64_t rows;          // of experts: that this rank sends or gets back
  double tokens;          // of experts
  uint8_t blocks;         // of experts: SMs
  uint32_t site;          // where the program calls it, a name
  uint8_t known;          // what this rank knows of the bytes that it gives: PH_F_UNKNOWN, PH_F_ABSENT, PH_F_PARTS
  bool sparse;            // zeros at the end of what is sent stay behind
  bool travels;           // the bytes that it gives
  uint64_t ticket;        // of those that it gets; 0: they read as zero
} operation;

typedef struct job {
  enum { JOB_INIT, JOB_SPLIT, JOB_SHRINK } kind;
  const char *call;
  ncclComm_t comm, parent, *out;
  int color, key;
  uint32_t child;  // number of a split among the parent's
  bool local;      // every member is in this process
  ncclResult_t result;
} job;

extern const size_t dtype_bytes[ncclNumTypes];

#define FIELD_GIVEN(config, field) ((config)->size >= offsetof(ncclConfig_t, field) + sizeof((config)->field))
#define INT_FIELD(config, field) (FIELD_GIVEN(config, field) ? (config)->field : NCCL_CONFIG_UNDEF_INT)

// ---------------------------------------------------------------- errors.c
ncclResult_t ncclGetVersion(int *version);
// Keeps the message for ncclGetLastError and returns `result`.
__attribute__((format(printf, 2, 3))) ncclResult_t fail(ncclResult_t result, const char *format, ...);
ncclResult_t leave(ncclResult_t result);  // ends what ph_enter began
ncclResult_t check_pointer(const void *pointer, const char *call, const char *argument);
ncclResult_t check_comm(const struct ncclComm *comm, const char *call);

// ---------------------------------------------------------------- debug.c: lines that NCCL_DEBUG asks for
enum { SAY_INIT = 1, SAY_ENV = 2 };  // parts of NCCL, by NCCL_DEBUG_SUBSYS
__attribute__((format(printf, 2, 3))) void say(unsigned part, const char *format, ...);
__attribute__((format(printf, 1, 0))) void say_error(const char *format, va_list arguments);
void say_version(void);  // once in a process
void say_config(const ncclConfig_t *config);
void say_job(const job *work, const char *state);
void say_end(const struct ncclComm *comm, const char *state);

// ---------------------------------------------------------------- fold.c: communicators with folded members
bool folded_run(void);
// The network that the program asks for, or NULL: a folded run has its lists of members there.
const char *config_network(const ncclConfig_t *config);
bool folded_member(const struct ncclComm *comm, int rank);
// Takes the members' global ranks from the name that phantora.rank.fold.groups gave the group. Fails if there are
// none.
ncclResult_t learn_members(ncclComm_t comm, const ncclConfig_t *config);
// The same for a part of another one, which is then as large as its list.
ncclResult_t learn_split(ncclComm_t child, const ncclConfig_t *config);
// They as text, malloc'ed, behind the communicator's name and a zero byte; its length.
char *label_with_members(const struct ncclComm *comm, size_t *length);

// ---------------------------------------------------------------- memory.c: what communicators take of the device's
ncclResult_t charge_communicator(ncclComm_t comm);
ncclResult_t connect_ring(ncclComm_t comm);
ncclResult_t connect_peer(ncclComm_t comm, int peer);

// ---------------------------------------------------------------- jobs.c: making communicators, alone or in a group
ncclResult_t run_job(job *work);
ncclResult_t run_jobs(job *jobs, size_t count);
void derive_key(uint64_t key[2], const void *data, size_t length);

// ---------------------------------------------------------------- reductions.c: factors made by the user
double scalar_value(const void *address, ncclDataType_t dtype);
ncclResult_t check_reduction(operation *op);  // exchanges a user's operation for its factor

// ---------------------------------------------------------------- operations.c
// Checks an operation and launches it, or keeps it for the end of the group that is open.
ncclResult_t enqueue(operation op, cudaStream_t stream);
// Launches what a group gathered: one launch per communicator and stream, in order of first use.
ncclResult_t launch(operation *ops, size_t count);

// ---------------------------------------------------------------- known.c
uint8_t known_to_send(const operation *op);     // as flags of a record
bool expects_known(const operation *op);        // does anything known come?
uint64_t expected_parts(const operation *op);   // PH_PARTS if not all of it is
void expect_bytes(const operation *op);         // the receive buffer awaits the ticket's bytes

// ---------------------------------------------------------------- connections.c
// Waits until the peers of sends and receives that meet for the first time have called too.
ncclResult_t connect_pairs(const operation *ops, size_t count);

// ---------------------------------------------------------------- groups.c
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
bool group_open(void);
ncclResult_t group_failed(ncclResult_t result);  // remembers the first failure of an open group
ncclResult_t group_operation(operation op);      // for the end of the group
ncclResult_t submit_job(job work);               // runs a job now, or at the end of the group that is open
