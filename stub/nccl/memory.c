// Device memory: what communicators take by themselves, and the buffers of a program.
#include <stdatomic.h>

#include "nccl/internal.h"

// A peer gets all channels of sends and receives in a communicator of up to this many ranks (measured); in larger ones
// the peers share them.
#define FULL_RANKS 4

static ncclResult_t charge(ncclComm_t comm, int64_t bytes) {
  if (bytes > 0 && !ph_memory_charge(comm->device, bytes))
    return fail(ncclUnhandledCudaError, "Cuda failure 2 'out of memory' (communicator buffers, %lld bytes)",
                (long long)bytes);
  comm->charged += bytes;
  return ncclSuccess;
}

// Charges what the process keeps when the communicator goes.
static atomic_bool kernels_loaded, sends_loaded;
static ncclResult_t charge_once(ncclComm_t comm, atomic_bool *done, int64_t bytes) {
  if (atomic_exchange(done, true)) return ncclSuccess;
  ncclResult_t result = charge(comm, bytes);
  if (result == ncclSuccess) comm->charged -= bytes;
  return result;
}

static int64_t connections(int channels) { return (int64_t)ph_gpu()->nccl_connection_bytes * channels; }

// Charges the connections that an operation needs and that do not exist yet: since NCCL 2.22 they are made when an
// algorithm or a peer is first used. A GPU description that gives a communicator's bytes has them charged at once
// instead.
ncclResult_t connect_ring(ncclComm_t comm) {
  if (comm->ring || comm->nranks == 1 || ph_gpu()->nccl_bytes_per_comm) return ncclSuccess;
  comm->ring = true;
  return charge(comm, connections(ph_gpu()->nccl_channels));
}

ncclResult_t connect_peer(ncclComm_t comm, int peer) {
  if (peer == comm->rank || ph_gpu()->nccl_bytes_per_comm) return ncclSuccess;
  if (!comm->peers && !(comm->peers = calloc((size_t)comm->nranks, 1)))
    return fail(ncclSystemError, "out of host memory");
  if (comm->peers[peer]) return ncclSuccess;
  comm->peers[peer] = 1;
  int most = ph_gpu()->nccl_peer_channels, channels = ph_gpu()->nvlink ? most : ph_gpu()->nccl_channels;
  while (channels > 1 && channels * comm->nranks > most * FULL_RANKS) channels /= 2;
  ncclResult_t result = charge_once(comm, &sends_loaded, (int64_t)ph_gpu()->nccl_send_bytes);
  return result == ncclSuccess ? charge(comm, connections(channels)) : result;
}

// Memory that a communicator takes when it is made.
ncclResult_t charge_communicator(ncclComm_t comm) {
  ncclResult_t result = charge(comm, (int64_t)ph_gpu()->nccl_bytes_per_comm);
  return result == ncclSuccess ? charge_once(comm, &kernels_loaded, (int64_t)ph_gpu()->nccl_kernel_bytes) : result;
}

// ---------------------------------------------------------------- buffers
// A registered buffer or window.
typedef struct registration {
  uint64_t magic;
  ncclComm_t comm;
} registration;
#define REGISTRATION_MAGIC 0x7068726567303031ULL

NCCL_API(ncclResult_t, ncclMemAlloc, void **ptr, size_t size)
{
  ph_enter();
  ncclResult_t result = check_pointer(ptr, "MemAlloc", "ptr");
  if (result != ncclSuccess) return leave(result);
  *ptr = NULL;
  if (size == 0) return leave(ncclSuccess);
  if (!ph_connected() || size > SIZE_MAX - PH_GRANULE)
    return leave(fail(ncclUnhandledCudaError, "MemAlloc : %zu bytes are not available", size));
  ph_charge(PH_API_MALLOC);
  *ptr = ph_memory_alloc(ph_current_device(), (size + PH_GRANULE - 1) / PH_GRANULE * PH_GRANULE);
  return leave(*ptr ? ncclSuccess : fail(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'"));
}

NCCL_API(ncclResult_t, ncclMemFree, void *ptr)
{
  ph_enter();
  if (!ptr) return leave(ncclSuccess);
  ph_charge(PH_API_FREE);
  return leave(ph_memory_free(ptr) == 0 ? ncclSuccess
                                        : fail(ncclUnhandledCudaError, "Cuda failure 1 'invalid argument' (MemFree)"));
}

static ncclResult_t register_buffer(const char *call, ncclComm_t comm, const void *buffer, size_t size, void **handle) {
  ncclResult_t result = check_comm(comm, call);
  if (result == ncclSuccess) result = check_pointer(handle, call, "handle");
  if (result == ncclSuccess) result = check_pointer(buffer, call, "buff");
  ph_range range;
  if (result == ncclSuccess && (size == 0 || !ph_memory_find(buffer, &range)))
    result = fail(ncclInvalidArgument, "%s : %p (%zu bytes) is not device memory", call, buffer, size);
  if (result != ncclSuccess) return result;
  registration *made = calloc(1, sizeof *made);
  if (!made) return fail(ncclSystemError, "out of host memory");
  *made = (registration){REGISTRATION_MAGIC, comm};
  *handle = made;
  return ncclSuccess;
}

static ncclResult_t deregister_buffer(const char *call, ncclComm_t comm, void *handle) {
  ncclResult_t result = check_comm(comm, call);
  if (result != ncclSuccess || !handle) return result;
  registration *made = handle;
  if (made->magic != REGISTRATION_MAGIC || made->comm != comm)
    return fail(ncclInvalidArgument, "%s : the handle was not registered with this communicator", call);
  made->magic = 0;
  free(made);
  return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommRegister, const ncclComm_t comm, void *buff, size_t size, void **handle)
{
  ph_enter();
  return leave(register_buffer("CommRegister", comm, buff, size, handle));
}

NCCL_API(ncclResult_t, ncclCommDeregister, const ncclComm_t comm, void *handle)
{
  ph_enter();
  return leave(deregister_buffer("CommDeregister", comm, handle));
}

NCCL_API(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
         int winFlags)
{
  ph_enter();
  if (winFlags & ~NCCL_WIN_COLL_SYMMETRIC)
    return leave(fail(ncclInvalidArgument, "CommWindowRegister : invalid flags %d", winFlags));
  return leave(register_buffer("CommWindowRegister", comm, buff, size, (void **)win));
}

NCCL_API(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t win)
{
  ph_enter();
  return leave(deregister_buffer("CommWindowDeregister", comm, win));
}

// Kernels written by the user on top of NCCL's device interface have no meaning without a GPU.
static ncclResult_t no_device_interface(const char *call) {
  ph_unsupported("nccl", call, true);
  return fail(ncclInvalidUsage, "%s : kernels that use NCCL's device interface are not simulated", call);
}

NCCL_API(ncclResult_t, ncclDevCommCreate, ncclComm_t comm, const void *requirements, void *devComm)
{
  (void)comm, (void)requirements, (void)devComm;
  return no_device_interface("ncclDevCommCreate");
}

NCCL_API(ncclResult_t, ncclDevCommDestroy, ncclComm_t comm, const void *devComm)
{
  (void)comm, (void)devComm;
  return no_device_interface("ncclDevCommDestroy");
}
