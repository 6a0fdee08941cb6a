// Making communicators: the members meet in real time, as under NCCL, and the simulator gets a record.
#include <pthread.h>
#include "cuda/core/device.h"
#include "nccl/internal.h"

void derive_key(uint64_t key[2], const void *data, size_t length) {
  key[0] = ph_hash(data, length, 0x6e63636c5f6b6579ULL);
  key[1] = ph_hash(data, length, 0x7068616e746f7261ULL);
}

// Data that each member sends to the others when a communicator is made.
typedef struct member {
  int32_t rank, nranks;  // in the new communicator, or colour and order in a split
  int32_t host, device;  // -1: the process sees only some of its host's GPUs
  int32_t world;
} member;

static member describe(ncclComm_t comm, int first, int second) {
  int per_host = ph_shared() ? (int)ph_shared()->ranks_per_host : 1;
  bool sees_host = per_host > 0 && (ph_shares() || ph_devices() >= per_host);
  return (member){.rank = first,
                  .nranks = second,
                  .host = sees_host ? ph_rank() / per_host : -1,
                  .device = phc_physical(comm->device),
                  .world = ph_rank()};
}

// Meets the other members of `comm`, of which `mine` is the description of this one. Returns those of the processes
// among them, in order, and how many (the caller frees).
static ncclResult_t meet(const uint64_t key[2], const struct ncclComm *comm, const member *mine, member **all,
                         int *count) {
  int members = 0, index = 0;
  for (int i = 0; i < comm->nranks; i++) {
    if (i == comm->rank) index = members;
    members += !folded_member(comm, i);
  }
  *count = members;
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
  for (int i = 0; i < members; i++) memcpy(&(*all)[i], bytes + stride * (size_t)i + sizeof(uint32_t), sizeof **all);
  free(bytes);
  return ncclSuccess;
}

// Nothing goes over the network of a communicator inside one host, so the program's word is as good as done.
static void say_network(const struct ncclComm *comm, const member *all, int members) {
  int per_host = ph_shared() ? (int)ph_shared()->ranks_per_host : 1;
  if (!*comm->network || per_host < 1) return;
  for (int i = 0; i < members; i++)
    if (all[i].world / per_host != all[0].world / per_host) return;
  say(SAY_INIT, "Using network %s", comm->network);
}

static ncclResult_t check_members(const member *all, int members) {
  for (int i = 0; i < members; i++)
    for (int j = 0; j < i; j++)
      if (all[i].host >= 0 && all[i].host == all[j].host && all[i].device == all[j].device)
        return fail(ncclInvalidUsage, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", j, i,
                    all[i].device);
  return ncclSuccess;
}

// The communicator exists: account for it and tell the simulator.
static ncclResult_t announce(ncclComm_t comm) {
  ncclResult_t result = charge_communicator(comm);
  if (result != ncclSuccess) return result;
  comm->id = ph_next_communicator();
  comm->magic = COMM_MAGIC;
  ph_record record = {.kind = PH_COMM_CREATE,
                      .id = comm->id,
                      .stream = (uint32_t)comm->device,
                      .comm = {.key_hi = comm->key[0],
                               .key_lo = comm->key[1],
                               .members = (uint64_t)comm->nranks,
                               .rank = (uint64_t)comm->rank}};
  size_t length = strlen(comm->name);
  char *label = comm->world ? label_with_members(comm, &length) : NULL;
  ph_emit_blob(&record, label ? label : comm->name, label ? length : strlen(comm->name));
  free(label);
  return ncclSuccess;
}

static ncclResult_t run_init(job *work) {
  ncclComm_t comm = work->comm;
  say_job(work, "Init START");
  if (work->local || ph_null_mode()) return announce(comm);
  member mine = describe(comm, comm->rank, comm->nranks), *all = NULL;
  int count;
  ncclResult_t result = meet(comm->key, comm, &mine, &all, &count);
  if (result != ncclSuccess) return result;
  for (int i = 0; i < count && result == ncclSuccess; i++)
    if (all[i].nranks != comm->nranks)
      result = fail(ncclInvalidUsage, "rank %d was told of %d ranks, rank %d of %d", comm->rank, comm->nranks, i,
                    all[i].nranks);
  if (result == ncclSuccess) result = check_members(all, count);
  if (result == ncclSuccess) say_network(comm, all, count);
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
  if (ph_null_mode()) {  // without a simulator: as if all members gave this rank's colour
    if (work->color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    comm->nranks = parent->nranks;
    comm->rank = parent->rank;
    derive_key(comm->key, &seed, sizeof seed);
    say_job(work, "Init START");
    return announce(comm);
  }
  member mine = describe(parent, work->color, work->key), *all = NULL;
  int count;
  ncclResult_t result = meet(meeting, parent, &mine, &all, &count);
  if (result != ncclSuccess) return result;
  if (work->color != NCCL_SPLIT_NOCOLOR) {
    for (int i = 0; i < count && !comm->world; i++) {  // ranks of one colour, by key, then by old rank
      if (all[i].rank != work->color) continue;
      comm->nranks++;
      if (all[i].nranks < work->key || (all[i].nranks == work->key && i < parent->rank)) comm->rank++;
    }
    derive_key(comm->key, &seed, sizeof seed);
    say_job(work, "Init START");
    result = announce(comm);
  }
  free(all);
  return result;
}

static ncclResult_t run_shrink(job *work) {
  ncclComm_t comm = work->comm;
  say_job(work, "Init START");
  if (!ph_null_mode()) {
    member mine = describe(comm, comm->rank, comm->nranks), *all = NULL;
    int count;
    ncclResult_t result = meet(comm->key, comm, &mine, &all, &count);
    free(all);
    if (result != ncclSuccess) return result;
  }
  return announce(comm);
}

ncclResult_t run_job(job *work) {
  switch (work->kind) {
    case JOB_INIT:
      work->result = run_init(work);
      break;
    case JOB_SPLIT:
      work->result = run_split(work);
      break;
    case JOB_SHRINK:
      work->result = run_shrink(work);
      break;
  }
  if (work->result != ncclSuccess || (work->kind == JOB_SPLIT && work->color == NCCL_SPLIT_NOCOLOR)) {
    *work->out = NULL;
    free(work->comm);
  } else {
    say_job(work, "Init COMPLETE");
  }
  return work->result;
}

static void *run_job_thread(void *argument) {
  job *work = argument;
  ph_set_current_device(work->parent ? work->parent->device : work->comm->device);
  run_job(work);
  return NULL;
}

// Jobs of one group may wait for each other, so each that meets others has a thread, as in NCCL.
ncclResult_t run_jobs(job *jobs, size_t count) {
  for (size_t i = 0; i < count; i++) {
    size_t same = 0;
    for (size_t j = 0; j < count; j++)
      same += jobs[j].kind == JOB_INIT && jobs[i].kind == JOB_INIT && jobs[i].comm->key[0] == jobs[j].comm->key[0] &&
              jobs[i].comm->key[1] == jobs[j].comm->key[1];
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
