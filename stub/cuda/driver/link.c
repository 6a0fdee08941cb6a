// The linker.
//
// The linker keeps the last image that it was given: programs link one PTX to get a CUBIN of it.
#include "cuda/driver/entry.h"

#include <stdlib.h>

typedef struct link {
  char *image;
  size_t size;
} link;
static cudaError_t link_create(link **link) {
  if (!link) return cudaErrorInvalidValue;
  *link = calloc(1, sizeof **link);
  return *link ? 0 : cudaErrorMemoryAllocation;
}
static cudaError_t link_add(link *link, const void *data, size_t size) {
  if (!link || !data || !size) return cudaErrorInvalidValue;
  char *image = calloc(1, size + 1);
  if (!image) return cudaErrorMemoryAllocation;
  memcpy(image, data, size);
  free(link->image);
  link->image = image;
  link->size = size;
  return 0;
}
static cudaError_t link_complete(link *link, void **image, size_t *size) {
  if (!link || !image) return cudaErrorInvalidValue;
  if (!link->image) return cudaErrorInvalidKernelImage;
  *image = link->image;
  if (size) *size = link->size;
  return 0;
}
static cudaError_t link_destroy(link *link) {
  if (!link) return cudaErrorInvalidResourceHandle;
  free(link->image);
  free(link);
  return 0;
}
ENTRY(cuLinkCreate_v2, OTHER, driver_current, (unsigned count, int *options, void **values, link **link),
      ((void)count, (void)options, (void)values, link_create(link)))
ALSO(cuLinkCreate_v2, cuLinkCreate)
ENTRY(cuLinkAddData_v2, OTHER, driver_current,
      (link * link, int type, void *data, size_t size, const char *name, unsigned count, int *options, void **values),
      ((void)type, (void)name, (void)count, (void)options, (void)values, link_add(link, data, size)))
ALSO(cuLinkAddData_v2, cuLinkAddData)
ENTRY(cuLinkComplete, OTHER, driver_current, (link * link, void **image, size_t *size),
      link_complete(link, image, size))
ENTRY(cuLinkDestroy, OTHER, driver_current, (link * link), link_destroy(link))
