// Attributes, limits and peers of devices.
#include "cuda/core/device.h"

#include <stdatomic.h>

// Attributes that do not depend on the GPU, by number; -1 in `fixed` = not listed. Read from an
// H200 (driver 580, CUDA 13.0) with cuDeviceGetAttribute. Of the virtual-memory features, exporting
// handles (103: as files, 104, 105, 128) and multicast (132) are answered by what the stubs support.
static const int fixed[148] = {
    [1] = 1024,
    [2] = 1024,
    [3] = 1024,
    [4] = 64,
    [5] = 2147483647,
    [6] = 65535,
    [7] = 65535,
    [8] = PHC_SHARED_DEFAULT,
    [9] = 65536,
    [10] = 32,
    [11] = 2147483647,
    [12] = 65536,
    [14] = 512,
    [15] = 1,
    [19] = 1,
    [21] = 131072,
    [22] = 131072,
    [23] = 65536,
    [24] = 16384,
    [25] = 16384,
    [26] = 16384,
    [27] = 32768,
    [28] = 32768,
    [29] = 2048,
    [30] = 512,
    [31] = 1,
    [32] = 1,
    [40] = 3,
    [41] = 1,
    [42] = 32768,
    [43] = 2048,
    [44] = 1,
    [45] = 32768,
    [46] = 32768,
    [47] = 8192,
    [48] = 8192,
    [49] = 32768,
    [51] = 32,
    [52] = 32768,
    [53] = 32768,
    [54] = 2046,
    [55] = 32768,
    [56] = 131072,
    [57] = 65536,
    [58] = 16384,
    [59] = 16384,
    [60] = 16384,
    [61] = 32768,
    [62] = 2048,
    [63] = 32768,
    [64] = 32768,
    [65] = 2048,
    [66] = 32768,
    [67] = 32768,
    [68] = 2046,
    [69] = 268435456,
    [70] = 131072,
    [71] = 65000,
    [72] = 2097120,
    [73] = 32768,
    [74] = 32768,
    [77] = 32768,
    [78] = 1,
    [79] = 1,
    [80] = 1,
    [83] = 1,
    [87] = 2,
    [89] = 1,
    [90] = 1,
    [91] = 1,
    [95] = 1,
    [96] = 1,
    [99] = 1,
    [102] = 1,
    [103] = 1,
    [107] = 1,
    [109] = 134217728,
    [110] = 1,
    [111] = PH_SHARED_RESERVED,
    [112] = 1,
    [113] = 1,
    [114] = 1,
    [115] = 1,
    [116] = 1,
    [117] = 1,
    [118] = 100,
    [119] = 0,
    [121] = 1,
    [122] = 1,
    [123] = 1,
    [124] = 0,
    [125] = 1,
    [126] = 4,
    [128] = 0,
    [129] = 1,
    [131] = -1,
    [132] = 0,
    [141] = 0,
    [142] = 0,
    [144] = 0,
    [145] = 0,
    [147] = 0,
};

bool phc_attribute(int attribute, int device, int *value) {
  const ph_device *gpu = ph_gpu();
  if (attribute < 1 || attribute >= (int)(sizeof fixed / sizeof *fixed)) return false;
  switch (attribute) {
    case 13:
      *value = gpu->clock_khz;
      break;
    case 16:
      *value = gpu->sms;
      break;
    case 33:
      *value = phc_pci_bus(phc_physical(device));
      break;
    case 36:
      *value = gpu->memory_clock_khz;
      break;
    case 37:
      *value = gpu->bus_width;
      break;
    case 38:
      *value = gpu->l2_bytes;
      break;
    case 39:
      *value = gpu->max_threads_per_sm;
      break;
    case 75:
      *value = gpu->major;
      break;
    case 76:
      *value = gpu->minor;
      break;
    case 81:
      *value = gpu->smem_per_sm;
      break;
    case 82:
      *value = gpu->regs_per_sm;
      break;
    case 85:
      *value = device;
      break;
    case 97:
      *value = gpu->smem_per_block_optin;
      break;
    case 106:
      *value = gpu->max_blocks_per_sm;
      break;
    case 108:
      *value = gpu->persisting_l2_bytes;
      break;
    case 120:  // clusters and tensor maps came with Hopper
    case 127:
      *value = gpu->major >= 9;
      break;
    default:
      *value = fixed[attribute];
  }
  return true;
}

static size_t limits[7];  // 0 = the default

cudaError_t phc_limit(int limit, size_t *value) {
  if (limit < 0 || limit > 6 || !value) return cudaErrorInvalidValue;
  // Defaults of an H200; the persisting L2 set-aside is three tenths of its maximum.
  const size_t defaults[7] = {1024, 8650752, 8388608, 2, 2048, 64, (size_t)ph_gpu()->persisting_l2_bytes * 3 / 10};
  *value = limits[limit] ? limits[limit] : defaults[limit];
  return 0;
}

cudaError_t phc_set_limit(int limit, size_t value) {
  if (limit < 0 || limit > 6) return cudaErrorInvalidValue;
  if (limit == 6 && value > (size_t)ph_gpu()->persisting_l2_bytes) value = (size_t)ph_gpu()->persisting_l2_bytes;
  limits[limit] = value;
  return 0;
}

static _Atomic uint64_t peer_access[PH_MAX_DEVICES][PH_MAX_DEVICES / 64];  // bit p of [d]: enabled from d to p

cudaError_t phc_can_access_peer(int *can, int device, int peer) {
  cudaError_t error = phc_device_check(device);
  if (!error) error = phc_device_check(peer);
  if (error) return error;
  if (!can) return cudaErrorInvalidValue;
  *can = device != peer && ph_gpu()->nvlink;
  return 0;
}

cudaError_t phc_peer_access(int device, int peer, bool enable) {
  int can = 0;
  cudaError_t error = phc_can_access_peer(&can, device, peer);
  if (error) return error;
  _Atomic uint64_t *enabled = &peer_access[device][peer / 64];
  uint64_t bit = 1ULL << (peer % 64);
  if (enable) {
    if (!can) return cudaErrorPeerAccessUnsupported;
    return atomic_fetch_or(enabled, bit) & bit ? cudaErrorPeerAccessAlreadyEnabled : 0;
  }
  return atomic_fetch_and(enabled, ~bit) & bit ? 0 : cudaErrorPeerAccessNotEnabled;
}

cudaError_t phc_p2p_attribute(int *value, int attribute, int source, int destination) {
  cudaError_t error = phc_device_check(source);
  if (!error) error = phc_device_check(destination);
  if (error) return error;
  if (source == destination) return cudaErrorInvalidDevice;
  if (!value || attribute < 1 || attribute > 4) return cudaErrorInvalidValue;
  *value = attribute == 1 ? 0 : ph_gpu()->nvlink;  // 1 is a rank among link kinds: 0 is the best
  return 0;
}
