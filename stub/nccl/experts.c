// Exchanges of tokens between experts, which are no calls of NCCL: phantora/rank/deep_ep makes them.
#include "nccl/internal.h"

// A kernel of `kind` (enum ph_coll, of experts) on `sms` SMs: this rank's `tokens`, in `rows` of `row_bytes`, go to
// their experts or come back. `comm` has all members.
PH_EXPORT int phantora_exchange_rows(int kind, uint64_t row_bytes, uint64_t rows, uint64_t tokens, int sms,
                                     ncclComm_t comm, cudaStream_t stream) {
  if (kind < PH_COLL_EXPERT_COUNTS || kind >= PH_COLL_COUNT_PH_COLL) return ncclInvalidArgument;
  return enqueue((operation){.name = "DeepEP",
                             .comm = comm,
                             .kind = PH_COLLECTIVE,
                             .coll = (uint8_t)kind,
                             .dtype = ncclUint8,
                             .count = row_bytes,
                             .rows = rows,
                             .tokens = (double)tokens,
                             .blocks = (uint8_t)(sms < 1           ? 1
                                                 : sms < UINT8_MAX ? sms
                                                                   : UINT8_MAX)},
                 stream);
}
