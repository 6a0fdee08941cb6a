// Groups of calls.
#include "nccl/internal.h"

typedef struct group_state {
  int depth;
  ncclResult_t error;
  operation *ops;
  size_t op_count, op_capacity;
  job *jobs;
  size_t job_count, job_capacity;
} group_state;

static _Thread_local group_state group;

static void *grown(void *items, size_t count, size_t *capacity, size_t size) {
  if (count < *capacity) return items;
  size_t wanted = *capacity ? *capacity * 2 : 16;
  void *larger = realloc(items, wanted * size);
  if (larger) *capacity = wanted;
  return larger;
}

ncclResult_t group_failed(ncclResult_t result) {
  if (group.depth > 0 && group.error == ncclSuccess) group.error = result;
  return result;
}

ncclResult_t submit_job(job work) {
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

bool group_open(void) { return group.depth > 0; }

ncclResult_t group_operation(operation op) {
  operation *larger = grown(group.ops, group.op_count, &group.op_capacity, sizeof op);
  if (!larger) return group_failed(fail(ncclSystemError, "out of host memory"));
  group.ops = larger;
  group.ops[group.op_count++] = op;
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclGroupStart, void)
{
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

NCCL_API(ncclResult_t, ncclGroupEnd, void)
{
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
NCCL_API(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t *simInfo)
{
  if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupSimulateEnd: not in a group call.");
  if (simInfo && (simInfo->magic != NCCL_SIM_INFO_MAGIC || simInfo->size < sizeof *simInfo))
    return fail(ncclInvalidArgument, "ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER");
  if (--group.depth == 0) drop_group();
  ph_unsupported("nccl", "ncclGroupSimulateEnd", true);
  return fail(
      ncclInvalidUsage,
      "ncclGroupSimulateEnd : NCCL's own time estimate is not simulated; leave out what asks for it (Inductor's "
      "overlap scheduling, TorchTitan's --compile.graph_passes auto_bucketing), or run the group and measure it");
}
