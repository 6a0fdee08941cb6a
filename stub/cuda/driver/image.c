// Kernels and variables in the image of a module: PTX and CUBIN.
#define _GNU_SOURCE
#include "cuda/core/device.h"
#include "cuda/core/kernel.h"
#include "cuda/driver/entry.h"
#include "cuda/driver/module.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>

// PTX: `.entry name(`; NVRTC's stand-in (nvrtc.c) writes names that are not identifiers in quotes.
static bool read_ptx(driver_module *module, const char *text) {
  if (!strstr(text, ".version") || !strstr(text, ".target")) return false;
  for (const char *at = text; (at = strstr(at, ".entry"));) {
    at += strlen(".entry");
    at += strspn(at, " \t\r\n");
    size_t length = *at == '"' ? strcspn(at + 1, "\"") : strcspn(at, " \t\r\n({");
    phc_kernel *kernel = driver_module_add(module, *at == '"' ? at + 1 : at, length);
    const char *body = at + strcspn(at, "{"), *bound = strstr(at, ".maxntid");
    unsigned x = 1, y = 1, z = 1;
    if (bound && bound < body && sscanf(bound, ".maxntid %u , %u , %u", &x, &y, &z) >= 1)
      kernel->max_threads = (int)(x * y * z);
    at = body;
  }
  return true;
}

typedef struct elf_file {
  const char *image;
  size_t size;
  const Elf64_Ehdr *header;
  const Elf64_Shdr *sections;
  const char *names;
  const Elf64_Sym *symbols;
  size_t symbol_count;
  const char *symbol_names;
} elf_file;

static size_t elf_size(const char *image) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  size_t end = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
  for (int i = 0; i < header->e_shnum; i++)
    if (sections[i].sh_type != SHT_NOBITS && sections[i].sh_offset + sections[i].sh_size > end)
      end = sections[i].sh_offset + sections[i].sh_size;
  size_t segments = header->e_phoff + (size_t)header->e_phnum * header->e_phentsize;
  return segments > end ? segments : end;
}

static bool elf_open(elf_file *elf, const char *image) {
  *elf = (elf_file){.image = image, .header = (const Elf64_Ehdr *)image};
  const Elf64_Ehdr *header = elf->header;
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != EM_CUDA || !header->e_shnum) return false;
  elf->size = elf_size(image);
  elf->sections = (const Elf64_Shdr *)(image + header->e_shoff);
  elf->names = image + elf->sections[header->e_shstrndx].sh_offset;
  for (int i = 0; i < header->e_shnum; i++) {
    if (elf->sections[i].sh_type != SHT_SYMTAB) continue;
    elf->symbols = (const Elf64_Sym *)(image + elf->sections[i].sh_offset);
    elf->symbol_count = elf->sections[i].sh_size / sizeof(Elf64_Sym);
    elf->symbol_names = image + elf->sections[elf->sections[i].sh_link].sh_offset;
  }
  return true;
}
static const Elf64_Shdr *elf_section(const elf_file *elf, const char *prefix, const char *name) {
  size_t length = strlen(prefix);
  for (int i = 0; i < elf->header->e_shnum; i++) {
    const char *text = elf->names + elf->sections[i].sh_name;
    if (!strncmp(text, prefix, length) && !strcmp(text + length, name)) return &elf->sections[i];
  }
  return NULL;
}

// Attribute records of .nv.info sections: format, attribute, and for format 4 a size and payload.
enum { NV_MAX_THREADS = 0x05, NV_FRAME_SIZE = 0x11, NV_REGISTERS = 0x2f };
static bool nv_info(const elf_file *elf, const Elf64_Shdr *section, int attribute, int64_t symbol, uint32_t *words,
                    int count) {
  if (!section) return false;
  const unsigned char *at = (const unsigned char *)elf->image + section->sh_offset, *end = at + section->sh_size;
  while (at + 4 <= end) {
    size_t size = at[0] == 4 ? (size_t)at[2] | (size_t)at[3] << 8 : 0;
    const unsigned char *payload = at + 4;
    if (payload + size > end) return false;
    if (at[1] == attribute && at[0] == 4) {
      uint32_t first = 0;
      size_t skip = symbol >= 0 ? 4 : 0;
      if (skip && size >= 4) memcpy(&first, payload, 4);
      if ((!skip || first == (uint32_t)symbol) && size >= skip + 4 * (size_t)count) {
        memcpy(words, payload + skip, 4 * (size_t)count);
        return true;
      }
    }
    at = payload + size;
  }
  return false;
}

static bool read_cubin(driver_module *module, const char *image) {
  elf_file elf;
  if (!elf_open(&elf, image)) return false;
  for (int i = 0; i < elf.header->e_shnum; i++) {
    const char *section = elf.names + elf.sections[i].sh_name;
    if (strncmp(section, ".text.", 6)) continue;
    const char *name = section + 6;
    phc_kernel *kernel = driver_module_add(module, name, strlen(name));
    uint32_t words[3];
    if (elf.sections[i].sh_info >> 24) kernel->registers = (int)(elf.sections[i].sh_info >> 24);
    int64_t symbol = -1;
    for (size_t s = 0; s < elf.symbol_count; s++)
      if (elf.symbols[s].st_shndx == i && ELF64_ST_TYPE(elf.symbols[s].st_info) == STT_FUNC) symbol = (int64_t)s;
    const Elf64_Shdr *common = elf_section(&elf, ".nv.info", "");
    if (symbol >= 0 && nv_info(&elf, common, NV_REGISTERS, symbol, words, 1)) kernel->registers = (int)words[0];
    if (symbol >= 0 && nv_info(&elf, common, NV_FRAME_SIZE, symbol, words, 1)) kernel->local_bytes = (int)words[0];
    if (nv_info(&elf, elf_section(&elf, ".nv.info.", name), NV_MAX_THREADS, -1, words, 3))
      kernel->max_threads = (int)(words[0] * words[1] * words[2]);
    const Elf64_Shdr *shared = elf_section(&elf, ".nv.shared.", name);
    if (shared) kernel->static_shared = (int)shared->sh_size;
    // The section begins with what the driver keeps of every block (sm_80 and later); attributes leave it out.
    if (kernel->static_shared >= PH_SHARED_RESERVED) kernel->static_shared -= PH_SHARED_RESERVED;
    kernel->max_dynamic_shared -= kernel->static_shared;
    if (kernel->max_dynamic_shared < 0) kernel->max_dynamic_shared = 0;
  }
  module->size = elf.size;
  module->image = malloc(elf.size);
  if (!module->image) abort();
  memcpy(module->image, image, elf.size);
  return true;
}

bool driver_read_image(driver_module *module, const void *image) {
  uint32_t magic;
  memcpy(&magic, image, sizeof magic);
  if (magic == CUDA_FATBIN_WRAPPER) {  // the wrapper that nvcc puts around a fat binary
    image = ((const void *const *)image)[1];
    memcpy(&magic, image, sizeof magic);
  }
  if (magic == CUDA_FATBIN) return module->any_name = true;
  return memcmp(image, ELFMAG, SELFMAG) ? read_ptx(module, image) : read_cubin(module, image);
}

const void *driver_find_variable(const driver_module *module, const char *name, size_t *size) {
  elf_file elf;
  if (!module->image || !elf_open(&elf, module->image)) return NULL;
  for (size_t i = 0; i < elf.symbol_count; i++) {
    const Elf64_Sym *symbol = &elf.symbols[i];
    if (ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || strcmp(elf.symbol_names + symbol->st_name, name)) continue;
    *size = symbol->st_size;
    return symbol;
  }
  return NULL;
}
