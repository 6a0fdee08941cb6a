// Layer 3 of the rank runtime: the memory of devices and the values in it.
//   space    addresses
//   memory   ranges, accounts, true bytes
//   known, copied
//   payload  bytes that arrive later
//   values   the payload rule: copies, sets, clears
//   l2       L2 residency of operands
#pragma once
#include "rank/memory.h"
#include "rank/clock/clock.h"

#pragma GCC visibility push(hidden)

// memory.c
void ph_memory_withdraw(void);    // this process takes nothing any longer
size_t ph_memory_release(void *pointer);  // frees an allocation; its size, 0 for none
bool ph_memory_on_device(const void *pointer);
void ph_memory_zero(void *pointer, size_t bytes);  // what is true of the device's memory there becomes zero
void ph_memory_store(void *pointer, const void *data, size_t bytes);  // payload bytes: marks, drops nothing
// The first run of true bytes in a piece of memory: [from, to), empty where there is
// none. It ends at most where the allocation at `pointer` ends: go on from there.
void ph_memory_run(const void *pointer, size_t bytes, const char **from, const char **to);
// known.c
void ph_known_reset(void);
void ph_known_unseen(bool values);  // a kernel without an operator ran; values: true ones lay in memory before
void ph_known_drop(const void *pointer, size_t bytes);  // it is overwritten
bool ph_known_piece(const void *pointer, const void *end, const char **from, const char **to);  // the first, if any
void ph_known_copy(void *dst, const void *src, size_t bytes);  // of the copy is known what is known of the source
void ph_mark_unknown(const void *pointer, size_t bytes);  // all of it is unknown from now on; what is known stays known
// copied.c
void ph_copied_reset(void);
void ph_copied_launch(void);  // a kernel
void ph_copied_note(const void *at, size_t bytes);  // the program copied `bytes` there
bool ph_copied(const void *at, size_t bytes);  // was that the last copy to there, and of late?
// payload.c
void ph_payload_reset(void);

#pragma GCC visibility pop
