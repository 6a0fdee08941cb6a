// Torch's kernels on symmetric memory, known by their names and parameters. Its own code runs over the driver's calls.
#include "abi/nccl_abi.h"
#include "cuda/core/graph.h"
#include "cuda/core/kernel.h"

#include <stdlib.h>
#include <string.h>

enum {
  UNKNOWN,
  FOREIGN,
  BARRIER,
  PUT_SIGNAL,
  WAIT_SIGNAL,
  ONE_SHOT,
  TWO_SHOT,
  TWO_SHOT_INPLACE,
  PULLED,
  PULLED_ROWS,
  REFUSED
};

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), tail = strlen(end);
  return length >= tail && !strcmp(text + length - tail, end);
}

// The mangled names hold the types of the parameters, so another release with others is not taken for this one.
static int recognize(const char *symbol) {
  static const struct {
    const char *part, *end;
    int kind;
  } known[] = {
      {"barrier_kernel", "14barrier_kernelEPPjiiim", BARRIER},
      {"put_signal_kernel", "17put_signal_kernelEPPjiiiim", PUT_SIGNAL},
      {"wait_signal_kernel", "18wait_signal_kernelEPPjiiiim", WAIT_SIGNAL},
      {"26one_shot_all_reduce_kernelI", "_mmPPjmm", ONE_SHOT},
      {"34two_shot_all_reduce_kernel_inplaceI", "EEvPPT_mmPPjmm", TWO_SHOT_INPLACE},
      {"26two_shot_all_reduce_kernelI", "_mmPPjmmm", TWO_SHOT},
  };
  if (!strstr(symbol, "symmetric_memory") && !strstr(symbol, "CUDASymmetricMemoryOps")) return FOREIGN;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (!strstr(symbol, known[i].part) || !ends_with(symbol, known[i].end)) continue;
    if (known[i].kind != TWO_SHOT) return known[i].kind;
    return strstr(symbol, "Lb1ELb1E") ? PULLED_ROWS : strstr(symbol, "Lb1ELb0E") ? PULLED : TWO_SHOT;
  }
  return REFUSED;
}

#define ARGUMENT(type, index) (*(type *)arguments[index])

// In ns. Longer than the simulator counts is for ever.
static int64_t limit_of(size_t milliseconds) {
  return milliseconds > 1000000000000 ? 0 : (int64_t)milliseconds * 1000000;
}

static cudaError_t signals(int kind, const ph_stream *stream, void **arguments) {
  bool all = kind == BARRIER;
  cudaError_t error;
  const phc_peers *g = phc_peers_of(ARGUMENT(void **, 0), ARGUMENT(int, all ? 3 : 4), &error);
  if (!g) return error;  // a group of one
  int64_t limit = limit_of(ARGUMENT(size_t, all ? 4 : 5));
  ph_record record = {.stream = stream->id, .id = g->comm};
  if (all) {
    record.kind = PH_COLLECTIVE;
    record.collective = (ph_collective_fields){
        .coll = PH_COLL_SYMMETRIC_BARRIER, .blocks = 1, .root = ARGUMENT(int, 1), .count = 1, .scalar = (double)limit};
  } else {
    record.kind = kind == PUT_SIGNAL ? PH_PUT_SIGNAL : PH_WAIT_SIGNAL;
    record.signal = (ph_signal_fields){.peer = ARGUMENT(int, 1), .channel = (uint32_t)ARGUMENT(int, 2), .limit = limit};
  }
  ph_launch(&record);
  return 0;
}

typedef struct reduction {
  char **inputs, *output, *local;  // local: copied into the own input first
  size_t offset, count;            // elements
  void **pads;
  size_t rank, members;
} reduction;

static reduction reduction_of(int kind, void **arguments) {
  int at = kind == ONE_SHOT ? 3 : kind == TWO_SHOT_INPLACE ? 1 : 2;
  return (reduction){.inputs = ARGUMENT(char **, 0),
                     .output = kind == TWO_SHOT_INPLACE ? NULL : ARGUMENT(char *, 1),
                     .local = kind == ONE_SHOT ? ARGUMENT(char *, 2) : NULL,
                     .offset = ARGUMENT(size_t, at),
                     .count = ARGUMENT(size_t, at + 1),
                     .pads = ARGUMENT(void **, at + 2),
                     .rank = ARGUMENT(size_t, at + 3),
                     .members = ARGUMENT(size_t, at + 4)};
}

static cudaError_t reduce(int kind, const char *symbol, const ph_stream *stream, unsigned blocks, void **arguments) {
  static const uint8_t collectives[] = {[ONE_SHOT] = PH_COLL_ONE_SHOT_ALL_REDUCE,
                                        [TWO_SHOT] = PH_COLL_TWO_SHOT_ALL_REDUCE,
                                        [TWO_SHOT_INPLACE] = PH_COLL_TWO_SHOT_ALL_REDUCE,
                                        [PULLED] = PH_COLL_PULLED_REDUCE_SCATTER,
                                        [PULLED_ROWS] = PH_COLL_PULLED_REDUCE_SCATTER};
  reduction r = reduction_of(kind, arguments);
  bool half = strstr(symbol, "BFloat16");
  size_t element = half ? 2 : 4, bytes = r.count * element, given = bytes;
  char *input = r.inputs[r.rank] + r.offset * element, *output = r.output ? r.output : input;
  if (r.local) ph_memory_copy(input, r.local, bytes);
  cudaError_t error;
  const phc_peers *g = phc_peers_of(r.pads, (int)r.members, &error);
  if (error) return error;
  if (!g) {  // a group of one
    if (output != input) ph_memory_copy(output, input, bytes);
    return 0;
  }
  bool scatters = kind == PULLED || kind == PULLED_ROWS;
  if (scatters) given /= r.members;
  ph_record record = {.kind = PH_COLLECTIVE,
                      .stream = stream->id,
                      .id = g->comm,
                      .collective = {.coll = collectives[kind],
                                     .dtype = half ? ncclBfloat16 : ncclFloat32,
                                     .blocks = (uint8_t)(blocks < UINT8_MAX ? blocks : UINT8_MAX),
                                     .count = scatters ? r.count / r.members : r.count,
                                     .bytes = (int64_t)bytes}};
  if (bytes > PH_CARRIED_BYTES || kind == PULLED_ROWS || phc_captured(stream) || ph_null_mode()) {
    ph_launch(&record);
    ph_memory_clear(output, given);
    return 0;
  }
  ph_touch(input, bytes);
  record.collective.ticket = ph_next_ticket();
  ph_launch_blob(&record, input, bytes);
  ph_expect(output, given, record.collective.ticket);
  return 0;
}

bool phc_symmetric_launch(phc_kernel *kernel, const ph_stream *stream, unsigned blocks, void **arguments,
                          cudaError_t *error) {
  if (kernel->symmetric == UNKNOWN) kernel->symmetric = (uint8_t)recognize(kernel->symbol);
  *error = 0;
  switch (kernel->symmetric) {
    case FOREIGN:
      return false;
    case BARRIER:
    case PUT_SIGNAL:
    case WAIT_SIGNAL:
      *error = signals(kernel->symmetric, stream, arguments);
      return true;
    case REFUSED:
      ph_unsupported("torch's symmetric memory", phc_kernel_display(kernel), false);
      return false;
    default:
      *error = reduce(kernel->symmetric, kernel->symbol, stream, blocks, arguments);
      return true;
  }
}
