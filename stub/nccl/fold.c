// Folded runs: communicators of which only some members are processes. NCCL gives a member only its own rank and
// how many there are, so the framework's list of the group's global ranks comes with the configuration, as its netName.
#include <stdio.h>

#include "nccl/internal.h"

#define PREFIX "phantora:"  // of phantora/rank/fold/groups.py

bool folded_run(void) { return ph_shared() && ph_shared()->folded > 0; }

static bool is_folded(int world_rank) {
  const ph_header *header = ph_shared();
  const ph_control *controls = (const ph_control *)((const char *)header + header->control_offset);
  return world_rank >= 0 && (uint32_t)world_rank < header->world_size && controls[world_rank].folded;
}

bool folded_member(const struct ncclComm *comm, int rank) { return comm->world && is_folded(comm->world[rank]); }

// START+STRIDExCOUNT,... Returns how many ranks it names, and the first `room` of them in `out`.
static int parse_members(const char *text, int *out, int room) {
  int total = 0, start, stride, count, used;
  while (sscanf(text, "%d+%dx%d%n", &start, &stride, &count, &used) == 3) {
    for (int i = 0; i < count; i++, total++)
      if (total < room) out[total] = start + i * stride;
    text += used;
    if (*text == ',') text++;
  }
  return total;
}

// The group that the configuration names, or NULL.
static const char *named_members(const ncclConfig_t *config) {
  const char *text = config && FIELD_GIVEN(config, netName) ? config->netName : NULL;
  return text && !strncmp(text, PREFIX, strlen(PREFIX)) ? text + strlen(PREFIX) : NULL;
}

const char *config_network(const ncclConfig_t *config) {
  bool given = config && FIELD_GIVEN(config, netName) && config->netName && !named_members(config);
  return given ? config->netName : NULL;
}

ncclResult_t learn_split(ncclComm_t child, const ncclConfig_t *config) {
  const char *text = named_members(config);
  child->nranks = text ? parse_members(text, NULL, 0) : 0;
  child->world = child->nranks ? calloc((size_t)child->nranks, sizeof *child->world) : NULL;
  if (child->world) parse_members(text, child->world, child->nranks);
  for (child->rank = 0; child->rank < child->nranks && child->world; child->rank++)
    if (child->world[child->rank] == ph_rank()) return ncclSuccess;
  return fail(ncclInvalidUsage,
              "the members of a part of a communicator are not known, so the run cannot be folded; "
              "use --fold off");
}

ncclResult_t learn_members(ncclComm_t comm, const ncclConfig_t *config) {
  if (!folded_run()) return ncclSuccess;
  const char *text = named_members(config);
  comm->world = calloc((size_t)comm->nranks, sizeof *comm->world);
  if (!comm->world) return fail(ncclSystemError, "out of host memory");
  int count = text ? parse_members(text, comm->world, comm->nranks) : 0;
  if (count == comm->nranks) {
    if (comm->rank < count && comm->world[comm->rank] == ph_rank()) return ncclSuccess;
    return fail(ncclInternalError, "rank %d of a communicator is rank %d of the run, not %d", comm->rank,
                comm->world[comm->rank], ph_rank());
  }
  free(comm->world);
  comm->world = NULL;  // of two that send and receive, both are processes, or the simulator refuses
  if (comm->nranks <= 2) return ncclSuccess;
  return fail(ncclInvalidUsage,
              "the members of a communicator of %d ranks are not known, so the run cannot be folded; "
              "use --fold off",
              comm->nranks);
}

char *label_with_members(const struct ncclComm *comm, size_t *length) {
  size_t name = strlen(comm->name), room = name + 1 + 36 * (size_t)comm->nranks;
  char *label = malloc(room);
  if (!label) return NULL;
  memcpy(label, comm->name, name + 1);
  size_t at = name + 1;
  for (int i = 0; i < comm->nranks;) {
    int stride = i + 1 < comm->nranks ? comm->world[i + 1] - comm->world[i] : 1, count = 1;
    while (i + count < comm->nranks && comm->world[i + count] - comm->world[i + count - 1] == stride) count++;
    at += (size_t)snprintf(label + at, room - at, "%s%d+%dx%d", i ? "," : "", comm->world[i], stride, count);
    i += count;
  }
  *length = at;
  return label;
}
