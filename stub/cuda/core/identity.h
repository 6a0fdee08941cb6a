// How a host's GPUs are distinguished. All take the host's number of a GPU.
#pragma once

#pragma GCC visibility push(default)

#define PHC_UUID_TEXT 41
int phc_pci_bus(int device);  // bus number; domain 0, device 0, function 0
void phc_device_uuid(int device, unsigned char uuid[16]);
void phc_uuid_text(int device, char text[PHC_UUID_TEXT]);  // GPU-xxxxxxxx-...

#pragma GCC visibility pop
