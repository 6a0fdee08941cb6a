// Which function of torch calls: those that count or check the timeouts of collectives, by their names.
//
// torch 2.15's ProcessGroupNCCL2 does not export them: their names are read from the symbol table of the library's
// file.
#define _GNU_SOURCE
#include "rank/torch_hooks/torch_hooks.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Parts of mangled names.
#define ISSUES "8WorkNCCLC"  // the constructor
#define ISSUES_2 "nccl28WorkNCCL5StateC"
#define CHECKS "8WorkNCCL12checkTimeoutE"
#define CHECKS_2 "nccl28WorkNCCL5State11checkStatusE"
#define WATCHES_2 "nccl216ProcessGroupNCCL15timeoutWatchdogE"
#define CALLERS 64  // more are asked about each time

typedef struct caller {
  _Atomic uintptr_t address;
  ph_caller kind;
} caller;
static caller callers[CALLERS];
static atomic_int caller_count;
static pthread_mutex_t callers_lock = PTHREAD_MUTEX_INITIALIZER;

// The name of the function at `offset` in an ELF file, from the symbol table that debuggers read; NULL: none.
static const char *hidden_name(const char *file, size_t bytes, uintptr_t offset) {
  const ElfW(Ehdr) *head = (const void *)file;
  if (bytes < sizeof *head || memcmp(head->e_ident, ELFMAG, SELFMAG)) return NULL;
  if (head->e_shoff > bytes || head->e_shnum > (bytes - head->e_shoff) / sizeof(ElfW(Shdr))) return NULL;
  const ElfW(Shdr) *sections = (const void *)(file + head->e_shoff);
  for (int i = 0; i < head->e_shnum; i++) {
    const ElfW(Shdr) *table = &sections[i];
    if (table->sh_type != SHT_SYMTAB || table->sh_link >= head->e_shnum) continue;
    const ElfW(Shdr) *names = &sections[table->sh_link];
    if (table->sh_offset + table->sh_size > bytes || names->sh_offset + names->sh_size > bytes) return NULL;
    const ElfW(Sym) *symbols = (const void *)(file + table->sh_offset);
    for (size_t j = 0; j < table->sh_size / sizeof *symbols; j++) {
      if (offset - symbols[j].st_value >= symbols[j].st_size || ELF64_ST_TYPE(symbols[j].st_info) != STT_FUNC) continue;
      return symbols[j].st_name < names->sh_size ? file + names->sh_offset + symbols[j].st_name : NULL;
    }
  }
  return NULL;
}

static ph_caller kind_of(const char *name) {
  if (!name) return PH_CALLER_OTHER;
  if (strstr(name, WATCHES_2)) return PH_CALLER_WATCHES;
  bool counts = strstr(name, ISSUES) || strstr(name, CHECKS) || strstr(name, ISSUES_2) || strstr(name, CHECKS_2);
  return counts ? PH_CALLER_COUNTS : PH_CALLER_OTHER;
}

static ph_caller named(uintptr_t address) {
  Dl_info info;
  if (!dladdr((void *)address, &info)) return PH_CALLER_OTHER;
  if (info.dli_sname) return kind_of(info.dli_sname);
  int fd = open(info.dli_fname, O_RDONLY | O_CLOEXEC);
  struct stat about;
  if (fd < 0) return PH_CALLER_OTHER;
  void *file = fstat(fd, &about) ? MAP_FAILED : mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (file == MAP_FAILED) return PH_CALLER_OTHER;
  ph_caller kind = kind_of(hidden_name(file, (size_t)about.st_size, address - (uintptr_t)info.dli_fbase));
  munmap(file, (size_t)about.st_size);
  return kind;
}

ph_caller ph_caller_of(uintptr_t address) {
  int known = atomic_load_explicit(&caller_count, memory_order_acquire);
  for (int i = 0; i < known; i++)
    if (atomic_load_explicit(&callers[i].address, memory_order_relaxed) == address) return callers[i].kind;
  ph_caller found = named(address);
  pthread_mutex_lock(&callers_lock);
  int at = atomic_load(&caller_count);
  if (at < CALLERS) {
    callers[at].kind = found;
    atomic_store(&callers[at].address, address);
    atomic_store_explicit(&caller_count, at + 1, memory_order_release);
  }
  pthread_mutex_unlock(&callers_lock);
  return found;
}
