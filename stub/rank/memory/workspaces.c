// In a rank: blocks that a library got to work in, whose use the tracer names.

#include "rank/memory/memory.h"

enum { WORKSPACES = 64 };
static const void *_Atomic seen[WORKSPACES];
static _Atomic size_t count, given;

void ph_note_workspace(const void *block) {
  size_t known = atomic_load(&count);
  for (size_t i = 0; i < known && i < WORKSPACES; ++i)
    if (atomic_load(&seen[i]) == block) return;
  if (known >= WORKSPACES || !block) return;
  size_t at = atomic_fetch_add(&count, 1);
  if (at < WORKSPACES) atomic_store(&seen[at], block);
}

const void *ph_next_workspace(void) {
  size_t next = atomic_load(&given), known = atomic_load(&count);
  if (next >= known || next >= WORKSPACES) return NULL;
  return atomic_compare_exchange_strong(&given, &next, next + 1) ? atomic_load(&seen[next]) : NULL;
}
