// Communicators: the calls that make, split, shrink, end and ask them.
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "cuda/core/device.h"
#include "nccl/internal.h"

#define ID_MAGIC 0x706875696431ULL

static atomic_uint next_unique = 1;

NCCL_API(ncclResult_t, ncclGetUniqueId, ncclUniqueId *id)
{
  ncclResult_t result = check_pointer(id, "GetUniqueId", "uniqueId");
  if (result != ncclSuccess) return result;
  // Rank and counter tell ids of one run apart and repeat between runs, so that a communicator's
  // key does too. A process outside the run (a launcher) adds what it has.
  phc_use();  // a process that is no rank yet becomes one, if it may
  uint64_t words[NCCL_UNIQUE_ID_BYTES / 8] = {0};
  words[0] = ID_MAGIC;
  words[1] = ph_connected() ? (uint64_t)(uint32_t)ph_rank() : UINT64_MAX;
  words[2] = atomic_fetch_add(&next_unique, 1);
  words[5] = ph_predecessors();
  if (!ph_connected()) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    words[3] = (uint64_t)getpid();
    words[4] = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  }
  memcpy(id->internal, words, sizeof words);
  return ncclSuccess;
}

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
  const char *network = config_network(config);
  if (network) snprintf(comm->network, sizeof comm->network, "%s", network);
  return comm;
}

static ncclResult_t init_rank(const char *call, ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank,
                              const ncclConfig_t *config) {
  ncclResult_t result = check_pointer(out, call, "newcomm");
  if (result != ncclSuccess) return group_failed(result);
  *out = NULL;
  phc_use();
  if (!ph_connected())
    return group_failed(fail(ncclUnhandledCudaError, "Cuda failure 100 'no CUDA-capable device is detected'"));
  say_version();
  result = check_config(config);
  if (result != ncclSuccess) return group_failed(result);
  say_config(config);
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
  result = learn_members(comm, config);
  if (result != ncclSuccess) {
    free(comm);
    return group_failed(result);
  }
  return submit_job((job){.kind = JOB_INIT, .call = call, .comm = comm, .out = out, .local = nranks == 1});
}

NCCL_API(ncclResult_t, ncclCommInitRank, ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
  ph_enter();
  return leave(init_rank("CommInitRank", comm, nranks, &commId, rank, NULL));
}

NCCL_API(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
         ncclConfig_t *config)
{
  ph_enter();
  return leave(init_rank("CommInitRankConfig", comm, nranks, &commId, rank, config));
}

NCCL_API(ncclResult_t, ncclCommInitRankScalable, ncclComm_t *newcomm, int nranks, int myrank, int nId,
         ncclUniqueId *commIds, ncclConfig_t *config)
{
  ph_enter();
  ncclResult_t result = check_pointer(commIds, "CommInitRankScalable", "commIds");
  if (result == ncclSuccess && (nId < 1 || nId > nranks))
    result = fail(ncclInvalidArgument, "improper usage of ncclCommInitRankScalable: nId = %d, nranks=%d", nId, nranks);
  if (result != ncclSuccess) return leave(group_failed(result));
  return leave(init_rank("CommInitRankScalable", newcomm, nranks, &commIds[0], myrank, config));
}

NCCL_API(ncclResult_t, ncclCommInitAll, ncclComm_t *comm, int ndev, const int *devlist)
{
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
      if (devlist[j] == device) result = fail(ncclInvalidUsage, "CommInitAll : device %d is listed twice", device);
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

NCCL_API(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
  ph_enter();
  ncclResult_t result = check_comm(comm, "CommSplit");
  if (result == ncclSuccess) result = check_pointer(newcomm, "CommSplit", "newcomm");
  if (result == ncclSuccess) result = check_config(config);
  if (result == ncclSuccess && comm->revoked)
    result = fail(ncclInvalidUsage, "CommSplit : the communicator is being revoked");
  if (result == ncclSuccess && color < 0 && color != NCCL_SPLIT_NOCOLOR)
    result = fail(ncclInvalidArgument, "CommSplit : invalid color %d", color);
  if (result != ncclSuccess) return leave(group_failed(result));
  say_config(config);
  ncclComm_t child = new_comm(config, comm);
  if (!child) return leave(group_failed(fail(ncclSystemError, "out of host memory")));
  if (folded_run() && color != NCCL_SPLIT_NOCOLOR && (result = learn_split(child, config)) != ncclSuccess) {
    free(child);
    return leave(group_failed(result));
  }
  return leave(submit_job((job){.kind = JOB_SPLIT,
                                .call = "CommSplit",
                                .comm = child,
                                .parent = comm,
                                .out = newcomm,
                                .color = color,
                                .key = key,
                                .child = comm->splits++}));
}

// This rank's wait in the communicator ends; the others wait on. Another thread may have ended it by now.
static void give_up(ncclComm_t comm) {
  ph_record record = {.kind = PH_COMM_ABORT, .id = comm->id};
  ph_emit_lock();
  if (comm->magic == COMM_MAGIC) ph_emit(&record);
  ph_emit_unlock();
}

NCCL_API(ncclResult_t, ncclCommShrink, ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
         ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags)
{
  ph_enter();
  ncclResult_t result = check_comm(comm, "CommShrink");
  if (result == ncclSuccess) result = check_pointer(newcomm, "CommShrink", "newcomm");
  if (result == ncclSuccess) result = check_pointer(excludeRanksList, "CommShrink", "excludeRanksList");
  if (result == ncclSuccess) result = check_config(config);
  if (result == ncclSuccess && (shrinkFlags & ~NCCL_SHRINK_ABORT))
    result = fail(ncclInvalidArgument, "CommShrink : invalid flags %d", shrinkFlags);
  if (result == ncclSuccess && (excludeRanksCount < 1 || excludeRanksCount >= comm->nranks))
    result = fail(ncclInvalidArgument, "CommShrink : cannot exclude %d of %d ranks", excludeRanksCount, comm->nranks);
  if (result == ncclSuccess && folded_run())
    result = fail(ncclInvalidUsage, "CommShrink cannot be folded; run all ranks with --fold off");
  bool *excluded = result == ncclSuccess ? calloc((size_t)comm->nranks, sizeof *excluded) : NULL;
  for (int i = 0; excluded && result == ncclSuccess && i < excludeRanksCount; i++) {
    int rank = excludeRanksList[i];
    if (rank < 0 || rank >= comm->nranks || rank == comm->rank || excluded[rank])
      result = fail(ncclInvalidArgument, "CommShrink : rank %d cannot be excluded (out of range, twice, or the caller)",
                    rank);
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
  } seed = {
      {comm->key[0], comm->key[1]}, comm->shrinks++, ph_hash(excluded, (size_t)comm->nranks * sizeof *excluded, 7)};
  free(excluded);
  derive_key(child->key, &seed, sizeof seed);
  if (shrinkFlags & NCCL_SHRINK_ABORT) give_up(comm);
  return leave(
      submit_job((job){.kind = JOB_SHRINK, .call = "CommShrink", .comm = child, .parent = comm, .out = newcomm}));
}

// ---------------------------------------------------------------- ending and asking communicators

static ncclResult_t release(const char *call, ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  ncclResult_t result = check_comm(comm, call);
  if (result != ncclSuccess) return result;
  ph_record record = {.kind = PH_COMM_DESTROY, .id = comm->id};
  ph_emit_lock();  // nothing of this communicator follows
  bool first = comm->magic == COMM_MAGIC;
  comm->magic = 0;
  if (first) ph_emit(&record);
  ph_emit_unlock();
  if (!first) return check_comm(comm, call);
  say_end(comm, strcmp(call, "CommAbort") ? "Destroy COMPLETE" : "Abort COMPLETE");
  ph_memory_charge(comm->device, -comm->charged);
  free(comm->peers);
  free(comm->met);
  free(comm->ops);
  free(comm->world);
  comm->world = NULL;
  comm->peers = NULL;
  comm->met = NULL;
  comm->ops = NULL;
  comm->op_count = 0;
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommDestroy, ncclComm_t comm)
{
  ph_enter();
  return leave(release("CommDestroy", comm));
}

NCCL_API(ncclResult_t, ncclCommAbort, ncclComm_t comm)
{
  ph_enter();
  if (comm && check_comm(comm, "CommAbort") == ncclSuccess) give_up(comm);
  return leave(release("CommAbort", comm));
}

NCCL_API(ncclResult_t, ncclCommFinalize, ncclComm_t comm)
{
  ph_enter();
  ncclResult_t result = check_comm(comm, "CommFinalize");
  if (result == ncclSuccess && comm->finalized)
    result = fail(ncclInvalidArgument, "CommFinalize : the communicator has been finalized already");
  if (result == ncclSuccess && comm->revoked)
    result = fail(ncclInvalidUsage, "CommFinalize : the communicator has been revoked");
  if (result == ncclSuccess) comm->finalized = true;
  ph_watchdog_locked(true);
  return leave(result);
}

NCCL_API(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int revokeFlags)
{
  ph_enter();
  ncclResult_t result = check_comm(comm, "CommRevoke");
  if (result == ncclSuccess && revokeFlags != 0)
    result = fail(ncclInvalidArgument, "CommRevoke : revokeFlags must be NCCL_REVOKE_DEFAULT, not %d", revokeFlags);
  if (result == ncclSuccess && comm->finalized)
    result = fail(ncclInvalidArgument, "CommRevoke : the communicator has been finalized");
  if (result == ncclSuccess) {
    comm->revoked = true;
    give_up(comm);
  }
  return leave(result);
}

// Asked by watchdog threads all the time: reads two words and nothing else.
NCCL_API(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *asyncError)
{
  ncclResult_t result = check_comm(comm, "CommGetAsyncError");
  if (result == ncclSuccess) result = check_pointer(asyncError, "CommGetAsyncError", "asyncError");
  if (result == ncclSuccess) *asyncError = ncclSuccess;
  ph_watchdog_locked(true);
  return result;
}

static ncclResult_t ask(const struct ncclComm *comm, const char *call, int *out, int value) {
  ncclResult_t result = check_pointer(out, call, "result");
  (void)comm;
  if (result == ncclSuccess) *out = value;
  return result;
}

NCCL_API(ncclResult_t, ncclCommCount, const ncclComm_t comm, int *count)
{
  ncclResult_t result = check_comm(comm, "CommCount");
  return result == ncclSuccess ? ask(comm, "CommCount", count, comm->nranks) : result;
}

NCCL_API(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int *device)
{
  ncclResult_t result = check_comm(comm, "CommCuDevice");
  return result == ncclSuccess ? ask(comm, "CommCuDevice", device, comm->device) : result;
}

NCCL_API(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int *rank)
{
  ncclResult_t result = check_comm(comm, "CommUserRank");
  return result == ncclSuccess ? ask(comm, "CommUserRank", rank, comm->rank) : result;
}
