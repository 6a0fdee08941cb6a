// Connections for sends and receives. NCCL makes one when a pair first uses it, inside the call that launches: both
// hosts wait until the other has called. A host goes on when all peers of its call have met all of theirs.
#include <pthread.h>

#include "nccl/internal.h"

enum { SENDS = 1, RECEIVES = 2 };  // a way of `comm->met`

// The new connections of one communicator in one call.
typedef struct meetings {
  ncclComm_t comm;
  uint8_t *ways;  // by peer
  int round;
  bool failed;
} meetings;

// Half way round, sends and receives go to the same peer. There NCCL swaps what both have, in one message.
static bool opposite(const struct ncclComm *comm, int peer) {
  return 2 * ((peer - comm->rank + comm->nranks) % comm->nranks) == comm->nranks;
}

static bool meet_peer(meetings *m, int peer, int way) {
  const struct ncclComm *comm = m->comm;
  int source = way == SENDS ? comm->rank : peer, target = way == SENDS ? peer : comm->rank;
  if (opposite(comm, peer)) {
    source = peer < comm->rank ? peer : comm->rank;
    target = peer < comm->rank ? comm->rank : peer;
  }
  struct {
    uint64_t comm[2];
    int32_t source, target, ways, round;
    int64_t time;  // how often these have met before
  } seed = {{comm->key[0], comm->key[1]}, source, target, 0, m->round, 0};
  if (opposite(comm, peer)) {
    const uint8_t ways = m->ways[peer];
    seed.ways = (ways & SENDS ? 1 : 0) + (ways & RECEIVES ? 1 : 0);
    seed.time = comm->met[peer] >> 2;
  }
  uint64_t key[2];
  derive_key(key, &seed, sizeof seed);
  return ph_meet_peer(key, comm->id, peer, comm->rank != source) == 0;
}

// NCCL goes round the ring: the peers at distance 1, then 2 and so on.
static void walk(meetings *m, int way) {
  const int ranks = m->comm->nranks, forwards = way == SENDS ? 1 : ranks - 1;
  for (int i = 1, peer = m->comm->rank; i < ranks && !m->failed; i++) {
    peer = (peer + forwards) % ranks;
    const int wanted = opposite(m->comm, peer) && way == RECEIVES ? SENDS | RECEIVES
                       : opposite(m->comm, peer)                  ? 0
                                                                  : way;
    if ((m->ways[peer] & wanted) && !meet_peer(m, peer, way)) m->failed = true;
  }
}

static void *walk_sends(void *argument) {
  meetings *m = argument;
  ph_set_current_device(m->comm->device);
  walk(m, SENDS);
  return NULL;
}

static bool any(const meetings *m, int way) {
  for (int peer = 0; peer < m->comm->nranks; peer++)
    if ((m->ways[peer] & way) && !opposite(m->comm, peer)) return true;
  return false;
}

// The second round is NCCL's own: it ends when the peers have met theirs too.
static void *meet_all(void *argument) {
  meetings *m = argument;
  ph_set_current_device(m->comm->device);
  const bool both = any(m, SENDS);
  for (m->round = 0; m->round < 2 && !m->failed; m->round++) {
    pthread_t sender;
    const bool started = both && pthread_create(&sender, NULL, walk_sends, m) == 0;
    if (both && !started) m->failed = true;
    walk(m, RECEIVES);
    if (started) pthread_join(sender, NULL);
  }
  for (int peer = 0; peer < m->comm->nranks; peer++)
    if (m->ways[peer] && opposite(m->comm, peer)) m->comm->met[peer] += 4;
  return NULL;
}

static bool wanted(const operation *op) {
  return op->kind != PH_COLLECTIVE && op->peer != op->comm->rank && op->comm->magic == COMM_MAGIC;
}

// Fills `m` with what the operations from `first` on need of their communicator. False: nothing new, or no memory.
static bool gather(meetings *m, const operation *ops, size_t count, size_t first) {
  ncclComm_t comm = ops[first].comm;
  for (size_t i = 0; i < first; i++)
    if (ops[i].comm == comm && wanted(&ops[i])) return false;  // they are in an earlier one's
  if (!comm->met && !(comm->met = calloc((size_t)comm->nranks, sizeof *comm->met))) return false;
  uint8_t *ways = calloc((size_t)comm->nranks, 1);
  if (!ways) return false;
  bool found = false;
  for (size_t i = first; i < count; i++) {
    if (ops[i].comm != comm || !wanted(&ops[i])) continue;
    const int way = ops[i].kind == PH_SEND ? SENDS : RECEIVES;
    if (comm->met[ops[i].peer] & way) continue;
    comm->met[ops[i].peer] |= (uint32_t)way;
    ways[ops[i].peer] |= (uint8_t)way;
    found = true;
  }
  *m = (meetings){.comm = comm, .ways = ways};
  if (!found) free(ways);
  return found;
}

// Communicators of one call connect at the same time.
ncclResult_t connect_pairs(const operation *ops, size_t count) {
  if (ph_null_mode() || folded_run()) return ncclSuccess;
  meetings *all = NULL;
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    if (!wanted(&ops[i])) continue;
    if (!all && !(all = calloc(count, sizeof *all))) return fail(ncclSystemError, "out of host memory");
    used += gather(&all[used], ops, count, i);
  }
  pthread_t *threads = used > 1 ? calloc(used, sizeof *threads) : NULL;
  bool *started = used > 1 ? calloc(used, sizeof *started) : NULL;
  for (size_t i = 1; i < used && threads && started; i++)
    started[i] = pthread_create(&threads[i], NULL, meet_all, &all[i]) == 0;
  bool failed = false;
  for (size_t i = 0; i < used; i++) {
    if (started && started[i])
      pthread_join(threads[i], NULL);
    else
      meet_all(&all[i]);
    failed = failed || all[i].failed;
    free(all[i].ways);
  }
  free(threads);
  free(started);
  free(all);
  return failed ? fail(ncclRemoteError, "a connection for sends and receives could not be made") : ncclSuccess;
}
