// libcuda: the CUDA driver, as the other face of cuda_core.c; plus what only the driver has:
// contexts, modules, and virtual memory management.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "abi/export.h"
#include "cuda/core/cuda_core.h"

typedef uintptr_t CUdeviceptr;

// ---------------------------------------------------------------- entry points
// A few conditions have a code of their own in the runtime only.
static CUresult driver_code(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidMemcpyDirection: return cudaErrorInvalidValue;
    case cudaErrorInvalidDeviceFunction: return cudaErrorInvalidResourceHandle;
    case cudaErrorInvalidSymbol: return cudaErrorSymbolNotFound;
    default: return error;
  }
}
static CUresult finish(cudaError_t error, enum ph_api api) {
  ph_charge(api);
  ph_leave();
  return driver_code(error);
}

// What a call needs: nothing, a device (phc_ready), or a current context.
static cudaError_t nothing(void) { return 0; }
static cudaError_t context(void) {
  cudaError_t error = phc_ready();
  return error ? error : phc_context_device() < 0 ? cudaErrorDeviceUninitialized : 0;
}

#define UNPACK(...) __VA_ARGS__
#define ENTRY(name, api, needs, parameters, expression)        \
  PH_EXPORT CUresult name parameters {                         \
    ph_enter();                                                \
    cudaError_t error = needs();                               \
    return finish(error ? error : (expression), PH_API_##api); \
  }
// With a twin for per-thread default streams: `per_thread` tells which was called.
#define STREAM(name, suffix, api, parameters, arguments, expression)                         \
  static CUresult name##_any(bool per_thread, UNPACK parameters) {                           \
    (void)per_thread;                                                                        \
    ph_enter();                                                                              \
    cudaError_t error = context();                                                           \
    return finish(error ? error : (expression), PH_API_##api);                               \
  }                                                                                          \
  PH_EXPORT CUresult name(UNPACK parameters) { return name##_any(false, UNPACK arguments); } \
  PH_EXPORT CUresult name##suffix(UNPACK parameters) { return name##_any(true, UNPACK arguments); }
// An older or newer name with the same interface.
#define ALSO(name, other) PH_EXPORT extern __typeof__(name) other __attribute__((alias(#name)));

static int give(void *to, const void *value, size_t size) {
  if (!to) return cudaErrorInvalidValue;
  memcpy(to, value, size);
  return 0;
}
#define GIVE(to, type, value) give((to), &(type){value}, sizeof(type))
static int async_flag(bool per_thread) { return PHC_ASYNC | (per_thread ? PHC_PER_THREAD : 0); }
static int sync_flag(bool per_thread) { return per_thread ? PHC_PER_THREAD : 0; }
static cudaError_t unsupported(const char *call) {
  ph_unsupported("libcuda", call, true);
  return cudaErrorNotSupported;
}

// ---------------------------------------------------------------- initialisation, errors, versions
ENTRY(cuInit, OTHER, phc_ready, (unsigned flags), flags ? cudaErrorInvalidValue : 0)
ENTRY(cuDriverGetVersion, GET_DEVICE, nothing, (int *version), GIVE(version, int, PH_CUDA_DRIVER_VERSION))

static CUresult error_text(int code, const char **text, bool name) {
  if (!text) return cudaErrorInvalidValue;
  *text = name ? phc_error_name(code, true) : phc_error_text(code, true);
  return *text ? 0 : cudaErrorInvalidValue;
}
PH_EXPORT CUresult cuGetErrorString(CUresult code, const char **text) {
  return error_text(code, text, false);
}
PH_EXPORT CUresult cuGetErrorName(CUresult code, const char **text) { return error_text(code, text, true); }

// ---------------------------------------------------------------- devices
static cudaError_t device_name(char *text, int length, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!text || length <= 0) return cudaErrorInvalidValue;
  snprintf(text, (size_t)length, "%.*s", (int)sizeof ph_gpu()->name, ph_gpu()->name);
  return 0;
}
static cudaError_t device_get(int *device, int ordinal) {
  if (!device) return cudaErrorInvalidValue;
  cudaError_t error = phc_device_check(ordinal);
  return error ? error : (*device = ordinal, 0);
}
static cudaError_t device_attribute(int *value, int attribute, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  return value && phc_attribute(attribute, device, value) ? 0 : cudaErrorInvalidValue;
}
static cudaError_t device_memory(size_t *bytes, int device) {
  cudaError_t error = phc_device_check(device);
  return error ? error : GIVE(bytes, size_t, ph_gpu()->memory_bytes);
}
static cudaError_t device_uuid(unsigned char *uuid, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!uuid) return cudaErrorInvalidValue;
  phc_device_uuid(phc_physical(device), uuid);
  return 0;
}
static cudaError_t device_pci(char *text, int length, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!text || length < 13) return cudaErrorInvalidValue;
  snprintf(text, (size_t)length, "0000:%02X:00.0", phc_pci_bus(phc_physical(device)));
  return 0;
}
static cudaError_t device_by_pci(int *device, const char *text) {
  unsigned domain = 0, bus = 0, slot = 0;
  if (!device || !text || sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) return cudaErrorInvalidValue;
  for (int i = 0; i < phc_devices(); i++)
    if (!domain && !slot && (int)bus == phc_pci_bus(phc_physical(i))) return *device = i, 0;
  return cudaErrorInvalidDevice;
}
static cudaError_t capability(int *major, int *minor, int device) {
  cudaError_t error = phc_device_check(device);
  if (!error) error = GIVE(major, int, ph_gpu()->major);
  return error ? error : GIVE(minor, int, ph_gpu()->minor);
}
ENTRY(cuDeviceGetCount, GET_DEVICE, phc_ready, (int *count), GIVE(count, int, phc_devices()))
ENTRY(cuDeviceGet, GET_DEVICE, phc_ready, (int *device, int ordinal), device_get(device, ordinal))
ENTRY(cuDeviceGetName, GET_DEVICE, phc_ready, (char *text, int length, int device),
      device_name(text, length, device))
ENTRY(cuDeviceGetAttribute, GET_DEVICE, phc_ready, (int *value, int attribute, int device),
      device_attribute(value, attribute, device))
ENTRY(cuDeviceTotalMem_v2, GET_DEVICE, phc_ready, (size_t *bytes, int device), device_memory(bytes, device))
ALSO(cuDeviceTotalMem_v2, cuDeviceTotalMem)
ENTRY(cuDeviceGetUuid, GET_DEVICE, phc_ready, (unsigned char *uuid, int device), device_uuid(uuid, device))
ALSO(cuDeviceGetUuid, cuDeviceGetUuid_v2)
ENTRY(cuDeviceGetPCIBusId, GET_DEVICE, phc_ready, (char *text, int length, int device),
      device_pci(text, length, device))
ENTRY(cuDeviceGetByPCIBusId, GET_DEVICE, phc_ready, (int *device, const char *text),
      device_by_pci(device, text))
ENTRY(cuDeviceComputeCapability, GET_DEVICE, phc_ready, (int *major, int *minor, int device),
      capability(major, minor, device))
ENTRY(cuDeviceCanAccessPeer, GET_DEVICE, phc_ready, (int *can, int device, int peer),
      phc_can_access_peer(can, device, peer))
ENTRY(cuDeviceGetP2PAttribute, GET_DEVICE, phc_ready,
      (int *value, int attribute, int source, int destination),
      phc_p2p_attribute(value, attribute, source, destination))

// ---------------------------------------------------------------- contexts
// Each device has its primary context; a created context is one more name for its device.
#define MAX_DEVICES 64
typedef struct ph_context {
  int device;
  bool primary;
} ph_context;
static ph_context primaries[MAX_DEVICES];
static ph_table *contexts;
static __thread ph_context *stack[16];  // stack[depth - 1] is what the driver calls made current
static __thread int depth;

static ph_context *primary_of(int device) {
  ph_context *c = &primaries[device % MAX_DEVICES];
  if (!c->primary) {
    *c = (ph_context){device, true};
    phc_table_set(&contexts, (uintptr_t)c, c);
  }
  return c;
}
static ph_context *current(void) {
  int device = phc_context_device();
  if (device < 0) return NULL;
  return depth && stack[depth - 1] && stack[depth - 1]->device == device ? stack[depth - 1]
                                                                         : primary_of(device);
}
static cudaError_t set_current(ph_context *c) {
  if (c && !phc_table_get(&contexts, (uintptr_t)c)) return cudaErrorDeviceUninitialized;
  if (!depth) depth = 1;
  stack[depth - 1] = c;
  phc_context_set(c ? c->device : -1);
  return 0;
}
static cudaError_t push(ph_context *c) {
  if (!c || !phc_table_get(&contexts, (uintptr_t)c)) return cudaErrorDeviceUninitialized;
  if (!depth) stack[depth++] = current();
  if (depth == (int)(sizeof stack / sizeof *stack)) return cudaErrorInvalidValue;
  stack[depth++] = NULL;
  return set_current(c);
}
static cudaError_t pop(ph_context **c) {
  ph_context *now = current();
  if (!now) return cudaErrorDeviceUninitialized;
  if (c) *c = now;
  if (depth) depth--;
  ph_context *below = depth ? stack[depth - 1] : NULL;
  phc_context_set(below ? below->device : -1);
  return 0;
}
static cudaError_t create(ph_context **c, unsigned flags, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!c || flags > 0x7f) return cudaErrorInvalidValue;
  ph_context *made = calloc(1, sizeof *made);
  if (!made) return cudaErrorMemoryAllocation;
  made->device = device;
  phc_table_set(&contexts, (uintptr_t)made, made);
  *c = made;
  return push(made);
}
static cudaError_t destroy(ph_context *c) {
  if (!c || !phc_table_get(&contexts, (uintptr_t)c) || c->primary) return cudaErrorDeviceUninitialized;
  if (current() == c) pop(NULL);
  phc_table_set(&contexts, (uintptr_t)c, NULL);
  return 0;
}
static cudaError_t retain(ph_context **c, int device) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!c) return cudaErrorInvalidValue;
  *c = primary_of(device);
  return 0;
}
static cudaError_t primary_state(int device, unsigned *flags, int *active) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  if (!flags || !active) return cudaErrorInvalidValue;
  *flags = 0;
  *active = phc_primary_active(device);
  return 0;
}
static cudaError_t stream_context(void *handle, bool per_thread, ph_context **c) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  if (error || !c) return error ? error : cudaErrorInvalidValue;
  *c = primary_of(stream->device);
  return 0;
}
ENTRY(cuCtxGetCurrent, GET_DEVICE, phc_ready, (ph_context * *c),
      c ? (*c = current(), 0) : cudaErrorInvalidValue)
ENTRY(cuCtxSetCurrent, GET_DEVICE, phc_ready, (ph_context * c), set_current(c))
ENTRY(cuCtxPushCurrent_v2, GET_DEVICE, phc_ready, (ph_context * c), push(c))
ALSO(cuCtxPushCurrent_v2, cuCtxPushCurrent)
ENTRY(cuCtxPopCurrent_v2, GET_DEVICE, phc_ready, (ph_context * *c), pop(c))
ALSO(cuCtxPopCurrent_v2, cuCtxPopCurrent)
ENTRY(cuCtxCreate_v2, OTHER, phc_ready, (ph_context * *c, unsigned flags, int device),
      create(c, flags, device))
ALSO(cuCtxCreate_v2, cuCtxCreate)
ENTRY(cuCtxCreate_v4, OTHER, phc_ready, (ph_context * *c, void *parameters, unsigned flags, int device),
      parameters ? unsupported("cuCtxCreate_v4 with parameters") : create(c, flags, device))
ENTRY(cuCtxDestroy_v2, OTHER, phc_ready, (ph_context * c), destroy(c))
ALSO(cuCtxDestroy_v2, cuCtxDestroy)
ENTRY(cuCtxGetDevice, GET_DEVICE, context, (int *device), GIVE(device, int, phc_context_device()))
ENTRY(cuCtxGetFlags, GET_DEVICE, context, (unsigned *flags), GIVE(flags, unsigned, 0))
ENTRY(cuCtxGetApiVersion, GET_DEVICE, phc_ready, (ph_context * c, unsigned *version),
      ((void)c, GIVE(version, unsigned, 3020)))
ENTRY(cuCtxGetId, GET_DEVICE, phc_ready, (ph_context * c, unsigned long long *id),
      !c && !current() ? cudaErrorDeviceUninitialized
                       : GIVE(id, unsigned long long, (uintptr_t)(c ? c : current())))
ENTRY(cuCtxSynchronize, STREAM_SYNC, context, (void), phc_device_sync())
ENTRY(cuCtxGetLimit, GET_DEVICE, context, (size_t *value, int limit), phc_limit(limit, value))
ENTRY(cuCtxSetLimit, OTHER, context, (int limit, size_t value), phc_set_limit(limit, value))
ENTRY(cuCtxGetCacheConfig, GET_DEVICE, context, (int *config), GIVE(config, int, 0))
ENTRY(cuCtxSetCacheConfig, GET_DEVICE, context, (int config),
      config < 0 || config > 3 ? cudaErrorInvalidValue : 0)
ENTRY(cuCtxGetStreamPriorityRange, GET_DEVICE, context, (int *least, int *greatest),
      (least ? *least = 0 : 0, greatest ? *greatest = -5 : 0, 0))
ENTRY(cuCtxResetPersistingL2Cache, OTHER, context, (void), 0)
ENTRY(cuCtxEnablePeerAccess, OTHER, context, (ph_context * peer, unsigned flags),
      flags || !peer ? cudaErrorInvalidValue : phc_peer_access(ph_current_device(), peer->device, true))
ENTRY(cuCtxDisablePeerAccess, OTHER, context, (ph_context * peer),
      !peer ? cudaErrorInvalidValue : phc_peer_access(ph_current_device(), peer->device, false))
ENTRY(cuDevicePrimaryCtxRetain, OTHER, phc_ready, (ph_context * *c, int device), retain(c, device))
ENTRY(cuDevicePrimaryCtxRelease_v2, OTHER, phc_ready, (int device), phc_device_check(device))
ALSO(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease)
ENTRY(cuDevicePrimaryCtxReset_v2, OTHER, phc_ready, (int device), phc_device_check(device))
ALSO(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset)
ENTRY(cuDevicePrimaryCtxSetFlags_v2, OTHER, phc_ready, (int device, unsigned flags),
      flags > 0x7f ? cudaErrorInvalidValue : phc_device_check(device))
ALSO(cuDevicePrimaryCtxSetFlags_v2, cuDevicePrimaryCtxSetFlags)
ENTRY(cuDevicePrimaryCtxGetState, GET_DEVICE, phc_ready, (int device, unsigned *flags, int *active),
      primary_state(device, flags, active))
ENTRY(cuProfilerStart, OTHER, context, (void), 0)
ENTRY(cuProfilerStop, OTHER, context, (void), 0)

// ---------------------------------------------------------------- modules
// A module is read for what it says about its kernels: names, and from a CUBIN also registers,
// shared memory and launch bounds. An image whose contents are compressed (a fat binary) takes any
// kernel name.
typedef struct ph_module {
  ph_owner owned;  // the kernels, the last one first
  bool any_name;
  char *image;  // own copy of a CUBIN, for its variables; NULL otherwise
  size_t size;
  unsigned count;
} ph_module;
static ph_table *modules;

static ph_kernel *module_add(ph_module *module, const char *name, size_t length) {
  char *text = strndup(name, length);  // kept for good, as the kernel is
  if (!text) abort();
  module->count++;
  return phc_kernel_create(text, NULL, &module->owned);
}

// PTX: `.entry name(`; NVRTC's stand-in (nvrtc.c) writes names that are not identifiers in quotes.
static bool read_ptx(ph_module *module, const char *text) {
  if (!strstr(text, ".version") || !strstr(text, ".target")) return false;
  for (const char *at = text; (at = strstr(at, ".entry"));) {
    at += strlen(".entry");
    at += strspn(at, " \t\r\n");
    size_t length = *at == '"' ? strcspn(at + 1, "\"") : strcspn(at, " \t\r\n({");
    ph_kernel *kernel = module_add(module, *at == '"' ? at + 1 : at, length);
    const char *body = at + strcspn(at, "{"), *bound = strstr(at, ".maxntid");
    unsigned x = 1, y = 1, z = 1;
    if (bound && bound < body && sscanf(bound, ".maxntid %u , %u , %u", &x, &y, &z) >= 1)
      kernel->max_threads = (int)(x * y * z);
    at = body;
  }
  return true;
}

typedef struct ph_elf {
  const char *image;
  size_t size;
  const Elf64_Ehdr *header;
  const Elf64_Shdr *sections;
  const char *names;
  const Elf64_Sym *symbols;
  size_t symbol_count;
  const char *symbol_names;
} ph_elf;

static size_t elf_size(const char *image) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  size_t end = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
  for (int i = 0; i < header->e_shnum; i++)
    if (sections[i].sh_type != SHT_NOBITS && sections[i].sh_offset + sections[i].sh_size > end)
      end = sections[i].sh_offset + sections[i].sh_size;
  size_t segments = header->e_phoff + (size_t)header->e_phnum * header->e_phentsize;
  return segments > end ? segments : end;
}

static bool elf_open(ph_elf *elf, const char *image) {
  *elf = (ph_elf){.image = image, .header = (const Elf64_Ehdr *)image};
  const Elf64_Ehdr *header = elf->header;
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != EM_CUDA || !header->e_shnum)
    return false;
  elf->size = elf_size(image);
  elf->sections = (const Elf64_Shdr *)(image + header->e_shoff);
  elf->names = image + elf->sections[header->e_shstrndx].sh_offset;
  for (int i = 0; i < header->e_shnum; i++) {
    if (elf->sections[i].sh_type != SHT_SYMTAB) continue;
    elf->symbols = (const Elf64_Sym *)(image + elf->sections[i].sh_offset);
    elf->symbol_count = elf->sections[i].sh_size / sizeof(Elf64_Sym);
    elf->symbol_names = image + elf->sections[elf->sections[i].sh_link].sh_offset;
  }
  return true;
}
static const Elf64_Shdr *elf_section(const ph_elf *elf, const char *prefix, const char *name) {
  size_t length = strlen(prefix);
  for (int i = 0; i < elf->header->e_shnum; i++) {
    const char *text = elf->names + elf->sections[i].sh_name;
    if (!strncmp(text, prefix, length) && !strcmp(text + length, name)) return &elf->sections[i];
  }
  return NULL;
}

// Attribute records of .nv.info sections: format, attribute, and for format 4 a size and payload.
// Sections of shared memory begin with what the driver keeps of every block (sm_80 and later); attributes leave it out.
enum { NV_RESERVED_SHARED = 1024 };
enum { NV_MAX_THREADS = 0x05, NV_FRAME_SIZE = 0x11, NV_REGISTERS = 0x2f };
static bool nv_info(const ph_elf *elf, const Elf64_Shdr *section, int attribute, int64_t symbol,
                    uint32_t *words, int count) {
  if (!section) return false;
  const unsigned char *at = (const unsigned char *)elf->image + section->sh_offset,
                      *end = at + section->sh_size;
  while (at + 4 <= end) {
    size_t size = at[0] == 4 ? (size_t)at[2] | (size_t)at[3] << 8 : 0;
    const unsigned char *payload = at + 4;
    if (payload + size > end) return false;
    if (at[1] == attribute && at[0] == 4) {
      uint32_t first = 0;
      size_t skip = symbol >= 0 ? 4 : 0;
      if (skip && size >= 4) memcpy(&first, payload, 4);
      if ((!skip || first == (uint32_t)symbol) && size >= skip + 4 * (size_t)count) {
        memcpy(words, payload + skip, 4 * (size_t)count);
        return true;
      }
    }
    at = payload + size;
  }
  return false;
}

static bool read_cubin(ph_module *module, const char *image) {
  ph_elf elf;
  if (!elf_open(&elf, image)) return false;
  for (int i = 0; i < elf.header->e_shnum; i++) {
    const char *section = elf.names + elf.sections[i].sh_name;
    if (strncmp(section, ".text.", 6)) continue;
    const char *name = section + 6;
    ph_kernel *kernel = module_add(module, name, strlen(name));
    uint32_t words[3];
    if (elf.sections[i].sh_info >> 24) kernel->registers = (int)(elf.sections[i].sh_info >> 24);
    int64_t symbol = -1;
    for (size_t s = 0; s < elf.symbol_count; s++)
      if (elf.symbols[s].st_shndx == i && ELF64_ST_TYPE(elf.symbols[s].st_info) == STT_FUNC)
        symbol = (int64_t)s;
    const Elf64_Shdr *common = elf_section(&elf, ".nv.info", "");
    if (symbol >= 0 && nv_info(&elf, common, NV_REGISTERS, symbol, words, 1))
      kernel->registers = (int)words[0];
    if (symbol >= 0 && nv_info(&elf, common, NV_FRAME_SIZE, symbol, words, 1))
      kernel->local_bytes = (int)words[0];
    if (nv_info(&elf, elf_section(&elf, ".nv.info.", name), NV_MAX_THREADS, -1, words, 3))
      kernel->max_threads = (int)(words[0] * words[1] * words[2]);
    const Elf64_Shdr *shared = elf_section(&elf, ".nv.shared.", name);
    if (shared) kernel->static_shared = (int)shared->sh_size;
    if (kernel->static_shared >= NV_RESERVED_SHARED) kernel->static_shared -= NV_RESERVED_SHARED;
    kernel->max_dynamic_shared -= kernel->static_shared;
    if (kernel->max_dynamic_shared < 0) kernel->max_dynamic_shared = 0;
  }
  module->size = elf.size;
  module->image = malloc(elf.size);
  if (!module->image) abort();
  memcpy(module->image, image, elf.size);
  return true;
}

static cudaError_t module_load(ph_module **out, const void *image) {
  uint32_t magic;
  if (!out || !image) return cudaErrorInvalidValue;
  ph_module *module = calloc(1, sizeof *module);
  if (!module) return cudaErrorMemoryAllocation;
  memcpy(&magic, image, sizeof magic);
  if (magic == 0x466243b1) {  // the wrapper that nvcc puts around a fat binary
    image = ((const void *const *)image)[1];
    memcpy(&magic, image, sizeof magic);
  }
  bool good = true;
  if (magic == 0xba55ed50) module->any_name = true;
  else if (!memcmp(image, ELFMAG, SELFMAG)) good = read_cubin(module, image);
  else good = read_ptx(module, image);
  if (!good) {
    free(module);
    return cudaErrorInvalidKernelImage;
  }
  phc_table_set(&modules, (uintptr_t)module, module);
  *out = module;
  return 0;
}

static cudaError_t module_load_file(ph_module **out, const char *path) {
  FILE *file = path ? fopen(path, "rb") : NULL;
  if (!file) return path ? cudaErrorFileNotFound : cudaErrorInvalidValue;
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  char *image = size > 0 ? calloc(1, (size_t)size + 16) : NULL;
  cudaError_t error = cudaErrorInvalidKernelImage;
  if (image && fread(image, 1, (size_t)size, file) == (size_t)size) error = module_load(out, image);
  fclose(file);
  free(image);
  return error;
}

static bool module_alive(const ph_module *module) {
  return phc_table_get(&modules, (uintptr_t)module) != NULL;
}

static cudaError_t module_unload(ph_module *module) {
  if (!module_alive(module)) return cudaErrorInvalidResourceHandle;
  phc_table_set(&modules, (uintptr_t)module, NULL);
  phc_owner_drop(&module->owned);
  free(module->image);
  free(module);
  return 0;
}

static cudaError_t module_function(ph_kernel **kernel, ph_module *module, const char *name) {
  if (!kernel || !name) return cudaErrorInvalidValue;
  if (!module_alive(module)) return cudaErrorInvalidResourceHandle;
  for (ph_kernel *at = module->owned.kernels; at; at = at->next)
    if (!strcmp(at->symbol, name)) return *kernel = at, 0;
  if (!module->any_name) return cudaErrorSymbolNotFound;
  *kernel = module_add(module, name, strlen(name));
  return 0;
}

static cudaError_t module_variable(CUdeviceptr *address, size_t *bytes, ph_module *module, const char *name) {
  ph_elf elf;
  if (!name || !module_alive(module)) return name ? cudaErrorInvalidResourceHandle : cudaErrorInvalidValue;
  if (!module->image || !elf_open(&elf, module->image)) return cudaErrorSymbolNotFound;
  for (size_t i = 0; i < elf.symbol_count; i++) {
    const Elf64_Sym *symbol = &elf.symbols[i];
    if (ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || strcmp(elf.symbol_names + symbol->st_name, name))
      continue;
    void *memory = NULL;
    if (phc_symbol(symbol, NULL, NULL)) phc_symbol_register(symbol, symbol->st_size, &module->owned);
    cudaError_t error = phc_symbol(symbol, &memory, bytes);
    if (address) *address = (CUdeviceptr)memory;
    return error;
  }
  return cudaErrorSymbolNotFound;
}

static cudaError_t module_list(ph_kernel **kernels, unsigned room, ph_module *module) {
  if (!kernels || !room) return cudaErrorInvalidValue;
  if (!module_alive(module)) return cudaErrorInvalidResourceHandle;
  ph_kernel *at = module->owned.kernels;
  for (unsigned i = 0; i < room && at; i++, at = at->next) kernels[i] = at;
  return 0;
}
static cudaError_t module_count(unsigned *count, ph_module *module) {
  return module_alive(module) ? GIVE(count, unsigned, module->count) : cudaErrorInvalidResourceHandle;
}

ENTRY(cuModuleLoadData, OTHER, context, (ph_module * *module, const void *image), module_load(module, image))
ENTRY(cuModuleLoadDataEx, OTHER, context,
      (ph_module * *module, const void *image, unsigned count, int *options, void **values),
      ((void)count, (void)options, (void)values, module_load(module, image)))
ENTRY(cuModuleLoadFatBinary, OTHER, context, (ph_module * *module, const void *image),
      module_load(module, image))
ENTRY(cuModuleLoad, OTHER, context, (ph_module * *module, const char *path), module_load_file(module, path))
ENTRY(cuModuleUnload, OTHER, context, (ph_module * module), module_unload(module))
ENTRY(cuModuleGetFunction, OTHER, context, (ph_kernel * *kernel, ph_module *module, const char *name),
      module_function(kernel, module, name))
ENTRY(cuModuleGetFunctionCount, GET_DEVICE, context, (unsigned *count, ph_module *module),
      module_count(count, module))
ENTRY(cuModuleEnumerateFunctions, GET_DEVICE, context,
      (ph_kernel * *kernels, unsigned room, ph_module *module), module_list(kernels, room, module))
ENTRY(cuModuleGetGlobal_v2, OTHER, context,
      (CUdeviceptr * address, size_t *bytes, ph_module *module, const char *name),
      module_variable(address, bytes, module, name))
ALSO(cuModuleGetGlobal_v2, cuModuleGetGlobal)
ENTRY(cuModuleGetLoadingMode, GET_DEVICE, phc_ready, (int *mode), GIVE(mode, int, 2))  // lazy
// A library is a module that needs no context.
ENTRY(cuLibraryLoadData, OTHER, phc_ready,
      (ph_module * *library, const void *image, int *options, void **values, unsigned count,
       int *library_options, void **library_values, unsigned library_count),
      ((void)options, (void)values, (void)count, (void)library_options, (void)library_values,
       (void)library_count, module_load(library, image)))
ENTRY(cuLibraryLoadFromFile, OTHER, phc_ready,
      (ph_module * *library, const char *path, int *options, void **values, unsigned count,
       int *library_options, void **library_values, unsigned library_count),
      ((void)options, (void)values, (void)count, (void)library_options, (void)library_values,
       (void)library_count, module_load_file(library, path)))
ENTRY(cuLibraryUnload, OTHER, phc_ready, (ph_module * library), module_unload(library))
ENTRY(cuLibraryGetKernel, OTHER, phc_ready, (ph_kernel * *kernel, ph_module *library, const char *name),
      module_function(kernel, library, name))
ENTRY(cuLibraryGetKernelCount, GET_DEVICE, phc_ready, (unsigned *count, ph_module *library),
      module_count(count, library))
ENTRY(cuLibraryEnumerateKernels, GET_DEVICE, phc_ready,
      (ph_kernel * *kernels, unsigned room, ph_module *library), module_list(kernels, room, library))
ENTRY(cuLibraryGetModule, OTHER, context, (ph_module * *module, ph_module *library),
      module_alive(library) ? GIVE(module, ph_module *, library) : cudaErrorInvalidResourceHandle)
ENTRY(cuLibraryGetGlobal, OTHER, context,
      (CUdeviceptr * address, size_t *bytes, ph_module *library, const char *name),
      module_variable(address, bytes, library, name))

static cudaError_t kernel_get(void *to, ph_kernel *kernel) {
  return phc_kernel(kernel) ? GIVE(to, ph_kernel *, kernel) : cudaErrorInvalidResourceHandle;
}
static cudaError_t kernel_name(const char **name, ph_kernel *kernel) {
  return phc_kernel(kernel) ? GIVE(name, const char *, kernel->symbol) : cudaErrorInvalidResourceHandle;
}
static cudaError_t kernel_owner(ph_module **module, ph_kernel *kernel) {
  if (!phc_kernel(kernel)) return cudaErrorInvalidResourceHandle;
  ph_module *owner = (ph_module *)(void *)kernel->owner;  // `owned` is the first field
  return module_alive(owner) ? GIVE(module, ph_module *, owner) : cudaErrorSymbolNotFound;
}
static cudaError_t kernel_attribute(int *value, int attribute, ph_kernel *kernel) {
  return phc_kernel(kernel) ? phc_kernel_attribute(kernel, attribute, value) : cudaErrorInvalidResourceHandle;
}
static cudaError_t kernel_set_attribute(ph_kernel *kernel, int attribute, int value) {
  return phc_kernel(kernel) ? phc_kernel_set_attribute(kernel, attribute, value)
                            : cudaErrorInvalidResourceHandle;
}
static cudaError_t kernel_check(ph_kernel *kernel, int config) {
  if (!phc_kernel(kernel)) return cudaErrorInvalidResourceHandle;
  return config < 0 || config > 3 ? cudaErrorInvalidValue : 0;
}
ENTRY(cuKernelGetFunction, GET_DEVICE, context, (ph_kernel * *function, ph_kernel *kernel),
      kernel_get(function, kernel))
ENTRY(cuKernelGetName, GET_DEVICE, phc_ready, (const char **name, ph_kernel *kernel),
      kernel_name(name, kernel))
ENTRY(cuKernelGetLibrary, GET_DEVICE, phc_ready, (ph_module * *library, ph_kernel *kernel),
      kernel_owner(library, kernel))
ENTRY(cuKernelGetAttribute, GET_DEVICE, phc_ready, (int *value, int attribute, ph_kernel *kernel, int device),
      phc_device_check(device) ? cudaErrorInvalidDevice : kernel_attribute(value, attribute, kernel))
ENTRY(cuKernelSetAttribute, GET_DEVICE, phc_ready, (int attribute, int value, ph_kernel *kernel, int device),
      phc_device_check(device) ? cudaErrorInvalidDevice : kernel_set_attribute(kernel, attribute, value))
ENTRY(cuKernelSetCacheConfig, GET_DEVICE, phc_ready, (ph_kernel * kernel, int config, int device),
      phc_device_check(device) ? cudaErrorInvalidDevice : kernel_check(kernel, config))
ENTRY(cuFuncGetName, GET_DEVICE, context, (const char **name, ph_kernel *function),
      kernel_name(name, function))
ENTRY(cuFuncGetModule, GET_DEVICE, context, (ph_module * *module, ph_kernel *function),
      kernel_owner(module, function))
ENTRY(cuFuncGetAttribute, GET_DEVICE, context, (int *value, int attribute, ph_kernel *function),
      kernel_attribute(value, attribute, function))
ENTRY(cuFuncSetAttribute, GET_DEVICE, context, (ph_kernel * function, int attribute, int value),
      kernel_set_attribute(function, attribute, value))
ENTRY(cuFuncSetCacheConfig, GET_DEVICE, context, (ph_kernel * function, int config),
      kernel_check(function, config))
ENTRY(cuFuncSetSharedMemConfig, GET_DEVICE, context, (ph_kernel * function, int config),
      config > 2 ? cudaErrorInvalidValue : kernel_check(function, config))
ENTRY(cuFuncLoad, OTHER, context, (ph_kernel * function), kernel_check(function, 0))
ENTRY(cuFuncIsLoaded, GET_DEVICE, context, (int *state, ph_kernel *function),
      kernel_check(function, 0) ? cudaErrorInvalidResourceHandle : GIVE(state, int, 1))

// The linker keeps the last image that it was given: programs link one PTX to get a CUBIN of it.
typedef struct ph_link {
  char *image;
  size_t size;
} ph_link;
static cudaError_t link_create(ph_link **link) {
  if (!link) return cudaErrorInvalidValue;
  *link = calloc(1, sizeof **link);
  return *link ? 0 : cudaErrorMemoryAllocation;
}
static cudaError_t link_add(ph_link *link, const void *data, size_t size) {
  if (!link || !data || !size) return cudaErrorInvalidValue;
  char *image = calloc(1, size + 1);
  if (!image) return cudaErrorMemoryAllocation;
  memcpy(image, data, size);
  free(link->image);
  link->image = image;
  link->size = size;
  return 0;
}
static cudaError_t link_complete(ph_link *link, void **image, size_t *size) {
  if (!link || !image) return cudaErrorInvalidValue;
  if (!link->image) return cudaErrorInvalidKernelImage;
  *image = link->image;
  if (size) *size = link->size;
  return 0;
}
static cudaError_t link_destroy(ph_link *link) {
  if (!link) return cudaErrorInvalidResourceHandle;
  free(link->image);
  free(link);
  return 0;
}
ENTRY(cuLinkCreate_v2, OTHER, context, (unsigned count, int *options, void **values, ph_link **link),
      ((void)count, (void)options, (void)values, link_create(link)))
ALSO(cuLinkCreate_v2, cuLinkCreate)
ENTRY(cuLinkAddData_v2, OTHER, context,
      (ph_link * link, int type, void *data, size_t size, const char *name, unsigned count, int *options,
       void **values),
      ((void)type, (void)name, (void)count, (void)options, (void)values, link_add(link, data, size)))
ALSO(cuLinkAddData_v2, cuLinkAddData)
ENTRY(cuLinkComplete, OTHER, context, (ph_link * link, void **image, size_t *size),
      link_complete(link, image, size))
ENTRY(cuLinkDestroy, OTHER, context, (ph_link * link), link_destroy(link))

// ---------------------------------------------------------------- launches and occupancy
static int driver_flags(bool per_thread, int more) {
  return PH_LAUNCH_DRIVER | more | (per_thread ? PH_LAUNCH_PER_THREAD : 0);
}
#define SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define SHAPE_ARGUMENTS gx, gy, gz, bx, by, bz, shared
STREAM(cuLaunchKernel, _ptsz, LAUNCH,
       (ph_kernel * function, SHAPE, void *stream, void **arguments, void **extra),
       (function, SHAPE_ARGUMENTS, stream, arguments, extra),
       ((void)arguments, (void)extra,
        phc_launch(phc_kernel(function), (dim3){gx, gy, gz}, (dim3){bx, by, bz}, shared, stream,
                   driver_flags(per_thread, 0), NULL, 0)))
STREAM(cuLaunchCooperativeKernel, _ptsz, LAUNCH,
       (ph_kernel * function, SHAPE, void *stream, void **arguments),
       (function, SHAPE_ARGUMENTS, stream, arguments),
       ((void)arguments, phc_launch(phc_kernel(function), (dim3){gx, gy, gz}, (dim3){bx, by, bz}, shared,
                                    stream, driver_flags(per_thread, PH_LAUNCH_COOP), NULL, 0)))
static cudaError_t launch_config(const CUlaunchConfig *c, ph_kernel *function, bool per_thread) {
  if (!c || (c->numAttrs && !c->attrs)) return cudaErrorInvalidValue;
  return phc_launch(phc_kernel(function), (dim3){c->gridDimX, c->gridDimY, c->gridDimZ},
                    (dim3){c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, c->hStream,
                    driver_flags(per_thread, 0), c->attrs, c->numAttrs);
}
STREAM(cuLaunchKernelEx, _ptsz, LAUNCH,
       (const CUlaunchConfig *config, ph_kernel *function, void **arguments, void **extra),
       (config, function, arguments, extra),
       ((void)arguments, (void)extra, launch_config(config, function, per_thread)))

static cudaError_t occupancy(int *blocks, ph_kernel *function, int threads, size_t shared) {
  return phc_kernel(function) ? phc_occupancy(blocks, function, threads, shared)
                              : cudaErrorInvalidResourceHandle;
}
// The block size with the most resident threads; among equals the largest.
static cudaError_t best_block(int *grid, int *block, ph_kernel *function, size_t (*shared_of)(int),
                              size_t shared, int limit) {
  if (!phc_kernel(function)) return cudaErrorInvalidResourceHandle;
  if (!grid || !block || limit < 0) return cudaErrorInvalidValue;
  int most = limit && limit < function->max_threads ? limit : function->max_threads, best = 0,
      best_blocks = 0;
  for (int threads = most; threads > 0; threads = threads % 32 ? threads / 32 * 32 : threads - 32) {
    int blocks = 0;
    phc_occupancy(&blocks, function, threads, shared_of ? shared_of(threads) : shared);
    if (blocks * threads > best_blocks * best) best = threads, best_blocks = blocks;
  }
  *block = best;
  *grid = best_blocks * ph_gpu()->sms;
  return 0;
}
static cudaError_t available_shared(size_t *bytes, ph_kernel *kernel, int blocks, int threads) {
  if (!phc_kernel(kernel)) return cudaErrorInvalidResourceHandle;
  if (!bytes || blocks <= 0 || threads <= 0) return cudaErrorInvalidValue;
  size_t share = (size_t)ph_gpu()->smem_per_sm / (size_t)blocks,
         most = (size_t)ph_gpu()->smem_per_block_optin;
  share = share < most ? share : most;
  *bytes = share > (size_t)kernel->static_shared ? share - (size_t)kernel->static_shared : 0;
  return 0;
}
static cudaError_t active_clusters(int *clusters, ph_kernel *kernel, const CUlaunchConfig *c) {
  if (!phc_kernel(kernel)) return cudaErrorInvalidResourceHandle;
  if (!c) return cudaErrorInvalidValue;
  return phc_max_active_clusters(clusters, kernel, (int)(c->blockDimX * c->blockDimY * c->blockDimZ),
                                 c->sharedMemBytes, c->attrs, c->numAttrs);
}
ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor, GET_DEVICE, context,
      (int *blocks, ph_kernel *function, int threads, size_t shared),
      occupancy(blocks, function, threads, shared))
ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, GET_DEVICE, context,
      (int *blocks, ph_kernel *function, int threads, size_t shared, unsigned flags),
      flags > 1 ? cudaErrorInvalidValue : occupancy(blocks, function, threads, shared))
ENTRY(cuOccupancyMaxPotentialBlockSize, GET_DEVICE, context,
      (int *grid, int *block, ph_kernel *function, size_t (*shared_of)(int), size_t shared, int limit),
      best_block(grid, block, function, shared_of, shared, limit))
ENTRY(cuOccupancyAvailableDynamicSMemPerBlock, GET_DEVICE, context,
      (size_t *bytes, ph_kernel *function, int blocks, int threads),
      available_shared(bytes, function, blocks, threads))
ENTRY(cuOccupancyMaxActiveClusters, GET_DEVICE, context,
      (int *clusters, ph_kernel *function, const CUlaunchConfig *config),
      active_clusters(clusters, function, config))
ENTRY(cuOccupancyMaxPotentialClusterSize, GET_DEVICE, context,
      (int *size, ph_kernel *function, const CUlaunchConfig *config),
      !config                 ? cudaErrorInvalidValue
      : !phc_kernel(function) ? cudaErrorInvalidResourceHandle
                              : GIVE(size, int,
                                     ph_gpu()->major < 9      ? 1
                                     : function->non_portable ? 16
                                                              : 8))

// A tensor map describes a tensor to the copy engine inside kernels, which do not run here.
static cudaError_t tensor_map(void *map, unsigned rank, const void *address) {
  if (!map || (uintptr_t)map % 64 || !rank || rank > 5 || (uintptr_t)address % 16)
    return cudaErrorInvalidValue;
  memset(map, 0, 128);
  return 0;
}
#define TENSOR_MAP_HEAD \
  void *map, int type, unsigned rank, void *address, const uint64_t *sizes, const uint64_t *strides
ENTRY(cuTensorMapEncodeTiled, OTHER, nothing,
      (TENSOR_MAP_HEAD, const uint32_t *box, const uint32_t *steps, int interleave, int swizzle,
       int promotion, int fill),
      ((void)type, (void)sizes, (void)strides, (void)box, (void)steps, (void)interleave, (void)swizzle,
       (void)promotion, (void)fill, tensor_map(map, rank, address)))
ENTRY(cuTensorMapEncodeIm2col, OTHER, nothing,
      (TENSOR_MAP_HEAD, const int *lower, const int *upper, unsigned channels, unsigned pixels,
       const uint32_t *steps, int interleave, int swizzle, int promotion, int fill),
      ((void)type, (void)sizes, (void)strides, (void)lower, (void)upper, (void)channels, (void)pixels,
       (void)steps, (void)interleave, (void)swizzle, (void)promotion, (void)fill,
       tensor_map(map, rank, address)))
ENTRY(cuTensorMapReplaceAddress, OTHER, nothing, (void *map, void *address),
      !map || (uintptr_t)address % 16 ? cudaErrorInvalidValue : 0)

// ---------------------------------------------------------------- streams and events
static cudaError_t stream_int(void *handle, bool per_thread, int *value, bool priority) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(value, int, priority ? stream->priority : (int)stream->flags);
}
static cudaError_t stream_id(void *handle, bool per_thread, unsigned long long *id) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(id, unsigned long long, stream->id);
}
static cudaError_t stream_device(void *handle, bool per_thread, int *device) {
  ph_stream *stream = NULL;
  cudaError_t error = phc_stream_find(handle, per_thread, &stream);
  return error ? error : GIVE(device, int, stream->device);
}
static cudaError_t stream_check(void *handle, bool per_thread) {
  ph_stream *stream = NULL;
  return phc_stream_find(handle, per_thread, &stream);
}
static cudaError_t not_capturing(void *stream, bool per_thread, int *status, uint64_t *id) {
  if (!status) return cudaErrorInvalidValue;
  cudaError_t error = stream_check(stream, per_thread);
  if (!error) *status = 0;
  if (!error && id) *id = 0;
  return error;
}
static cudaError_t exchange_mode(int *mode) {
  static __thread int now;
  if (!mode || *mode < 0 || *mode > 2) return cudaErrorInvalidValue;
  int old = now;
  now = *mode;
  *mode = old;
  return 0;
}
ENTRY(cuStreamCreate, STREAM_CREATE, context, (void **stream, unsigned flags),
      phc_stream_create(stream, flags, 0))
ENTRY(cuStreamCreateWithPriority, STREAM_CREATE, context, (void **stream, unsigned flags, int priority),
      phc_stream_create(stream, flags, priority))
ENTRY(cuStreamDestroy_v2, OTHER, context, (void *stream), phc_stream_destroy(stream))
ALSO(cuStreamDestroy_v2, cuStreamDestroy)
STREAM(cuStreamSynchronize, _ptsz, STREAM_SYNC, (void *stream), (stream), phc_stream_sync(stream, per_thread))
STREAM(cuStreamQuery, _ptsz, STREAM_QUERY, (void *stream), (stream), phc_stream_query(stream, per_thread))
STREAM(cuStreamWaitEvent, _ptsz, STREAM_WAIT, (void *stream, void *event, unsigned flags),
       (stream, event, flags), phc_stream_wait(stream, event, flags, per_thread))
STREAM(cuStreamGetPriority, _ptsz, GET_DEVICE, (void *stream, int *value), (stream, value),
       stream_int(stream, per_thread, value, true))
STREAM(cuStreamGetFlags, _ptsz, GET_DEVICE, (void *stream, unsigned *value), (stream, value),
       stream_int(stream, per_thread, (int *)value, false))
STREAM(cuStreamGetId, _ptsz, GET_DEVICE, (void *stream, unsigned long long *id), (stream, id),
       stream_id(stream, per_thread, id))
STREAM(cuStreamGetDevice, _ptsz, GET_DEVICE, (void *stream, int *device), (stream, device),
       stream_device(stream, per_thread, device))
STREAM(cuStreamGetCtx, _ptsz, GET_DEVICE, (void *stream, ph_context **c), (stream, c),
       stream_context(stream, per_thread, c))
STREAM(cuStreamAttachMemAsync, _ptsz, OTHER,
       (void *stream, CUdeviceptr address, size_t bytes, unsigned flags), (stream, address, bytes, flags),
       (flags != 1 && flags != 2 && flags != 4) || !phc_covered((void *)address, bytes ? bytes : 1)
           ? cudaErrorInvalidValue
           : stream_check(stream, per_thread))
STREAM(cuLaunchHostFunc, _ptsz, HOST_FUNC, (void *stream, cudaHostFn_t function, void *data),
       (stream, function, data), phc_host_function(stream, per_thread, function, data))
typedef struct ph_callback {
  cudaStreamCallback_t function;
  void *stream, *data;
} ph_callback;
static void run_callback(void *data) {
  ph_callback call = *(ph_callback *)data;
  free(data);
  call.function(call.stream, 0, call.data);
}
static cudaError_t add_callback(void *stream, bool per_thread, cudaStreamCallback_t function, void *data,
                                unsigned flags) {
  ph_callback *call = function && !flags ? malloc(sizeof *call) : NULL;
  if (!call) return cudaErrorInvalidValue;
  *call = (ph_callback){function, stream, data};
  cudaError_t error = phc_host_function(stream, per_thread, run_callback, call);
  if (error) free(call);
  return error;
}
STREAM(cuStreamAddCallback, _ptsz, HOST_FUNC,
       (void *stream, cudaStreamCallback_t function, void *data, unsigned flags),
       (stream, function, data, flags), add_callback(stream, per_thread, function, data, flags))
STREAM(cuStreamIsCapturing, _ptsz, GET_DEVICE, (void *stream, int *status), (stream, status),
       not_capturing(stream, per_thread, status, NULL))
STREAM(cuStreamGetCaptureInfo_v2, _ptsz, GET_DEVICE,
       (void *stream, int *status, uint64_t *id, void *graph, void *nodes, void *count),
       (stream, status, id, graph, nodes, count),
       ((void)graph, (void)nodes, (void)count, not_capturing(stream, per_thread, status, id)))
STREAM(cuStreamGetCaptureInfo_v3, _ptsz, GET_DEVICE,
       (void *stream, int *status, uint64_t *id, void *graph, void *nodes, void *edges, void *count),
       (stream, status, id, graph, nodes, edges, count),
       ((void)graph, (void)nodes, (void)edges, (void)count, not_capturing(stream, per_thread, status, id)))
STREAM(cuStreamBeginCapture_v2, _ptsz, OTHER, (void *stream, int mode), (stream, mode),
       ((void)stream, (void)mode, unsupported("cuStreamBeginCapture"), cudaErrorStreamCaptureUnsupported))
STREAM(cuStreamEndCapture, _ptsz, OTHER, (void *stream, void **graph), (stream, graph),
       ((void)graph,
        stream_check(stream, per_thread) ? cudaErrorInvalidResourceHandle : cudaErrorIllegalState))
ENTRY(cuThreadExchangeStreamCaptureMode, GET_DEVICE, nothing, (int *mode), exchange_mode(mode))

ENTRY(cuEventCreate, EVENT_CREATE, context, (void **event, unsigned flags), phc_event_create(event, flags))
ENTRY(cuEventDestroy_v2, OTHER, phc_ready, (void *event), phc_event_destroy(event))
ALSO(cuEventDestroy_v2, cuEventDestroy)
ENTRY(cuEventQuery, EVENT_QUERY, phc_ready, (void *event), phc_event_query(event))
ENTRY(cuEventSynchronize, STREAM_SYNC, phc_ready, (void *event), phc_event_sync(event))
ENTRY(cuEventElapsedTime, EVENT_QUERY, phc_ready, (float *ms, void *start, void *end),
      phc_event_elapsed(ms, start, end))
ALSO(cuEventElapsedTime, cuEventElapsedTime_v2)
STREAM(cuEventRecord, _ptsz, EVENT_RECORD, (void *event, void *stream), (event, stream),
       phc_event_record(event, stream, 0, per_thread))
STREAM(cuEventRecordWithFlags, _ptsz, EVENT_RECORD, (void *event, void *stream, unsigned flags),
       (event, stream, flags), phc_event_record(event, stream, flags, per_thread))

// Writing a word is a small memset. Waiting for one that another device will write cannot be
// followed: only a condition that already holds passes.
static cudaError_t write_word(void *stream, bool per_thread, CUdeviceptr address, uint32_t value) {
  return phc_set((void *)address, 0, value, 4, 1, 1, stream, async_flag(per_thread));
}
static cudaError_t wait_word(void *stream, bool per_thread, CUdeviceptr address, uint32_t wanted,
                             unsigned flags) {
  cudaError_t error = stream_check(stream, per_thread);
  if (error) return error;
  if (address % 4 || !phc_covered((void *)address, 4)) return cudaErrorInvalidValue;
  ph_touch((void *)address, 4);
  uint32_t value = *(volatile uint32_t *)address;
  unsigned how = flags & 3;
  bool holds = how == 0   ? (int32_t)(value - wanted) >= 0
               : how == 1 ? value == wanted
               : how == 2 ? value & wanted
                          : ~(value | wanted);
  return holds ? 0 : unsupported("cuStreamWaitValue32 on a value that is yet to come");
}
STREAM(cuStreamWriteValue32_v2, _ptsz, MEMSET,
       (void *stream, CUdeviceptr address, uint32_t value, unsigned flags), (stream, address, value, flags),
       ((void)flags, write_word(stream, per_thread, address, value)))
ALSO(cuStreamWriteValue32_v2, cuStreamWriteValue32)
STREAM(cuStreamWaitValue32_v2, _ptsz, STREAM_WAIT,
       (void *stream, CUdeviceptr address, uint32_t value, unsigned flags), (stream, address, value, flags),
       wait_word(stream, per_thread, address, value, flags))
ALSO(cuStreamWaitValue32_v2, cuStreamWaitValue32)

// ---------------------------------------------------------------- memory
static cudaError_t allocate(CUdeviceptr *address, size_t bytes) {
  return bytes ? phc_malloc((void **)address, bytes) : cudaErrorInvalidValue;
}
static cudaError_t memory_info(size_t *free_bytes, size_t *total_bytes) {
  if (!free_bytes || !total_bytes) return cudaErrorInvalidValue;
  ph_memory_info(ph_current_device(), free_bytes, total_bytes);
  return 0;
}
static cudaError_t address_range(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
  ph_range range;
  if (!ph_memory_find((void *)address, &range)) return cudaErrorSymbolNotFound;
  if (base) *base = range.base;
  if (size) *size = range.size;
  return 0;
}
static cudaError_t pitch_alloc(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                               unsigned element) {
  if ((element != 4 && element != 8 && element != 16) || !width || !height) return cudaErrorInvalidValue;
  return phc_pitch_alloc((void **)address, pitch, width, height);
}
ENTRY(cuMemGetInfo_v2, OTHER, context, (size_t *free_bytes, size_t *total_bytes),
      memory_info(free_bytes, total_bytes))
ALSO(cuMemGetInfo_v2, cuMemGetInfo)
ENTRY(cuMemAlloc_v2, MALLOC, context, (CUdeviceptr * address, size_t bytes), allocate(address, bytes))
ALSO(cuMemAlloc_v2, cuMemAlloc)
ENTRY(cuMemFree_v2, FREE, context, (CUdeviceptr address), phc_free((void *)address))
ALSO(cuMemFree_v2, cuMemFree)
ENTRY(cuMemAllocPitch_v2, MALLOC, context,
      (CUdeviceptr * address, size_t *pitch, size_t width, size_t height, unsigned element),
      pitch_alloc(address, pitch, width, height, element))
ALSO(cuMemAllocPitch_v2, cuMemAllocPitch)
ENTRY(cuMemGetAddressRange_v2, GET_DEVICE, context, (CUdeviceptr * base, size_t *size, CUdeviceptr address),
      address_range(base, size, address))
ALSO(cuMemGetAddressRange_v2, cuMemGetAddressRange)
ENTRY(cuMemAllocHost_v2, HOST_ALLOC, context, (void **pointer, size_t bytes),
      phc_pinned_alloc(pointer, bytes, 0))
ALSO(cuMemAllocHost_v2, cuMemAllocHost)
ENTRY(cuMemHostAlloc, HOST_ALLOC, context, (void **pointer, size_t bytes, unsigned flags),
      phc_pinned_alloc(pointer, bytes, flags))
ENTRY(cuMemFreeHost, HOST_FREE, context, (void *pointer), phc_pinned_free(pointer))
ENTRY(cuMemHostRegister_v2, HOST_ALLOC, context, (void *pointer, size_t bytes, unsigned flags),
      phc_host_register(pointer, bytes, flags))
ALSO(cuMemHostRegister_v2, cuMemHostRegister)
ENTRY(cuMemHostUnregister, HOST_FREE, context, (void *pointer), phc_host_unregister(pointer))
ENTRY(cuMemHostGetDevicePointer_v2, GET_DEVICE, context, (CUdeviceptr * device, void *host, unsigned flags),
      phc_host_device_pointer((void **)device, host, flags))
ALSO(cuMemHostGetDevicePointer_v2, cuMemHostGetDevicePointer)
ENTRY(cuMemAllocManaged, MALLOC, context, (CUdeviceptr * address, size_t bytes, unsigned flags),
      bytes ? phc_managed_alloc((void **)address, bytes, flags) : cudaErrorInvalidValue)

#define COPY(name, twin, api, direction, to, from, stream_parameter, stream, flag)        \
  STREAM(name, twin, api, (to dst, from src, size_t bytes UNPACK stream_parameter),       \
         (dst, src, bytes UNPACK stream),                                                 \
         phc_copy((void *)dst, (const void *)src, bytes, direction, flag##_handle stream, \
                  flag##_flag(per_thread)))
#define async_handle(unused, handle) handle
#define sync_handle() NULL
COPY(cuMemcpyHtoD_v2, _ptds, MEMCPY_SYNC, cudaMemcpyHostToDevice, CUdeviceptr, const void *, (), (), sync)
COPY(cuMemcpyDtoH_v2, _ptds, MEMCPY_SYNC, cudaMemcpyDeviceToHost, void *, CUdeviceptr, (), (), sync)
COPY(cuMemcpyDtoD_v2, _ptds, MEMCPY_SYNC, cudaMemcpyDeviceToDevice, CUdeviceptr, CUdeviceptr, (), (), sync)
COPY(cuMemcpy, _ptds, MEMCPY_SYNC, cudaMemcpyDefault, CUdeviceptr, CUdeviceptr, (), (), sync)
COPY(cuMemcpyHtoDAsync_v2, _ptsz, MEMCPY_ASYNC, cudaMemcpyHostToDevice, CUdeviceptr, const void *,
     (, void *stream), (, stream), async)
COPY(cuMemcpyDtoHAsync_v2, _ptsz, MEMCPY_ASYNC, cudaMemcpyDeviceToHost, void *, CUdeviceptr, (, void *stream),
     (, stream), async)
COPY(cuMemcpyDtoDAsync_v2, _ptsz, MEMCPY_ASYNC, cudaMemcpyDeviceToDevice, CUdeviceptr, CUdeviceptr,
     (, void *stream), (, stream), async)
COPY(cuMemcpyAsync, _ptsz, MEMCPY_ASYNC, cudaMemcpyDefault, CUdeviceptr, CUdeviceptr, (, void *stream),
     (, stream), async)
ALSO(cuMemcpyHtoD_v2, cuMemcpyHtoD)
ALSO(cuMemcpyDtoH_v2, cuMemcpyDtoH)
ALSO(cuMemcpyDtoD_v2, cuMemcpyDtoD)
ALSO(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync)
ALSO(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync)
ALSO(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync)
#define PEER CUdeviceptr dst, ph_context *to, CUdeviceptr src, ph_context *from, size_t bytes
STREAM(cuMemcpyPeer, _ptds, MEMCPY_SYNC, (PEER), (dst, to, src, from, bytes),
       ((void)to, (void)from,
        phc_copy((void *)dst, (void *)src, bytes, cudaMemcpyDefault, NULL, sync_flag(per_thread))))
STREAM(cuMemcpyPeerAsync, _ptsz, MEMCPY_ASYNC, (PEER, void *stream), (dst, to, src, from, bytes, stream),
       ((void)to, (void)from,
        phc_copy((void *)dst, (void *)src, bytes, cudaMemcpyDefault, stream, async_flag(per_thread))))

static cudaError_t copy_2d(const CUDA_MEMCPY2D *p, void *stream, int flags) {
  if (!p) return cudaErrorInvalidValue;
  if (p->srcMemoryType == 3 || p->dstMemoryType == 3) return unsupported("cuMemcpy2D of an array");
  const char *src = p->srcMemoryType == 1 ? (const char *)p->srcHost : (const char *)p->srcDevice;
  char *dst = p->dstMemoryType == 1 ? (char *)p->dstHost : (char *)p->dstDevice;
  size_t src_pitch = p->srcPitch ? p->srcPitch : p->WidthInBytes,
         dst_pitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
  return phc_copy_2d(dst + p->dstY * dst_pitch + p->dstXInBytes, dst_pitch,
                     src + p->srcY * src_pitch + p->srcXInBytes, src_pitch, p->WidthInBytes, p->Height,
                     cudaMemcpyDefault, stream, flags);
}
STREAM(cuMemcpy2D_v2, _ptds, MEMCPY_SYNC, (const CUDA_MEMCPY2D *p), (p),
       copy_2d(p, NULL, sync_flag(per_thread)))
STREAM(cuMemcpy2DUnaligned_v2, _ptds, MEMCPY_SYNC, (const CUDA_MEMCPY2D *p), (p),
       copy_2d(p, NULL, sync_flag(per_thread)))
STREAM(cuMemcpy2DAsync_v2, _ptsz, MEMCPY_ASYNC, (const CUDA_MEMCPY2D *p, void *stream), (p, stream),
       copy_2d(p, stream, async_flag(per_thread)))
ALSO(cuMemcpy2D_v2, cuMemcpy2D)
ALSO(cuMemcpy2DAsync_v2, cuMemcpy2DAsync)

#define SETS(bits, type)                                                                                 \
  STREAM(cuMemsetD##bits##_v2, _ptds, MEMSET, (CUdeviceptr address, type value, size_t count),           \
         (address, value, count),                                                                        \
         phc_set((void *)address, 0, value, bits / 8, count, 1, NULL, sync_flag(per_thread)))            \
  ALSO(cuMemsetD##bits##_v2, cuMemsetD##bits)                                                            \
  STREAM(cuMemsetD##bits##Async, _ptsz, MEMSET,                                                          \
         (CUdeviceptr address, type value, size_t count, void *stream), (address, value, count, stream), \
         phc_set((void *)address, 0, value, bits / 8, count, 1, stream, async_flag(per_thread)))         \
  STREAM(cuMemsetD2D##bits##_v2, _ptds, MEMSET,                                                          \
         (CUdeviceptr address, size_t pitch, type value, size_t width, size_t rows),                     \
         (address, pitch, value, width, rows),                                                           \
         phc_set((void *)address, pitch, value, bits / 8, width, rows, NULL, sync_flag(per_thread)))     \
  ALSO(cuMemsetD2D##bits##_v2, cuMemsetD2D##bits)                                                        \
  STREAM(cuMemsetD2D##bits##Async, _ptsz, MEMSET,                                                        \
         (CUdeviceptr address, size_t pitch, type value, size_t width, size_t rows, void *stream),       \
         (address, pitch, value, width, rows, stream),                                                   \
         phc_set((void *)address, pitch, value, bits / 8, width, rows, stream, async_flag(per_thread)))
SETS(8, unsigned char)
SETS(16, unsigned short)
SETS(32, unsigned)

// CUpointer_attribute: {number, size}; what a host pointer outside CUDA's knowledge answers to.
static cudaError_t pointer_attribute(void *data, int attribute, CUdeviceptr address) {
  ph_range range;
  if (!data || attribute < 1 || attribute > 20) return cudaErrorInvalidValue;
  bool found = ph_memory_find((void *)address, &range);
  if (attribute == 5) return unsupported("cuPointerGetAttribute of P2P tokens");
  if (!found) return cudaErrorInvalidValue;
  bool device = range.space == PH_SPACE_DEVICE, managed = range.space == PH_SPACE_MANAGED;
  switch (attribute) {
    case 1: return GIVE(data, ph_context *, primary_of(range.device < 0 ? 0 : range.device));
    case 2: return GIVE(data, unsigned, device || managed ? 2 : 1);
    case 3: return GIVE(data, CUdeviceptr, address);
    case 4: return device ? cudaErrorInvalidValue : GIVE(data, CUdeviceptr, address);
    case 6: return GIVE(data, unsigned, 0);
    case 7: return GIVE(data, unsigned long long, range.base);
    case 8: return GIVE(data, unsigned, managed);
    case 9: return GIVE(data, int, range.device < 0 ? 0 : range.device);
    case 10: return GIVE(data, int, device);
    case 11: return GIVE(data, CUdeviceptr, range.base);
    case 12: return GIVE(data, size_t, range.size);
    case 13: return GIVE(data, int, 1);
    case 14: return GIVE(data, uint64_t, 0);
    case 15: return GIVE(data, int, device);
    case 16: return GIVE(data, unsigned, 3);
    case 17: return GIVE(data, void *, NULL);
    case 18: return GIVE(data, size_t, range.size);
    case 19: return GIVE(data, CUdeviceptr, range.base);
    default: return GIVE(data, unsigned long long, range.base);
  }
}
// The plural form takes unknown pointers: their attributes read as zero.
static cudaError_t pointer_attributes(unsigned count, const int *attributes, void **data,
                                      CUdeviceptr address) {
  static const unsigned char sizes[21] = {0, 8, 4, 8, 8, 0, 4, 8, 4, 4, 4, 8, 8, 4, 8, 4, 4, 8, 8, 8, 8};
  if (!attributes || !data || !count) return cudaErrorInvalidValue;
  ph_range range;
  bool found = ph_memory_find((void *)address, &range);
  for (unsigned i = 0; i < count; i++) {
    if (attributes[i] < 1 || attributes[i] > 20 || !data[i]) return cudaErrorInvalidValue;
    memset(data[i], 0, sizes[attributes[i]]);
    if (found) pointer_attribute(data[i], attributes[i], address);
    else if (attributes[i] == 9) *(int *)data[i] = -2;
  }
  return 0;
}
ENTRY(cuPointerGetAttribute, GET_DEVICE, phc_ready, (void *data, int attribute, CUdeviceptr address),
      pointer_attribute(data, attribute, address))
ENTRY(cuPointerGetAttributes, GET_DEVICE, phc_ready,
      (unsigned count, int *attributes, void **data, CUdeviceptr address),
      pointer_attributes(count, attributes, data, address))
ENTRY(cuPointerSetAttribute, GET_DEVICE, phc_ready, (const void *value, int attribute, CUdeviceptr address),
      !value || attribute != 6 || !phc_covered((void *)address, 1) ? cudaErrorInvalidValue : 0)

// Pools are the runtime's.
static cudaError_t pool_of(ph_pool **pool, int device, bool now) {
  cudaError_t error = phc_device_check(device);
  if (error) return error;
  return pool ? (*pool = now ? phc_current_pool(device) : phc_default_pool(device), 0)
              : cudaErrorInvalidValue;
}
static cudaError_t pool_set(int device, ph_pool *pool) {
  cudaError_t error = phc_device_check(device);
  if (error || !phc_pool_alive(pool)) return error ? error : cudaErrorInvalidValue;
  phc_set_current_pool(device, pool);
  return 0;
}
static cudaError_t pool_create(ph_pool **pool, const cudaMemPoolProps *props) {
  if (!pool || !props || props->allocType != 1 || props->location.type != 1) return cudaErrorInvalidValue;
  cudaError_t error = phc_device_check(props->location.id);
  if (error) return error;
  if (props->handleTypes) return unsupported("cuMemPoolCreate with shareable handles");
  return (*pool = phc_pool_create(props->location.id)) ? 0 : cudaErrorMemoryAllocation;
}
ENTRY(cuDeviceGetDefaultMemPool, GET_DEVICE, phc_ready, (ph_pool * *pool, int device),
      pool_of(pool, device, false))
ENTRY(cuDeviceGetMemPool, GET_DEVICE, phc_ready, (ph_pool * *pool, int device), pool_of(pool, device, true))
ENTRY(cuDeviceSetMemPool, GET_DEVICE, phc_ready, (int device, ph_pool *pool), pool_set(device, pool))
ENTRY(cuMemPoolCreate, OTHER, phc_ready, (ph_pool * *pool, const cudaMemPoolProps *props),
      pool_create(pool, props))
ENTRY(cuMemPoolDestroy, OTHER, phc_ready, (ph_pool * pool), phc_pool_destroy(pool))
ENTRY(cuMemPoolGetAttribute, GET_DEVICE, phc_ready, (ph_pool * pool, int attribute, void *value),
      phc_pool_attribute(pool, attribute, value, false))
ENTRY(cuMemPoolSetAttribute, GET_DEVICE, phc_ready, (ph_pool * pool, int attribute, void *value),
      phc_pool_attribute(pool, attribute, value, true))
ENTRY(cuMemPoolTrimTo, OTHER, phc_ready, (ph_pool * pool, size_t keep), phc_pool_trim(pool, keep))
ENTRY(cuMemPoolSetAccess, OTHER, phc_ready, (ph_pool * pool, const cudaMemAccessDesc *list, size_t count),
      !phc_pool_alive(pool) || (count && !list) ? cudaErrorInvalidValue : 0)
STREAM(cuMemAllocAsync, _ptsz, MALLOC, (CUdeviceptr * address, size_t bytes, void *stream),
       (address, bytes, stream),
       phc_pool_alloc((void **)address, bytes, phc_current_pool(ph_current_device()), stream, per_thread))
STREAM(cuMemAllocFromPoolAsync, _ptsz, MALLOC,
       (CUdeviceptr * address, size_t bytes, ph_pool *pool, void *stream), (address, bytes, pool, stream),
       phc_pool_alloc((void **)address, bytes, pool, stream, per_thread))
STREAM(cuMemFreeAsync, _ptsz, FREE, (CUdeviceptr address, void *stream), (address, stream),
       phc_pool_free((void *)address, stream, per_thread))

ENTRY(cuIpcGetMemHandle, OTHER, context, (cudaIpcHandle * handle, CUdeviceptr address),
      phc_ipc_handle(handle, (void *)address))
ENTRY(cuIpcOpenMemHandle_v2, OTHER, context, (CUdeviceptr * address, cudaIpcHandle handle, unsigned flags),
      flags > 1 ? cudaErrorInvalidValue : phc_ipc_open((void **)address, &handle))
ALSO(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle)
ENTRY(cuIpcCloseMemHandle, OTHER, context, (CUdeviceptr address), phc_ipc_close((void *)address))
ENTRY(cuIpcGetEventHandle, OTHER, context, (cudaIpcHandle * handle, void *event),
      phc_ipc_event_handle(handle, event))
ENTRY(cuIpcOpenEventHandle, OTHER, context, (void **event, cudaIpcHandle handle),
      phc_ipc_event_open(event, &handle))

// ---------------------------------------------------------------- virtual memory management
// A reservation is address space, a handle is charged memory, a mapping joins the two.
#define GRANULE ((size_t)2 << 20)
typedef struct ph_physical {
  CUmemAllocationProp prop;
  size_t size;
  int references;  // cuMemCreate and cuMemRetainAllocationHandle
  int mappings;
} ph_physical;
typedef struct ph_mapped {
  ph_physical *physical;
  size_t size;
  bool accessible;
} ph_mapped;
static ph_table *reservations;  // base -> size; phc_mappings: base -> ph_mapped
static ph_table *physicals;
static pthread_mutex_t vmm_lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct ph_search {
  uintptr_t address;
  size_t size;
  bool found;
} ph_search;
static void search_reservation(uintptr_t base, void *size, void *data) {
  ph_search *search = data;
  if (search->address >= base && search->address + search->size <= base + (uintptr_t)size)
    search->found = true;
}
static bool reserved(uintptr_t address, size_t size) {
  ph_search search = {address, size, false};
  phc_table_each(&reservations, search_reservation, &search);
  return search.found;
}

// Alignments beyond a page are met by reserving more and giving back the ends.
static void *reserve(size_t size, size_t alignment) {
  size_t room = size + alignment;
  char *at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return NULL;
  char *start = (char *)phc_round_up((uintptr_t)at, alignment);
  if (start > at) munmap(at, (size_t)(start - at));
  if (at + room > start + size) munmap(start + size, (size_t)(at + room - start - size));
  return start;
}

static cudaError_t address_reserve(CUdeviceptr *address, size_t size, size_t alignment, uint64_t flags) {
  if (!address || !size || size % GRANULE || flags || (alignment & (alignment - 1)))
    return cudaErrorInvalidValue;
  void *start = reserve(size, alignment > GRANULE ? alignment : GRANULE);
  if (!start) return cudaErrorMemoryAllocation;
  phc_table_set(&reservations, (uintptr_t)start, (void *)size);
  *address = (CUdeviceptr)start;
  return 0;
}

static cudaError_t address_free(CUdeviceptr address, size_t size) {
  if (!size || (size_t)phc_table_get(&reservations, address) != size) return cudaErrorInvalidValue;
  for (uintptr_t at = address; at < address + size; at += GRANULE)
    if (phc_table_get(&phc_mappings, at)) return cudaErrorInvalidValue;  // still mapped
  phc_table_set(&reservations, address, NULL);
  munmap((void *)address, size);
  return 0;
}

static cudaError_t prop_check(const CUmemAllocationProp *prop) {
  if (!prop || prop->type != 1) return cudaErrorInvalidValue;
  if (prop->location.type != 1)
    return prop->location.type == 2 || prop->location.type == 3 ? cudaErrorNotSupported
                                                                : cudaErrorInvalidValue;
  return phc_device_check(prop->location.id);
}

static cudaError_t memory_create(ph_physical **handle, size_t size, const CUmemAllocationProp *prop,
                                 uint64_t flags) {
  if (!handle || !size || size % GRANULE || flags) return cudaErrorInvalidValue;
  cudaError_t error = prop_check(prop);
  if (error) return error;
  ph_physical *made = calloc(1, sizeof *made);
  if (!made || size > INT64_MAX || !ph_memory_charge(prop->location.id, (int64_t)size)) {
    free(made);
    return cudaErrorMemoryAllocation;
  }
  *made = (ph_physical){.prop = *prop, .size = size, .references = 1};
  phc_table_set(&physicals, (uintptr_t)made, made);
  *handle = made;
  return 0;
}

// The memory goes back to the device when neither a handle nor a mapping holds it.
static void physical_settle(ph_physical *physical) {
  if (!physical->references) phc_table_set(&physicals, (uintptr_t)physical, NULL);
  if (physical->references || physical->mappings) return;
  ph_memory_charge(physical->prop.location.id, -(int64_t)physical->size);
  free(physical);
}

static cudaError_t memory_release(ph_physical *physical) {
  pthread_mutex_lock(&vmm_lock);
  bool alive = phc_table_get(&physicals, (uintptr_t)physical) != NULL;
  if (alive) {
    physical->references--;
    physical_settle(physical);
  }
  pthread_mutex_unlock(&vmm_lock);
  return alive ? 0 : cudaErrorInvalidValue;
}

static cudaError_t memory_map(CUdeviceptr address, size_t size, size_t offset, ph_physical *physical,
                              uint64_t flags) {
  ph_range range;
  if (!phc_table_get(&physicals, (uintptr_t)physical) || flags) return cudaErrorInvalidValue;
  if (size % GRANULE) return cudaErrorNotSupported;
  if (!size || address % GRANULE || offset || size != physical->size) return cudaErrorInvalidValue;
  if (!reserved(address, size) || ph_memory_find((void *)address, &range)) return cudaErrorInvalidValue;
  for (uintptr_t at = address; at < address + size; at += GRANULE)
    if (phc_table_get(&phc_mappings, at)) return cudaErrorInvalidValue;
  ph_mapped *mapped = calloc(1, sizeof *mapped);
  if (!mapped) return cudaErrorMemoryAllocation;
  pthread_mutex_lock(&vmm_lock);
  *mapped = (ph_mapped){.physical = physical, .size = size};
  physical->mappings++;
  phc_table_set(&phc_mappings, address, mapped);
  pthread_mutex_unlock(&vmm_lock);
  return 0;
}

// Memory is readable once access is set, on the device that owns it or on a peer.
static cudaError_t set_access(CUdeviceptr address, size_t size, const cudaMemAccessDesc *list, size_t count) {
  if (!list || !count || !size) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; i++) {
    if (list[i].location.type == 1 && phc_device_check(list[i].location.id)) return cudaErrorInvalidDevice;
    if (list[i].flags != 0 && list[i].flags != 1 && list[i].flags != 3) return cudaErrorInvalidValue;
  }
  for (uintptr_t at = address; at < address + size;) {
    ph_mapped *mapped = phc_table_get(&phc_mappings, at);
    if (!mapped) return cudaErrorInvalidValue;
    at += mapped->size;
  }
  for (uintptr_t at = address; at < address + size;) {
    ph_mapped *mapped = phc_table_get(&phc_mappings, at);
    if (!mapped->accessible) {
      if (mprotect((void *)at, mapped->size, PROT_READ | PROT_WRITE)) return cudaErrorMemoryAllocation;
      if (ph_register((void *)at, mapped->size, PH_SPACE_DEVICE, mapped->physical->prop.location.id))
        return cudaErrorInvalidValue;
      mapped->accessible = true;
    }
    at += mapped->size;
  }
  return 0;
}

static cudaError_t memory_unmap(CUdeviceptr address, size_t size) {
  if (!size || size % GRANULE || !reserved(address, size)) return cudaErrorInvalidValue;
  pthread_mutex_lock(&vmm_lock);
  for (uintptr_t at = address; at < address + size;) {
    ph_mapped *mapped = phc_table_get(&phc_mappings, at);
    if (!mapped) {
      at += GRANULE;
      continue;
    }
    if (mapped->accessible) {
      ph_unregister((void *)at);
      // Fresh pages: what is mapped here next must read as zero.
      mmap((void *)at, mapped->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0);
    }
    phc_table_set(&phc_mappings, at, NULL);
    at += mapped->size;
    mapped->physical->mappings--;
    physical_settle(mapped->physical);
    free(mapped);
  }
  pthread_mutex_unlock(&vmm_lock);
  return 0;
}

static cudaError_t memory_retain(ph_physical **handle, void *address) {
  ph_range range;
  ph_mapped *mapped = ph_memory_find(address, &range) ? phc_table_get(&phc_mappings, range.base) : NULL;
  if (!handle || !mapped) return cudaErrorInvalidValue;
  pthread_mutex_lock(&vmm_lock);
  if (!mapped->physical->references++)
    phc_table_set(&physicals, (uintptr_t)mapped->physical, mapped->physical);
  *handle = mapped->physical;
  pthread_mutex_unlock(&vmm_lock);
  return 0;
}
static cudaError_t memory_props(CUmemAllocationProp *prop, ph_physical *physical) {
  return phc_table_get(&physicals, (uintptr_t)physical) ? give(prop, &physical->prop, sizeof *prop)
                                                        : cudaErrorInvalidValue;
}
static cudaError_t granularity(size_t *size, const CUmemAllocationProp *prop, int option) {
  cudaError_t error = prop_check(prop);
  return error ? error : option < 0 || option > 1 ? cudaErrorInvalidValue : GIVE(size, size_t, GRANULE);
}
static cudaError_t get_access(unsigned long long *flags, const cudaMemLocation *location,
                              CUdeviceptr address) {
  if (!location || !phc_covered((void *)address, 1)) return cudaErrorInvalidValue;
  return GIVE(flags, unsigned long long, 3);
}
ENTRY(cuMemAddressReserve, MEM_MAP, context,
      (CUdeviceptr * address, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags),
      ((void)hint, address_reserve(address, size, alignment, flags)))
ENTRY(cuMemAddressFree, MEM_MAP, context, (CUdeviceptr address, size_t size), address_free(address, size))
ENTRY(cuMemCreate, MEM_MAP, context,
      (ph_physical * *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags),
      memory_create(handle, size, prop, flags))
ENTRY(cuMemRelease, MEM_MAP, context, (ph_physical * handle), memory_release(handle))
ENTRY(cuMemMap, MEM_MAP, context,
      (CUdeviceptr address, size_t size, size_t offset, ph_physical *handle, unsigned long long flags),
      memory_map(address, size, offset, handle, flags))
ENTRY(cuMemUnmap, MEM_MAP, context, (CUdeviceptr address, size_t size), memory_unmap(address, size))
ENTRY(cuMemSetAccess, MEM_MAP, context,
      (CUdeviceptr address, size_t size, const cudaMemAccessDesc *list, size_t count),
      set_access(address, size, list, count))
ENTRY(cuMemGetAccess, GET_DEVICE, context,
      (unsigned long long *flags, const cudaMemLocation *location, CUdeviceptr address),
      get_access(flags, location, address))
ENTRY(cuMemGetAllocationGranularity, GET_DEVICE, phc_ready,
      (size_t *size, const CUmemAllocationProp *prop, int option), granularity(size, prop, option))
ENTRY(cuMemGetAllocationPropertiesFromHandle, GET_DEVICE, phc_ready,
      (CUmemAllocationProp * prop, ph_physical *handle), memory_props(prop, handle))
ENTRY(cuMemRetainAllocationHandle, GET_DEVICE, context, (ph_physical * *handle, void *address),
      memory_retain(handle, address))

// ---------------------------------------------------------------- what is not simulated
// Answers CUDA_ERROR_NOT_SUPPORTED, which programs that probe for a feature understand, and says so.
#define UNSUPPORTED_CALLS(X)                                                                           \
  X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemGetHandleForAddressRange)   \
  X(cuMulticastCreate) X(cuMulticastAddDevice) X(cuMulticastBindMem) X(cuMulticastBindAddr)            \
  X(cuMulticastUnbind) X(cuMulticastGetGranularity) X(cuDeviceGetDevResource)                          \
  X(cuDevSmResourceSplitByCount) X(cuDevResourceGenerateDesc) X(cuGreenCtxCreate) X(cuGreenCtxDestroy) \
  X(cuGreenCtxStreamCreate) X(cuCtxFromGreenCtx) X(cuGraphCreate) X(cuGraphInstantiateWithFlags)       \
  X(cuGraphLaunch) X(cuGraphDestroy) X(cuGraphExecDestroy) X(cuGraphAddKernelNode_v2)                  \
  X(cuGraphExecUpdate_v2) X(cuGraphGetNodes) X(cuStreamBatchMemOp_v2) X(cuStreamWriteValue64_v2)       \
  X(cuStreamWaitValue64_v2) X(cuDeviceGetLuid) X(cuGetExportTable) X(cuArrayCreate_v2)                 \
  X(cuTexObjectCreate) X(cuSurfObjectCreate) X(cuMemPoolExportToShareableHandle)                       \
  X(cuMemPoolImportFromShareableHandle)
#define UNSUPPORTED_CALL(name) ENTRY(name, OTHER, phc_ready, (void), unsupported(#name))
UNSUPPORTED_CALLS(UNSUPPORTED_CALL)

// ---------------------------------------------------------------- looking up calls
// A plain name stands for the newest version of the call that the caller's CUDA knew. Versions whose
// interface differs from the newest are listed; all others share it and the newest is right.
typedef struct ph_version {
  const char *name;
  int since;
  const char *symbol;
} ph_version;
static const ph_version versions[] = {
    {"cuCtxCreate", 13000, "cuCtxCreate_v4"},
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 0, "cuStreamGetCaptureInfo_v2"},
};

static void *find_call(const char *name, int version, uint64_t flags) {
  static void *self;
  char text[128];
  if (!self) {
    Dl_info info;  // this library, by its own address: another one may lie before it
    if (dladdr((void *)find_call, &info)) self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (!self) return NULL;
  }
  for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
    if (!strcmp(versions[i].name, name) && version >= versions[i].since)
      return dlsym(self, versions[i].symbol);
  static const char *const tails[] = {"_v2", "", "_v3"};
  for (int twin = flags & 2 ? 0 : 2; twin < 3; twin++) {
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
      snprintf(text, sizeof text, "%s%s%s", name, tails[i], twin == 0 ? "_ptsz" : twin == 1 ? "_ptds" : "");
      void *found = dlsym(self, text);
      if (found) return found;
    }
  }
  return NULL;
}

PH_EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                       int *status) {
  if (!name || !function || flags > 2) return cudaErrorInvalidValue;
  *function = find_call(name, version, flags);
  if (status) *status = *function ? 0 : 1;  // CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
  return *function || status ? 0 : cudaErrorSymbolNotFound;
}
PH_EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
