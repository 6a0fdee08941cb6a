// CUDA_VISIBLE_DEVICES: which of its host's GPUs this process sees, and in what order.
//
// Read when CUDA is first used, as by the driver. The list ends at the first entry that names no GPU;
// a GPU named twice, as an empty list, leaves none. NVML ignores it and counts all GPUs.
#include "cuda/core/device.h"
#include "rank/rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int host_devices, visible_devices;
static int physical[PH_MAX_DEVICES];

static void see(int device) {
  ph_see(visible_devices, device);
  physical[visible_devices++] = device;
}

// The GPU that an entry names: its number, or "GPU-" and enough of its UUID to tell it. -1: none.
static int named(const char *entry, size_t length) {
  if (!strncmp(entry, "MIG-", 4)) {
    static bool said;
    if (!said)
      dprintf(
          STDERR_FILENO,
          "phantora: CUDA_VISIBLE_DEVICES names a part of a GPU: MIG is not simulated; name whole GPUs, by number or "
          "UUID\n");
    said = true;
    return -1;
  }
  if (!strncmp(entry, "GPU-", 4)) {
    int found = -1;
    for (int i = 0; i < host_devices; i++) {
      char uuid[PHC_UUID_TEXT];
      phc_uuid_text(i, uuid);
      if (length >= sizeof uuid || strncmp(uuid, entry, length)) continue;
      if (found >= 0) return -1;
      found = i;
    }
    return found;
  }
  char *end;
  long number = strtol(entry, &end, 10);
  return end == entry + length && length && number >= 0 && number < host_devices ? (int)number : -1;
}

// Variables by which MPS gives a process part of a GPU.
static void refuse_shares(void) {
  static const char *const shares[] = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"};
  for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
    if (getenv(shares[i])) ph_unsupported("MPS", shares[i], false);
}

void phc_see(int devices) {
  refuse_shares();
  host_devices = devices < PH_MAX_DEVICES ? devices : PH_MAX_DEVICES;
  visible_devices = 0;
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  if (!list) {
    for (int i = 0; i < host_devices; i++) see(i);
    return;
  }
  for (const char *entry = list;; entry++) {
    entry += strspn(entry, " ");
    size_t length = strcspn(entry, ", ");
    int device = named(entry, length);
    if (device < 0) return;
    for (int i = 0; i < visible_devices; i++)
      if (physical[i] == device) {
        visible_devices = 0;
        return;
      }
    see(device);
    entry += length;
    entry += strspn(entry, " ");
    if (*entry != ',') return;
  }
}

int phc_devices(void) { return visible_devices; }
int phc_physical(int device) { return device >= 0 && device < visible_devices ? physical[device] : device; }
