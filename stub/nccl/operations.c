// One collective, send or receive: checked, turned into a record, launched.
//
// Nothing is transferred here. Small collectives, integers and known reals carry their bytes (docs/collectives.md): the
// contribution travels with the record and the result is awaited by whoever reads the receive buffer. All others leave
// zeros. Of large contributions, true bytes travel, up to the last that is not 0.
#include <stdatomic.h>
#include <unistd.h>

#include "nccl/internal.h"

#include "cuda/core/graph.h"

const size_t dtype_bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

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

// Sends, receives and collectives that give the bytes of members to members. Other collectives compute.
static bool moves(const operation *op) {
  return !folded_run() &&
         (op->kind != PH_COLLECTIVE || op->coll == PH_COLL_BROADCAST || op->coll == PH_COLL_ALL_GATHER ||
          op->coll == PH_COLL_GATHER || op->coll == PH_COLL_SCATTER || op->coll == PH_COLL_ALL_TO_ALL);
}

// Sizes of what this rank gives and gets, and whether the bytes are carried. Every member must
// come to the same answer, so it depends on the operation's shape alone.
static void measure(operation *op) {
  const uint64_t one = op->count * dtype_bytes[op->dtype], all = one * (uint64_t)op->comm->nranks;
  uint64_t give = one, get = one;
  op->bytes = one;
  if (op->kind == PH_COLLECTIVE && op->coll >= PH_COLL_EXPERT_COUNTS) {  // its tensors are the caller's business
    op->bytes = one * op->rows;
    op->scalar = op->tokens;
    op->send = op->recv = NULL;
    return;
  }
  if (op->kind == PH_COLLECTIVE) {
    switch (op->coll) {
      case PH_COLL_ALL_GATHER:
      case PH_COLL_GATHER:
        op->bytes = get = all;
        break;
      case PH_COLL_REDUCE_SCATTER:
      case PH_COLL_SCATTER:
        op->bytes = give = all;
        break;
      case PH_COLL_ALL_TO_ALL:
        op->bytes = give = get = all;
        break;
      default:
        break;
    }
  }
  const uint64_t limit = op->dtype <= ncclUint8    ? PH_OBJECT_BYTES
                         : op->dtype <= ncclUint64 ? PH_INTEGER_BYTES
                                                   : PH_CARRIED_BYTES;
  op->carried = give <= limit && get <= limit;
  op->sparse = give > PH_CARRIED_BYTES || get > PH_CARRIED_BYTES;
  op->carried_if_known = !op->carried && moves(op) && give <= PH_REAL_BYTES && get <= PH_REAL_BYTES;
  op->send_bytes = sends(op) ? give : 0;
  op->recv_bytes = receives(op) ? get : 0;
  if (!op->send_bytes) op->send = NULL;
  if (!op->recv_bytes) op->recv = NULL;
}

static ncclResult_t connect_for(const operation *op) {
  const bool pairs = op->kind != PH_COLLECTIVE || op->coll == PH_COLL_ALL_TO_ALL || op->coll == PH_COLL_GATHER ||
                     op->coll == PH_COLL_SCATTER;
  if (!pairs) return connect_ring(op->comm);
  if (op->kind != PH_COLLECTIVE || (op->coll != PH_COLL_ALL_TO_ALL && op->comm->rank != op->peer))
    return connect_peer(op->comm, op->peer);
  ncclResult_t result = ncclSuccess;
  for (int peer = 0; peer < op->comm->nranks && result == ncclSuccess; peer++) result = connect_peer(op->comm, peer);
  return result;
}

static ncclResult_t check_operation(operation *op, cudaStream_t stream) {
  if (!ph_connected()) return fail(ncclUnhandledCudaError, "Cuda failure 100 'no CUDA-capable device is detected'");
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
    return fail(ncclUnhandledCudaError, "Cuda failure 400 'invalid resource handle' (%s : stream %p)", op->name,
                stream);
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
                        .kernel = {.grid_x = 32, .grid_y = 1, .grid_z = 1, .block_x = 512, .block_y = 1, .block_z = 1}};
    ph_launch(&record);
  } else if (op->send != op->recv) {
    ph_record record = {
        .kind = PH_MEMCPY, .stream = op->stream->id, .id = PH_COPY_D2D, .copy = {.bytes = op->bytes, .peer = -1}};
    ph_launch(&record);
  }
  if (op->send != op->recv) ph_memory_copy(op->recv, op->send, op->bytes);
  if (op->redop == PREMULSUM) ph_memory_clear(op->recv, op->bytes);
}

static ph_record record_of(const operation *op) {
  ph_record record = {.kind = op->kind, .flags = op->known, .stream = op->stream->id, .id = op->comm->id};
  if (op->kind == PH_COLLECTIVE)
    record.collective = (ph_collective_fields){.coll = (uint8_t)op->coll,
                                               .dtype = (uint8_t)op->dtype,
                                               .redop = (uint8_t)op->redop,
                                               .blocks = op->blocks,
                                               .root = op->peer,
                                               .count = op->count,
                                               .bytes = (int64_t)op->bytes,
                                               .ticket = op->ticket,
                                               .scalar = op->scalar};
  else
    record.transfer = (ph_transfer_fields){.peer = op->peer,
                                           .dtype = (uint32_t)op->dtype,
                                           .count = op->count,
                                           .bytes = (int64_t)op->bytes,
                                           .ticket = op->ticket};
  return record;
}

// May this rank give further known reals?
static bool affords(const operation *op) {
  static _Atomic uint64_t given;
  return atomic_fetch_add(&given, op->send_bytes) + op->send_bytes <= PH_ALL_REAL_BYTES;
}

// Waits for the true bytes of what is sent; must happen before the emit lock is taken.
static void prepare(operation *op) {
  op->travels = op->carried || (op->carried_if_known && op->send && !(known_to_send(op) & PH_F_ABSENT) && affords(op));
  op->ticket = 0;
  if (op->travels && op->send) ph_touch(op->send, op->send_bytes);
  if (op->scalar_address && op->carried) {
    ph_touch(op->scalar_address, dtype_bytes[op->dtype]);
    op->scalar = scalar_value(op->scalar_address, op->dtype);
  }
  op->known = op->travels ? known_to_send(op) : op->send ? PH_F_ABSENT : 0;
  if (op->kind != PH_SEND && (op->carried || (op->carried_if_known && expects_known(op))))
    op->ticket = ph_next_ticket() | expected_parts(op);
}

// Number of the bytes to send that travel; the receivers read zeros behind them.
static size_t travelling(const operation *op) {
  if (!op->travels || !op->send) return 0;
  if (!op->sparse) return op->send_bytes;
  const size_t one = dtype_bytes[op->dtype];
  return (ph_memory_length(op->send, op->send_bytes) + one - 1) / one * one;  // whole elements
}

static bool is_root_of_broadcast(const operation *op) {
  return op->kind == PH_COLLECTIVE && op->coll == PH_COLL_BROADCAST && op->comm->rank == op->peer;
}

static void receive(operation *op) {
  if (!op->recv || is_root_of_broadcast(op)) {
    if (op->ticket) ph_forget_ticket(op->ticket);
    if (op->recv && op->recv != op->send) ph_memory_copy(op->recv, op->send, op->recv_bytes);  // the root has the bytes
  } else if (op->ticket) {
    expect_bytes(op);
  } else {
    ph_touch_drop(op->recv, op->recv_bytes);
    ph_memory_clear(op->recv, op->recv_bytes);
  }
}

// Null mode has no peers: the bytes are as if every member had sent what this one sends, which
// keeps exchanged sizes and counts plausible. What a root broadcasts lies in the buffer already.
static void pretend(operation *op) {
  if (!op->recv) return;
  if (op->carried && !op->send && op->kind == PH_COLLECTIVE && op->coll == PH_COLL_BROADCAST) return;
  if (!op->carried || !op->send) {
    ph_memory_clear(op->recv, op->recv_bytes);
    return;
  }
  const uint64_t block = op->send_bytes < op->recv_bytes ? op->send_bytes : op->recv_bytes;
  for (uint64_t at = 0; at < op->recv_bytes; at += block)
    if ((char *)op->recv + at != op->send) ph_memory_copy((char *)op->recv + at, op->send, block);
  ph_memory_gathered(op->recv, op->recv_bytes, block);
}

// A graph's part of a group: launched anew with each launch of the graph, so that each has bytes of its own.
typedef struct captured_operations {
  size_t count;
  operation ops[];
} captured_operations;

static void launch_again(void *data, ph_stream *stream) {
  captured_operations *kept = data;
  for (size_t i = 0; i < kept->count; i++) {
    kept->ops[i].stream = stream;
    kept->ops[i].launched = false;
  }
  launch(kept->ops, kept->count);
}

// The operations of a captured stream become one node, as the one kernel that NCCL makes of them.
static bool captured(const operation *ops, size_t count, size_t first) {
  ph_stream *stream = ops[first].stream;
  if (!phc_captured(stream)) return false;
  captured_operations *kept = malloc(sizeof *kept + count * sizeof *ops);
  phc_node *node = kept ? phc_capture_add(stream, PHC_NODE_KERNEL) : NULL;
  if (!node) {
    free(kept);
    return true;  // the capture has become invalid
  }
  kept->count = 0;
  for (size_t i = first; i < count; i++)
    if (ops[i].stream == stream && ops[i].comm == ops[first].comm) kept->ops[kept->count++] = ops[i];
  phc_node_action(node, (phc_action){launch_again, free, kept, 0});
  return true;
}

// With the emit lock held: what follows is called there.
static void emit_site(uint32_t site) {
  static uint32_t last;
  if (!site || site == last) return;
  last = site;
  ph_record record = {.kind = PH_SITE, .id = site};
  ph_emit(&record);
}

ncclResult_t launch(operation *ops, size_t count) {
  static int64_t last;
  ph_charge_cold(PH_API_NCCL_COLD, &last, 1);
  operation **together = malloc(count * sizeof *together);
  if (!together) return fail(ncclSystemError, "out of host memory");
  ncclResult_t result = connect_pairs(ops, count);
  for (size_t i = 0; i < count && result == ncclSuccess; i++) {
    if (ops[i].launched) continue;
    if (check_comm(ops[i].comm, ops[i].name) != ncclSuccess) {
      result = ncclInvalidArgument;
      continue;
    }
    if (captured(ops, count, i)) {
      for (size_t j = i; j < count; j++)
        if (ops[j].stream == ops[i].stream && ops[j].comm == ops[i].comm) ops[j].launched = true;
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
      for (size_t j = 0; j < members; j++) {
        if (ph_probing() && (together[j]->kind != PH_COLLECTIVE || !together[j]->carried)) _exit(0);
        pretend(together[j]);
      }
      continue;
    }
    for (size_t j = 0; j < members; j++) prepare(together[j]);
    ph_emit_lock();
    if (ops[i].comm->magic != COMM_MAGIC) {  // another thread has ended it
      ph_emit_unlock();
      result = check_comm(ops[i].comm, ops[i].name);
      continue;
    }
    emit_site(ops[i].site);
    if (members > 1) {
      ph_record record = {
          .kind = PH_GROUP_BEGIN, .stream = ops[i].stream->id, .id = ops[i].comm->id, .group.records = members};
      ph_launch(&record);
    }
    for (size_t j = 0; j < members; j++) {
      ph_record record = record_of(together[j]);
      const size_t bytes = travelling(together[j]);
      if (bytes)
        ph_launch_blob(&record, together[j]->send, bytes);
      else
        ph_launch(&record);
    }
    ph_emit_unlock();
    for (size_t j = 0; j < members; j++) receive(together[j]);
  }
  free(together);
  return result;
}

ncclResult_t enqueue(operation op, cudaStream_t stream) {
  ph_enter();
  ncclResult_t result = check_operation(&op, stream);
  if (result != ncclSuccess) return leave(group_failed(result));
  ph_charge(PH_API_NCCL_ENQUEUE);
  ph_watchdog_polls();  // torch gives the collective its time limit behind this call
  ph_watchdog_work();
  if (op.count == 0) return leave(ncclSuccess);
  op.site = ph_site();
  return leave(group_open() ? group_operation(op) : launch(&op, 1));
}
