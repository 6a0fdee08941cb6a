// The part of NCCL's binary interface that stub/nccl implements: types and constants as in the
// public nccl.h of versions 2.18 to 2.28, declared here so that no NVIDIA header is needed.
#pragma once
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow *ncclWindow_t;
typedef struct ph_stream *cudaStream_t;

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
} ncclResult_t;

#define NCCL_CONFIG_MAGIC 0xcafebeefU
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_SIM_INFO_MAGIC 0x74685283U
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_WIN_COLL_SYMMETRIC 0x01

// Later versions append fields; `size` is that of the caller's structure.
typedef struct ncclConfig_t {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;        // 2.14
  int cgaClusterSize;  // 2.17
  int minCTAs;
  int maxCTAs;
  const char *netName;
  int splitShare;        // 2.18
  int trafficClass;      // 2.25
  const char *commName;  // 2.27
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;  // 2.28
  int nvlinkCentricSched;
} ncclConfig_t;

typedef struct ncclSimInfo_t {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime;
} ncclSimInfo_t;

typedef enum ncclRedOp_t {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff,
} ncclRedOp_t;

typedef enum ncclDataType_t {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12,
} ncclDataType_t;

typedef enum ncclScalarResidence_t {
  ncclScalarDevice = 0,
  ncclScalarHostImmediate = 1,
} ncclScalarResidence_t;
