// Devices.
#include "cuda/core/device.h"
#include "cuda/driver/entry.h"

#include <stdio.h>

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
ENTRY(cuDeviceGetCount, GET_DEVICE, driver_ready, (int *count), GIVE(count, int, phc_devices()))
ENTRY(cuDeviceGet, GET_DEVICE, driver_ready, (int *device, int ordinal), device_get(device, ordinal))
ENTRY(cuDeviceGetName, GET_DEVICE, driver_ready, (char *text, int length, int device),
      device_name(text, length, device))
ENTRY(cuDeviceGetAttribute, GET_DEVICE, driver_ready, (int *value, int attribute, int device),
      device_attribute(value, attribute, device))
ENTRY(cuDeviceTotalMem_v2, GET_DEVICE, driver_ready, (size_t *bytes, int device), device_memory(bytes, device))
ALSO(cuDeviceTotalMem_v2, cuDeviceTotalMem)
ENTRY(cuDeviceGetUuid, GET_DEVICE, driver_ready, (unsigned char *uuid, int device), device_uuid(uuid, device))
ALSO(cuDeviceGetUuid, cuDeviceGetUuid_v2)
ENTRY(cuDeviceGetPCIBusId, GET_DEVICE, driver_ready, (char *text, int length, int device),
      device_pci(text, length, device))
ENTRY(cuDeviceGetByPCIBusId, GET_DEVICE, driver_ready, (int *device, const char *text), device_by_pci(device, text))
ENTRY(cuDeviceComputeCapability, GET_DEVICE, driver_ready, (int *major, int *minor, int device),
      capability(major, minor, device))
ENTRY(cuDeviceCanAccessPeer, GET_DEVICE, driver_ready, (int *can, int device, int peer),
      phc_can_access_peer(can, device, peer))
ENTRY(cuDeviceGetP2PAttribute, GET_DEVICE, driver_ready, (int *value, int attribute, int source, int destination),
      phc_p2p_attribute(value, attribute, source, destination))
