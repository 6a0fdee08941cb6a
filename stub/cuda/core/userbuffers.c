// The kernels of Transformer Engine's Userbuffers, known by their names, which hold the types of their parameters.
//
// A block of memory of each GPU holds a table of all blocks and the flags through which kernels tell each other. Flags
// count, so that a signal waits for none before it.
#include "abi/nccl_abi.h"
#include "cuda/core/kernel.h"

#include <stdlib.h>
#include <string.h>

enum { UNKNOWN, FOREIGN, SEND, RECEIVE, GATHER, SCATTER, SCATTER_OUT, SCATTER_OUT_FP8, REFUSED };
#define LINE 16  // bytes in which sizes and places are written

static bool between(const char *symbol, const char *start, const char *end) {
  size_t length = strlen(symbol), head = strlen(start), tail = strlen(end);
  return length >= head + tail && !strncmp(symbol, start, head) && !strcmp(symbol + length - tail, end);
}

static int recognize(const char *symbol) {
  static const struct {
    const char *start, *end;
    int kind;
  } known[] = {
      {"_Z21kuserbuffers_pushsendPiS_P4int4S1_i", "", SEND},
      {"_Z21kuserbuffers_pushrecviiiiPiS_imS_S_", "", RECEIVE},
      {"_Z38userbuffers_fp16_sum_inplace_gpu_rw_agILi", "EEviiiiiiiPPvim", GATHER},
      {"_Z38userbuffers_fp16_sum_inplace_gpu_rr_rsILi", "EEviiiiiiiPPvim", SCATTER},
      {"_Z42userbuffers_fp16_sum_inplace_gpu_rr_rs_oopILi", "EEviiiiiiiiiPPviS0_m", SCATTER_OUT},
      {"_Z46userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8ILi", "EviiiiiiiiiPPviS1_Pfm", SCATTER_OUT_FP8},
      // Products that tell of each tile, and what waits for them.
      {"_Z15consumer_kernelPvi", "", REFUSED},
      {"_Z15producer_kernelPvi", "", REFUSED},
      {"_Z21consumer_batch_kernelPvii", "", REFUSED},
      {"_Z21reset_counters_kernelPvib", "", REFUSED},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (between(symbol, known[i].start, known[i].end)) return known[i].kind;
  return strstr(symbol, "userbuffers_") ? REFUSED : FOREIGN;
}

#define ARGUMENT(type, index) (*(type *)arguments[index])

// The flag of a message lies as far from the start of the receiver's block as in the receiver's own view of it.
static uint32_t channel_of(const void *flag) {
  ph_range range;
  return ph_memory_find(flag, &range) ? (uint32_t)(((uintptr_t)flag - range.base) / sizeof(int)) : 0;
}

static bool message(int kind, const ph_stream *stream, unsigned blocks, void **arguments) {
  int peer;
  const void *flag = ARGUMENT(void *, kind == SEND ? 1 : 5);
  const phc_peers *g = phc_peers_at(flag, &peer);
  if (!g) return false;
  int64_t lines = kind == SEND ? ARGUMENT(int, 4) : 0;
  if (lines > 0) {  // its blocks copy, and signal at their end
    ph_record copy = {.kind = PH_PEER_COPY,
                      .stream = stream->id,
                      .id = g->comm,
                      .peer_copy = {.peer = peer, .push = 1, .bytes = (uint64_t)lines * LINE, .blocks = blocks}};
    ph_launch(&copy);
  }
  if (kind == RECEIVE) peer = ARGUMENT(int, 3);
  if (peer < 0 || peer >= g->members || peer == g->rank) return false;
  ph_record record = {.kind = kind == SEND ? PH_PUT_SIGNAL : PH_WAIT_SIGNAL,
                      .flags = PH_F_COUNTED,
                      .stream = stream->id,
                      .id = g->comm,
                      .signal = {.peer = peer, .channel = channel_of(flag)}};
  ph_launch(&record);
  return true;
}

typedef struct parts {  // of a block that members gather or reduce, in lines
  char *block;          // own
  int64_t offset, lines;  // of the own part
  int64_t row, stride;  // of the output
} parts;

// Result of the kernel: zeros, which a sum of unknown numbers and a peer's memory read as.
static void clear_results(int kind, const parts *p, const phc_peers *g, char *output) {
  size_t part = (size_t)p->lines * LINE;
  if (kind == GATHER) {
    char *all = p->block + (p->offset - g->rank * p->lines) * LINE;
    ph_memory_clear(all, part * (size_t)g->rank);
    ph_memory_clear(all + part * (size_t)(g->rank + 1), part * (size_t)(g->members - 1 - g->rank));
  } else if (kind == SCATTER) {
    ph_memory_clear(p->block + p->offset * LINE, part);
  } else {  // rows of two bytes an element, whatever comes in
    size_t wide = kind == SCATTER_OUT_FP8 ? 2 : 1;
    int64_t rows = p->row > 0 ? (p->lines * (int64_t)wide + p->row - 1) / p->row : 0;
    for (int64_t i = 0; i < rows; i++) ph_memory_clear(output + i * p->stride * LINE, (size_t)p->row * LINE);
  }
}

static bool together(int kind, const char *symbol, const ph_stream *stream, unsigned blocks, void **arguments,
                     cudaError_t *error) {
  bool out = kind >= SCATTER_OUT;
  int members = atoi(strstr(symbol, "ILi") + 3), first = ARGUMENT(int, 2), step = ARGUMENT(int, 4);
  void **table = ARGUMENT(void **, out ? 9 : 7);
  int handle = ARGUMENT(int, out ? 10 : 8);
  const phc_peers *g = step == 1 ? phc_peers_of(table + first, members, error) : NULL;
  if (*error || !g) return *error != 0;
  parts p = {table[handle + first + g->rank], ARGUMENT(int, 5), ARGUMENT(int, 6), 0, 0};
  if (out) p.row = ARGUMENT(int, 7), p.stride = ARGUMENT(int, 8);
  bool narrow = kind == SCATTER_OUT_FP8;
  ph_record record = {
      .kind = PH_COLLECTIVE,
      .stream = stream->id,
      .id = g->comm,
      .collective = {.coll = kind == GATHER ? PH_COLL_USERBUFFERS_ALL_GATHER : PH_COLL_USERBUFFERS_REDUCE_SCATTER,
                     .dtype = narrow ? ncclUint8 : ncclBfloat16,
                     .blocks = (uint8_t)(blocks < UINT8_MAX ? blocks : UINT8_MAX),
                     .count = (uint64_t)p.lines * (narrow ? LINE : LINE / 2),
                     .bytes = p.lines * LINE * members}};
  ph_launch(&record);
  clear_results(kind, &p, g, out ? ARGUMENT(char *, 11) : NULL);
  return true;
}

bool phc_userbuffers_launch(phc_kernel *kernel, const ph_stream *stream, unsigned blocks, void **arguments,
                            cudaError_t *error) {
  if (kernel->userbuffers == UNKNOWN) kernel->userbuffers = (uint8_t)recognize(kernel->symbol);
  bool done = false;
  switch (kernel->userbuffers) {
    case FOREIGN:
      return false;
    case SEND:
    case RECEIVE:
      done = message(kernel->userbuffers, stream, blocks, arguments);
      break;
    case REFUSED:
      break;
    default:
      done = together(kernel->userbuffers, kernel->symbol, stream, blocks, arguments, error);
  }
  if (!done) ph_unsupported("Transformer Engine's Userbuffers", phc_kernel_display(kernel), false);
  return true;
}
