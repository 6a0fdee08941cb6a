// libnvidia-ml: the management library, describing the simulated GPUs of this process's host.
//
// Simulated facts are answered: identity, memory, clocks, links, processes, power. It has no model
// of temperature or utilisation over wall time: those answer "not supported", as NVML does for boards without a sensor.
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "abi/export.h"
#include "cuda/core/device.h"

enum {
  NVML_SUCCESS = 0,
  NVML_UNINITIALIZED = 1,
  NVML_INVALID_ARGUMENT = 2,
  NVML_NOT_SUPPORTED = 3,
  NVML_NOT_FOUND = 6,
  NVML_INSUFFICIENT_SIZE = 7,
  NVML_DRIVER_NOT_LOADED = 9,
  NVML_GPU_IS_LOST = 15,
  NVML_ARGUMENT_VERSION_MISMATCH = 25,
};
typedef int nvmlReturn_t;
typedef struct ph_nvml_device {
  int index;
} *nvmlDevice_t;

static struct ph_nvml_device devices[64];
static int initialised;
static int present;  // devices of the host

// An entry point that needs nvmlInit, and one that also takes a device.
#define CALL(name, parameters, expression)                                              \
  PH_EXPORT nvmlReturn_t name parameters {                                              \
    ph_enter();                                                                         \
    nvmlReturn_t code = !initialised ? (nvmlReturn_t)NVML_UNINITIALIZED : (expression); \
    ph_leave();                                                                         \
    return code;                                                                        \
  }
// clang-format off
#define ON_DEVICE(name, parameters, expression) \
  CALL(name, parameters, !alive(device) ? (nvmlReturn_t)NVML_INVALID_ARGUMENT : (expression))
// clang-format on
#define ALSO(name, other) PH_EXPORT extern __typeof__(name) other __attribute__((alias(#name)));

static bool alive(nvmlDevice_t device) { return device >= devices && device < devices + present; }

static nvmlReturn_t give(void *to, const void *value, size_t size) {
  if (!to) return NVML_INVALID_ARGUMENT;
  memcpy(to, value, size);
  return NVML_SUCCESS;
}
#define GIVE(to, type, value) give((to), &(type){value}, sizeof(type))

static nvmlReturn_t text(char *to, unsigned room, const char *value) {
  if (!to) return NVML_INVALID_ARGUMENT;
  if (strlen(value) >= room) return NVML_INSUFFICIENT_SIZE;
  strcpy(to, value);
  return NVML_SUCCESS;
}

// ---------------------------------------------------------------- the library
static nvmlReturn_t start(void) {
  if (!initialised) present = ph_devices();  // all of the host's, whatever CUDA_VISIBLE_DEVICES is
  if (!present) return NVML_DRIVER_NOT_LOADED;
  for (int i = 0; i < 64; i++) devices[i].index = i;
  initialised++;
  return NVML_SUCCESS;
}
PH_EXPORT nvmlReturn_t nvmlInit_v2(void) { return start(); }
ALSO(nvmlInit_v2, nvmlInit)
PH_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
  return flags > 3 ? (nvmlReturn_t)NVML_INVALID_ARGUMENT : start();
}
CALL(nvmlShutdown, (void), (initialised--, (nvmlReturn_t)NVML_SUCCESS))

PH_EXPORT const char *nvmlErrorString(nvmlReturn_t code) {
  static const char *const texts[] = {
      "Success",
      "Uninitialized",
      "Invalid Argument",
      "Not Supported",
      "Insufficient Permissions",
      "Already Initialized",
      "Not Found",
      "Insufficient Size",
      "Insufficient External Power",
      "Driver Not Loaded",
      "Timeout",
      "Interrupt Request Issue",
      "NVML Shared Library Not Found",
      "Function Not Found",
      "Corrupted infoROM",
      "GPU is lost",
      "GPU requires reset",
      "GPU access blocked by the operating system",
      "Driver/library version mismatch",
      "In use by another client",
      "Insufficient Memory",
      "No data",
      "vGPU ECC not supported",
      "Insufficient Resources",
      "Invalid Frequency",
      "Argument version mismatch",
      "Requested functionality has been deprecated",
      "System is not in ready state",
      "No supported GPUs were found",
      "Resource not in correct state to perform requested operation",
      "Reset type is not supported for given device",
  };
  bool known = code >= 0 && code < (int)(sizeof texts / sizeof *texts);
  return known ? texts[code] : "Unknown Error";
}

CALL(nvmlSystemGetDriverVersion, (char *to, unsigned room), text(to, room, PH_DRIVER_VERSION_TEXT))
CALL(nvmlSystemGetNVMLVersion, (char *to, unsigned room), text(to, room, "13." PH_DRIVER_VERSION_TEXT))
CALL(nvmlSystemGetCudaDriverVersion_v2, (int *version), GIVE(version, int, PH_CUDA_DRIVER_VERSION))
ALSO(nvmlSystemGetCudaDriverVersion_v2, nvmlSystemGetCudaDriverVersion)
CALL(nvmlDeviceGetCount_v2, (unsigned *count), GIVE(count, unsigned, (unsigned)present))
ALSO(nvmlDeviceGetCount_v2, nvmlDeviceGetCount)

// ---------------------------------------------------------------- finding a device
static nvmlReturn_t by_index(unsigned index, nvmlDevice_t *device) {
  if (index >= (unsigned)present) return NVML_INVALID_ARGUMENT;
  return GIVE(device, nvmlDevice_t, &devices[index]);
}
static nvmlReturn_t by_pci(const char *id, nvmlDevice_t *device) {
  unsigned domain = 0, bus = 0, slot = 0;
  if (!id || sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) return NVML_INVALID_ARGUMENT;
  for (int i = 0; i < present; i++)
    if (!domain && !slot && (int)bus == phc_pci_bus(i)) return by_index((unsigned)i, device);
  return NVML_NOT_FOUND;
}
static nvmlReturn_t by_uuid(const char *uuid, nvmlDevice_t *device) {
  char own[PHC_UUID_TEXT];
  if (!uuid) return NVML_INVALID_ARGUMENT;
  for (int i = 0; i < present; i++) {
    phc_uuid_text(i, own);
    if (!strcmp(own, uuid)) return by_index((unsigned)i, device);
  }
  return NVML_NOT_FOUND;
}
CALL(nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvmlDevice_t *device), by_index(index, device))
ALSO(nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetHandleByIndex)
CALL(nvmlDeviceGetHandleByPciBusId_v2, (const char *id, nvmlDevice_t *device), by_pci(id, device))
ALSO(nvmlDeviceGetHandleByPciBusId_v2, nvmlDeviceGetHandleByPciBusId)
CALL(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device), by_uuid(uuid, device))

// ---------------------------------------------------------------- identity
typedef struct nvmlPciInfo_t {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
} nvmlPciInfo_t;
static nvmlReturn_t pci_info(nvmlPciInfo_t *to, int bus, int device_id) {
  if (!to) return NVML_INVALID_ARGUMENT;
  memset(to, 0, sizeof *to);
  to->bus = (unsigned)bus;
  to->pciDeviceId = (unsigned)device_id;
  snprintf(to->busIdLegacy, sizeof to->busIdLegacy, "0000:%02X:00.0", bus);
  snprintf(to->busId, sizeof to->busId, "00000000:%02X:00.0", bus);
  return NVML_SUCCESS;
}
static int attribute(nvmlDevice_t device, int number) {
  int value = 0;
  phc_attribute(number, device->index, &value);
  return value;
}
static nvmlReturn_t name_of(char *to, unsigned room) {
  char name[sizeof ph_gpu()->name + 1] = {0};
  memcpy(name, ph_gpu()->name, sizeof ph_gpu()->name);
  return text(to, room, name);
}
static nvmlReturn_t uuid_of(nvmlDevice_t device, char *to, unsigned room) {
  char own[PHC_UUID_TEXT];
  phc_uuid_text(device->index, own);
  return text(to, room, own);
}
ON_DEVICE(nvmlDeviceGetName, (nvmlDevice_t device, char *to, unsigned room), name_of(to, room))
ON_DEVICE(nvmlDeviceGetUUID, (nvmlDevice_t device, char *to, unsigned room), uuid_of(device, to, room))
ON_DEVICE(nvmlDeviceGetIndex, (nvmlDevice_t device, unsigned *index), GIVE(index, unsigned, (unsigned)device->index))
ON_DEVICE(nvmlDeviceGetMinorNumber, (nvmlDevice_t device, unsigned *minor),
          GIVE(minor, unsigned, (unsigned)device->index))
ON_DEVICE(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t *to),
          pci_info(to, phc_pci_bus(device->index), attribute(device, 139)))
ALSO(nvmlDeviceGetPciInfo_v3, nvmlDeviceGetPciInfo_v2)
ALSO(nvmlDeviceGetPciInfo_v3, nvmlDeviceGetPciInfo)
ON_DEVICE(nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t device, int *major, int *minor),
          !major || !minor ? NVML_INVALID_ARGUMENT : (*major = ph_gpu()->major, *minor = ph_gpu()->minor, NVML_SUCCESS))
// nvmlDeviceArchitecture: Volta 5, Turing 6, Ampere 7, Ada 8, Hopper 9, Blackwell 10.
static unsigned architecture(void) {
  int major = ph_gpu()->major, minor = ph_gpu()->minor;
  return major >= 9 ? (major == 9 ? 9u : 10u) : major == 8 ? (minor == 9 ? 8u : 7u) : minor >= 5 ? 6u : 5u;
}
ON_DEVICE(nvmlDeviceGetArchitecture, (nvmlDevice_t device, unsigned *value), GIVE(value, unsigned, architecture()))
ON_DEVICE(nvmlDeviceGetPersistenceMode, (nvmlDevice_t device, unsigned *mode), GIVE(mode, unsigned, 1))
ON_DEVICE(nvmlDeviceGetComputeMode, (nvmlDevice_t device, unsigned *mode), GIVE(mode, unsigned, 0))
ON_DEVICE(nvmlDeviceGetMultiGpuBoard, (nvmlDevice_t device, unsigned *value), GIVE(value, unsigned, 0))
ON_DEVICE(nvmlDeviceGetMemoryBusWidth, (nvmlDevice_t device, unsigned *bits),
          GIVE(bits, unsigned, (unsigned)ph_gpu()->bus_width))
ON_DEVICE(nvmlDeviceGetPerformanceState, (nvmlDevice_t device, unsigned *state), GIVE(state, unsigned, 0))
ON_DEVICE(nvmlDeviceGetMigMode, (nvmlDevice_t device, unsigned *now, unsigned *pending),
          !now || !pending ? NVML_INVALID_ARGUMENT : (*now = 0, *pending = 0, NVML_SUCCESS))
// Answers of a GPU that is not divided; to divide it is refused.
ON_DEVICE(nvmlDeviceGetMaxMigDeviceCount, (nvmlDevice_t device, unsigned *count), GIVE(count, unsigned, 0))
ON_DEVICE(nvmlDeviceIsMigDeviceHandle, (nvmlDevice_t device, unsigned *is), GIVE(is, unsigned, 0))
ON_DEVICE(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t device, unsigned index, nvmlDevice_t *mig),
          ((void)index, (void)mig, NVML_NOT_FOUND))
static nvmlReturn_t refuse_mig(const char *call) {
  ph_unsupported("libnvidia-ml", call, true);
  return NVML_NOT_SUPPORTED;
}
ON_DEVICE(nvmlDeviceSetMigMode, (nvmlDevice_t device, unsigned mode, nvmlReturn_t *status),
          mode ? refuse_mig("nvmlDeviceSetMigMode: MIG is not simulated, use whole GPUs")
               : GIVE(status, nvmlReturn_t, 0))
ON_DEVICE(nvmlDeviceCreateGpuInstance, (nvmlDevice_t device, unsigned profile, void *instance),
          ((void)profile, (void)instance,
           refuse_mig("nvmlDeviceCreateGpuInstance: MIG is not simulated, use whole GPUs")))

// ---------------------------------------------------------------- state
typedef struct nvmlMemory_t {
  unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct nvmlMemory_v2_t {
  unsigned version;
  unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
// Memory of a rank itself. A process that is no rank (nvidia-smi) sees that of each.
static int own(nvmlDevice_t device) {
  for (int i = 0; i < phc_devices(); i++)
    if (phc_physical(i) == device->index) return i;
  return -1;
}
static nvmlReturn_t memory(nvmlDevice_t device, nvmlMemory_t *to) {
  size_t free_bytes = ph_gpu()->memory_bytes, total = free_bytes;
  if (!to) return NVML_INVALID_ARGUMENT;
  int seen = ph_attached() ? device->index : own(device);
  if (ph_attached() || phc_primary_active(seen)) ph_memory_info(seen, &free_bytes, &total);
  *to = (nvmlMemory_t){total, free_bytes, total - free_bytes};
  return NVML_SUCCESS;
}
static nvmlReturn_t memory_v2(nvmlDevice_t device, nvmlMemory_v2_t *to) {
  nvmlMemory_t now;
  if (!to) return NVML_INVALID_ARGUMENT;
  if (to->version != (sizeof *to | 2u << 24)) return NVML_ARGUMENT_VERSION_MISMATCH;
  memory(device, &now);
  to->total = now.total;
  to->reserved = 0;
  to->free = now.free;
  to->used = now.used;
  return NVML_SUCCESS;
}
ON_DEVICE(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t *to), memory(device, to))
ON_DEVICE(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t *to), memory_v2(device, to))

// A rank reads itself, another process, and one that shares its GPU, all that have it. The structure of version 1 has
// no instance ids.
typedef struct nvmlProcessInfo_t {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;
static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, void *to, size_t size) {
  nvmlMemory_t now;
  ph_occupant found[PH_MAX_DEVICES];
  if (!count) return NVML_INVALID_ARGUMENT;
  unsigned room = *count;
  if (ph_attached() || ph_shares()) {
    *count = (unsigned)ph_occupants(device->index, found, PH_MAX_DEVICES);
  } else if ((*count = phc_primary_active(own(device)))) {
    memory(device, &now);
    found[0] = (ph_occupant){getpid(), (int64_t)now.used};
  }
  if (!*count) return NVML_SUCCESS;
  if (room < *count || !to) return NVML_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *count; i++) {
    nvmlProcessInfo_t info = {(unsigned)found[i].pid, (unsigned long long)found[i].bytes, 0xffffffffu, 0xffffffffu};
    memcpy((char *)to + i * size, &info, size);
  }
  return NVML_SUCCESS;
}
// clang-format off
#define PROCESSES(name, size) \
  ON_DEVICE(name, (nvmlDevice_t device, unsigned *count, void *to), processes(device, count, to, size))
// clang-format on
PROCESSES(nvmlDeviceGetComputeRunningProcesses, offsetof(nvmlProcessInfo_t, gpu_instance))
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, sizeof(nvmlProcessInfo_t))
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, sizeof(nvmlProcessInfo_t))
// clang-format off
#define NO_PROCESSES(name) \
  ON_DEVICE(name, (nvmlDevice_t device, unsigned *count, void *to), ((void)to, GIVE(count, unsigned, 0)))
// clang-format on
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

static nvmlReturn_t clock_mhz(int type, unsigned *mhz) {  // graphics, SM, memory, video
  if (type < 0 || type > 3) return NVML_INVALID_ARGUMENT;
  if (type == 3) return NVML_NOT_SUPPORTED;
  return GIVE(mhz, unsigned, (unsigned)(type == 2 ? ph_gpu()->memory_clock_khz : ph_gpu()->clock_khz) / 1000);
}
ON_DEVICE(nvmlDeviceGetClockInfo, (nvmlDevice_t device, int type, unsigned *mhz), clock_mhz(type, mhz))
ON_DEVICE(nvmlDeviceGetMaxClockInfo, (nvmlDevice_t device, int type, unsigned *mhz), clock_mhz(type, mhz))
ON_DEVICE(nvmlDeviceGetApplicationsClock, (nvmlDevice_t device, int type, unsigned *mhz), clock_mhz(type, mhz))
ON_DEVICE(nvmlDeviceGetCurrentClocksThrottleReasons, (nvmlDevice_t device, unsigned long long *reasons),
          GIVE(reasons, unsigned long long, 0))

// ---------------------------------------------------------------- power
// A rank asks the simulator what a GPU has drawn up to now in virtual time: its own, or that of another rank of its
// host. A process that is no rank reads what the simulator noted last.
enum { ENERGY_MJ, POWER_MW };
static int64_t drawn(nvmlDevice_t device, unsigned what) {
  if (!ph_connected()) return what == ENERGY_MJ ? ph_drawn_mj(device->index) : ph_drawn_mw(device->index);
  int mine = own(device), host = (int)ph_shared()->ranks_per_host;
  bool used = mine >= 0 && phc_primary_active(mine);
  ph_record record = {.kind = PH_METER, .id = what, .flags = phc_helper_flag(), .meter = {(uint64_t)ph_rank(), mine}};
  if (!used) {
    record.meter.rank = (uint64_t)(ph_rank() / host * host + device->index);
    record.meter.device = -1;
  }
  ph_answer answer = ph_request(&record, NULL, 0);
  return answer.status < 0 ? -1 : answer.value;
}
static nvmlReturn_t energy(nvmlDevice_t device, unsigned long long *mj) {
  if (!mj) return NVML_INVALID_ARGUMENT;
  if (ph_null_mode()) return NVML_NOT_SUPPORTED;
  int64_t value = drawn(device, ENERGY_MJ);
  return value < 0 ? NVML_GPU_IS_LOST : GIVE(mj, unsigned long long, (unsigned long long)value);
}
static nvmlReturn_t power(nvmlDevice_t device, unsigned *mw) {
  if (!mw) return NVML_INVALID_ARGUMENT;
  if (ph_null_mode()) return NVML_NOT_SUPPORTED;
  int64_t value = drawn(device, POWER_MW);
  return value < 0 ? NVML_GPU_IS_LOST : GIVE(mw, unsigned, (unsigned)value);
}
ON_DEVICE(nvmlDeviceGetTotalEnergyConsumption, (nvmlDevice_t device, unsigned long long *mj), energy(device, mj))
ON_DEVICE(nvmlDeviceGetPowerUsage, (nvmlDevice_t device, unsigned *mw), power(device, mw))
ON_DEVICE(nvmlDeviceGetPowerManagementMode, (nvmlDevice_t device, unsigned *mode), GIVE(mode, unsigned, 1))
ON_DEVICE(nvmlDeviceGetPowerManagementLimit, (nvmlDevice_t device, unsigned *mw),
          GIVE(mw, unsigned, ph_gpu()->limit_mw))
ON_DEVICE(nvmlDeviceGetEnforcedPowerLimit, (nvmlDevice_t device, unsigned *mw), GIVE(mw, unsigned, ph_gpu()->limit_mw))
ON_DEVICE(nvmlDeviceGetPowerManagementDefaultLimit, (nvmlDevice_t device, unsigned *mw),
          GIVE(mw, unsigned, ph_gpu()->default_limit_mw))

// ---------------------------------------------------------------- links
// NVLink through a switch: every link's far end is one. Links by generation: V100 6, A100 12, later 18.
static unsigned link_count(void) {
  int major = ph_gpu()->major;
  return !ph_gpu()->nvlink ? 0 : major <= 7 ? 6 : major == 8 ? 12 : 18;
}
static nvmlReturn_t on_link(unsigned link, unsigned *to, unsigned value) {
  if (link >= 18) return NVML_INVALID_ARGUMENT;
  return link < link_count() ? GIVE(to, unsigned, value) : (nvmlReturn_t)NVML_NOT_SUPPORTED;
}
static unsigned link_generation(void) {
  return ph_gpu()->major <= 7 ? 2u : ph_gpu()->major == 8 ? 3u : ph_gpu()->major == 9 ? 4u : 5u;
}
enum { NVML_REMOTE_SWITCH = 2, SWITCHES = 4, SWITCH_BUS = 0x05 };
ON_DEVICE(nvmlDeviceGetNvLinkState, (nvmlDevice_t device, unsigned link, unsigned *active), on_link(link, active, 1))
ON_DEVICE(nvmlDeviceGetNvLinkVersion, (nvmlDevice_t device, unsigned link, unsigned *version),
          on_link(link, version, link_generation()))
ON_DEVICE(nvmlDeviceGetNvLinkCapability, (nvmlDevice_t device, unsigned link, int capability, unsigned *value),
          capability < 0 || capability > 5 ? NVML_INVALID_ARGUMENT
                                           : on_link(link, value, capability == 0 || capability == 2))
ON_DEVICE(nvmlDeviceGetNvLinkRemoteDeviceType, (nvmlDevice_t device, unsigned link, unsigned *type),
          on_link(link, type, NVML_REMOTE_SWITCH))
ON_DEVICE(nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvmlDevice_t device, unsigned link, nvmlPciInfo_t *to),
          link >= link_count() ? NVML_NOT_SUPPORTED : pci_info(to, SWITCH_BUS + (int)(link % SWITCHES), 0x22a310de))
ALSO(nvmlDeviceGetNvLinkRemotePciInfo_v2, nvmlDeviceGetNvLinkRemotePciInfo)
static nvmlReturn_t pair(nvmlDevice_t device, nvmlDevice_t other, int *to, int near, int far) {
  if (!alive(other)) return NVML_INVALID_ARGUMENT;
  return GIVE(to, int, device == other ? near : far);
}
ON_DEVICE(nvmlDeviceGetP2PStatus, (nvmlDevice_t device, nvmlDevice_t other, int index, int *status),
          index < 0 || index > 5 ? NVML_INVALID_ARGUMENT : pair(device, other, status, 0, ph_gpu()->nvlink ? 0 : 5))
ON_DEVICE(nvmlDeviceGetTopologyCommonAncestor, (nvmlDevice_t device, nvmlDevice_t other, int *level),
          pair(device, other, level, 0, 50))  // internal; or the system's own interconnect
ON_DEVICE(nvmlDeviceGetMaxPcieLinkGeneration, (nvmlDevice_t device, unsigned *value),
          GIVE(value, unsigned,
               ph_gpu()->major >= 9   ? 5
               : ph_gpu()->major == 8 ? 4
                                      : 3))
ON_DEVICE(nvmlDeviceGetCurrPcieLinkGeneration, (nvmlDevice_t device, unsigned *value),
          GIVE(value, unsigned,
               ph_gpu()->major >= 9   ? 5
               : ph_gpu()->major == 8 ? 4
                                      : 3))
ON_DEVICE(nvmlDeviceGetMaxPcieLinkWidth, (nvmlDevice_t device, unsigned *value), GIVE(value, unsigned, 16))
ON_DEVICE(nvmlDeviceGetCurrPcieLinkWidth, (nvmlDevice_t device, unsigned *value), GIVE(value, unsigned, 16))

// ---------------------------------------------------------------- no model of these
// The GPU takes part in no fabric between hosts: state 0, with all else zero.
static nvmlReturn_t fabric(void *info, size_t bytes) {
  if (!info || bytes < sizeof(unsigned)) return NVML_INVALID_ARGUMENT;
  memset(info, 0, bytes);
  return NVML_SUCCESS;
}
static nvmlReturn_t fabric_of_version(unsigned *info) {
  unsigned version = info ? *info : 0;  // the size, and the version from bit 24 on
  nvmlReturn_t result = fabric(info, version & 0xffffff);
  if (result == NVML_SUCCESS) *info = version;
  return result;
}
ON_DEVICE(nvmlDeviceGetGpuFabricInfo, (nvmlDevice_t device, void *info), fabric(info, 28))
ON_DEVICE(nvmlDeviceGetGpuFabricInfoV, (nvmlDevice_t device, unsigned *info), fabric_of_version(info))

// clang-format off
#define UNKNOWN_TO_THE_SIMULATION(X)                                                                     \
  X(nvmlDeviceGetTemperature) X(nvmlDeviceGetFanSpeed)                                                   \
  X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetEncoderUtilization) X(nvmlDeviceGetDecoderUtilization) \
  X(nvmlDeviceGetPcieThroughput) X(nvmlDeviceGetSerial) X(nvmlDeviceGetVbiosVersion)                     \
  X(nvmlDeviceGetFieldValues)                                                                            \
  X(nvmlDeviceGetTotalEccErrors) X(nvmlDeviceGetSamples)
// clang-format on
#define UNKNOWN(name) ON_DEVICE(name, (nvmlDevice_t device), NVML_NOT_SUPPORTED)
UNKNOWN_TO_THE_SIMULATION(UNKNOWN)
