// The common ground of libcudart and libcuda; see cuda_core.h.
#define _GNU_SOURCE
#include "cuda/core/cuda_core.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KERNEL_MAGIC 0x70686b65726e6c31ULL
#define POOL_MAGIC 0x7068706f6f6c3031ULL
#define MAX_DEVICES 64
#define SHARED_DEFAULT (48 * 1024)  // bytes of shared memory a kernel may use without asking

// ---------------------------------------------------------------- table
// Open addressing; readers take no lock: an entry's value is published before its key, and a table
// that grew is kept (growth is rare and doubles).
typedef struct ph_slot {
  _Atomic(uintptr_t) key;
  _Atomic(void *) value;
} ph_slot;
struct ph_table {
  size_t mask, used;
  ph_slot slots[];
};
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t table_index(uintptr_t key, size_t mask) { return (key * 0x9e3779b97f4a7c15ULL >> 20) & mask; }

static ph_slot *table_slot(ph_table *table, uintptr_t key) {
  for (size_t i = table_index(key, table->mask);; i = (i + 1) & table->mask) {
    uintptr_t found = atomic_load_explicit(&table->slots[i].key, memory_order_acquire);
    if (found == key || found == 0) return &table->slots[i];
  }
}

static ph_table *table_make(size_t size) {
  ph_table *table = calloc(1, sizeof *table + size * sizeof(ph_slot));
  if (!table) abort();
  table->mask = size - 1;
  return table;
}

static void table_put(ph_table *table, uintptr_t key, void *value) {
  ph_slot *slot = table_slot(table, key);
  if (!atomic_load(&slot->key)) table->used++;
  atomic_store_explicit(&slot->value, value, memory_order_release);
  atomic_store_explicit(&slot->key, key, memory_order_release);
}

void phc_table_set(ph_table **table, uintptr_t key, void *value) {
  pthread_mutex_lock(&table_lock);
  ph_table *now = *table;
  if (!now || now->used * 2 > now->mask) {
    ph_table *grown = table_make(now ? (now->mask + 1) * 2 : 256);
    for (size_t i = 0; now && i <= now->mask; i++)
      if (now->slots[i].value) table_put(grown, now->slots[i].key, now->slots[i].value);
    __atomic_store_n(table, grown, __ATOMIC_RELEASE);
    now = grown;
  }
  table_put(now, key, value);
  pthread_mutex_unlock(&table_lock);
}

void *phc_table_get(ph_table *const *table, uintptr_t key) {
  ph_table *now = __atomic_load_n(table, __ATOMIC_ACQUIRE);
  if (!now || !key) return NULL;
  ph_slot *slot = table_slot(now, key);
  return atomic_load(&slot->key) == key ? atomic_load(&slot->value) : NULL;
}

void phc_table_each(ph_table *const *table, void (*visit)(uintptr_t, void *, void *), void *data) {
  ph_table *now = __atomic_load_n(table, __ATOMIC_ACQUIRE);
  for (size_t i = 0; now && i <= now->mask; i++) {
    void *value = atomic_load(&now->slots[i].value);
    if (value) visit(now->slots[i].key, value, data);
  }
}

// ---------------------------------------------------------------- state
static pid_t connected_process;  // a forked child inherits it and finds that it is another
static _Atomic cudaError_t sticky;  // the error that ended the context
static _Atomic bool primary_active[MAX_DEVICES];
static __thread int context_device = -1;

cudaError_t phc_ready(void) {
  if (!ph_connected()) {
    if (!connected_process) return cudaErrorNoDevice;
    // A rank that has said its last goes on without being recorded: objects are destroyed at exit.
    return connected_process == getpid() ? 0 : cudaErrorInitializationError;
  }
  if (!connected_process) {
    phc_see(ph_devices());
    connected_process = getpid();
  }
  return phc_devices() ? atomic_load_explicit(&sticky, memory_order_relaxed) : cudaErrorNoDevice;
}

cudaError_t phc_context(void) {
  cudaError_t error = phc_ready();
  if (error) return error;
  int device = ph_current_device();
  if (context_device != device) phc_context_set(device);
  return 0;
}

cudaError_t phc_device_check(int device) {
  cudaError_t error = phc_ready();
  return error ? error : device >= 0 && device < phc_devices() ? 0 : cudaErrorInvalidDevice;
}

bool phc_is_sticky(cudaError_t code) {
  return code == 214 || code == 220 || code == 226 || (code >= 700 && code <= 702) || code == 710 ||
         (code >= 714 && code <= 719) || code == 721;
}

int phc_context_device(void) { return context_device; }

void phc_context_set(int device) {
  context_device = device;
  if (device < 0) return;
  if (device < MAX_DEVICES) atomic_store(&primary_active[device], true);
  ph_set_current_device(device);
}

bool phc_primary_active(int device) { return device >= 0 && device < MAX_DEVICES && primary_active[device]; }

typedef struct ph_error {
  int code;
  const char *runtime, *driver, *text;
} ph_error;

static const ph_error *error_find(int code) {
#define ROW(number, runtime, driver, text) {number, runtime, driver, text},
  static const ph_error errors[] = {PH_CUDA_ERRORS(ROW)};
#undef ROW
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) return &errors[i];
  return NULL;
}

const char *phc_error_name(int code, bool driver) {
  const ph_error *error = error_find(code);
  const char *name = !error ? "" : driver ? error->driver : error->runtime;
  return *name ? name : NULL;
}

const char *phc_error_text(int code, bool driver) {
  return phc_error_name(code, driver) ? error_find(code)->text : NULL;
}

// A request's negative status means that the simulation cannot go on: the context is lost, as after
// a device fault.
static cudaError_t request_failed(void) {
  atomic_store(&sticky, cudaErrorLaunchFailure);
  return cudaErrorLaunchFailure;
}

// ---------------------------------------------------------------- devices
int phc_pci_bus(int device) { return 0x19 + 0x11 * (device % 12); }  // distinct, spread as on a DGX board

void phc_device_uuid(int device, unsigned char uuid[16]) {
  const ph_header *header = ph_shared();
  int host = header && header->ranks_per_host ? ph_rank() / (int)header->ranks_per_host : 0;
  uint64_t halves[2] = {ph_hash(&device, sizeof device, 0x7068u + (unsigned)host),
                        ph_hash(&device, sizeof device, 0x6470u + (unsigned)host)};
  memcpy(uuid, halves, 16);
  uuid[6] = (unsigned char)((uuid[6] & 0x0f) | 0x40);  // a version 4 UUID, as NVIDIA's are
  uuid[8] = (unsigned char)((uuid[8] & 0x3f) | 0x80);
}

// What does not depend on the GPU, by attribute number; -1 in `fixed` = not listed. Read from an
// H200 (driver 580, CUDA 13.0) with cuDeviceGetAttribute. Of the virtual-memory features, exporting
// handles (103, 104, 105, 128) and multicast (132) are answered by what the stubs support.
static const int fixed[148] = {
    [1] = 1024,        [2] = 1024,   [3] = 1024,        [4] = 64,
    [5] = 2147483647,  [6] = 65535,  [7] = 65535,       [8] = SHARED_DEFAULT,
    [9] = 65536,       [10] = 32,    [11] = 2147483647, [12] = 65536,
    [14] = 512,        [15] = 1,     [19] = 1,          [21] = 131072,
    [22] = 131072,     [23] = 65536, [24] = 16384,      [25] = 16384,
    [26] = 16384,      [27] = 32768, [28] = 32768,      [29] = 2048,
    [30] = 512,        [31] = 1,     [32] = 1,          [40] = 3,
    [41] = 1,          [42] = 32768, [43] = 2048,       [44] = 1,
    [45] = 32768,      [46] = 32768, [47] = 8192,       [48] = 8192,
    [49] = 32768,      [51] = 32,    [52] = 32768,      [53] = 32768,
    [54] = 2046,       [55] = 32768, [56] = 131072,     [57] = 65536,
    [58] = 16384,      [59] = 16384, [60] = 16384,      [61] = 32768,
    [62] = 2048,       [63] = 32768, [64] = 32768,      [65] = 2048,
    [66] = 32768,      [67] = 32768, [68] = 2046,       [69] = 268435456,
    [70] = 131072,     [71] = 65000, [72] = 2097120,    [73] = 32768,
    [74] = 32768,      [77] = 32768, [78] = 1,          [79] = 1,
    [80] = 1,          [83] = 1,     [87] = 2,          [89] = 1,
    [90] = 1,          [91] = 1,     [95] = 1,          [96] = 1,
    [99] = 1,          [102] = 1,    [103] = 0,         [107] = 1,
    [109] = 134217728, [110] = 1,    [111] = 1024,      [112] = 1,
    [113] = 1,         [114] = 1,    [115] = 1,         [116] = 1,
    [117] = 1,         [118] = 100,  [119] = 0,         [121] = 1,
    [122] = 1,         [123] = 1,    [124] = 0,         [125] = 1,
    [126] = 4,         [128] = 0,    [129] = 1,         [131] = -1,
    [132] = 0,         [141] = 0,    [142] = 0,         [144] = 0,
    [145] = 0,         [147] = 0,
};

bool phc_attribute(int attribute, int device, int *value) {
  const ph_device *gpu = ph_gpu();
  if (attribute < 1 || attribute >= (int)(sizeof fixed / sizeof *fixed)) return false;
  switch (attribute) {
    case 13: *value = gpu->clock_khz; break;
    case 16: *value = gpu->sms; break;
    case 33: *value = phc_pci_bus(phc_physical(device)); break;
    case 36: *value = gpu->memory_clock_khz; break;
    case 37: *value = gpu->bus_width; break;
    case 38: *value = gpu->l2_bytes; break;
    case 39: *value = gpu->max_threads_per_sm; break;
    case 75: *value = gpu->major; break;
    case 76: *value = gpu->minor; break;
    case 81: *value = gpu->smem_per_sm; break;
    case 82: *value = gpu->regs_per_sm; break;
    case 85: *value = device; break;
    case 97: *value = gpu->smem_per_block_optin; break;
    case 106: *value = gpu->max_blocks_per_sm; break;
    case 108: *value = gpu->persisting_l2_bytes; break;
    case 120:  // clusters and tensor maps came with Hopper
    case 127: *value = gpu->major >= 9; break;
    default: *value = fixed[attribute];
  }
  return true;
}

static size_t limits[7];  // 0 = the default

cudaError_t phc_limit(int limit, size_t *value) {
  if (limit < 0 || limit > 6 || !value) return cudaErrorInvalidValue;
  // Defaults of an H200; the persisting L2 set-aside is three tenths of its maximum.
  const size_t defaults[7] = {
      1024, 8650752, 8388608, 2, 2048, 64, (size_t)ph_gpu()->persisting_l2_bytes * 3 / 10};
  *value = limits[limit] ? limits[limit] : defaults[limit];
  return 0;
}

cudaError_t phc_set_limit(int limit, size_t value) {
  if (limit < 0 || limit > 6) return cudaErrorInvalidValue;
  if (limit == 6 && value > (size_t)ph_gpu()->persisting_l2_bytes)
    value = (size_t)ph_gpu()->persisting_l2_bytes;
  limits[limit] = value;
  return 0;
}

static _Atomic uint64_t peer_access[MAX_DEVICES];  // bit p of [d]: enabled from d to p

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
  uint64_t bit = 1ULL << (peer % 64);
  if (enable) {
    if (!can) return cudaErrorPeerAccessUnsupported;
    return atomic_fetch_or(&peer_access[device], bit) & bit ? cudaErrorPeerAccessAlreadyEnabled : 0;
  }
  return atomic_fetch_and(&peer_access[device], ~bit) & bit ? 0 : cudaErrorPeerAccessNotEnabled;
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

// ---------------------------------------------------------------- kernels
static ph_table *kernels;  // by handle and by host function
static ph_table *symbols;

typedef struct ph_symbol {
  struct ph_symbol *next;  // of the owner
  const void *host;
  size_t size;
  void *address[MAX_DEVICES];
} ph_symbol;

ph_kernel *phc_kernel_create(const char *symbol, const void *host, ph_owner *owner) {
  ph_kernel *kernel = calloc(1, sizeof *kernel);
  if (!kernel) abort();
  kernel->magic = KERNEL_MAGIC;
  kernel->symbol = symbol;
  kernel->host = host;
  kernel->max_threads = 1024;
  kernel->registers = 32;  // what ptxas gives a typical elementwise kernel; modules say their own
  kernel->max_dynamic_shared = SHARED_DEFAULT;
  kernel->carveout = -1;
  kernel->owner = owner;
  kernel->next = owner->kernels;
  owner->kernels = kernel;
  phc_table_set(&kernels, (uintptr_t)kernel, kernel);
  if (host) phc_table_set(&kernels, (uintptr_t)host, kernel);
  return kernel;
}

ph_kernel *phc_kernel(const void *function) { return phc_table_get(&kernels, (uintptr_t)function); }

// The objects stay: a launch on another thread may hold one.
void phc_owner_drop(ph_owner *owner) {
  for (ph_kernel *kernel = owner->kernels; kernel; kernel = kernel->next) {
    phc_table_set(&kernels, (uintptr_t)kernel, NULL);
    if (kernel->host) phc_table_set(&kernels, (uintptr_t)kernel->host, NULL);
  }
  for (ph_symbol *symbol = owner->symbols; symbol; symbol = symbol->next)
    phc_table_set(&symbols, (uintptr_t)symbol->host, NULL);
  owner->kernels = NULL;
  owner->symbols = NULL;
}

typedef char *demangler(const char *mangled, char *buffer, size_t *length, int *status);

static char *demangle(const char *symbol) {
  static demangler *function;
  if (!function) {
    function = (demangler *)dlsym(RTLD_DEFAULT, "__cxa_demangle");
    void *library = function ? NULL : dlopen("libstdc++.so.6", RTLD_NOW | RTLD_GLOBAL);
    if (library) function = (demangler *)dlsym(library, "__cxa_demangle");
  }
  int status = -1;
  char *text =
      function && symbol[0] == '_' && symbol[1] == 'Z' ? function(symbol, NULL, NULL, &status) : NULL;
  return text ? text : strdup(symbol);
}

const char *phc_kernel_display(ph_kernel *kernel) {
  char *known = __atomic_load_n(&kernel->display, __ATOMIC_ACQUIRE);
  if (known) return known;
  char *made = demangle(kernel->symbol);
  if (!__atomic_compare_exchange_n(&kernel->display, &known, made, false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    free(made);
    return known;
  }
  return made;
}

// The architectures for which the driver takes a kernel from its fat binary: the machine code for the
// nearest GPU of the same generation, else the newest PTX that the GPU can run, translated for it.
// CUB selects its tuning by them and launches nothing for one that it was not compiled for.
static void architectures(const void *image, int gpu, int *ptx, int *binary) {
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
    uint32_t architecture;
  } entry;
  *ptx = *binary = gpu;
  if (!image) return;
  memcpy(&fat, image, sizeof fat);
  if (fat.magic != 0xba55ed50) return;
  int code = 0, text = 0;
  const char *at = (const char *)image + fat.header, *end = at + fat.size;
  for (; at + sizeof entry <= end; at += entry.header + entry.size) {
    memcpy(&entry, at, sizeof entry);
    if (!entry.header) break;
    int made_for = (int)entry.architecture;
    if (made_for > gpu) continue;
    if (entry.kind == 2 && made_for / 10 == gpu / 10 && made_for > code) code = made_for;
    if (entry.kind == 1 && made_for > text) text = made_for;
  }
  if (code) *ptx = *binary = code;
  else if (text) *ptx = text;
}

cudaError_t phc_kernel_attribute(const ph_kernel *kernel, int attribute, int *value) {
  if (!value || attribute < 0 || attribute >= PH_FUNC_COUNT) return cudaErrorInvalidValue;
  const ph_device *gpu = ph_gpu();
  switch (attribute) {
    case PH_FUNC_MAX_THREADS: *value = kernel->max_threads; break;
    case PH_FUNC_SHARED: *value = kernel->static_shared; break;
    case PH_FUNC_CONST: *value = kernel->const_bytes; break;
    case PH_FUNC_LOCAL: *value = kernel->local_bytes; break;
    case PH_FUNC_REGS: *value = kernel->registers; break;
    case PH_FUNC_PTX:
    case PH_FUNC_BINARY: {
      int ptx, binary;
      architectures(kernel->owner->image, gpu->major * 10 + gpu->minor, &ptx, &binary);
      *value = attribute == PH_FUNC_PTX ? ptx : binary;
      break;
    }
    case PH_FUNC_MAX_DYNAMIC: *value = kernel->max_dynamic_shared; break;
    case PH_FUNC_CARVEOUT: *value = kernel->carveout; break;
    case PH_FUNC_CLUSTER_WIDTH:
    case PH_FUNC_CLUSTER_HEIGHT:
    case PH_FUNC_CLUSTER_DEPTH: *value = kernel->cluster[attribute - PH_FUNC_CLUSTER_WIDTH]; break;
    case PH_FUNC_NON_PORTABLE: *value = kernel->non_portable; break;
    case PH_FUNC_POLICY: *value = kernel->policy; break;
    default: *value = 0;  // PH_FUNC_CACHE_CA, PH_FUNC_CLUSTER_MUST
  }
  return 0;
}

cudaError_t phc_kernel_set_attribute(ph_kernel *kernel, int attribute, int value) {
  switch (attribute) {
    case PH_FUNC_MAX_DYNAMIC:
      if (value < 0 || value > ph_gpu()->smem_per_block_optin - kernel->static_shared)
        return cudaErrorInvalidValue;
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
    case PH_FUNC_NON_PORTABLE: kernel->non_portable = value != 0; return 0;
    case PH_FUNC_POLICY: kernel->policy = value; return 0;
    default: return cudaErrorInvalidValue;
  }
}

size_t phc_round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Resident blocks per multiprocessor, by NVIDIA's occupancy rules: registers are given to warps in
// units of 256, shared memory to blocks in units of 128 bytes with 1 KiB on top for the system.
cudaError_t phc_occupancy(int *blocks, const ph_kernel *kernel, int threads, size_t shared) {
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
  int by_shared = (int)((size_t)gpu->smem_per_sm / phc_round_up(wanted + (size_t)fixed[111], 128));
  if (by_shared < limit) limit = by_shared;
  *blocks = limit < gpu->max_blocks_per_sm ? limit : gpu->max_blocks_per_sm;
  return 0;
}

// The cluster size that launch attributes ask for: 1 when none do, 0 when it does not divide the grid.
static uint64_t cluster_size(const cudaLaunchAttribute *attributes, unsigned count, const dim3 *grid) {
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
cudaError_t phc_max_active_clusters(int *clusters, const ph_kernel *kernel, int threads, size_t shared,
                                    const cudaLaunchAttribute *attributes, unsigned count) {
  int blocks = 0;
  cudaError_t error = clusters ? phc_occupancy(&blocks, kernel, threads, shared) : cudaErrorInvalidValue;
  if (error) return error;
  uint64_t size = cluster_size(attributes, count, NULL);
  if (!size) return cudaErrorInvalidClusterSize;
  int sms = ph_gpu()->sms;
  if (size > 2) sms -= sms / 16;
  *clusters = (int)((uint64_t)sms * (uint64_t)(blocks < 8 ? blocks : 8) / size);
  return 0;
}

cudaError_t phc_launch(ph_kernel *kernel, dim3 grid, dim3 block, size_t shared, void *handle, int flags,
                       const cudaLaunchAttribute *attributes, unsigned count) {
  if (!kernel) return cudaErrorInvalidResourceHandle;
  // The runtime of CUDA 12 has a code of its own for this; since CUDA 13 it passes on the driver's.
  bool own_code = PH_CUDA_MAJOR == 12 && !(flags & PH_LAUNCH_DRIVER);
  cudaError_t bad_shape = own_code ? cudaErrorInvalidConfiguration : cudaErrorInvalidValue;
  if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return bad_shape;
  if (grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) return bad_shape;
  if (block.x > 1024 || block.y > 1024 || block.z > 64) return bad_shape;
  uint64_t threads = (uint64_t)block.x * block.y * block.z;
  if (threads > 1024) return bad_shape;
  if (threads > (uint64_t)kernel->max_threads) return cudaErrorInvalidValue;
  if (shared > (size_t)kernel->max_dynamic_shared) return cudaErrorInvalidValue;
  for (unsigned i = 0; i < count; i++) {
    if (attributes[i].id < 0 || attributes[i].id > PH_LAUNCH_LAST) return cudaErrorInvalidValue;
    if (attributes[i].id == PH_LAUNCH_COOPERATIVE && attributes[i].val.cooperative) flags |= PH_LAUNCH_COOP;
  }
  uint64_t cluster = cluster_size(attributes, count, &grid);
  if (!cluster || cluster > (kernel->non_portable ? 16u : 8u)) return cudaErrorInvalidClusterSize;
  if (cluster > 1 && ph_gpu()->major < 9) return cudaErrorInvalidClusterSize;
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, flags & PH_LAUNCH_PER_THREAD, &stream);
  if (error) return error;
  if (stream->device != ph_current_device()) return cudaErrorInvalidResourceHandle;
  if (flags & PH_LAUNCH_COOP) {
    int blocks = 0;
    phc_occupancy(&blocks, kernel, (int)threads, shared);
    if ((uint64_t)grid.x * grid.y * grid.z > (uint64_t)blocks * (uint64_t)ph_gpu()->sms)
      return cudaErrorCooperativeLaunchTooLarge;
  }
  if (!kernel->name) {
    ph_charge(PH_API_KERNEL_LOAD);
    const char *text = phc_kernel_display(kernel);
    size_t length = strlen(text);
    kernel->name = ph_name(ph_hash(text, length, 0), text, length);
  }
  ph_record record = {
      .kind = PH_KERNEL,
      .stream = stream->id,
      .id = kernel->name,
      .kernel = {.grid_x = grid.x, .grid_y = (uint16_t)grid.y, .grid_z = (uint16_t)grid.z,
                 .block_x = (uint16_t)block.x, .block_y = (uint16_t)block.y, .block_z = (uint16_t)block.z,
                 .shared_bytes = shared + (size_t)kernel->static_shared},
  };
  ph_launch(&record);
  return 0;
}

// ---------------------------------------------------------------- device variables
void phc_symbol_register(const void *host, size_t size, ph_owner *owner) {
  ph_symbol *symbol = calloc(1, sizeof *symbol);
  if (!symbol) abort();
  symbol->host = host;
  symbol->size = size;
  symbol->next = owner->symbols;
  owner->symbols = symbol;
  phc_table_set(&symbols, (uintptr_t)host, symbol);
}

// Address space that CUDA knows but that is not charged: variables belong to the context.
static void *map_space(size_t bytes, enum ph_space space, int device) {
  size_t pages = phc_round_up(bytes ? bytes : 1, 4096);
  void *address =
      mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return NULL;
  if (!ph_register(address, bytes ? bytes : 1, space, device)) return address;
  munmap(address, pages);
  return NULL;
}
static void *map_device(size_t bytes, int device) { return map_space(bytes, PH_SPACE_DEVICE, device); }
static void unmap_device(void *address, size_t bytes) {
  ph_unregister(address);
  munmap(address, phc_round_up(bytes ? bytes : 1, 4096));
}

cudaError_t phc_symbol(const void *host, void **address, size_t *size) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  ph_symbol *symbol = phc_table_get(&symbols, (uintptr_t)host);
  if (!symbol) return cudaErrorInvalidSymbol;
  if (size) *size = symbol->size;
  if (!address) return 0;
  int device = ph_current_device() % MAX_DEVICES;
  pthread_mutex_lock(&lock);
  if (!symbol->address[device]) symbol->address[device] = map_device(symbol->size, device);
  *address = symbol->address[device];
  pthread_mutex_unlock(&lock);
  return *address ? 0 : cudaErrorMemoryAllocation;
}

// ---------------------------------------------------------------- host functions
// One queue and thread per group of streams, so that a function that is due does not wait behind
// one that is not. A function runs when the gate, an event recorded just before it, has completed.
#define WORKERS 3
typedef struct ph_host_call {
  struct ph_host_call *next;
  cudaHostFn_t function;
  void *data;
  ph_event *gate;
} ph_host_call;
typedef struct ph_worker {
  pthread_t thread;
  bool started;
  ph_host_call *head, *tail;  // `head` is being waited for or run
} ph_worker;
static ph_worker workers[WORKERS];
static pthread_mutex_t worker_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t worker_wake = PTHREAD_COND_INITIALIZER, worker_done = PTHREAD_COND_INITIALIZER;
static _Atomic int host_calls;  // queued and not yet finished
static __thread bool in_host_function;

static int helper_flag(void) { return ph_moves_clock() ? 0 : PH_F_HELPER; }

static void *worker_main(void *argument) {
  ph_worker *worker = argument;
  in_host_function = true;
  pthread_mutex_lock(&worker_lock);
  for (;;) {
    while (!worker->head) pthread_cond_wait(&worker_wake, &worker_lock);
    ph_host_call *call = worker->head;
    pthread_mutex_unlock(&worker_lock);
    ph_record record = {.kind = PH_EVENT_SYNC, .id = call->gate->id, .flags = PH_F_HELPER};
    ph_answer answer = ph_request(&record, NULL, 0);
    if (answer.status < 0) request_failed();
    call->function(call->data);
    ph_event_destroy(call->gate);
    pthread_mutex_lock(&worker_lock);
    worker->head = call->next;
    if (!worker->head) worker->tail = NULL;
    free(call);
    atomic_fetch_sub(&host_calls, 1);
    pthread_cond_broadcast(&worker_done);
  }
  return NULL;
}

// After a wait: whatever is due in virtual time must have run in real time too.
static void finish_host_calls(void) {
  if (!atomic_load_explicit(&host_calls, memory_order_relaxed) || in_host_function) return;
  pthread_mutex_lock(&worker_lock);
  for (int i = 0; i < WORKERS; i++) {
    while (workers[i].head) {
      ph_host_call *call = workers[i].head;
      uint32_t gate = call->gate->id;
      pthread_mutex_unlock(&worker_lock);
      ph_record record = {.kind = PH_EVENT_QUERY, .id = gate, .flags = (uint8_t)helper_flag()};
      bool due = ph_request(&record, NULL, 0).status == 0;
      pthread_mutex_lock(&worker_lock);
      if (!due) break;
      while (workers[i].head == call && call->gate->id == gate) pthread_cond_wait(&worker_done, &worker_lock);
    }
  }
  pthread_mutex_unlock(&worker_lock);
}

cudaError_t phc_host_function(void *handle, bool per_thread, cudaHostFn_t function, void *data) {
  ph_stream *stream = NULL;
  if (!function) return cudaErrorInvalidValue;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  if (error) return error;
  ph_host_call *call = calloc(1, sizeof *call);
  if (!call) return cudaErrorMemoryAllocation;
  call->function = function;
  call->data = data;
  call->gate = ph_event_create(stream->device, cudaEventDisableTiming);
  if (!call->gate) {
    free(call);
    return cudaErrorMemoryAllocation;
  }
  call->gate->recorded = true;
  ph_record gate = {.kind = PH_EVENT_RECORD, .stream = stream->id, .id = call->gate->id};
  ph_emit(&gate);
  ph_record record = {.kind = PH_HOST_FUNC, .stream = stream->id};
  const ph_header *header = ph_shared();
  if (header && header->host_mode == PH_HOST_MODELLED) record.host_func.duration = header->api_ns[PH_API_HOST_FUNC];
  ph_emit(&record);
  ph_worker *worker = &workers[stream->id % WORKERS];
  pthread_mutex_lock(&worker_lock);
  if (!worker->started) {
    worker->started = pthread_create(&worker->thread, NULL, worker_main, worker) == 0;
    if (worker->started) pthread_setname_np(worker->thread, "cuda-host-func");
  }
  bool started = worker->started;
  if (started) {
    if (worker->tail) worker->tail->next = call;
    else worker->head = call;
    worker->tail = call;
    atomic_fetch_add(&host_calls, 1);
    pthread_cond_broadcast(&worker_wake);
  }
  pthread_mutex_unlock(&worker_lock);
  if (started) return 0;
  ph_event_destroy(call->gate);
  free(call);
  return cudaErrorMemoryAllocation;
}

// ---------------------------------------------------------------- streams and events
cudaError_t phc_stream_create(void **stream, unsigned flags, int priority) {
  if (!stream || flags & ~(unsigned)cudaStreamNonBlocking) return cudaErrorInvalidValue;
  if (priority > 0) priority = 0;  // the range is 0 to -5 and CUDA clamps
  if (priority < -5) priority = -5;
  *stream = ph_stream_create(ph_current_device(), flags, priority);
  return *stream ? 0 : cudaErrorMemoryAllocation;
}

cudaError_t phc_stream_destroy(void *stream) {
  if ((uintptr_t)stream <= 2) return cudaErrorInvalidResourceHandle;
  return ph_stream_alive(stream) && !ph_stream_destroy(stream) ? 0 : cudaErrorInvalidResourceHandle;
}

cudaError_t phc_stream_find(void *handle, bool per_thread, ph_stream **stream) {
  *stream = ph_stream_of(handle, per_thread);
  return *stream ? 0 : cudaErrorInvalidResourceHandle;
}

cudaError_t phc_stream_sync(void *handle, bool per_thread) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  if (error) return error;
  ph_record record = {.kind = PH_STREAM_SYNC, .stream = stream->id, .flags = (uint8_t)helper_flag()};
  if (ph_request(&record, NULL, 0).status < 0) return request_failed();
  finish_host_calls();
  return 0;
}

cudaError_t phc_stream_query(void *handle, bool per_thread) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  if (error) return error;
  ph_record record = {.kind = PH_STREAM_QUERY, .stream = stream->id, .flags = (uint8_t)helper_flag()};
  ph_answer answer = ph_request(&record, NULL, 0);
  if (answer.status < 0) return request_failed();
  if (answer.status) return cudaErrorNotReady;
  finish_host_calls();
  return 0;
}

cudaError_t phc_stream_wait(void *handle, void *event, unsigned flags, bool per_thread) {
  ph_stream *stream = NULL;
  if (flags > 1) return cudaErrorInvalidValue;  // 1: an external event, which only a capture tells apart
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  if (error) return error;
  if (!ph_event_alive(event)) return cudaErrorInvalidResourceHandle;
  if (!((ph_event *)event)->recorded) return 0;
  ph_record record = {.kind = PH_STREAM_WAIT, .stream = stream->id, .id = ((ph_event *)event)->id};
  ph_emit(&record);
  return 0;
}

cudaError_t phc_device_sync(void) {
  ph_record record = {
      .kind = PH_DEVICE_SYNC, .device_sync.device = (uint64_t)ph_current_device(), .flags = (uint8_t)helper_flag()};
  if (ph_request(&record, NULL, 0).status < 0) return request_failed();
  finish_host_calls();
  return 0;
}

cudaError_t phc_event_create(void **event, unsigned flags) {
  unsigned known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
  if (!event || flags & ~known) return cudaErrorInvalidValue;
  if (flags & cudaEventInterprocess && !(flags & cudaEventDisableTiming)) return cudaErrorInvalidValue;
  *event = ph_event_create(ph_current_device(), flags);
  return *event ? 0 : cudaErrorMemoryAllocation;
}

cudaError_t phc_event_destroy(void *event) {
  return ph_event_alive(event) && !ph_event_destroy(event) ? 0 : cudaErrorInvalidResourceHandle;
}

cudaError_t phc_event_record(void *handle, void *stream_handle, unsigned flags, bool per_thread) {
  ph_event *event = handle;
  ph_stream *stream = NULL;
  if (flags > 1) return cudaErrorInvalidValue;
  if (!ph_event_alive(event)) return cudaErrorInvalidResourceHandle;
  cudaError_t error = phc_stream_find(stream_handle, per_thread, &stream);
  if (error) return error;
  if (stream->device != event->device) return cudaErrorInvalidResourceHandle;
  ph_record record = {.kind = PH_EVENT_RECORD, .stream = stream->id, .id = event->id};
  if (!(event->flags & cudaEventDisableTiming)) record.flags = PH_F_TIMING;
  event->recorded = true;
  event->done_at = -1;
  ph_emit(&record);
  return 0;
}

// A loop that polls must end even where calls cost no virtual time: a second "not ready" at the
// same instant moves the clock to the known completion.
static void poll_moves_on(const ph_event *event) {
  static __thread uint32_t last_event;
  static __thread int64_t last_time = -1;
  int64_t now = ph_now();
  if (last_event == event->id && last_time == now && event->done_at > now && ph_moves_clock())
    ph_advance(event->done_at - now);
  last_event = event->id;
  last_time = now;
}

cudaError_t phc_event_query(void *handle) {
  ph_event *event = handle;
  if (!ph_event_alive(event)) return cudaErrorInvalidResourceHandle;
  if (!event->recorded) return 0;
  if (ph_watchdog_blind(event)) return cudaErrorNotReady;
  if (event->done_at < 0) {
    ph_record record = {.kind = PH_EVENT_QUERY, .id = event->id, .flags = (uint8_t)helper_flag()};
    ph_answer answer = ph_request(&record, NULL, 0);
    if (answer.status < 0) return request_failed();
    if (answer.time >= 0 && (answer.status == 0 || answer.value == 1)) event->done_at = answer.time;
    if (answer.status) {
      poll_moves_on(event);
      return cudaErrorNotReady;
    }
  } else if (event->done_at > ph_now()) {
    poll_moves_on(event);
    return cudaErrorNotReady;
  }
  finish_host_calls();
  return 0;
}

cudaError_t phc_event_sync(void *handle) {
  ph_event *event = handle;
  if (!ph_event_alive(event)) return cudaErrorInvalidResourceHandle;
  if (!event->recorded) return 0;
  if (event->done_at < 0 || event->done_at > ph_now()) {
    ph_record record = {.kind = PH_EVENT_SYNC, .id = event->id, .flags = (uint8_t)helper_flag()};
    if (ph_request(&record, NULL, 0).status < 0) return request_failed();
  }
  finish_host_calls();
  return 0;
}

static cudaError_t event_time(ph_event *event, int64_t *time) {
  cudaError_t error = phc_event_query(event);
  if (error) return error;
  if (event->done_at < 0) {
    ph_record record = {.kind = PH_EVENT_TIME, .id = event->id, .flags = (uint8_t)helper_flag()};
    ph_answer answer = ph_request(&record, NULL, 0);
    if (answer.status < 0) return request_failed();
    event->done_at = answer.time;
  }
  *time = event->done_at;
  return 0;
}

cudaError_t phc_event_elapsed(float *ms, void *start_handle, void *end_handle) {
  ph_event *start = start_handle, *end = end_handle;
  if (!ms) return cudaErrorInvalidValue;
  if (!ph_event_alive(start) || !ph_event_alive(end) || start->device != end->device)
    return cudaErrorInvalidResourceHandle;
  if ((start->flags | end->flags) & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
  if (!start->recorded || !end->recorded) return cudaErrorInvalidResourceHandle;
  int64_t begin = 0, finish = 0;
  cudaError_t error = event_time(start, &begin);
  if (!error) error = event_time(end, &finish);
  if (error) return error;
  *ms = (float)((double)(finish - begin) * 1e-6);
  return 0;
}

// ---------------------------------------------------------------- allocation
static ph_table *pool_blocks;     // address -> ph_block
static ph_table *managed_blocks;  // address -> size + 1
typedef struct ph_block {
  ph_pool *pool;
  size_t size;
} ph_block;

cudaError_t phc_malloc(void **pointer, size_t bytes) {
  if (!pointer) return cudaErrorInvalidValue;
  *pointer = NULL;
  if (!bytes) return 0;
  if (bytes > (size_t)ph_gpu()->memory_bytes) return cudaErrorMemoryAllocation;
  *pointer = ph_memory_alloc(ph_current_device(), bytes);
  if (*pointer) ph_charge_bytes(PH_API_MALLOC_GIB, bytes);
  return *pointer ? 0 : cudaErrorMemoryAllocation;
}

static void pool_release(void *pointer, ph_block *block);

cudaError_t phc_free(void *pointer) {
  if (!pointer) return 0;
  ph_range range;
  if (!ph_memory_find(pointer, &range) || range.base != (uintptr_t)pointer) return cudaErrorInvalidValue;
  if (range.space == PH_SPACE_MANAGED) {
    size_t size = (size_t)(uintptr_t)phc_table_get(&managed_blocks, range.base);
    if (!size) return cudaErrorInvalidValue;
    cudaError_t error = phc_device_sync();
    if (error) return error;
    phc_table_set(&managed_blocks, range.base, NULL);
    unmap_device(pointer, size);
    return 0;
  }
  if (range.space != PH_SPACE_DEVICE) return cudaErrorInvalidValue;
  ph_charge_bytes(PH_API_FREE_GIB, range.size);
  // cudaFree waits for the device: work in flight may still use the memory.
  cudaError_t error = phc_device_sync();
  if (error) return error;
  ph_block *block = phc_table_get(&pool_blocks, range.base);
  if (block) {
    pool_release(pointer, block);
    return 0;
  }
  return ph_memory_free(pointer) ? cudaErrorInvalidValue : 0;
}

cudaError_t phc_pinned_alloc(void **pointer, size_t bytes, unsigned flags) {
  if (!pointer || flags & ~15u) return cudaErrorInvalidValue;
  *pointer = NULL;
  if (!bytes) return 0;
  *pointer = ph_pinned_alloc(bytes);
  ph_charge_bytes(PH_API_HOST_ALLOC_GIB, bytes);
  return *pointer ? 0 : cudaErrorMemoryAllocation;
}

cudaError_t phc_pinned_free(void *pointer) {
  if (!pointer) return 0;
  ph_range range;
  if (!ph_memory_find(pointer, &range) || range.space != PH_SPACE_PINNED || range.base != (uintptr_t)pointer)
    return cudaErrorInvalidValue;
  return ph_pinned_free(pointer) ? cudaErrorInvalidValue : 0;
}

// Managed memory is host memory until a kernel touches it, which the stubs cannot see: it is not
// charged to the GPU, as memory that the host uses alone would not be.
cudaError_t phc_managed_alloc(void **pointer, size_t bytes, unsigned flags) {
  if (!pointer || flags < 1 || flags > 2) return cudaErrorInvalidValue;
  *pointer = NULL;
  if (!bytes) return 0;
  void *address = map_space(bytes, PH_SPACE_MANAGED, ph_current_device());
  if (!address) return cudaErrorMemoryAllocation;
  phc_table_set(&managed_blocks, (uintptr_t)address, (void *)(uintptr_t)bytes);
  *pointer = address;
  return 0;
}

cudaError_t phc_pitch_alloc(void **pointer, size_t *pitch, size_t width, size_t height) {
  if (!pointer || !pitch) return cudaErrorInvalidValue;
  *pitch = phc_round_up(width, 512);
  if (height && *pitch > SIZE_MAX / height) return cudaErrorMemoryAllocation;
  return phc_malloc(pointer, *pitch * height);
}

cudaError_t phc_host_register(void *pointer, size_t bytes, unsigned flags) {
  if (!pointer || !bytes || flags & ~15u) return cudaErrorInvalidValue;
  ph_range range;
  if (ph_memory_find(pointer, &range) || ph_memory_find((char *)pointer + bytes - 1, &range))
    return cudaErrorHostMemoryAlreadyRegistered;
  return ph_register(pointer, bytes, PH_SPACE_REGISTERED, ph_current_device())
             ? cudaErrorHostMemoryAlreadyRegistered
             : 0;
}

cudaError_t phc_host_unregister(void *pointer) {
  ph_range range;
  if (!ph_memory_find(pointer, &range)) return cudaErrorHostMemoryNotRegistered;
  if (range.space != PH_SPACE_REGISTERED || range.base != (uintptr_t)pointer) return cudaErrorInvalidValue;
  return ph_unregister(pointer) ? cudaErrorHostMemoryNotRegistered : 0;
}

cudaError_t phc_host_device_pointer(void **device, void *host, unsigned flags) {
  ph_range range;
  if (!device || flags || !ph_memory_find(host, &range) || range.space == PH_SPACE_DEVICE)
    return cudaErrorInvalidValue;
  *device = host;
  return 0;
}

// ---------------------------------------------------------------- pools
// A pool takes memory from the device in steps of 32 MiB (as an H200's does) and returns what its
// release threshold lets go. The pool's reserve is what is charged; its blocks are address space.
#define POOL_STEP ((uint64_t)32 << 20)
static ph_pool default_pools[MAX_DEVICES];
static ph_pool *current_pools[MAX_DEVICES];
static ph_table *pools;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

ph_pool *phc_default_pool(int device) {
  ph_pool *pool = &default_pools[device % MAX_DEVICES];
  if (!pool->magic) {
    *pool = (ph_pool){.magic = POOL_MAGIC, .device = device, .is_default = true, .reuse = {1, 1, 1}};
    phc_table_set(&pools, (uintptr_t)pool, pool);
  }
  return pool;
}
ph_pool *phc_current_pool(int device) {
  ph_pool *pool = current_pools[device % MAX_DEVICES];
  return pool ? pool : phc_default_pool(device);
}
void phc_set_current_pool(int device, ph_pool *pool) { current_pools[device % MAX_DEVICES] = pool; }
bool phc_pool_alive(const ph_pool *pool) { return phc_table_get(&pools, (uintptr_t)pool) != NULL; }

ph_pool *phc_pool_create(int device) {
  ph_pool *pool = calloc(1, sizeof *pool);
  if (!pool) return NULL;
  *pool = (ph_pool){.magic = POOL_MAGIC, .device = device, .reuse = {1, 1, 1}};
  phc_table_set(&pools, (uintptr_t)pool, pool);
  return pool;
}

// Brings the reserve to `target` bytes, at least what is used.
static bool pool_resize(ph_pool *pool, uint64_t target) {
  if (target != pool->reserved && !ph_memory_charge(pool->device, (int64_t)target - (int64_t)pool->reserved))
    return false;
  pool->reserved = target;
  if (target > pool->reserved_high) pool->reserved_high = target;
  return true;
}

static uint64_t pool_floor(const ph_pool *pool, uint64_t keep) {
  uint64_t used = phc_round_up(pool->used, POOL_STEP);
  uint64_t kept = keep > pool->reserved ? pool->reserved : keep;
  return used > kept ? used : kept / POOL_STEP * POOL_STEP;
}

static void pool_release(void *pointer, ph_block *block) {
  ph_pool *pool = block->pool;
  phc_table_set(&pool_blocks, (uintptr_t)pointer, NULL);
  unmap_device(pointer, block->size);
  pthread_mutex_lock(&pool_lock);
  pool->used -= block->size;
  pool_resize(pool, pool_floor(pool, pool->threshold));
  pthread_mutex_unlock(&pool_lock);
  free(block);
}

cudaError_t phc_pool_destroy(ph_pool *pool) {
  if (!phc_pool_alive(pool) || pool->is_default) return cudaErrorInvalidValue;
  pthread_mutex_lock(&pool_lock);
  pool->threshold = 0;
  pool_resize(pool, pool_floor(pool, 0));
  pthread_mutex_unlock(&pool_lock);
  for (int i = 0; i < MAX_DEVICES; i++)
    if (current_pools[i] == pool) current_pools[i] = NULL;
  phc_table_set(&pools, (uintptr_t)pool, NULL);  // blocks still out keep the object alive
  return 0;
}

cudaError_t phc_pool_alloc(void **pointer, size_t bytes, ph_pool *pool, void *stream_handle,
                           bool per_thread) {
  ph_stream *stream = NULL;
  if (!pointer || !phc_pool_alive(pool)) return cudaErrorInvalidValue;
  cudaError_t error = phc_stream_find(stream_handle, per_thread, &stream);
  if (error) return error;
  *pointer = NULL;
  if (!bytes) return 0;
  if (bytes > (size_t)ph_gpu()->memory_bytes) return cudaErrorMemoryAllocation;
  ph_block *block = calloc(1, sizeof *block);
  void *address = block ? map_device(phc_round_up(bytes, 512), pool->device) : NULL;
  if (!address) {
    free(block);
    return cudaErrorMemoryAllocation;
  }
  *block = (ph_block){pool, phc_round_up(bytes, 512)};
  pthread_mutex_lock(&pool_lock);
  uint64_t needed = pool->used + block->size;
  bool fits = needed <= pool->reserved || pool_resize(pool, phc_round_up(needed, POOL_STEP)) ||
              pool_resize(pool, needed);
  if (fits) pool->used = needed;
  if (pool->used > pool->used_high) pool->used_high = pool->used;
  pthread_mutex_unlock(&pool_lock);
  if (!fits) {
    unmap_device(address, block->size);
    free(block);
    return cudaErrorMemoryAllocation;
  }
  phc_table_set(&pool_blocks, (uintptr_t)address, block);
  *pointer = address;
  return 0;
}

// The memory is free for reuse at once: streams order its users, and nothing reads it in between.
cudaError_t phc_pool_free(void *pointer, void *stream_handle, bool per_thread) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(stream_handle, per_thread, &stream);
  if (error || !pointer) return error;
  ph_block *block = phc_table_get(&pool_blocks, (uintptr_t)pointer);
  if (block) {
    pool_release(pointer, block);
    return 0;
  }
  ph_range range;  // memory of cudaMalloc may be freed in stream order too
  if (!ph_memory_find(pointer, &range) || range.base != (uintptr_t)pointer || range.space != PH_SPACE_DEVICE)
    return cudaErrorInvalidValue;
  return ph_memory_free(pointer) ? cudaErrorInvalidValue : 0;
}

cudaError_t phc_pool_attribute(ph_pool *pool, int attribute, void *value, bool set) {
  if (!phc_pool_alive(pool) || !value) return cudaErrorInvalidValue;
  if (attribute >= 1 && attribute <= 3) {
    int *field = &pool->reuse[attribute - 1];
    if (set) *field = *(int *)value;
    else *(int *)value = *field;
    return 0;
  }
  uint64_t *fields[] = {&pool->threshold, &pool->reserved, &pool->reserved_high, &pool->used,
                        &pool->used_high};
  if (attribute < 4 || attribute > 8) return cudaErrorInvalidValue;
  uint64_t *field = fields[attribute - 4];
  if (!set) {
    *(uint64_t *)value = *field;
    return 0;
  }
  if (attribute == 5 || attribute == 7) return cudaErrorInvalidValue;      // current values can only be read
  if (attribute != 4 && *(uint64_t *)value) return cudaErrorInvalidValue;  // high marks can only be reset
  pthread_mutex_lock(&pool_lock);
  *field = attribute == 4 ? *(uint64_t *)value : attribute == 6 ? pool->reserved : pool->used;
  pthread_mutex_unlock(&pool_lock);
  return 0;
}

cudaError_t phc_pool_trim(ph_pool *pool, size_t keep) {
  if (!phc_pool_alive(pool)) return cudaErrorInvalidValue;
  pthread_mutex_lock(&pool_lock);
  pool_resize(pool, pool_floor(pool, keep));
  pthread_mutex_unlock(&pool_lock);
  return 0;
}

// ---------------------------------------------------------------- copies
ph_table *phc_mappings;

bool phc_covered(const void *pointer, size_t bytes) {
  uintptr_t at = (uintptr_t)pointer;
  if (at + bytes < at) return false;
  for (size_t left = bytes; left;) {
    ph_range range;
    if (!ph_memory_find((void *)at, &range)) return false;
    if (left != bytes && !phc_table_get(&phc_mappings, range.base))
      return false;  // another allocation begins
    size_t inside = range.base + range.size - at;
    if (inside >= left) return true;
    if (!phc_table_get(&phc_mappings, range.base)) return false;
    left -= inside;
    at += inside;
  }
  return true;
}

typedef struct ph_side {
  enum ph_space space;
  int device;
} ph_side;

static ph_side side_of(const void *pointer) {
  ph_range range;
  if (!ph_memory_find(pointer, &range)) return (ph_side){PH_SPACE_NONE, -1};
  return (ph_side){range.space, range.device};
}
static bool on_device(ph_side side) {
  return side.space == PH_SPACE_DEVICE || side.space == PH_SPACE_MANAGED;
}
static bool pageable(ph_side side) { return side.space == PH_SPACE_NONE; }

// CUDA trusts addresses more than `kind`: with unified addressing it only insists that what the
// kind calls device memory is memory it knows, up to the last byte (as measured on an H200).
static cudaError_t copy_check(const void *dst, size_t dst_span, const void *src, size_t src_span, int kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (!dst_span || !src_span) return 0;
  if (!dst || !src || dst_span > SIZE_MAX / 4 || src_span > SIZE_MAX / 4) return cudaErrorInvalidValue;
  bool dst_known = side_of(dst).space != PH_SPACE_NONE, src_known = side_of(src).space != PH_SPACE_NONE;
  if ((kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) && !dst_known)
    return cudaErrorInvalidValue;
  if ((kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice) && !src_known)
    return cudaErrorInvalidValue;
  if (dst_known && !phc_covered(dst, dst_span)) return cudaErrorInvalidValue;
  if (src_known && !phc_covered(src, src_span)) return cudaErrorInvalidValue;
  return 0;
}

// Puts the copy on the stream and waits where CUDA does ("API synchronization behavior" in the
// runtime's manual): all but device-to-device for synchronous calls; for asynchronous ones what
// reads from or writes to pageable memory, except that a block of up to 64 KiB is staged and the
// call returns.
static cudaError_t copy_emit(const void *dst, const void *src, size_t bytes, ph_stream *stream, bool async) {
  ph_side to = side_of(dst), from = side_of(src);
  enum ph_copy kind;
  bool wait = !async;
  if (on_device(to) && on_device(from)) {
    kind = to.device == from.device ? PH_COPY_D2D : PH_COPY_P2P;
    wait = false;
  } else if (on_device(to)) {
    kind = pageable(from) ? PH_COPY_H2D_PAGEABLE : PH_COPY_H2D_PINNED;
    if (pageable(from) && bytes > 64 * 1024) wait = true;
  } else if (on_device(from)) {
    kind = pageable(to) ? PH_COPY_D2H_PAGEABLE : PH_COPY_D2H_PINNED;
    if (pageable(to)) wait = true;
  } else {
    kind = PH_COPY_H2H;
    wait = true;
  }
  ph_record record = {
      .kind = PH_MEMCPY,
      .stream = stream->id,
      .id = kind,
      .copy = {.bytes = bytes,
               .peer = kind != PH_COPY_P2P ? -1 : stream->device == to.device ? from.device : to.device},
  };
  if (!wait) {
    ph_launch(&record);
    return 0;
  }
  record.flags = PH_F_SYNC | (uint8_t)helper_flag();
  if (ph_request(&record, NULL, 0).status < 0) return request_failed();
  finish_host_calls();
  return 0;
}

cudaError_t phc_copy(void *dst, const void *src, size_t bytes, int kind, void *handle, int flags) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, flags & PHC_PER_THREAD, &stream);
  if (!error) error = copy_check(dst, bytes, src, bytes, kind);
  if (error || !bytes) return error;
  error = copy_emit(dst, src, bytes, stream, flags & PHC_ASYNC);
  if (!error) ph_memory_copy(dst, src, bytes);
  return error;
}

// Rows of one copy: the payload rule looks at the whole, so many small rows are not all carried.
static void copy_rows(char *dst, size_t dst_pitch, const char *src, size_t src_pitch, size_t width,
                      size_t height, size_t total) {
  bool carried = total <= PH_TRUE_COPY_BYTES || !on_device(side_of(dst));
  for (size_t row = 0; row < height; row++, dst += dst_pitch, src += src_pitch) {
    if (carried) ph_memory_copy(dst, src, width);
    else ph_memory_clear(dst, width);
  }
}

cudaError_t phc_copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                        size_t height, int kind, void *handle, int flags) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, flags & PHC_PER_THREAD, &stream);
  if (error) return error;
  if (width > dst_pitch || width > src_pitch) return cudaErrorInvalidPitchValue;
  size_t widest = dst_pitch > src_pitch ? dst_pitch : src_pitch;
  if (height && widest > SIZE_MAX / 8 / height) return cudaErrorInvalidValue;
  bool empty = !width || !height;
  error = copy_check(dst, empty ? 0 : dst_pitch * (height - 1) + width, src,
                     empty ? 0 : src_pitch * (height - 1) + width, kind);
  if (error || empty) return error;
  error = copy_emit(dst, src, width * height, stream, flags & PHC_ASYNC);
  if (!error) copy_rows(dst, dst_pitch, src, src_pitch, width, height, width * height);
  return error;
}

cudaError_t phc_copy_3d(const cudaMemcpy3DParms *p, void *handle, int flags) {
  if (!p) return cudaErrorInvalidValue;
  if (p->srcArray || p->dstArray) {
    ph_unsupported("libcudart", "cudaMemcpy3D of a cudaArray", true);
    return cudaErrorNotSupported;
  }
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, flags & PHC_PER_THREAD, &stream);
  if (error) return error;
  size_t width = p->extent.width, height = p->extent.height, depth = p->extent.depth;
  if (!width || !height || !depth) return 0;
  if (width > p->dstPtr.pitch || width > p->srcPtr.pitch) return cudaErrorInvalidPitchValue;
  size_t dst_slice = p->dstPtr.pitch * p->dstPtr.ysize, src_slice = p->srcPtr.pitch * p->srcPtr.ysize;
  char *dst = (char *)p->dstPtr.ptr + p->dstPos.z * dst_slice + p->dstPos.y * p->dstPtr.pitch + p->dstPos.x;
  char *src = (char *)p->srcPtr.ptr + p->srcPos.z * src_slice + p->srcPos.y * p->srcPtr.pitch + p->srcPos.x;
  error = copy_check(dst, (depth - 1) * dst_slice + (height - 1) * p->dstPtr.pitch + width, src,
                     (depth - 1) * src_slice + (height - 1) * p->srcPtr.pitch + width, p->kind);
  if (!error) error = copy_emit(dst, src, width * height * depth, stream, flags & PHC_ASYNC);
  for (size_t z = 0; !error && z < depth; z++)
    copy_rows(dst + z * dst_slice, p->dstPtr.pitch, src + z * src_slice, p->srcPtr.pitch, width, height,
              width * height * depth);
  return error;
}

static void set_row(char *at, uint32_t pattern, int width, size_t count) {
  size_t bytes = count * (size_t)width;
  uint32_t first = pattern & 0xff;
  uint32_t repeated = first | first << 8 | (width == 4 ? first << 16 | first << 24 : 0);
  if (width == 1 || pattern == repeated) {
    ph_memory_set(at, (int)first, bytes);
    return;
  }
  if (bytes > PH_TRUE_COPY_BYTES) {
    ph_memory_clear(at, bytes);
    return;
  }
  ph_touch_drop(at, bytes);
  for (size_t i = 0; i < count; i++) memcpy(at + i * (size_t)width, &pattern, (size_t)width);
  ph_memory_wrote(at, bytes);
}

cudaError_t phc_set(void *pointer, size_t pitch, uint32_t pattern, int width, size_t columns, size_t rows,
                    void *handle, int flags) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, flags & PHC_PER_THREAD, &stream);
  if (error || !columns || !rows) return error;
  if (columns > SIZE_MAX / 16 ||
      (rows > 1 && (columns * (size_t)width > pitch || pitch > SIZE_MAX / 8 / rows)))
    return cudaErrorInvalidValue;
  size_t bytes = columns * (size_t)width, span = rows > 1 ? pitch * (rows - 1) + bytes : bytes;
  if (!pointer || (uintptr_t)pointer % (unsigned)width || !phc_covered(pointer, span))
    return cudaErrorInvalidValue;
  ph_record record = {.kind = PH_MEMSET, .stream = stream->id, .fill.bytes = bytes * rows};
  ph_launch(&record);
  for (size_t row = 0; row < rows; row++) set_row((char *)pointer + row * pitch, pattern, width, columns);
  return 0;
}

// ---------------------------------------------------------------- between processes
#define IPC_MAGIC 0x7068697063303031ULL
typedef struct ph_ipc {
  uint64_t magic;
  int64_t pid;
  uint64_t address, size;
  int32_t device;
  uint32_t event;
  char pad[24];
} ph_ipc;
_Static_assert(sizeof(ph_ipc) == 64, "an IPC handle has 64 bytes");
static ph_table *ipc_mappings;  // own address -> ph_mapping
typedef struct ph_mapping {
  ph_ipc from;
  void *address;
  int opens;
} ph_mapping;
static pthread_mutex_t ipc_lock = PTHREAD_MUTEX_INITIALIZER;

cudaError_t phc_ipc_handle(cudaIpcHandle *handle, void *pointer) {
  ph_range range;
  if (!handle || !ph_memory_find(pointer, &range) || range.space != PH_SPACE_DEVICE)
    return cudaErrorInvalidValue;
  ph_ipc ipc = {
      .magic = IPC_MAGIC, .pid = getpid(), .address = range.base, .size = range.size, .device = range.device};
  memcpy(handle, &ipc, sizeof ipc);
  return 0;
}

typedef struct ph_ipc_search {
  const ph_ipc *wanted;
  ph_mapping *found;
} ph_ipc_search;

static void ipc_match(uintptr_t key, void *value, void *data) {
  (void)key;
  ph_ipc_search *search = data;
  ph_mapping *mapping = value;
  if (!memcmp(&mapping->from, search->wanted, sizeof mapping->from)) search->found = mapping;
}

cudaError_t phc_ipc_open(void **pointer, const cudaIpcHandle *handle) {
  ph_ipc ipc;
  if (!pointer) return cudaErrorInvalidValue;
  memcpy(&ipc, handle, sizeof ipc);
  if (ipc.magic != IPC_MAGIC || ipc.event || !ipc.size) return cudaErrorInvalidValue;
  if (ipc.pid == getpid()) return cudaErrorDeviceUninitialized;  // a process cannot open its own
  pthread_mutex_lock(&ipc_lock);
  ph_ipc_search search = {&ipc, NULL};
  phc_table_each(&ipc_mappings, ipc_match, &search);
  ph_mapping *mapping = search.found;
  if (!mapping) {
    // The peer's bytes are not shared: its memory reads as zero here, like any large kernel's result.
    void *address = map_device(ipc.size, ph_current_device());
    mapping = address ? calloc(1, sizeof *mapping) : NULL;
    if (mapping) {
      *mapping = (ph_mapping){.from = ipc, .address = address};
      phc_table_set(&ipc_mappings, (uintptr_t)address, mapping);
    }
  }
  if (mapping) {
    mapping->opens++;
    *pointer = mapping->address;
  }
  pthread_mutex_unlock(&ipc_lock);
  return mapping ? 0 : cudaErrorMemoryAllocation;
}

cudaError_t phc_ipc_close(void *pointer) {
  pthread_mutex_lock(&ipc_lock);
  ph_mapping *mapping = phc_table_get(&ipc_mappings, (uintptr_t)pointer);
  if (mapping && --mapping->opens == 0) {
    phc_table_set(&ipc_mappings, (uintptr_t)pointer, NULL);
    unmap_device(pointer, mapping->from.size);
    free(mapping);
  }
  pthread_mutex_unlock(&ipc_lock);
  return mapping ? 0 : cudaErrorInvalidValue;
}

cudaError_t phc_ipc_event_handle(cudaIpcHandle *handle, void *event) {
  if (!handle) return cudaErrorInvalidValue;
  if (!ph_event_alive(event) || !(((ph_event *)event)->flags & cudaEventInterprocess))
    return cudaErrorInvalidResourceHandle;
  ph_ipc ipc = {.magic = IPC_MAGIC, .pid = getpid(), .event = ((ph_event *)event)->id};
  memcpy(handle, &ipc, sizeof ipc);
  return 0;
}

cudaError_t phc_ipc_event_open(void **event, const cudaIpcHandle *handle) {
  ph_ipc ipc;
  memcpy(&ipc, handle, sizeof ipc);
  if (!event || ipc.magic != IPC_MAGIC || !ipc.event) return cudaErrorInvalidValue;
  if (ipc.pid == getpid()) return cudaErrorDeviceUninitialized;
  // Orders two processes' streams, which the simulator does not follow: the event is always complete.
  ph_unsupported("libcudart", "cudaIpcOpenEventHandle", true);
  return phc_event_create(event, cudaEventDisableTiming | cudaEventInterprocess);
}
