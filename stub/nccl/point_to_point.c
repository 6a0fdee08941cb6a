// Sends and receives.
#include "nccl/internal.h"

NCCL_API(ncclResult_t, ncclSend, const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
         cudaStream_t stream)
{
  return enqueue((operation){.name = "Send",
                             .comm = comm,
                             .kind = PH_SEND,
                             .dtype = datatype,
                             .peer = peer,
                             .send = sendbuff,
                             .count = count},
                 stream);
}

NCCL_API(ncclResult_t, ncclRecv, void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
         cudaStream_t stream)
{
  return enqueue((operation){.name = "Recv",
                             .comm = comm,
                             .kind = PH_RECV,
                             .dtype = datatype,
                             .peer = peer,
                             .recv = recvbuff,
                             .count = count},
                 stream);
}
