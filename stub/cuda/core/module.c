// Kernels and variables that a program registered or that a module holds.
#define _GNU_SOURCE
#include "cuda/core/device.h"
#include "cuda/core/kernel.h"
#include "cuda/core/memory.h"
#include "cuda/core/table.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static phc_table *kernels;  // by handle and by host function
static phc_table *symbols;

typedef struct phc_symbol {
  struct phc_symbol *next;  // of the owner
  const void *host;
  size_t size;
  void *address[PH_MAX_DEVICES];
} phc_symbol;

phc_kernel *phc_kernel_create(const char *symbol, const void *host, phc_owner *owner) {
  phc_kernel *kernel = calloc(1, sizeof *kernel);
  if (!kernel) abort();
  kernel->symbol = symbol;
  kernel->host = host;
  kernel->max_threads = 1024;
  kernel->registers = 32;  // what ptxas gives a typical elementwise kernel; modules say their own
  kernel->max_dynamic_shared = PHC_SHARED_DEFAULT;
  kernel->carveout = -1;
  kernel->owner = owner;
  kernel->next = owner->kernels;
  owner->kernels = kernel;
  phc_table_set(&kernels, (uintptr_t)kernel, kernel);
  if (host) phc_table_set(&kernels, (uintptr_t)host, kernel);
  return kernel;
}

phc_kernel *phc_kernel_find(const void *function) { return phc_table_get(&kernels, (uintptr_t)function); }

// The objects stay: a launch on another thread may hold one.
void phc_owner_drop(phc_owner *owner) {
  for (phc_kernel *kernel = owner->kernels; kernel; kernel = kernel->next) {
    phc_table_set(&kernels, (uintptr_t)kernel, NULL);
    if (kernel->host) phc_table_set(&kernels, (uintptr_t)kernel->host, NULL);
  }
  for (phc_symbol *symbol = owner->symbols; symbol; symbol = symbol->next)
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
  char *text = function && symbol[0] == '_' && symbol[1] == 'Z' ? function(symbol, NULL, NULL, &status) : NULL;
  return text ? text : strdup(symbol);
}

const char *phc_kernel_display(phc_kernel *kernel) {
  char *known = __atomic_load_n(&kernel->display, __ATOMIC_ACQUIRE);
  if (known) return known;
  char *made = demangle(kernel->symbol);
  if (!__atomic_compare_exchange_n(&kernel->display, &known, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    free(made);
    return known;
  }
  return made;
}

void phc_symbol_register(const void *host, size_t size, phc_owner *owner) {
  phc_symbol *symbol = calloc(1, sizeof *symbol);
  if (!symbol) abort();
  symbol->host = host;
  symbol->size = size;
  symbol->next = owner->symbols;
  owner->symbols = symbol;
  phc_table_set(&symbols, (uintptr_t)host, symbol);
}

cudaError_t phc_symbol_find(const void *host, void **address, size_t *size) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  phc_symbol *symbol = phc_table_get(&symbols, (uintptr_t)host);
  if (!symbol) return cudaErrorInvalidSymbol;
  if (size) *size = symbol->size;
  if (!address) return 0;
  int device = ph_current_device() % PH_MAX_DEVICES;
  pthread_mutex_lock(&lock);
  if (!symbol->address[device]) symbol->address[device] = phc_map_device(symbol->size, device);
  *address = symbol->address[device];
  pthread_mutex_unlock(&lock);
  return *address ? 0 : cudaErrorMemoryAllocation;
}
