// Identity of a host's GPUs.
#include "cuda/core/device.h"
#include "rank/rank.h"

#include <stdio.h>
#include <string.h>

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

void phc_uuid_text(int device, char text[PHC_UUID_TEXT]) {
  unsigned char u[16];
  phc_device_uuid(device, u);
  int at = snprintf(text, PHC_UUID_TEXT, "GPU-");
  for (int i = 0; i < 16; i++)
    at +=
        snprintf(text + at, PHC_UUID_TEXT - (size_t)at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", u[i]);
}
