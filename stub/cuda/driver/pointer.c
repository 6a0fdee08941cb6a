// Attributes of pointers.
#include "cuda/core/memory.h"
#include "cuda/driver/context.h"
#include "cuda/driver/entry.h"

// CUpointer_attribute: {number, size}; what a host pointer outside CUDA's knowledge answers to.
static cudaError_t pointer_attribute(void *data, int attribute, CUdeviceptr address) {
  ph_range range;
  if (!data || attribute < 1 || attribute > 20) return cudaErrorInvalidValue;
  bool found = ph_memory_find((void *)address, &range);
  if (attribute == 5) return driver_unsupported("cuPointerGetAttribute of P2P tokens");
  if (!found) return cudaErrorInvalidValue;
  bool device = range.space == PH_SPACE_DEVICE, managed = range.space == PH_SPACE_MANAGED;
  switch (attribute) {
    case 1:
      return GIVE(data, driver_context *, driver_primary(range.device < 0 ? 0 : range.device));
    case 2:
      return GIVE(data, unsigned, device || managed ? 2 : 1);
    case 3:
      return GIVE(data, CUdeviceptr, address);
    case 4:
      return device ? cudaErrorInvalidValue : GIVE(data, CUdeviceptr, address);
    case 6:
      return GIVE(data, unsigned, 0);
    case 7:
      return GIVE(data, unsigned long long, range.base);
    case 8:
      return GIVE(data, unsigned, managed);
    case 9:
      return GIVE(data, int, range.device < 0 ? 0 : range.device);
    case 10:
      return GIVE(data, int, device);
    case 11:
      return GIVE(data, CUdeviceptr, range.base);
    case 12:
      return GIVE(data, size_t, range.size);
    case 13:
      return GIVE(data, int, 1);
    case 14:
      return GIVE(data, uint64_t, 0);
    case 15:
      return GIVE(data, int, device);
    case 16:
      return GIVE(data, unsigned, 3);
    case 17:
      return GIVE(data, void *, NULL);
    case 18:
      return GIVE(data, size_t, range.size);
    case 19:
      return GIVE(data, CUdeviceptr, range.base);
    default:
      return GIVE(data, unsigned long long, range.base);
  }
}
// The plural form takes unknown pointers: their attributes read as zero.
static cudaError_t pointer_attributes(unsigned count, const int *attributes, void **data, CUdeviceptr address) {
  static const unsigned char sizes[21] = {0, 8, 4, 8, 8, 0, 4, 8, 4, 4, 4, 8, 8, 4, 8, 4, 4, 8, 8, 8, 8};
  if (!attributes || !data || !count) return cudaErrorInvalidValue;
  ph_range range;
  bool found = ph_memory_find((void *)address, &range);
  for (unsigned i = 0; i < count; i++) {
    if (attributes[i] < 1 || attributes[i] > 20 || !data[i]) return cudaErrorInvalidValue;
    memset(data[i], 0, sizes[attributes[i]]);
    if (found)
      pointer_attribute(data[i], attributes[i], address);
    else if (attributes[i] == 9)
      *(int *)data[i] = -2;
  }
  return 0;
}
ENTRY(cuPointerGetAttribute, GET_DEVICE, driver_ready, (void *data, int attribute, CUdeviceptr address),
      pointer_attribute(data, attribute, address))
ENTRY(cuPointerGetAttributes, GET_DEVICE, driver_ready,
      (unsigned count, int *attributes, void **data, CUdeviceptr address),
      pointer_attributes(count, attributes, data, address))
ENTRY(cuPointerSetAttribute, GET_DEVICE, driver_ready, (const void *value, int attribute, CUdeviceptr address),
      !value || attribute != 6 || !phc_covered((void *)address, 1) ? cudaErrorInvalidValue : 0)
