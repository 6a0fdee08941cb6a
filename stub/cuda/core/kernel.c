// Attributes of kernels and how many blocks of one fit a GPU.
#include "cuda/core/device.h"
#include "cuda/core/kernel.h"
#include "cuda/core/memory.h"

#include <string.h>

// What the driver takes of a fat binary for a GPU: the machine code for the nearest GPU of the same generation, else
// the newest PTX that the GPU can run, translated for it.
typedef struct choice {
  int ptx, binary;  // architectures, as 90; CUB selects its tuning by them and launches nothing where it has no code
  uint64_t bytes;   // of machine code, once unpacked; 0 for PTX
} choice;

static choice choose(const void *image, int gpu) {
  struct {
    uint32_t magic;
    uint16_t version, header;
    uint64_t size;
  } fat;
  struct {
    uint16_t kind, version;  // 1 PTX, 2 machine code
    uint32_t header;
    uint64_t size;
    uint32_t packed, options;
    uint16_t minor, major;
    uint32_t architecture, name, name_size;
    uint64_t flags, zero, unpacked;  // `unpacked` 0: stored as it is
  } entry;
  choice chosen = {.ptx = gpu, .binary = gpu};
  if (!image) return chosen;
  memcpy(&fat, image, sizeof fat);
  if (fat.magic != CUDA_FATBIN) return chosen;
  int code = 0, text = 0;
  const char *at = (const char *)image + fat.header, *end = at + fat.size;
  for (; at + sizeof entry <= end; at += entry.header + entry.size) {
    memcpy(&entry, at, sizeof entry);
    if (!entry.header) break;
    int made_for = (int)entry.architecture;
    if (made_for > gpu) continue;
    if (entry.kind == 2 && made_for / 10 == gpu / 10 && made_for > code) {
      code = made_for;
      chosen.bytes = entry.header >= sizeof entry && entry.unpacked ? entry.unpacked : entry.size;
    }
    if (entry.kind == 1 && made_for > text) text = made_for;
  }
  if (code)
    chosen.ptx = chosen.binary = code;
  else if (text)
    chosen.ptx = text;
  return chosen;
}

static choice choice_of(const phc_kernel *kernel) {
  const ph_device *gpu = ph_gpu();
  return choose(kernel->owner->image, gpu->major * 10 + gpu->minor);
}

void phc_kernel_load(const phc_kernel *kernel) {
  if (atomic_exchange(&kernel->owner->loaded, true)) {
    ph_charge(PH_API_KERNEL_FIRST);
    return;
  }
  ph_charge(PH_API_KERNEL_LOAD);
  ph_charge_bytes(PH_API_KERNEL_LOAD_GIB, choice_of(kernel).bytes);
}

cudaError_t phc_kernel_attribute(const phc_kernel *kernel, int attribute, int *value) {
  if (!value || attribute < 0 || attribute >= PH_FUNC_COUNT) return cudaErrorInvalidValue;
  switch (attribute) {
    case PH_FUNC_MAX_THREADS:
      *value = kernel->max_threads;
      break;
    case PH_FUNC_SHARED:
      *value = kernel->static_shared;
      break;
    case PH_FUNC_CONST:
      *value = kernel->const_bytes;
      break;
    case PH_FUNC_LOCAL:
      *value = kernel->local_bytes;
      break;
    case PH_FUNC_REGS:
      *value = kernel->registers;
      break;
    case PH_FUNC_PTX:
    case PH_FUNC_BINARY: {
      choice chosen = choice_of(kernel);
      *value = attribute == PH_FUNC_PTX ? chosen.ptx : chosen.binary;
      break;
    }
    case PH_FUNC_MAX_DYNAMIC:
      *value = kernel->max_dynamic_shared;
      break;
    case PH_FUNC_CARVEOUT:
      *value = kernel->carveout;
      break;
    case PH_FUNC_CLUSTER_WIDTH:
    case PH_FUNC_CLUSTER_HEIGHT:
    case PH_FUNC_CLUSTER_DEPTH:
      *value = kernel->cluster[attribute - PH_FUNC_CLUSTER_WIDTH];
      break;
    case PH_FUNC_NON_PORTABLE:
      *value = kernel->non_portable;
      break;
    case PH_FUNC_POLICY:
      *value = kernel->policy;
      break;
    default:
      *value = 0;  // PH_FUNC_CACHE_CA, PH_FUNC_CLUSTER_MUST
  }
  return 0;
}

cudaError_t phc_kernel_set_attribute(phc_kernel *kernel, int attribute, int value) {
  switch (attribute) {
    case PH_FUNC_MAX_DYNAMIC:
      if (value < 0 || value > ph_gpu()->smem_per_block_optin - kernel->static_shared) return cudaErrorInvalidValue;
      kernel->max_dynamic_shared = value;
      return 0;
    case PH_FUNC_CARVEOUT:
      if (value < -1 || value > 100) return cudaErrorInvalidValue;
      kernel->carveout = value;
      return 0;
    case PH_FUNC_CLUSTER_WIDTH:
    case PH_FUNC_CLUSTER_HEIGHT:
    case PH_FUNC_CLUSTER_DEPTH:
      if (value < 0) return cudaErrorInvalidValue;
      kernel->cluster[attribute - PH_FUNC_CLUSTER_WIDTH] = value;
      return 0;
    case PH_FUNC_NON_PORTABLE:
      kernel->non_portable = value != 0;
      return 0;
    case PH_FUNC_POLICY:
      kernel->policy = value;
      return 0;
    default:
      return cudaErrorInvalidValue;
  }
}

// Resident blocks per multiprocessor, by NVIDIA's occupancy rules: registers are given to warps in
// units of 256, shared memory to blocks in units of 128 bytes with 1 KiB on top for the system.
cudaError_t phc_occupancy(int *blocks, const phc_kernel *kernel, int threads, size_t shared) {
  const ph_device *gpu = ph_gpu();
  if (!blocks || threads <= 0) return cudaErrorInvalidValue;
  *blocks = 0;
  size_t wanted = shared + (size_t)kernel->static_shared;
  if (threads > kernel->max_threads || shared > (size_t)kernel->max_dynamic_shared) return 0;
  int warps = (threads + 31) / 32;
  int limit = gpu->max_threads_per_sm / 32 / warps;
  int warp_registers = (int)phc_round_up((size_t)kernel->registers * 32, 256);
  int by_registers = gpu->regs_per_sm / warp_registers / warps;
  if (by_registers < limit) limit = by_registers;
  int by_shared = (int)((size_t)gpu->smem_per_sm / phc_round_up(wanted + PH_SHARED_RESERVED, 128));
  if (by_shared < limit) limit = by_shared;
  *blocks = limit < gpu->max_blocks_per_sm ? limit : gpu->max_blocks_per_sm;
  return 0;
}

uint64_t phc_cluster_size(const cudaLaunchAttribute *attributes, unsigned count, const dim3 *grid) {
  for (unsigned i = 0; i < count; i++) {
    if (attributes[i].id != PH_LAUNCH_CLUSTER_DIMENSION) continue;
    const unsigned *dim = attributes[i].val.dim;
    if (!dim[0] || !dim[1] || !dim[2]) return 0;
    if (grid && (grid->x % dim[0] || grid->y % dim[1] || grid->z % dim[2])) return 0;
    return (uint64_t)dim[0] * dim[1] * dim[2];
  }
  return 1;
}

// Of an H200's 132 multiprocessors about a sixteenth cannot take part in clusters larger than two
// (processing clusters differ in size), and at most 8 clustered blocks share a multiprocessor.
cudaError_t phc_max_active_clusters(int *clusters, const phc_kernel *kernel, int threads, size_t shared,
                                    const cudaLaunchAttribute *attributes, unsigned count) {
  int blocks = 0;
  cudaError_t error = clusters ? phc_occupancy(&blocks, kernel, threads, shared) : cudaErrorInvalidValue;
  if (error) return error;
  uint64_t size = phc_cluster_size(attributes, count, NULL);
  if (!size) return cudaErrorInvalidClusterSize;
  int sms = ph_gpu()->sms;
  if (size > 2) sms -= sms / 16;
  *clusters = (int)((uint64_t)sms * (uint64_t)(blocks < 8 ? blocks : 8) / size);
  return 0;
}

cudaError_t phc_available_shared(size_t *bytes, const phc_kernel *kernel, int blocks, int threads) {
  if (!bytes || blocks <= 0 || threads <= 0) return cudaErrorInvalidValue;
  size_t share = (size_t)ph_gpu()->smem_per_sm / (size_t)blocks, most = (size_t)ph_gpu()->smem_per_block_optin;
  share = share < most ? share : most;
  size_t own = (size_t)kernel->static_shared;
  *bytes = share > own ? share - own : 0;
  return 0;
}

int phc_potential_cluster(const phc_kernel *kernel) { return ph_gpu()->major < 9 ? 1 : kernel->non_portable ? 16 : 8; }
