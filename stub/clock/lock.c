// Moments at which a thread asks for Python's lock, in torch's bindings.
//
// An operator that Python calls runs without the lock, and a binding of C++ asks for the lock where it frees or keeps
// an object of Python's. How often is a property of torch's build, 2 times for torch.add and 8 for Tensor.view, so it
// is not modelled: the calls of torch's library of bindings lead here.
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi/export.h"
#include "rank/rank.h"

extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *thread);
extern void PyEval_AcquireThread(void *thread);
extern int PyGILState_Ensure(void);
extern int PyGILState_Check(void);

#define BINDINGS "/libtorch_python.so"

// A thread that lets go of the lock for less has it back before another one is awake. On an H200's host torch.add on
// the CPU lets go twice, the second time for less, and loses the lock once; on the GPU, for more, twice. The time is
// that of the simulated host: what takes less than 400 ns of it is charged nothing, and takes longer on a busy machine.
#define LEAST_NS 400

static _Thread_local int64_t released;

static void *save(void) {
  void *thread = PyEval_SaveThread();
  released = ph_now();
  return thread;
}

static void restore(void *thread) {
  bool lost = ph_now() - released >= LEAST_NS;
  PyEval_RestoreThread(thread);
  if (lost) ph_regain_interpreter();
}

static void acquire(void *thread) {
  bool lost = ph_now() - released >= LEAST_NS;
  PyEval_AcquireThread(thread);
  if (lost) ph_regain_interpreter();
}

static int ensure(void) {
  bool had = PyGILState_Check();
  int state = PyGILState_Ensure();
  if (!had) ph_regain_interpreter();
  return state;
}

static const struct {
  const char *name;
  void *ours;
} calls[] = {{"PyEval_SaveThread", (void *)save},
             {"PyEval_RestoreThread", (void *)restore},
             {"PyEval_AcquireThread", (void *)acquire},
             {"PyGILState_Ensure", (void *)ensure}};

static void *ours(const char *name) {
  for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i)
    if (!strcmp(calls[i].name, name)) return calls[i].ours;
  return NULL;
}

static bool lead(void **slot, void *to) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)slot & ~(page - 1);
  if (mprotect((void *)at, page, PROT_READ | PROT_WRITE)) return false;
  *slot = to;
  return true;
}

static int lead_calls(struct dl_phdr_info *library, size_t size, void *data) {
  (void)size;
  size_t *found = data;
  const ElfW(Dyn) *entry = NULL;
  if (!library->dlpi_name || !strstr(library->dlpi_name, BINDINGS)) return 0;
  for (int i = 0; i < library->dlpi_phnum; ++i)
    if (library->dlpi_phdr[i].p_type == PT_DYNAMIC)
      entry = (const void *)(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
  const ElfW(Sym) *symbols = NULL;
  const char *names = NULL;
  const ElfW(Rela) * tables[2] = {NULL, NULL};
  size_t bytes[2] = {0, 0};
  for (; entry && entry->d_tag; ++entry) {
    if (entry->d_tag == DT_SYMTAB) symbols = (const void *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_STRTAB) names = (const void *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_JMPREL) tables[0] = (const void *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_PLTRELSZ) bytes[0] = entry->d_un.d_val;
    if (entry->d_tag == DT_RELA) tables[1] = (const void *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_RELASZ) bytes[1] = entry->d_un.d_val;
  }
  for (size_t t = 0; t < 2 && symbols && names; ++t)
    for (const ElfW(Rela) *r = tables[t]; r && r < tables[t] + bytes[t] / sizeof *r; ++r) {
      unsigned kind = ELF64_R_TYPE(r->r_info);
      if (kind != R_X86_64_JUMP_SLOT && kind != R_X86_64_GLOB_DAT) continue;
      void *to = ours(names + symbols[ELF64_R_SYM(r->r_info)].st_name);
      if (to) *found += lead((void **)(library->dlpi_addr + r->r_offset), to);
    }
  return 0;
}

// Lets the clock know when torch's bindings have asked for the lock. False where they have no such calls.
PH_EXPORT bool ph_watch_lock(void) {
  static size_t found;
  if (!found) dl_iterate_phdr(lead_calls, &found);
  return found > 0;
}
