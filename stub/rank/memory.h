// Layer 3 of the rank runtime, for stubs and the tracer: the memory of devices and the values in it.
#pragma once
#include "rank/clock.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// ---- memory.c
// Device memory is reserved address space: readable, zero until written. Accounting is against
// the simulated GPU's capacity (memory_bytes - context_bytes - communicators).
enum ph_space { PH_SPACE_NONE, PH_SPACE_DEVICE, PH_SPACE_PINNED, PH_SPACE_REGISTERED, PH_SPACE_MANAGED };
typedef struct ph_range {
  uintptr_t base;
  size_t size;
  enum ph_space space;
  int device;
} ph_range;
void *ph_memory_alloc(int device, size_t bytes);  // NULL: the simulated GPU is full
void *ph_pinned_alloc(size_t bytes);
int ph_pinned_free(void *pointer);
int ph_register(void *pointer, size_t bytes, enum ph_space space, int device);  // also VMM and IPC mappings
int ph_unregister(void *pointer);
// The program maps memory of a device to addresses, or unmaps it (cuMemMap): `changed` is called then.
void ph_mapping_by(void (*changed)(const void *pointer, size_t bytes, bool mapped));
void ph_mapping_changed(const void *pointer, size_t bytes, bool mapped);
bool ph_memory_find(const void *pointer, ph_range *range);
void ph_memory_info(int device, size_t *free_bytes, size_t *total_bytes);
// Charges or returns bytes that are not an allocation (communicator buffers, cuMemCreate handles).
// Returns false (and charges nothing) when they don't fit.
bool ph_memory_charge(int device, int64_t bytes);
int64_t ph_memory_peak(void);  // most that was taken of any device, with the context: what nvidia-smi shows
#define PH_GRANULE ((size_t)2 << 20)  // the driver hands out device memory in pieces of 2 MiB
#define PH_HOST_PAGE ((size_t)4096)
void ph_memory_wrote(void *pointer, size_t bytes);  // true bytes were stored: mark dirty
bool ph_memory_true(const void *pointer, size_t bytes);  // do true bytes lie there?
size_t ph_memory_held(void);  // bytes of host memory that true bytes take

// ---- space.c
// Address space for the memory of devices, and for mappings of other memory, aligned to PH_GRANULE: the next addresses
// above those of all calls before (space.c). NULL if there is none.
void *ph_map_device(size_t bytes);
void ph_unmap_device(void *base, size_t bytes);  // any mapping

// ---- host.c
void ph_host_memory(int64_t bytes, bool is_pinned);  // the process has as many more of the host's memory
void ph_data(int64_t cpu, int64_t counted, int64_t apart);  // sets data_cpu and so on of ph_control
void ph_loader(int64_t batch, int64_t used, int64_t workers, int64_t starts);  // data_batch and so on
void ph_uncounted(int64_t cpu);  // cpu_uncounted

// ---- values.c
int ph_memory_free(void *pointer);  // 0, -1 not an allocation
// The payload rule (docs/values.md). Small data are true, all else reads as zero. PHANTORA_DEFINES sets other limits;
// PH_SMALL_ELEMENTS, PH_KNOWN and the like are in phantora/wire/shared.py.
#ifndef PH_TRUE_COPY_BYTES
#define PH_TRUE_COPY_BYTES (1 << 20)  // host-to-device and device-to-device copies up to this are carried
#endif
#ifndef PH_CARRIED_BYTES
#define PH_CARRIED_BYTES (64 << 10)  // a small collective's bytes are true
#endif
#define PH_INTEGER_BYTES (1 << 30)  // integers of a collective up to this are carried
#define PH_REAL_BYTES (16 << 20)  // known reals of a collective up to this are carried,
#define PH_ALL_REAL_BYTES (256 << 20)  // and those of a rank above PH_CARRIED_BYTES up to this, altogether
void ph_memory_clear(void *pointer, size_t bytes);  // a kernel "wrote" here: dirty bytes become zero
// Bytes in place of a kernel's result: operators on them are computed whatever their size.
void ph_memory_give(void *pointer, const void *data, size_t bytes);
size_t ph_memory_length(const void *pointer, size_t bytes);  // without the zeros at its end
// Copies of memory by CUDA semantics for values: from/to any space, obeys the rule above and
// pending payloads. dst and src may be host or device.
void ph_memory_copy(void *dst, const void *src, size_t bytes);
bool ph_read_by_kernels_only(void);  // is a copy from the host one of lists (own_copies)? They take up to 1 MB each
void ph_memory_set(void *pointer, int value, size_t bytes);  // true when small, zero otherwise

// ---- known.c
// Knowledge about a range beyond the rule for small tensors: PH_KNOWN, PH_HOLDS, PH_EQUALS and PH_COMPARES of all of
// it, PH_UNKNOWN of some of it, PH_FRESH of what is not known of it.
unsigned ph_memory_flags(const void *pointer, size_t bytes);
void ph_memory_mark(const void *pointer, size_t bytes, unsigned flags);
bool ph_memory_known(void);  // is anything marked?
bool ph_memory_unseen(void);  // has a kernel without an operator run, which may have written anywhere?
typedef struct ph_known_span {
  size_t from, to;  // bytes from a range's begin
  unsigned flags;  // PH_KNOWN, PH_UNKNOWN
} ph_known_span;
// The first `most` pieces of a range that have one of `flags`.
size_t ph_known_spans(const void *pointer, size_t bytes, unsigned flags, ph_known_span *found, size_t most);

// ---- copied.c
// With nothing simulated: parts were copied one behind the other, to be read together or the first one alone.
void ph_memory_gathered(const void *pointer, size_t bytes, size_t part);

// ---- payload.c
// Results of small collectives arrive later: a range that awaits `ticket`. ph_touch() waits (in
// real time) for every pending range that intersects and stores the bytes.
void ph_expect(void *pointer, size_t bytes, uint64_t ticket);
void ph_touch(const void *pointer, size_t bytes);
void ph_touch_arriving(const void *pointer,
                       size_t bytes);  // ph_touch() for bytes of other ranks, not for deferred ones
// `dst` becomes a copy of `src` of which bytes are still to come: it awaits them as well. False: they do not come, or
// not all by one ticket, and the caller copies.
bool ph_expect_copy(void *dst, const void *src, size_t bytes);
void ph_touch_drop(void *pointer, size_t bytes);  // the range is overwritten: forget its payload
void ph_forget_ticket(uint64_t ticket);  // nothing expects its bytes
#define PH_PARTS (UINT64_C(1) << 62)  // in a ticket: parts of the bytes are taken as known
// Values that are computed when they are read (stub/tracer/deferred.cpp): their tickets have the bit PH_DEFERRED, and
// their bytes come from `bytes`, which the tracer gives; they stay its own until `drop`. It may touch what awaits
// others.
#define PH_DEFERRED (UINT64_C(1) << 63)
typedef const uint8_t *ph_deferred_bytes(uint64_t ticket, size_t *total, int *knowledge);  // PH_F_UNKNOWN
typedef void ph_deferred_drop(uint64_t ticket);
void ph_deferred_by(ph_deferred_bytes *bytes, ph_deferred_drop *drop);
uint64_t ph_next_deferred(void);
// The first piece of a range that awaits bytes: `bytes` of them from `at` on, which are the ticket's from `offset` on.
typedef struct ph_awaited_piece {
  size_t at, bytes, offset;
  uint64_t ticket;
} ph_awaited_piece;
bool ph_awaited(const void *pointer, size_t bytes, ph_awaited_piece *piece);
uint32_t ph_next_communicator(void);  // from 1

// ---- workspaces.c
// A library got a block to work in; each once, in the order of the notes; NULL: no more.
void ph_note_workspace(const void *block);
const void *ph_next_workspace(void);

// ---- l2.c
// A piece of a GPU's memory that an operator reads or writes (l2.c).
typedef struct ph_operand {
  const void *data;
  size_t bytes;
  bool changed, unread;  // written; written only
} ph_operand;
// Touches them, and writes to an operator's end the share that L2 holds of them, and the written share of what they
// displace: 0 if there are none.
void ph_l2_touch(int device, const ph_operand *operands, size_t count, ph_record *end);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
