// The clock by which torch's ProcessGroupNCCL counts the timeouts of its collectives.
//
// It notes std::chrono::steady_clock::now() when a collective is issued and compares later, in the watchdog or in a
// blocking wait. In real time a slow simulation would run into timeouts, and a script that sleeps in virtual time would
// have none left. So these two functions get the rank's host clock: the entry for now() in libtorch_cuda's own table of
// imports is taken over, and callers are distinguished by their names. All else there goes by real time.
//
// torch 2.15's ProcessGroupNCCL2 does the same in functions that it does not export: their names are read from the
// symbol table of the library's file.
//
// If no rank can go on, virtual time stands still. The simulator counts the real time of such stalls, and it is added:
// a collective that nobody joins runs into its timeout as on a cluster, unless the run is found to hang first.
#define _GNU_SOURCE
#include "rank/torch_hooks/torch_hooks.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// Parts of mangled names.
#define ISSUES "8WorkNCCLC"  // the constructor
#define ISSUES_2 "nccl28WorkNCCL5StateC"
#define CHECKS "8WorkNCCL12checkTimeoutE"
#define CHECKS_2 "nccl28WorkNCCL5State11checkStatusE"
#define WATCHES_2 "nccl216ProcessGroupNCCL15timeoutWatchdogE"
#define CALLERS 64  // more are asked about each time
#define NEVER_LATE (INT64_MIN / 4)  // before everything: nothing has run into its timeout
#define POLL_NS 1000000
#define PATIENT_SHARE 20  // a wait that looks again and again: at least so long as this part of its time so far

typedef struct caller {
  _Atomic uintptr_t address;
  ph_caller kind;
} caller;
static caller callers[CALLERS];
static atomic_int caller_count;
static pthread_mutex_t callers_lock = PTHREAD_MUTEX_INITIALIZER;

int64_t ph_stalled(void) { return ph_live() ? __atomic_load_n(&ph_rt.header->stalled_ns, __ATOMIC_RELAXED) : 0; }

int64_t ph_group_clock(void) { return ph_now() + ph_stalled(); }

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

static int64_t (*real_now)(void);
static int (*real_nanosleep)(const struct timespec *, struct timespec *);

static int64_t steady_now(void) {
  bool ended = atomic_load_explicit(&ph_rt.ended, memory_order_relaxed);
  if (!ph_recording() && !ended) return real_now();
  ph_caller caller = ph_caller_of((uintptr_t)__builtin_return_address(0));
  if (caller == PH_CALLER_WATCHES) return real_now() + ph_watchdog_skipped();
  if (caller == PH_CALLER_OTHER) return real_now();
  if (ended) return ph_now();  // it stands still: nothing becomes late while the process ends
  int64_t seen;
  return ph_watchdog_sees(&seen) ? seen : ph_group_clock();
}

// A blocking wait asks whether its collective is done and sleeps. What it waits for may be far away in virtual time.
// A wait for NCCL itself keeps the communicator's lock: no watchdog can make a round.
static int pause_between_looks(const struct timespec *asked, struct timespec *left) {
  static int64_t since, last;
  if (!ph_recording() || !ph_this_thread()->moves_clock || ph_self.borrows_clock) return real_nanosleep(asked, left);
  int64_t ns = (int64_t)asked->tv_sec * 1000000000 + asked->tv_nsec, now = ph_now();
  if (now - last > POLL_NS) since = now;
  int64_t share = (now - since) / PATIENT_SHARE;
  ph_advance(ns > share ? ns : share);
  last = ph_now();
  ph_watchdog_rounds_of_wait();
  struct timespec slice = {0, ns < POLL_NS ? ns : POLL_NS};
  return real_nanosleep(&slice, NULL);
}

const ph_import ph_group_imports[] = {
    {"_ZNSt6chrono3_V212steady_clock3nowEv", (void *)steady_now, (void **)&real_now},
    {"nanosleep", (void *)pause_between_looks, (void **)&real_nanosleep},
    {NULL, NULL, NULL},
};
