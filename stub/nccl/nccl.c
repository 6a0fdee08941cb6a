// libnccl.so.2: communicators, groups and collectives of the simulated cluster.
//
// Nothing is transferred here. A call checks its arguments as NCCL does, turns into a record for
// the simulator and returns. Small collectives carry their bytes (docs/collectives.md): the
// contribution travels with the record and the result is awaited by whoever reads the receive
// buffer. Larger ones leave zeros. Like NCCL, initialisation blocks in real time until every
// member has called; everything else only enqueues.
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi/export.h"
#include "abi/nccl_abi.h"
#include "cuda/core/visible.h"
#include "rank/rank.h"

#ifndef PH_NCCL_VERSION
#define PH_NCCL_VERSION 22809
#endif

#define COMM_MAGIC 0x7068636f6d6d3031ULL
#define ID_MAGIC 0x706875696431ULL
#define CARRIED_BYTES (64 << 10)        // a small collective's bytes are true
#define CARRIED_OBJECT_BYTES (1 << 20)  // of int8/uint8: pickled objects
#define MEM_GRANULARITY (2 << 20)       // ncclMemAlloc rounds up to the driver's granularity
#define PREMULSUM 5                     // redop in records; 0..4 are NCCL's own

// Device memory of one connection of one channel: the receive buffers of the three protocols (LL
// 512 KiB, LL128 4.7 MiB, Simple 4 MiB) and the sender's counters, each rounded up to 2 MiB by the
// driver. Since NCCL 2.22 connections are made when an algorithm or a peer is first used.
#define CONNECTION_BYTES (12LL << 20)
// NCCL's kernels and the local memory they need, taken once by the first communicator of a process: what a
// communicator of one rank takes on H200 (benchmarks/device/first_use.py; 562 MiB on H100).
#define KERNEL_BYTES (558LL << 20)
// What sends and receives take beside their connections, once: 442 MiB with one peer and 1,210 MiB with three, of
// 384 MiB each (benchmarks/device/memory.py).
#define P2P_KERNEL_BYTES (58LL << 20)
#define NVLINK_CHANNELS 24  // measured on 4 H200
#define PCIE_CHANNELS 4
#define P2P_CHANNELS 32    // per peer,
#define P2P_FULL_RANKS 4   // measured up to so many ranks; more share them

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
  uint8_t *peers;   // by rank: connections for sends and receives exist
  char name[64];
  user_op *ops;
  int op_count;
};

// A registered buffer or window.
typedef struct registration {
  uint64_t magic;
  ncclComm_t comm;
} registration;
#define REGISTRATION_MAGIC 0x7068726567303031ULL

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
  bool carried, launched;
  uint64_t ticket;
} operation;

typedef struct job {
  enum { JOB_INIT, JOB_SPLIT, JOB_SHRINK } kind;
  ncclComm_t comm, parent, *out;
  int color, key;
  uint32_t child;  // number of a split among the parent's
  bool local;      // every member is in this process
  ncclResult_t result;
} job;

typedef struct group_state {
  int depth;
  ncclResult_t error;
  operation *ops;
  size_t op_count, op_capacity;
  job *jobs;
  size_t job_count, job_capacity;
} group_state;

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

static _Thread_local group_state group;
static atomic_uint next_comm = 1, next_unique = 1;
static pthread_mutex_t error_lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[1024];

static const size_t dtype_bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

// ---------------------------------------------------------------- errors

__attribute__((format(printf, 2, 3))) static ncclResult_t fail(ncclResult_t result, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&error_lock);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  pthread_mutex_unlock(&error_lock);
  va_end(arguments);
  return result;
}

static ncclResult_t leave(ncclResult_t result) {
  ph_leave();
  return result;
}

static ncclResult_t check_pointer(const void *pointer, const char *call, const char *argument) {
  return pointer ? ncclSuccess : fail(ncclInvalidArgument, "%s : %s argument is NULL", call, argument);
}

static ncclResult_t check_comm(const struct ncclComm *comm, const char *call) {
  if (!comm) return fail(ncclInvalidArgument, "%s : comm argument is NULL", call);
  if (comm->magic != COMM_MAGIC)
    return fail(ncclInvalidArgument, "%s : corrupted comm object detected (destroyed or aborted)", call);
  return ncclSuccess;
}

NCCL_API(const char *, ncclGetErrorString, ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}

NCCL_API(const char *, ncclGetLastError, ncclComm_t comm) {
  (void)comm;
  return last_error;
}

NCCL_API(ncclResult_t, ncclGetVersion, int *version) {
  if (!version) return fail(ncclInvalidArgument, "GetVersion : version argument is NULL");
  *version = PH_NCCL_VERSION;
  return ncclSuccess;
}

NCCL_API(void, ncclResetDebugInit, void) {}

// ---------------------------------------------------------------- creating communicators

NCCL_API(ncclResult_t, ncclGetUniqueId, ncclUniqueId *id) {
  ncclResult_t result = check_pointer(id, "GetUniqueId", "uniqueId");
  if (result != ncclSuccess) return result;
  // Rank and counter tell ids of one run apart and repeat between runs, so that a communicator's
  // key does too. A process outside the run (a launcher) adds what it has.
  uint64_t words[NCCL_UNIQUE_ID_BYTES / 8] = {0};
  words[0] = ID_MAGIC;
  words[1] = ph_connected() ? (uint64_t)(uint32_t)ph_rank() : UINT64_MAX;
  words[2] = atomic_fetch_add(&next_unique, 1);
  if (!ph_connected()) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    words[3] = (uint64_t)getpid();
    words[4] = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  }
  memcpy(id->internal, words, sizeof words);
  return ncclSuccess;
}

static void derive_key(uint64_t key[2], const void *data, size_t length) {
  key[0] = ph_hash(data, length, 0x6e63636c5f6b6579ULL);
  key[1] = ph_hash(data, length, 0x7068616e746f7261ULL);
}

#define FIELD_GIVEN(config, field) ((config)->size >= offsetof(ncclConfig_t, field) + sizeof((config)->field))
#define INT_FIELD(config, field) (FIELD_GIVEN(config, field) ? (config)->field : NCCL_CONFIG_UNDEF_INT)

static ncclResult_t check_int(const char *field, int value, int low, int high) {
  if (value == NCCL_CONFIG_UNDEF_INT || (value >= low && value <= high)) return ncclSuccess;
  return fail(ncclInvalidArgument, "Invalid config %s attribute value %d", field, value);
}

static ncclResult_t check_config(const ncclConfig_t *config) {
  if (!config) return ncclSuccess;
  if (config->magic != NCCL_CONFIG_MAGIC || config->size < offsetof(ncclConfig_t, blocking) + sizeof(int))
    return fail(ncclInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  const struct {
    const char *name;
    int value, low, high;
  } fields[] = {
      {"blocking", INT_FIELD(config, blocking), 0, 1},
      {"cgaClusterSize", INT_FIELD(config, cgaClusterSize), 0, 16},
      {"minCTAs", INT_FIELD(config, minCTAs), 1, 64},
      {"maxCTAs", INT_FIELD(config, maxCTAs), 1, 64},
      {"splitShare", INT_FIELD(config, splitShare), 0, 1},
      {"trafficClass", INT_FIELD(config, trafficClass), 0, INT_MAX},
      {"collnetEnable", INT_FIELD(config, collnetEnable), 0, 1},
      {"CTAPolicy", INT_FIELD(config, CTAPolicy), 0, 3},
      {"shrinkShare", INT_FIELD(config, shrinkShare), 0, 1},
      {"nvlsCTAs", INT_FIELD(config, nvlsCTAs), 1, INT_MAX},
      {"nChannelsPerNetPeer", INT_FIELD(config, nChannelsPerNetPeer), 1, 64},
      {"nvlinkCentricSched", INT_FIELD(config, nvlinkCentricSched), 0, 1},
  };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    ncclResult_t result = check_int(fields[i].name, fields[i].value, fields[i].low, fields[i].high);
    if (result != ncclSuccess) return result;
  }
  int low = INT_FIELD(config, minCTAs), high = INT_FIELD(config, maxCTAs);
  if (low != NCCL_CONFIG_UNDEF_INT && high != NCCL_CONFIG_UNDEF_INT && low > high)
    return fail(ncclInvalidArgument, "Invalid config minCTAs %d is larger than maxCTAs %d", low, high);
  return ncclSuccess;
}

static ncclComm_t new_comm(const ncclConfig_t *config, const ncclComm_t parent) {
  ncclComm_t comm = calloc(1, sizeof *comm);
  if (!comm) return NULL;
  comm->device = parent ? parent->device : ph_current_device();
  if (config && FIELD_GIVEN(config, commName) && config->commName)
    snprintf(comm->name, sizeof comm->name, "%s", config->commName);
  return comm;
}

// What each member tells the others when a communicator is made.
typedef struct member {
  int32_t rank, nranks;  // in the new communicator, or colour and order in a split
  int32_t host, device;  // -1: the process sees only some of its host's GPUs
  int32_t world;
} member;

static member describe(ncclComm_t comm, int first, int second) {
  int per_host = ph_shared() ? (int)ph_shared()->ranks_per_host : 1;
  bool sees_host = per_host > 0 && ph_devices() >= per_host;
  return (member){.rank = first,
                  .nranks = second,
                  .host = sees_host ? ph_rank() / per_host : -1,
                  .device = phc_physical(comm->device),
                  .world = ph_rank()};
}

// Meets the other members. Returns their descriptions in index order (the caller frees).
static ncclResult_t meet(const uint64_t key[2], int members, int index, const member *mine, member **all) {
  uint8_t *bytes = NULL;
  size_t length = 0;
  if (ph_exchange(key[0], key[1], members, index, mine, sizeof *mine, &bytes, &length) != 0)
    return fail(ncclRemoteError, "the members of the communicator could not meet");
  *all = calloc((size_t)members, sizeof **all);
  const size_t stride = sizeof(uint32_t) + sizeof **all;
  if (!*all || length != stride * (size_t)members) {
    free(bytes);
    free(*all);
    return fail(ncclInternalError, "members of one communicator do not fit together (%zu bytes)", length);
  }
  for (int i = 0; i < members; i++)
    memcpy(&(*all)[i], bytes + stride * (size_t)i + sizeof(uint32_t), sizeof **all);
  free(bytes);
  return ncclSuccess;
}

static ncclResult_t check_members(const member *all, int members) {
  for (int i = 0; i < members; i++)
    for (int j = 0; j < i; j++)
      if (all[i].host >= 0 && all[i].host == all[j].host && all[i].device == all[j].device)
        return fail(ncclInvalidUsage, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d",
                    j, i, all[i].device);
  return ncclSuccess;
}

static ncclResult_t charge(ncclComm_t comm, int64_t bytes) {
  if (bytes > 0 && !ph_memory_charge(comm->device, bytes))
    return fail(ncclUnhandledCudaError, "Cuda failure 2 'out of memory' (communicator buffers, %lld bytes)",
                (long long)bytes);
  comm->charged += bytes;
  return ncclSuccess;
}

// Charges what the process keeps when the communicator goes.
static atomic_bool kernels_loaded, sends_loaded;
static ncclResult_t charge_once(ncclComm_t comm, atomic_bool *done, int64_t bytes) {
  if (atomic_exchange(done, true)) return ncclSuccess;
  ncclResult_t result = charge(comm, bytes);
  if (result == ncclSuccess) comm->charged -= bytes;
  return result;
}

// Charges the connections that an operation needs and that do not exist yet. A GPU description
// that gives a communicator's bytes has them charged at once instead.
static ncclResult_t connect_ring(ncclComm_t comm) {
  if (comm->ring || comm->nranks == 1 || ph_gpu()->nccl_bytes_per_comm) return ncclSuccess;
  comm->ring = true;
  return charge(comm, CONNECTION_BYTES * (ph_gpu()->nvlink ? NVLINK_CHANNELS : PCIE_CHANNELS));
}

static ncclResult_t connect_peer(ncclComm_t comm, int peer) {
  if (peer == comm->rank || ph_gpu()->nccl_bytes_per_comm) return ncclSuccess;
  if (!comm->peers && !(comm->peers = calloc((size_t)comm->nranks, 1)))
    return fail(ncclSystemError, "out of host memory");
  if (comm->peers[peer]) return ncclSuccess;
  comm->peers[peer] = 1;
  int channels = ph_gpu()->nvlink ? P2P_CHANNELS : PCIE_CHANNELS;
  while (channels > 1 && channels * comm->nranks > P2P_CHANNELS * P2P_FULL_RANKS) channels /= 2;
  ncclResult_t result = charge_once(comm, &sends_loaded, P2P_KERNEL_BYTES);
  return result == ncclSuccess ? charge(comm, CONNECTION_BYTES * channels) : result;
}

// The communicator exists: account for it and tell the simulator.
static ncclResult_t announce(ncclComm_t comm) {
  ncclResult_t result = charge(comm, (int64_t)ph_gpu()->nccl_bytes_per_comm);
  if (result == ncclSuccess) result = charge_once(comm, &kernels_loaded, KERNEL_BYTES);
  if (result != ncclSuccess) return result;
  comm->id = atomic_fetch_add(&next_comm, 1);
  comm->magic = COMM_MAGIC;
  ph_record record = {.kind = PH_COMM_CREATE,
                      .id = comm->id,
                      .stream = (uint32_t)comm->device,
                      .a = comm->key[0],
                      .b = comm->key[1],
                      .c = (uint64_t)comm->nranks,
                      .d = (uint64_t)comm->rank};
  ph_emit_blob(&record, comm->name, strlen(comm->name));
  return ncclSuccess;
}

static ncclResult_t run_init(job *work) {
  ncclComm_t comm = work->comm;
  if (work->local || ph_null_mode()) return announce(comm);
  member mine = describe(comm, comm->rank, comm->nranks), *all = NULL;
  ncclResult_t result = meet(comm->key, comm->nranks, comm->rank, &mine, &all);
  if (result != ncclSuccess) return result;
  for (int i = 0; i < comm->nranks && result == ncclSuccess; i++)
    if (all[i].nranks != comm->nranks)
      result = fail(ncclInvalidUsage, "rank %d was told of %d ranks, rank %d of %d", comm->rank, comm->nranks,
                    i, all[i].nranks);
  if (result == ncclSuccess) result = check_members(all, comm->nranks);
  free(all);
  return result == ncclSuccess ? announce(comm) : result;
}

static ncclResult_t run_split(job *work) {
  ncclComm_t parent = work->parent, comm = work->comm;
  struct {
    uint64_t parent[2], child;
    int64_t color;
  } seed = {{parent->key[0], parent->key[1]}, work->child, -2};
  uint64_t meeting[2];
  derive_key(meeting, &seed, sizeof seed);
  seed.color = work->color;
  if (ph_null_mode()) {  // nobody to ask: as if all members gave this rank's colour
    if (work->color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    comm->nranks = parent->nranks;
    comm->rank = parent->rank;
    derive_key(comm->key, &seed, sizeof seed);
    return announce(comm);
  }
  member mine = describe(parent, work->color, work->key), *all = NULL;
  ncclResult_t result = meet(meeting, parent->nranks, parent->rank, &mine, &all);
  if (result != ncclSuccess) return result;
  if (work->color != NCCL_SPLIT_NOCOLOR) {
    for (int i = 0; i < parent->nranks; i++) {  // ranks of one colour, by key, then by old rank
      if (all[i].rank != work->color) continue;
      comm->nranks++;
      if (all[i].nranks < work->key || (all[i].nranks == work->key && i < parent->rank)) comm->rank++;
    }
    derive_key(comm->key, &seed, sizeof seed);
    result = announce(comm);
  }
  free(all);
  return result;
}

static ncclResult_t run_shrink(job *work) {
  ncclComm_t comm = work->comm;
  if (!ph_null_mode()) {
    member mine = describe(comm, comm->rank, comm->nranks), *all = NULL;
    ncclResult_t result = meet(comm->key, comm->nranks, comm->rank, &mine, &all);
    free(all);
    if (result != ncclSuccess) return result;
  }
  return announce(comm);
}

static ncclResult_t run_job(job *work) {
  switch (work->kind) {
    case JOB_INIT: work->result = run_init(work); break;
    case JOB_SPLIT: work->result = run_split(work); break;
    case JOB_SHRINK: work->result = run_shrink(work); break;
  }
  if (work->result != ncclSuccess || (work->kind == JOB_SPLIT && work->color == NCCL_SPLIT_NOCOLOR)) {
    *work->out = NULL;
    free(work->comm);
  }
  return work->result;
}

static void *run_job_thread(void *argument) {
  job *work = argument;
  ph_set_current_device(work->parent ? work->parent->device : work->comm->device);
  run_job(work);
  return NULL;
}

static void *grown(void *items, size_t count, size_t *capacity, size_t size) {
  if (count < *capacity) return items;
  size_t wanted = *capacity ? *capacity * 2 : 16;
  void *larger = realloc(items, wanted * size);
  if (larger) *capacity = wanted;
  return larger;
}

static ncclResult_t group_failed(ncclResult_t result) {
  if (group.depth > 0 && group.error == ncclSuccess) group.error = result;
  return result;
}

// Runs a job now, or at the end of the group that is open.
static ncclResult_t submit_job(job work) {
  *work.out = work.comm;
  if (group.depth == 0) {
    ncclResult_t result = run_job(&work);
    if (result == ncclSuccess) ph_charge(PH_API_COMM_INIT);
    return result;
  }
  job *larger = grown(group.jobs, group.job_count, &group.job_capacity, sizeof work);
  if (!larger) {
    *work.out = NULL;
    free(work.comm);
    return group_failed(fail(ncclSystemError, "out of host memory"));
  }
  group.jobs = larger;
  group.jobs[group.job_count++] = work;
  return ncclSuccess;
}

// Jobs of one group may wait for each other, so each that meets others has a thread, as in NCCL.
static ncclResult_t run_jobs(job *jobs, size_t count) {
  for (size_t i = 0; i < count; i++) {
    size_t same = 0;
    for (size_t j = 0; j < count; j++)
      same += jobs[j].kind == JOB_INIT && jobs[i].kind == JOB_INIT &&
              jobs[i].comm->key[0] == jobs[j].comm->key[0] && jobs[i].comm->key[1] == jobs[j].comm->key[1];
    jobs[i].local = jobs[i].kind == JOB_INIT && same == (size_t)jobs[i].comm->nranks;
  }
  size_t meeting = 0;
  for (size_t i = 0; i < count; i++) meeting += !jobs[i].local;
  pthread_t *threads = meeting > 1 ? calloc(count, sizeof *threads) : NULL;
  ncclResult_t result = ncclSuccess;
  for (size_t i = 0; i < count; i++) {
    if (!threads || jobs[i].local)
      run_job(&jobs[i]);
    else if (pthread_create(&threads[i], NULL, run_job_thread, &jobs[i]) != 0) {
      jobs[i].result = fail(ncclSystemError, "no thread for the initialisation of a communicator");
      threads[i] = 0;
    }
  }
  for (size_t i = 0; i < count; i++) {
    if (threads && !jobs[i].local && threads[i]) pthread_join(threads[i], NULL);
    if (jobs[i].result == ncclSuccess)
      ph_charge(PH_API_COMM_INIT);
    else if (result == ncclSuccess)
      result = jobs[i].result;
  }
  free(threads);
  return result;
}

static ncclResult_t init_rank(const char *call, ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank,
                              const ncclConfig_t *config) {
  ncclResult_t result = check_pointer(out, call, "newcomm");
  if (result != ncclSuccess) return group_failed(result);
  *out = NULL;
  if (!ph_connected())
    return group_failed(
        fail(ncclUnhandledCudaError, "Cuda failure 100 'no CUDA-capable device is detected'"));
  result = check_config(config);
  if (result != ncclSuccess) return group_failed(result);
  if (nranks < 1 || rank < 0 || rank >= nranks)
    return group_failed(fail(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, nranks));
  uint64_t magic;
  memcpy(&magic, id->internal, sizeof magic);
  if (magic != ID_MAGIC)
    return group_failed(fail(ncclInvalidArgument, "%s : commId was not made by ncclGetUniqueId", call));
  ncclComm_t comm = new_comm(config, NULL);
  if (!comm) return group_failed(fail(ncclSystemError, "out of host memory"));
  comm->nranks = nranks;
  comm->rank = rank;
  derive_key(comm->key, id, sizeof *id);
  return submit_job((job){.kind = JOB_INIT, .comm = comm, .out = out, .local = nranks == 1});
}

NCCL_API(ncclResult_t, ncclCommInitRank, ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank) {
  ph_enter();
  return leave(init_rank("CommInitRank", comm, nranks, &commId, rank, NULL));
}

NCCL_API(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
         ncclConfig_t *config) {
  ph_enter();
  return leave(init_rank("CommInitRankConfig", comm, nranks, &commId, rank, config));
}

NCCL_API(ncclResult_t, ncclCommInitRankScalable, ncclComm_t *newcomm, int nranks, int myrank, int nId,
         ncclUniqueId *commIds, ncclConfig_t *config) {
  ph_enter();
  ncclResult_t result = check_pointer(commIds, "CommInitRankScalable", "commIds");
  if (result == ncclSuccess && (nId < 1 || nId > nranks))
    result = fail(ncclInvalidArgument, "improper usage of ncclCommInitRankScalable: nId = %d, nranks=%d", nId,
                  nranks);
  if (result != ncclSuccess) return leave(group_failed(result));
  return leave(init_rank("CommInitRankScalable", newcomm, nranks, &commIds[0], myrank, config));
}

NCCL_API(ncclResult_t, ncclCommInitAll, ncclComm_t *comm, int ndev, const int *devlist) {
  ph_enter();
  ncclResult_t result = check_pointer(comm, "CommInitAll", "comms");
  if (result == ncclSuccess && !ph_connected())
    result = fail(ncclUnhandledCudaError, "Cuda failure 100 'no CUDA-capable device is detected'");
  if (result == ncclSuccess && ndev < 1)
    result = fail(ncclInvalidArgument, "Invalid device count requested : %d", ndev);
  for (int i = 0; result == ncclSuccess && i < ndev; i++) {
    int device = devlist ? devlist[i] : i;
    if (device < 0 || device >= phc_devices())
      result = fail(ncclUnhandledCudaError, "Cuda failure 101 'invalid device ordinal' (device %d)", device);
    for (int j = 0; result == ncclSuccess && devlist && j < i; j++)
      if (devlist[j] == device)
        result = fail(ncclInvalidUsage, "CommInitAll : device %d is listed twice", device);
  }
  if (result != ncclSuccess) return leave(group_failed(result));
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  int before = ph_current_device();
  ncclGroupStart();
  for (int i = 0; i < ndev && result == ncclSuccess; i++) {
    ph_set_current_device(devlist ? devlist[i] : i);
    result = init_rank("CommInitAll", &comm[i], ndev, &id, i, NULL);
  }
  ncclResult_t end = ncclGroupEnd();
  ph_set_current_device(before);
  return leave(result != ncclSuccess ? result : end);
}

NCCL_API(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
         ncclConfig_t *config) {
  ph_enter();
  ncclResult_t result = check_comm(comm, "CommSplit");
  if (result == ncclSuccess) result = check_pointer(newcomm, "CommSplit", "newcomm");
  if (result == ncclSuccess) result = check_config(config);
  if (result == ncclSuccess && comm->revoked)
    result = fail(ncclInvalidUsage, "CommSplit : the communicator is being revoked");
  if (result == ncclSuccess && color < 0 && color != NCCL_SPLIT_NOCOLOR)
    result = fail(ncclInvalidArgument, "CommSplit : invalid color %d", color);
  if (result != ncclSuccess) return leave(group_failed(result));
  ncclComm_t child = new_comm(config, comm);
  if (!child) return leave(group_failed(fail(ncclSystemError, "out of host memory")));
  return leave(submit_job((job){.kind = JOB_SPLIT,
                                .comm = child,
                                .parent = comm,
                                .out = newcomm,
                                .color = color,
                                .key = key,
                                .child = comm->splits++}));
}

NCCL_API(ncclResult_t, ncclCommShrink, ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
         ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags) {
  ph_enter();
  ncclResult_t result = check_comm(comm, "CommShrink");
  if (result == ncclSuccess) result = check_pointer(newcomm, "CommShrink", "newcomm");
  if (result == ncclSuccess) result = check_pointer(excludeRanksList, "CommShrink", "excludeRanksList");
  if (result == ncclSuccess) result = check_config(config);
  if (result == ncclSuccess && (shrinkFlags & ~NCCL_SHRINK_ABORT))
    result = fail(ncclInvalidArgument, "CommShrink : invalid flags %d", shrinkFlags);
  if (result == ncclSuccess && (excludeRanksCount < 1 || excludeRanksCount >= comm->nranks))
    result = fail(ncclInvalidArgument, "CommShrink : cannot exclude %d of %d ranks", excludeRanksCount,
                  comm->nranks);
  bool *excluded = result == ncclSuccess ? calloc((size_t)comm->nranks, sizeof *excluded) : NULL;
  for (int i = 0; excluded && result == ncclSuccess && i < excludeRanksCount; i++) {
    int rank = excludeRanksList[i];
    if (rank < 0 || rank >= comm->nranks || rank == comm->rank || excluded[rank])
      result = fail(ncclInvalidArgument,
                    "CommShrink : rank %d cannot be excluded (out of range, twice, or the caller)", rank);
    else
      excluded[rank] = true;
  }
  ncclComm_t child = result == ncclSuccess ? new_comm(config, comm) : NULL;
  if (!child) {
    free(excluded);
    return leave(group_failed(result != ncclSuccess ? result : fail(ncclSystemError, "out of host memory")));
  }
  child->nranks = comm->nranks - excludeRanksCount;
  for (int i = 0; i < comm->rank; i++) child->rank += !excluded[i];
  struct {
    uint64_t parent[2], child, members;
  } seed = {{comm->key[0], comm->key[1]},
            comm->shrinks++,
            ph_hash(excluded, (size_t)comm->nranks * sizeof *excluded, 7)};
  free(excluded);
  derive_key(child->key, &seed, sizeof seed);
  return leave(submit_job((job){.kind = JOB_SHRINK, .comm = child, .parent = comm, .out = newcomm}));
}

// ---------------------------------------------------------------- ending and asking communicators

static ncclResult_t release(const char *call, ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  ncclResult_t result = check_comm(comm, call);
  if (result != ncclSuccess) return result;
  comm->magic = 0;
  ph_memory_charge(comm->device, -comm->charged);
  free(comm->peers);
  free(comm->ops);
  comm->peers = NULL;
  comm->ops = NULL;
  comm->op_count = 0;
  ph_record record = {.kind = PH_COMM_DESTROY, .id = comm->id};
  ph_emit(&record);
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommDestroy, ncclComm_t comm) {
  ph_enter();
  return leave(release("CommDestroy", comm));
}

NCCL_API(ncclResult_t, ncclCommAbort, ncclComm_t comm) {
  ph_enter();
  return leave(release("CommAbort", comm));
}

NCCL_API(ncclResult_t, ncclCommFinalize, ncclComm_t comm) {
  ph_enter();
  ncclResult_t result = check_comm(comm, "CommFinalize");
  if (result == ncclSuccess && comm->finalized)
    result = fail(ncclInvalidArgument, "CommFinalize : the communicator has been finalized already");
  if (result == ncclSuccess && comm->revoked)
    result = fail(ncclInvalidUsage, "CommFinalize : the communicator has been revoked");
  if (result == ncclSuccess) comm->finalized = true;
  return leave(result);
}

NCCL_API(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int revokeFlags) {
  ph_enter();
  ncclResult_t result = check_comm(comm, "CommRevoke");
  if (result == ncclSuccess && revokeFlags != 0)
    result = fail(ncclInvalidArgument, "CommRevoke : revokeFlags must be NCCL_REVOKE_DEFAULT, not %d",
                  revokeFlags);
  if (result == ncclSuccess && comm->finalized)
    result = fail(ncclInvalidArgument, "CommRevoke : the communicator has been finalized");
  if (result == ncclSuccess) comm->revoked = true;
  return leave(result);
}

// Asked by watchdog threads all the time: reads two words and nothing else.
NCCL_API(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *asyncError) {
  ncclResult_t result = check_comm(comm, "CommGetAsyncError");
  if (result == ncclSuccess) result = check_pointer(asyncError, "CommGetAsyncError", "asyncError");
  if (result == ncclSuccess) *asyncError = ncclSuccess;
  return result;
}

static ncclResult_t ask(const struct ncclComm *comm, const char *call, int *out, int value) {
  ncclResult_t result = check_pointer(out, call, "result");
  (void)comm;
  if (result == ncclSuccess) *out = value;
  return result;
}

NCCL_API(ncclResult_t, ncclCommCount, const ncclComm_t comm, int *count) {
  ncclResult_t result = check_comm(comm, "CommCount");
  return result == ncclSuccess ? ask(comm, "CommCount", count, comm->nranks) : result;
}

NCCL_API(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int *device) {
  ncclResult_t result = check_comm(comm, "CommCuDevice");
  return result == ncclSuccess ? ask(comm, "CommCuDevice", device, comm->device) : result;
}

NCCL_API(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int *rank) {
  ncclResult_t result = check_comm(comm, "CommUserRank");
  return result == ncclSuccess ? ask(comm, "CommUserRank", rank, comm->rank) : result;
}

// ---------------------------------------------------------------- buffers

NCCL_API(ncclResult_t, ncclMemAlloc, void **ptr, size_t size) {
  ph_enter();
  ncclResult_t result = check_pointer(ptr, "MemAlloc", "ptr");
  if (result != ncclSuccess) return leave(result);
  *ptr = NULL;
  if (size == 0) return leave(ncclSuccess);
  if (!ph_connected() || size > SIZE_MAX - MEM_GRANULARITY)
    return leave(fail(ncclUnhandledCudaError, "MemAlloc : %zu bytes are not available", size));
  ph_charge(PH_API_MALLOC);
  *ptr =
      ph_memory_alloc(ph_current_device(), (size + MEM_GRANULARITY - 1) / MEM_GRANULARITY * MEM_GRANULARITY);
  return leave(*ptr ? ncclSuccess : fail(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'"));
}

NCCL_API(ncclResult_t, ncclMemFree, void *ptr) {
  ph_enter();
  if (!ptr) return leave(ncclSuccess);
  ph_charge(PH_API_FREE);
  return leave(ph_memory_free(ptr) == 0
                   ? ncclSuccess
                   : fail(ncclUnhandledCudaError, "Cuda failure 1 'invalid argument' (MemFree)"));
}

static ncclResult_t register_buffer(const char *call, ncclComm_t comm, const void *buffer, size_t size,
                                    void **handle) {
  ncclResult_t result = check_comm(comm, call);
  if (result == ncclSuccess) result = check_pointer(handle, call, "handle");
  if (result == ncclSuccess) result = check_pointer(buffer, call, "buff");
  ph_range range;
  if (result == ncclSuccess && (size == 0 || !ph_memory_find(buffer, &range)))
    result = fail(ncclInvalidArgument, "%s : %p (%zu bytes) is not device memory", call, buffer, size);
  if (result != ncclSuccess) return result;
  registration *made = calloc(1, sizeof *made);
  if (!made) return fail(ncclSystemError, "out of host memory");
  *made = (registration){REGISTRATION_MAGIC, comm};
  *handle = made;
  return ncclSuccess;
}

static ncclResult_t deregister_buffer(const char *call, ncclComm_t comm, void *handle) {
  ncclResult_t result = check_comm(comm, call);
  if (result != ncclSuccess || !handle) return result;
  registration *made = handle;
  if (made->magic != REGISTRATION_MAGIC || made->comm != comm)
    return fail(ncclInvalidArgument, "%s : the handle was not registered with this communicator", call);
  made->magic = 0;
  free(made);
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommRegister, const ncclComm_t comm, void *buff, size_t size, void **handle) {
  ph_enter();
  return leave(register_buffer("CommRegister", comm, buff, size, handle));
}

NCCL_API(ncclResult_t, ncclCommDeregister, const ncclComm_t comm, void *handle) {
  ph_enter();
  return leave(deregister_buffer("CommDeregister", comm, handle));
}

NCCL_API(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
         int winFlags) {
  ph_enter();
  if (winFlags & ~NCCL_WIN_COLL_SYMMETRIC)
    return leave(fail(ncclInvalidArgument, "CommWindowRegister : invalid flags %d", winFlags));
  return leave(register_buffer("CommWindowRegister", comm, buff, size, (void **)win));
}

NCCL_API(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t win) {
  ph_enter();
  return leave(deregister_buffer("CommWindowDeregister", comm, win));
}

// Kernels written by the user on top of NCCL's device interface have no meaning without a GPU.
static ncclResult_t no_device_interface(const char *call) {
  ph_unsupported("nccl", call, true);
  return fail(ncclInvalidUsage, "%s : kernels that use NCCL's device interface are not simulated", call);
}

NCCL_API(ncclResult_t, ncclDevCommCreate, ncclComm_t comm, const void *requirements, void *devComm) {
  (void)comm, (void)requirements, (void)devComm;
  return no_device_interface("ncclDevCommCreate");
}

NCCL_API(ncclResult_t, ncclDevCommDestroy, ncclComm_t comm, const void *devComm) {
  (void)comm, (void)devComm;
  return no_device_interface("ncclDevCommDestroy");
}

// ---------------------------------------------------------------- reductions made by the user

static double half_value(uint16_t bits) {
  int exponent = bits >> 10 & 31;
  double mantissa = bits & 1023, sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? (double)__builtin_nanf("") : sign * (double)__builtin_inff();
  return sign *
         (exponent ? __builtin_ldexp(1 + mantissa / 1024, exponent - 15) : __builtin_ldexp(mantissa, -24));
}

static double fp8_value(uint8_t bits, int mantissa_bits) {
  const int exponent_bits = 7 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x80 ? -1 : 1, scale = 1 << mantissa_bits;
  if (mantissa_bits == 3 && (bits & 0x7f) == 0x7f) return (double)__builtin_nanf("");
  if (mantissa_bits == 2 && exponent == 31)
    return mantissa ? (double)__builtin_nanf("") : sign * (double)__builtin_inff();
  return sign * (exponent ? __builtin_ldexp(1 + mantissa / scale, exponent - bias)
                          : __builtin_ldexp(mantissa / scale, 1 - bias));
}

static double scalar_value(const void *address, ncclDataType_t dtype) {
  union {
    int8_t i8;
    uint8_t u8;
    int32_t i32;
    uint32_t u32;
    int64_t i64;
    uint64_t u64;
    uint16_t u16;
    float f32;
    double f64;
  } v;
  memcpy(&v, address, dtype_bytes[dtype]);
  switch (dtype) {
    case ncclInt8: return v.i8;
    case ncclUint8: return v.u8;
    case ncclInt32: return v.i32;
    case ncclUint32: return v.u32;
    case ncclInt64: return (double)v.i64;
    case ncclUint64: return (double)v.u64;
    case ncclFloat16: return half_value(v.u16);
    case ncclFloat32: return (double)v.f32;
    case ncclFloat64: return v.f64;
    case ncclBfloat16: v.u32 = (uint32_t)v.u16 << 16; return (double)v.f32;
    case ncclFloat8e4m3: return fp8_value(v.u8, 3);
    case ncclFloat8e5m2: return fp8_value(v.u8, 2);
    case ncclNumTypes: break;
  }
  return 0;
}

NCCL_API(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
         ncclScalarResidence_t residence, ncclComm_t comm) {
  ph_enter();
  ncclResult_t result = check_comm(comm, "ncclRedOpCreatePreMulSum");
  if (result == ncclSuccess) result = check_pointer(op, "ncclRedOpCreatePreMulSum", "op");
  if (result == ncclSuccess) result = check_pointer(scalar, "ncclRedOpCreatePreMulSum", "scalar");
  if (result == ncclSuccess && (unsigned)datatype >= ncclNumTypes)
    result = fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum : invalid type %d", (int)datatype);
  if (result == ncclSuccess && residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
    result = fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum : invalid residence %d", (int)residence);
  if (result != ncclSuccess) return leave(result);
  int index = 0;
  while (index < comm->op_count && comm->ops[index].alive) index++;
  if (index == comm->op_count) {
    user_op *larger = realloc(comm->ops, (size_t)(index + 1) * sizeof *larger);
    if (!larger) return leave(fail(ncclSystemError, "out of host memory"));
    comm->ops = larger;
    comm->op_count++;
  }
  const bool on_device = residence == ncclScalarDevice;
  comm->ops[index] = (user_op){.alive = true,
                               .on_device = on_device,
                               .dtype = datatype,
                               .address = scalar,
                               .scalar = on_device ? 0 : scalar_value(scalar, datatype)};
  *op = (ncclRedOp_t)(ncclNumOps + index);
  return leave(ncclSuccess);
}

NCCL_API(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm) {
  ph_enter();
  ncclResult_t result = check_comm(comm, "ncclRedOpDestroy");
  const int index = (int)op - ncclNumOps;
  if (result == ncclSuccess && (int)op >= 0 && op < ncclNumOps)
    result = fail(ncclInvalidArgument, "ncclRedOpDestroy : operator is a NCCL builtin.");
  else if (result == ncclSuccess && (index < 0 || index >= comm->op_count || !comm->ops[index].alive))
    result = fail(ncclInvalidArgument, "ncclRedOpDestroy : operator unknown to this communicator.");
  if (result == ncclSuccess) comm->ops[index].alive = false;
  return leave(result);
}

// ---------------------------------------------------------------- operations

static bool sends(const operation *op) {
  if (op->kind == PH_SEND) return true;
  if (op->kind == PH_RECV) return false;
  return (op->coll != PH_COLL_BROADCAST && op->coll != PH_COLL_SCATTER) || op->comm->rank == op->peer;
}

static bool receives(const operation *op) {
  if (op->kind == PH_SEND) return false;
  return (op->coll != PH_COLL_REDUCE && op->coll != PH_COLL_GATHER) || op->kind == PH_RECV ||
         op->comm->rank == op->peer;
}

static ncclResult_t check_buffer(const operation *op, const void *pointer, const char *argument) {
  ncclResult_t result = check_pointer(pointer, op->name, argument);
  ph_range range;
  if (result == ncclSuccess && !ph_memory_find(pointer, &range))
    result = fail(ncclInvalidArgument, "%s : %s %p is not a valid pointer", op->name, argument, pointer);
  return result;
}

static ncclResult_t check_reduction(operation *op) {
  const int index = op->redop - ncclNumOps;
  if (op->redop < 0)
    return fail(ncclInvalidArgument, "%s : invalid reduction operation %d", op->name, op->redop);
  if (index < 0) return ncclSuccess;
  if (index >= op->comm->op_count || !op->comm->ops[index].alive)
    return fail(ncclInvalidArgument, "%s : reduction operation %d unknown to this communicator", op->name,
                op->redop);
  const user_op *made = &op->comm->ops[index];
  if (made->dtype != op->dtype)
    return fail(ncclInvalidArgument, "%s : reduction operation %d was made for type %d, not %d", op->name,
                op->redop, (int)made->dtype, (int)op->dtype);
  op->redop = PREMULSUM;
  op->scalar = made->scalar;
  op->scalar_address = made->on_device ? made->address : NULL;
  return ncclSuccess;
}

// Sizes of what this rank gives and gets, and whether the bytes are carried. Every member must
// come to the same answer, so it depends on the operation's shape alone.
static void measure(operation *op) {
  const uint64_t one = op->count * dtype_bytes[op->dtype], all = one * (uint64_t)op->comm->nranks;
  uint64_t give = one, get = one;
  op->bytes = one;
  if (op->kind == PH_COLLECTIVE) {
    switch (op->coll) {
      case PH_COLL_ALL_GATHER:
      case PH_COLL_GATHER: op->bytes = get = all; break;
      case PH_COLL_REDUCE_SCATTER:
      case PH_COLL_SCATTER: op->bytes = give = all; break;
      case PH_COLL_ALL_TO_ALL: op->bytes = give = get = all; break;
      default: break;
    }
  }
  const uint64_t limit =
      op->dtype == ncclInt8 || op->dtype == ncclUint8 ? CARRIED_OBJECT_BYTES : CARRIED_BYTES;
  op->carried = give <= limit && get <= limit;
  op->send_bytes = sends(op) ? give : 0;
  op->recv_bytes = receives(op) ? get : 0;
  if (!op->send_bytes) op->send = NULL;
  if (!op->recv_bytes) op->recv = NULL;
}

static ncclResult_t connect_for(const operation *op) {
  const bool pairs = op->kind != PH_COLLECTIVE || op->coll == PH_COLL_ALL_TO_ALL ||
                     op->coll == PH_COLL_GATHER || op->coll == PH_COLL_SCATTER;
  if (!pairs) return connect_ring(op->comm);
  if (op->kind != PH_COLLECTIVE || (op->coll != PH_COLL_ALL_TO_ALL && op->comm->rank != op->peer))
    return connect_peer(op->comm, op->peer);
  ncclResult_t result = ncclSuccess;
  for (int peer = 0; peer < op->comm->nranks && result == ncclSuccess; peer++)
    result = connect_peer(op->comm, peer);
  return result;
}

static ncclResult_t check_operation(operation *op, cudaStream_t stream) {
  if (!ph_connected())
    return fail(ncclUnhandledCudaError, "Cuda failure 100 'no CUDA-capable device is detected'");
  ncclResult_t result = check_comm(op->comm, op->name);
  if (result != ncclSuccess) return result;
  if (op->comm->revoked || op->comm->finalized)
    return fail(ncclInvalidUsage, "%s : the communicator has been %s", op->name,
                op->comm->revoked ? "revoked" : "finalized");
  if (op->peer < 0 || op->peer >= op->comm->nranks)
    return fail(ncclInvalidArgument, "%s : invalid %s %d (should be in the 0..%d range)", op->name,
                op->kind == PH_COLLECTIVE ? "root" : "peer", op->peer, op->comm->nranks - 1);
  if ((unsigned)op->dtype >= ncclNumTypes)
    return fail(ncclInvalidArgument, "%s : invalid type %d", op->name, (int)op->dtype);
  result = check_reduction(op);
  if (result != ncclSuccess || op->count == 0) return result;
  if (op->count > SIZE_MAX / 2 / dtype_bytes[op->dtype] / (size_t)op->comm->nranks)
    return fail(ncclInvalidArgument, "%s : count %zu overflows the address space", op->name, op->count);
  measure(op);
  if (op->send_bytes) result = check_buffer(op, op->send, op->kind == PH_COLLECTIVE ? "sendbuff" : "buff");
  if (result == ncclSuccess && op->recv_bytes)
    result = check_buffer(op, op->recv, op->kind == PH_COLLECTIVE ? "recvbuff" : "buff");
  if (result != ncclSuccess) return result;
  const int before = ph_current_device();
  if (before != op->comm->device) ph_set_current_device(op->comm->device);
  op->stream = ph_stream_of(stream, false);
  if (before != op->comm->device) ph_set_current_device(before);
  if (!op->stream)
    return fail(ncclUnhandledCudaError, "Cuda failure 400 'invalid resource handle' (%s : stream %p)",
                op->name, stream);
  return connect_for(op);
}

// A communicator of one moves nothing between GPUs: NCCL copies on the stream, or runs a kernel if
// a factor applies.
static void launch_alone(operation *op) {
  if (op->redop == PREMULSUM) {
    static const char name[] = "oneRankReduce";
    ph_record record = {.kind = PH_KERNEL,
                        .stream = op->stream->id,
                        .id = ph_name(ph_hash(name, sizeof name - 1, 1), name, sizeof name - 1),
                        .a = 32 | 1ULL << 32 | 1ULL << 48,
                        .b = 512 | 1ULL << 16 | 1ULL << 32};
    ph_launch(&record);
  } else if (op->send != op->recv) {
    ph_record record = {
        .kind = PH_MEMCPY, .stream = op->stream->id, .id = PH_COPY_D2D, .a = op->bytes, .b = UINT64_MAX};
    ph_launch(&record);
  }
  if (op->send != op->recv) ph_memory_copy(op->recv, op->send, op->bytes);
  if (op->redop == PREMULSUM) ph_memory_clear(op->recv, op->bytes);
}

static ph_record record_of(const operation *op) {
  ph_record record = {.kind = op->kind,
                      .stream = op->stream->id,
                      .id = op->comm->id,
                      .b = op->count,
                      .c = op->bytes,
                      .d = op->ticket};
  if (op->kind == PH_COLLECTIVE) {
    record.a = op->coll | (uint64_t)op->dtype << 8 | (uint64_t)op->redop << 16 | (uint64_t)op->peer << 32;
    memcpy(&record.e, &op->scalar, sizeof op->scalar);
  } else {
    record.a = (uint64_t)op->peer | (uint64_t)op->dtype << 32;
  }
  return record;
}

// Waits for the true bytes of what is sent; must happen before the emit lock is taken.
static void prepare(operation *op) {
  if (!op->carried) return;
  if (op->send) ph_touch(op->send, op->send_bytes);
  if (op->scalar_address) {
    ph_touch(op->scalar_address, dtype_bytes[op->dtype]);
    op->scalar = scalar_value(op->scalar_address, op->dtype);
  }
  op->ticket = ph_next_ticket();
}

static void receive(operation *op) {
  if (!op->recv) return;
  if (op->kind == PH_COLLECTIVE && op->coll == PH_COLL_BROADCAST && op->comm->rank == op->peer) {
    if (op->recv != op->send) ph_memory_copy(op->recv, op->send, op->recv_bytes);  // the root has the bytes
  } else if (op->carried) {
    ph_expect(op->recv, op->recv_bytes, op->ticket);
  } else {
    ph_touch_drop(op->recv, op->recv_bytes);
    ph_memory_clear(op->recv, op->recv_bytes);
  }
}

// Null mode has no peers: the bytes are as if every member had sent what this one sends, which
// keeps exchanged sizes and counts plausible.
static void pretend(operation *op) {
  if (!op->recv) return;
  if (!op->carried || !op->send) {
    ph_memory_clear(op->recv, op->recv_bytes);
    return;
  }
  const uint64_t block = op->send_bytes < op->recv_bytes ? op->send_bytes : op->recv_bytes;
  for (uint64_t at = 0; at < op->recv_bytes; at += block)
    if ((char *)op->recv + at != op->send) ph_memory_copy((char *)op->recv + at, op->send, block);
}

// Launches what a group gathered: one launch per communicator and stream, in order of first use.
static ncclResult_t launch(operation *ops, size_t count) {
  operation **together = malloc(count * sizeof *together);
  if (!together) return fail(ncclSystemError, "out of host memory");
  ncclResult_t result = ncclSuccess;
  for (size_t i = 0; i < count; i++) {
    if (ops[i].launched) continue;
    if (check_comm(ops[i].comm, ops[i].name) != ncclSuccess) {
      result = ncclInvalidArgument;
      continue;
    }
    if (ops[i].comm->nranks == 1 && ops[i].kind == PH_COLLECTIVE) {
      launch_alone(&ops[i]);
      continue;
    }
    size_t members = 0;
    for (size_t j = i; j < count; j++) {
      if (ops[j].launched || ops[j].comm != ops[i].comm || ops[j].stream != ops[i].stream) continue;
      ops[j].launched = true;
      together[members++] = &ops[j];
    }
    if (ph_null_mode()) {
      for (size_t j = 0; j < members; j++) pretend(together[j]);
      continue;
    }
    for (size_t j = 0; j < members; j++) prepare(together[j]);
    ph_emit_lock();
    if (members > 1) {
      ph_record record = {
          .kind = PH_GROUP_BEGIN, .stream = ops[i].stream->id, .id = ops[i].comm->id, .a = members};
      ph_launch(&record);
    }
    for (size_t j = 0; j < members; j++) {
      ph_record record = record_of(together[j]);
      if (together[j]->ticket && together[j]->send)
        ph_launch_blob(&record, together[j]->send, together[j]->send_bytes);
      else
        ph_launch(&record);
    }
    ph_emit_unlock();
    for (size_t j = 0; j < members; j++) receive(together[j]);
  }
  free(together);
  return result;
}

static ncclResult_t enqueue(operation op, cudaStream_t stream) {
  ph_enter();
  ncclResult_t result = check_operation(&op, stream);
  if (result != ncclSuccess) return leave(group_failed(result));
  ph_charge(PH_API_NCCL_ENQUEUE);
  ph_watchdog_work();
  if (op.count == 0) return leave(ncclSuccess);
  if (group.depth == 0) return leave(launch(&op, 1));
  operation *larger = grown(group.ops, group.op_count, &group.op_capacity, sizeof op);
  if (!larger) return leave(group_failed(fail(ncclSystemError, "out of host memory")));
  group.ops = larger;
  group.ops[group.op_count++] = op;
  return leave(ncclSuccess);
}

static ncclResult_t collective(const char *name, enum ph_coll coll, ncclDataType_t dtype, int redop, int root,
                               const void *send, void *recv, size_t count, ncclComm_t comm,
                               cudaStream_t stream) {
  return enqueue((operation){.name = name,
                             .comm = comm,
                             .kind = PH_COLLECTIVE,
                             .coll = (uint8_t)coll,
                             .dtype = dtype,
                             .redop = redop,
                             .peer = root,
                             .send = send,
                             .recv = recv,
                             .count = count},
                 stream);
}

NCCL_API(ncclResult_t, ncclAllReduce, const void *sendbuff, void *recvbuff, size_t count,
         ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective("AllReduce", PH_COLL_ALL_REDUCE, datatype, (int)op, 0, sendbuff, recvbuff, count, comm,
                    stream);
}

NCCL_API(ncclResult_t, ncclReduce, const void *sendbuff, void *recvbuff, size_t count,
         ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return collective("Reduce", PH_COLL_REDUCE, datatype, (int)op, root, sendbuff, recvbuff, count, comm,
                    stream);
}

NCCL_API(ncclResult_t, ncclReduceScatter, const void *sendbuff, void *recvbuff, size_t recvcount,
         ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective("ReduceScatter", PH_COLL_REDUCE_SCATTER, datatype, (int)op, 0, sendbuff, recvbuff,
                    recvcount, comm, stream);
}

NCCL_API(ncclResult_t, ncclAllGather, const void *sendbuff, void *recvbuff, size_t sendcount,
         ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return collective("AllGather", PH_COLL_ALL_GATHER, datatype, 0, 0, sendbuff, recvbuff, sendcount, comm,
                    stream);
}

NCCL_API(ncclResult_t, ncclBroadcast, const void *sendbuff, void *recvbuff, size_t count,
         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return collective("Broadcast", PH_COLL_BROADCAST, datatype, 0, root, sendbuff, recvbuff, count, comm,
                    stream);
}

NCCL_API(ncclResult_t, ncclBcast, void *buff, size_t count, ncclDataType_t datatype, int root,
         ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

NCCL_API(ncclResult_t, ncclAlltoAll, const void *sendbuff, void *recvbuff, size_t count,
         ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return collective("AlltoAll", PH_COLL_ALL_TO_ALL, datatype, 0, 0, sendbuff, recvbuff, count, comm, stream);
}

NCCL_API(ncclResult_t, ncclGather, const void *sendbuff, void *recvbuff, size_t count,
         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return collective("Gather", PH_COLL_GATHER, datatype, 0, root, sendbuff, recvbuff, count, comm, stream);
}

NCCL_API(ncclResult_t, ncclScatter, const void *sendbuff, void *recvbuff, size_t count,
         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return collective("Scatter", PH_COLL_SCATTER, datatype, 0, root, sendbuff, recvbuff, count, comm, stream);
}

NCCL_API(ncclResult_t, ncclSend, const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
         ncclComm_t comm, cudaStream_t stream) {
  return enqueue((operation){.name = "Send",
                             .comm = comm,
                             .kind = PH_SEND,
                             .dtype = datatype,
                             .peer = peer,
                             .send = sendbuff,
                             .count = count},
                 stream);
}

NCCL_API(ncclResult_t, ncclRecv, void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
         ncclComm_t comm, cudaStream_t stream) {
  return enqueue((operation){.name = "Recv",
                             .comm = comm,
                             .kind = PH_RECV,
                             .dtype = datatype,
                             .peer = peer,
                             .recv = recvbuff,
                             .count = count},
                 stream);
}

// ---------------------------------------------------------------- groups

NCCL_API(ncclResult_t, ncclGroupStart, void) {
  if (group.depth++ == 0) group.error = ncclSuccess;
  return ncclSuccess;
}

static void drop_group(void) {
  for (size_t i = 0; i < group.job_count; i++) {
    *group.jobs[i].out = NULL;
    free(group.jobs[i].comm);
  }
  group.op_count = group.job_count = 0;
}

NCCL_API(ncclResult_t, ncclGroupEnd, void) {
  if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  if (--group.depth > 0) return ncclSuccess;
  ph_enter();
  ncclResult_t result = group.error;
  if (result != ncclSuccess) drop_group();
  if (group.job_count > 0) result = run_jobs(group.jobs, group.job_count);
  if (result == ncclSuccess && group.op_count > 0) {
    ph_charge(PH_API_NCCL_GROUP);
    result = launch(group.ops, group.op_count);
  }
  group.op_count = group.job_count = 0;
  return leave(result);
}

// NCCL's own estimate of a group's time; the simulator's prices are not known in the rank.
NCCL_API(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t *simInfo) {
  if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupSimulateEnd: not in a group call.");
  if (simInfo && (simInfo->magic != NCCL_SIM_INFO_MAGIC || simInfo->size < sizeof *simInfo))
    return fail(ncclInvalidArgument, "ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER");
  if (--group.depth == 0) drop_group();
  ph_unsupported("nccl", "ncclGroupSimulateEnd", true);
  return fail(
      ncclInvalidUsage,
      "ncclGroupSimulateEnd : NCCL's own time estimate is not simulated; run the group and measure it");
}
