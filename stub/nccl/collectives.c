// Collectives.
#include "nccl/internal.h"

static ncclResult_t collective(const char *name, enum ph_coll coll, ncclDataType_t dtype, int redop, int root,
                               const void *send, void *recv, size_t count, ncclComm_t comm, cudaStream_t stream) {
  return enqueue((operation){.name = name,
                             .comm = comm,
                             .kind = PH_COLLECTIVE,
                             .coll = (uint8_t)coll,
                             .dtype = dtype,
                             .redop = redop,
                             .peer = root,
                             .send = send,
                             .recv = recv,
                             .count = count},
                 stream);
}

NCCL_API(ncclResult_t, ncclAllReduce, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
         ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{ return collective("AllReduce", PH_COLL_ALL_REDUCE, datatype, (int)op, 0, sendbuff, recvbuff, count, comm, stream); }

NCCL_API(ncclResult_t, ncclReduce, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{ return collective("Reduce", PH_COLL_REDUCE, datatype, (int)op, root, sendbuff, recvbuff, count, comm, stream); }

NCCL_API(ncclResult_t, ncclReduceScatter, const void *sendbuff, void *recvbuff, size_t recvcount,
         ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
  return collective("ReduceScatter", PH_COLL_REDUCE_SCATTER, datatype, (int)op, 0, sendbuff, recvbuff, recvcount, comm,
                    stream);
}

NCCL_API(ncclResult_t, ncclAllGather, const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
         ncclComm_t comm, cudaStream_t stream)
{ return collective("AllGather", PH_COLL_ALL_GATHER, datatype, 0, 0, sendbuff, recvbuff, sendcount, comm, stream); }

NCCL_API(ncclResult_t, ncclBroadcast, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
         int root, ncclComm_t comm, cudaStream_t stream)
{ return collective("Broadcast", PH_COLL_BROADCAST, datatype, 0, root, sendbuff, recvbuff, count, comm, stream); }

NCCL_API(ncclResult_t, ncclBcast, void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
         cudaStream_t stream)
{ return ncclBroadcast(buff, buff, count, datatype, root, comm, stream); }

NCCL_API(ncclResult_t, ncclAlltoAll, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
         ncclComm_t comm, cudaStream_t stream)
{ return collective("AlltoAll", PH_COLL_ALL_TO_ALL, datatype, 0, 0, sendbuff, recvbuff, count, comm, stream); }

NCCL_API(ncclResult_t, ncclGather, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
         int root, ncclComm_t comm, cudaStream_t stream)
{ return collective("Gather", PH_COLL_GATHER, datatype, 0, root, sendbuff, recvbuff, count, comm, stream); }

NCCL_API(ncclResult_t, ncclScatter, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
         int root, ncclComm_t comm, cudaStream_t stream)
{ return collective("Scatter", PH_COLL_SCATTER, datatype, 0, root, sendbuff, recvbuff, count, comm, stream); }
