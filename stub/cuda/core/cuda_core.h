// What the CUDA runtime and the CUDA driver have in common: one implementation, two faces.
//
// cudart.c and cuda_driver.c translate their calls into calls of this interface, which is part of
// the rank runtime's library. Results are CUDA error codes (the two faces share the numbers); a
// handle of one face is valid in the other, as with the real libraries.
#pragma once
#include "abi/cuda_abi.h"
#include "cuda/core/visible.h"
#include "rank/rank.h"

#pragma GCC visibility push(default)

// ---------------------------------------------------------------- state
// Is there a device? 0, cudaErrorNoDevice (not connected), cudaErrorInitializationError (a child
// forked by a rank that had used CUDA), or the sticky error that ended the context.
cudaError_t phc_ready(void);
// The same for calls that create or need a context: makes the current device's primary context
// current in this thread.
cudaError_t phc_context(void);
cudaError_t phc_device_check(int device);  // cudaErrorInvalidDevice for a bad ordinal
bool phc_is_sticky(cudaError_t code);
int phc_context_device(void);      // device of this thread's current context, -1 none
void phc_context_set(int device);  // -1: no context is current
bool phc_primary_active(int device);
const char *phc_error_name(int code, bool driver);  // NULL when unknown
const char *phc_error_text(int code, bool driver);

// ---------------------------------------------------------------- devices
// CUdevice_attribute and cudaDeviceAttr share their numbers. false: no such attribute.
bool phc_attribute(int attribute, int device, int *value);
// The next three take the host's number of a GPU.
void phc_device_uuid(int device, unsigned char uuid[16]);
#define PHC_UUID_TEXT 41
void phc_uuid_text(int device, char text[PHC_UUID_TEXT]);  // GPU-xxxxxxxx-...
int phc_pci_bus(int device);  // bus number; domain 0, device 0, function 0
cudaError_t phc_limit(int limit, size_t *value);
cudaError_t phc_set_limit(int limit, size_t value);
cudaError_t phc_can_access_peer(int *can, int device, int peer);
cudaError_t phc_peer_access(int device, int peer, bool enable);
cudaError_t phc_p2p_attribute(int *value, int attribute, int source, int destination);

// ---------------------------------------------------------------- kernels
typedef struct ph_owner {  // a module, or what a program registered in one go
  struct ph_kernel *kernels;
  struct ph_symbol *symbols;
  const void *image;  // the fat binary of a program, NULL for a module
} ph_owner;
typedef struct ph_kernel {
  uint64_t magic;
  const char *symbol;  // as the compiler named it (mangled); not copied, lives as long as the owner
  char *display;       // demangled, as profilers show it; made at the first launch
  uint32_t name;       // wire id of `display`, 0 before the first launch
  int max_threads, registers, static_shared, local_bytes, const_bytes;
  int max_dynamic_shared;  // 48 KiB less `static_shared` until raised
  int carveout, cluster[3], non_portable, policy;
  ph_owner *owner;
  struct ph_kernel *next;  // of the owner
  const void *host;        // address of the host function, NULL for a module's kernel
} ph_kernel;
ph_kernel *phc_kernel_create(const char *symbol, const void *host, ph_owner *owner);
ph_kernel *phc_kernel(const void *function);  // a host function's address or a handle; NULL: neither
void phc_owner_drop(ph_owner *owner);         // its kernels and variables are no longer found
const char *phc_kernel_display(ph_kernel *kernel);
cudaError_t phc_kernel_attribute(const ph_kernel *kernel, int attribute, int *value);
cudaError_t phc_kernel_set_attribute(ph_kernel *kernel, int attribute, int value);
enum { PH_LAUNCH_DRIVER = 1, PH_LAUNCH_COOP = 2, PH_LAUNCH_PER_THREAD = 4 };
cudaError_t phc_launch(ph_kernel *kernel, dim3 grid, dim3 block, size_t shared, void *stream, int flags,
                       const cudaLaunchAttribute *attributes, unsigned count);
cudaError_t phc_occupancy(int *blocks, const ph_kernel *kernel, int threads, size_t shared);
cudaError_t phc_max_active_clusters(int *clusters, const ph_kernel *kernel, int threads, size_t shared,
                                    const cudaLaunchAttribute *attributes, unsigned count);

// Device variables of modules (__constant__, __device__): made when first asked for.
void phc_symbol_register(const void *host, size_t size, ph_owner *owner);
cudaError_t phc_symbol(const void *host, void **address, size_t *size);

// ---------------------------------------------------------------- streams and events
cudaError_t phc_stream_create(void **stream, unsigned flags, int priority);
cudaError_t phc_stream_destroy(void *stream);
cudaError_t phc_stream_find(void *handle, bool per_thread, ph_stream **stream);
cudaError_t phc_stream_sync(void *stream, bool per_thread);
cudaError_t phc_stream_query(void *stream, bool per_thread);
cudaError_t phc_stream_wait(void *stream, void *event, unsigned flags, bool per_thread);
cudaError_t phc_device_sync(void);
cudaError_t phc_event_create(void **event, unsigned flags);
cudaError_t phc_event_destroy(void *event);
cudaError_t phc_event_record(void *event, void *stream, unsigned flags, bool per_thread);
cudaError_t phc_event_query(void *event);
cudaError_t phc_event_sync(void *event);
cudaError_t phc_event_elapsed(float *ms, void *start, void *end);
// Runs `function` on a helper thread once the stream's earlier work is done.
cudaError_t phc_host_function(void *stream, bool per_thread, cudaHostFn_t function, void *data);

// ---------------------------------------------------------------- memory
cudaError_t phc_malloc(void **pointer, size_t bytes);
cudaError_t phc_free(void *pointer);
cudaError_t phc_pinned_alloc(void **pointer, size_t bytes, unsigned flags);
cudaError_t phc_pinned_free(void *pointer);
cudaError_t phc_managed_alloc(void **pointer, size_t bytes, unsigned flags);
cudaError_t phc_pitch_alloc(void **pointer, size_t *pitch, size_t width, size_t height);
cudaError_t phc_host_register(void *pointer, size_t bytes, unsigned flags);
cudaError_t phc_host_unregister(void *pointer);
cudaError_t phc_host_device_pointer(void **device, void *host, unsigned flags);
bool phc_covered(const void *pointer,
                 size_t bytes);  // inside one allocation, or virtual-memory mappings side by side
size_t phc_round_up(size_t value, size_t unit);
enum { PHC_ASYNC = 1, PHC_PER_THREAD = 2 };
cudaError_t phc_copy(void *dst, const void *src, size_t bytes, int kind, void *stream, int flags);
cudaError_t phc_copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                        size_t height, int kind, void *stream, int flags);
cudaError_t phc_copy_3d(const cudaMemcpy3DParms *parameters, void *stream, int flags);
// `pattern` of `width` bytes (1, 2 or 4), rows of `columns` elements.
cudaError_t phc_set(void *pointer, size_t pitch, uint32_t pattern, int width, size_t columns, size_t rows,
                    void *stream, int flags);

typedef struct ph_pool {
  uint64_t magic;
  int device;
  bool is_default;
  int reuse[3];  // cudaMemPoolReuse*: kept and reported
  uint64_t threshold, used, used_high, reserved, reserved_high;
} ph_pool;
ph_pool *phc_default_pool(int device);
ph_pool *phc_current_pool(int device);
void phc_set_current_pool(int device, ph_pool *pool);
bool phc_pool_alive(const ph_pool *pool);
ph_pool *phc_pool_create(int device);
cudaError_t phc_pool_destroy(ph_pool *pool);
cudaError_t phc_pool_alloc(void **pointer, size_t bytes, ph_pool *pool, void *stream, bool per_thread);
cudaError_t phc_pool_free(void *pointer, void *stream, bool per_thread);
cudaError_t phc_pool_attribute(ph_pool *pool, int attribute, void *value, bool set);
cudaError_t phc_pool_trim(ph_pool *pool, size_t keep);

cudaError_t phc_ipc_handle(cudaIpcHandle *handle, void *pointer);
cudaError_t phc_ipc_open(void **pointer, const cudaIpcHandle *handle);
cudaError_t phc_ipc_close(void *pointer);
cudaError_t phc_ipc_event_handle(cudaIpcHandle *handle, void *event);
cudaError_t phc_ipc_event_open(void **event, const cudaIpcHandle *handle);

// A small hash table from addresses to objects; thread safe.
typedef struct ph_table ph_table;
void phc_table_set(ph_table **table, uintptr_t key, void *value);  // NULL value removes
void *phc_table_get(ph_table *const *table, uintptr_t key);
extern ph_table *phc_mappings;  // virtual-memory mappings by address: cuda_driver.c keeps them
void phc_table_each(ph_table *const *table, void (*visit)(uintptr_t key, void *value, void *data),
                    void *data);

#pragma GCC visibility pop
