// Functions that torch's libraries import and that are taken over: in each library's own table of imports. A symbol of
// the same name that the stubs export would not do: a library that was loaded before them, such as a preloaded
// libtcmalloc that brings libstdc++, would be found first.
#define _GNU_SOURCE
#include "rank/torch_hooks/torch_hooks.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>

typedef struct taker {
  const char *library;
  const ph_import *imports[3];
} taker;

static const taker takers[] = {
    {"libtorch_cuda.so", {ph_group_imports, ph_watchdog_imports, ph_clock_imports}},
    {"libtorch_cpu.so", {ph_clock_imports}},
    {"libtorch_python.so", {ph_clock_imports}},
    {"libc10.so", {ph_clock_imports}},
    {"libc10_cuda.so", {ph_clock_imports}},
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static void patch_slot(void **slot, void *function) {
  uintptr_t page = (uintptr_t)slot & ~(uintptr_t)4095;
  if (mprotect((void *)page, 4096, PROT_READ | PROT_WRITE) == 0) *slot = function;
}

static void patch_named(const taker *library, const char *name, void **slot) {
  for (size_t table = 0; table < COUNT(library->imports) && library->imports[table]; table++)
    for (const ph_import *import = library->imports[table]; import->name; import++)
      if (!strcmp(name, import->name)) patch_slot(slot, import->function);
}

typedef struct object {
  const ElfW(Sym) * symbols;
  const char *strings;
  const ElfW(Rela) * plt, *rela;
  size_t plt_bytes, rela_bytes;
  ElfW(Addr) base;
} object;

static object read_object(const struct dl_phdr_info *info) {
  object found = {.base = info->dlpi_addr};
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    for (const ElfW(Dyn) *d = (void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr); d->d_tag != DT_NULL; d++) {
      if (d->d_tag == DT_SYMTAB) found.symbols = (void *)d->d_un.d_ptr;
      if (d->d_tag == DT_STRTAB) found.strings = (void *)d->d_un.d_ptr;
      if (d->d_tag == DT_JMPREL) found.plt = (void *)d->d_un.d_ptr;
      if (d->d_tag == DT_PLTRELSZ) found.plt_bytes = d->d_un.d_val;
      if (d->d_tag == DT_RELA) found.rela = (void *)d->d_un.d_ptr;
      if (d->d_tag == DT_RELASZ) found.rela_bytes = d->d_un.d_val;
    }
  }
  return found;
}

static void patch_relocations(const taker *library, const object *in, const ElfW(Rela) * table, size_t bytes) {
  for (size_t i = 0; table && i < bytes / sizeof *table; i++) {
    unsigned type = ELF64_R_TYPE(table[i].r_info);
    if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) continue;
    const char *name = in->strings + in->symbols[ELF64_R_SYM(table[i].r_info)].st_name;
    patch_named(library, name, (void **)(in->base + table[i].r_offset));
  }
}

static int patch_object(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size;
  (void)unused;
  const char *file = strrchr(info->dlpi_name, '/');
  for (size_t i = 0; file && i < COUNT(takers); i++) {
    if (strcmp(file + 1, takers[i].library)) continue;
    object found = read_object(info);
    if (!found.symbols || !found.strings) continue;
    patch_relocations(&takers[i], &found, found.plt, found.plt_bytes);
    patch_relocations(&takers[i], &found, found.rela, found.rela_bytes);
  }
  return 0;
}

void ph_take_imports(void) {
  for (size_t table = 0; table < COUNT(takers[0].imports); table++)
    for (const ph_import *import = takers[0].imports[table]; import->name; import++)
      if (import->real) *import->real = dlsym(RTLD_DEFAULT, import->name);
  ph_watchdogs_prepare();
  dl_iterate_phdr(patch_object, NULL);
}
