// Device memory: reserved address space, accounting against the simulated GPU, and the bytes in it.
//
// Memory reads as zero until true bytes are stored; the pages that hold such bytes are marked, so
// that clearing what a kernel "wrote" costs nothing where nothing true lies (docs/values.md).
#define _GNU_SOURCE
#include "rank/memory/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SMALL_ALLOCATION (PH_GRANULE / 2)  // allocations up to this share a chunk
#define SMALL_ALIGN ((size_t)512)          // alignment of cudaMalloc
#define GROUP_PAGES ((size_t)4096)         // pages per bit of the upper bitmap: 16 MiB
#define DROP_PAGES 16                      // runs of whole pages from here on are given back to the system

// ---------------------------------------------------------------- ranges
typedef struct range {
  ph_range is;
  bool owned;             // mapped by us, private: whole pages can be dropped
  bool small;             // lies in a shared chunk
  size_t charged;         // bytes on the device's account
  uint64_t *pages;        // bit per 4 KiB page: holds true bytes; mapped at the first mark
  uint64_t *groups;       // bit per GROUP_PAGES pages that may hold such a page
  struct chunk *chunk;    // of a small allocation
} range;

// 2 MiB shared by small allocations; freed with the last of them.
typedef struct chunk {
  struct chunk *next;
  char *base;
  int device;
  size_t used;
  int live;
} chunk;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry {     // by address; the addresses are kept here, so that a search reads few cache lines
  uintptr_t base, end;
  range *of;
} *ranges;
static size_t range_count, range_room;
static size_t last_hit;
static chunk *chunks;
static int64_t accounts[PH_MAX_DEVICES];  // bytes taken: allocations and charges
static bool short_of[PH_MAX_DEVICES];     // memory ran out once: the context has given back what it can
static int64_t granted[PH_MAX_DEVICES];   // for the context, of a GPU that processes share
static int64_t published[PH_MAX_DEVICES];  // of these, what others see, the context with it
static int64_t most;                      // that any device ever had taken, its context with it
static _Atomic size_t marked_pages;       // over all ranges; 0: nothing true lies anywhere

static void clear_in(range *r, uintptr_t from, uintptr_t to);

// Index of the first range that ends after `address`.
static size_t first_after(uintptr_t address) {
  size_t low = 0, high = range_count;
  if (last_hit < range_count) {
    const struct entry *hit = &ranges[last_hit];
    if (address >= hit->base && address < hit->end) return last_hit;
  }
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges[middle].end <= address)
      low = middle + 1;
    else
      high = middle;
  }
  last_hit = low;
  return low;
}

static range *find(uintptr_t address) {
  size_t i = first_after(address);
  return i < range_count && ranges[i].base <= address ? ranges[i].of : NULL;
}

static int add(range *fresh) {
  size_t at = first_after(fresh->is.base);
  uintptr_t end = fresh->is.base + fresh->is.size;
  if (at < range_count && ranges[at].base < end) return EEXIST;
  if (range_count == range_room) {
    size_t room = range_room ? range_room * 2 : 64;
    struct entry *grown = realloc(ranges, room * sizeof *grown);
    if (!grown) return ENOMEM;
    ranges = grown;
    range_room = room;
  }
  memmove(ranges + at + 1, ranges + at, (range_count - at) * sizeof *ranges);
  ranges[at] = (struct entry){fresh->is.base, end, fresh};
  range_count++;
  return 0;
}

static size_t page_count(const range *r) {
  return (r->is.base % PH_HOST_PAGE + r->is.size + PH_HOST_PAGE - 1) / PH_HOST_PAGE;
}
static size_t group_count(const range *r) { return (page_count(r) + GROUP_PAGES - 1) / GROUP_PAGES; }
static size_t page_words(const range *r) { return group_count(r) * (GROUP_PAGES / 64); }
static size_t group_words(const range *r) { return (group_count(r) + 63) / 64; }

static void forget_pages(range *r) {
  if (!r->pages) return;
  size_t words = page_words(r), marked = 0;
  for (size_t g = 0; g < group_count(r); g++) {
    if (!(r->groups[g / 64] >> g % 64 & 1)) continue;
    for (size_t w = g * (GROUP_PAGES / 64); w < (g + 1) * (GROUP_PAGES / 64); w++)
      marked += (size_t)__builtin_popcountll(r->pages[w]);
  }
  atomic_fetch_sub(&marked_pages, marked);
  munmap(r->pages, (words + group_words(r)) * sizeof *r->pages);
  r->pages = NULL;
}

static void discard(range *r) {
  forget_pages(r);
  free(r);
}

// Takes the range that begins at `pointer` and is of one of `spaces` (bits) out of the table.
static range *take(const void *pointer, unsigned spaces, bool owned) {
  size_t at = first_after((uintptr_t)pointer);
  if (at >= range_count) return NULL;
  range *r = ranges[at].of;
  if (r->is.base != (uintptr_t)pointer || r->owned != owned || !(spaces >> r->is.space & 1)) return NULL;
  memmove(ranges + at, ranges + at + 1, (range_count - at - 1) * sizeof *ranges);
  range_count--;
  return r;
}

static size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

static void *reserve(size_t bytes) {
  char *base = ph_map_device(bytes);
  if (base) madvise(base, bytes, MADV_NOHUGEPAGE);  // a true byte shall cost 4 KiB, not 2 MiB
  return base;
}

static range *make(void *base, size_t bytes, enum ph_space space, int device, bool owned) {
  range *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  r->is = (ph_range){(uintptr_t)base, bytes, space, device};
  r->owned = owned;
  return r;
}

// ---------------------------------------------------------------- accounting
static int64_t context_of(int device) {
  return (int64_t)(ph_gpu()->context_bytes - (short_of[device] ? ph_gpu()->spare_bytes : 0));
}

static int64_t capacity(int device) { return ph_gpu() ? (int64_t)ph_gpu()->memory_bytes - context_of(device) : 0; }

// Lets processes that are no ranks (nvidia-smi) see what this one takes of a GPU.
static void publish(int device, int64_t bytes) {
  bool own = ph_shares() && ph_of_host(device) == ph_home();
  ph_control *place = !ph_live() ? NULL : own ? ph_rt.control : ph_place(ph_of_host(device), 0);
  if (!place) return;
  __atomic_fetch_add(&place->memory, bytes - published[device], __ATOMIC_RELAXED);
  published[device] = bytes;
}

void ph_memory_withdraw(void) {
  for (int device = 0; device < ph_rt.devices; device++) publish(device, 0);
}

// ---- a GPU that processes share: the simulator takes and gives its memory in the order of their clocks
static bool shared(int device) { return ph_recording() && ph_shares() && ph_of_host(device) == ph_home(); }

// Without the lock, which other threads may want meanwhile. Answers how much is free then.
static bool ask(int64_t bytes, int64_t *rest) {
  ph_record record = {.kind = PH_SHARE, .flags = ph_moves_clock() ? 0 : PH_F_HELPER, .share = {.bytes = bytes}};
  pthread_mutex_unlock(&lock);
  ph_answer answer = ph_request(&record, NULL, 0);
  pthread_mutex_lock(&lock);
  if (rest) *rest = answer.value;
  return answer.status == 0;
}

static void give(int64_t bytes) {
  ph_record record = {.kind = PH_SHARE, .share = {.bytes = -bytes}};
  if (bytes) ph_emit(&record);
}

// The context comes with the first bytes.
static bool take_shared(int device, int64_t bytes) {
  int64_t context = granted[device] ? 0 : context_of(device);
  if (bytes + context > 0 && !ask(bytes + context, NULL)) {
    if (short_of[device]) return false;
    short_of[device] = true;
    int64_t spare = granted[device] ? (int64_t)ph_gpu()->spare_bytes : 0;
    granted[device] -= spare;
    give(spare);
    context = granted[device] ? 0 : context_of(device);
    if (!ask(bytes + context, NULL)) return false;
  } else if (bytes + context < 0) {
    give(-bytes);
  }
  granted[device] += context;
  return true;
}

static bool charge(int device, int64_t bytes) {
  if (shared(device)) {
    if (!take_shared(device, bytes)) return false;
  } else if (bytes > 0 && accounts[device] + bytes > capacity(device)) {
    short_of[device] = true;
    if (accounts[device] + bytes > capacity(device)) return false;
  }
  accounts[device] += bytes;
  publish(device, accounts[device] + context_of(device));
  if (ph_gpu() && accounts[device] + context_of(device) > most) {
    most = accounts[device] + context_of(device);
    if (ph_live()) ph_rt.control->memory_peak = most;
  }
  return true;
}

static bool is_device(int device) { return device >= 0 && device < ph_devices(); }

bool ph_memory_charge(int device, int64_t bytes) {
  if (!is_device(device)) return false;
  pthread_mutex_lock(&lock);
  bool fits = charge(device, bytes);
  pthread_mutex_unlock(&lock);
  return fits;
}

int64_t ph_memory_peak(void) {
  pthread_mutex_lock(&lock);
  int64_t peak = most;
  pthread_mutex_unlock(&lock);
  return peak;
}

void ph_memory_info(int device, size_t *free_bytes, size_t *total_bytes) {
  *free_bytes = *total_bytes = 0;
  if (!is_device(device)) return;
  if (ph_attached()) {
    int64_t rest = (int64_t)ph_gpu()->memory_bytes - ph_occupied(device);
    *total_bytes = ph_gpu()->memory_bytes;
    *free_bytes = rest > 0 ? (size_t)rest : 0;
    return;
  }
  pthread_mutex_lock(&lock);
  *total_bytes = ph_gpu()->memory_bytes;
  int64_t rest = capacity(device) - accounts[device];
  if (shared(device)) ask(0, &rest);
  *free_bytes = rest > 0 ? (size_t)rest : 0;
  pthread_mutex_unlock(&lock);
}

// ---------------------------------------------------------------- allocations
static range *allocate_small(int device, size_t bytes) {
  size_t size = rounded(bytes, SMALL_ALIGN);
  chunk *in = chunks;
  while (in && (in->device != device || PH_GRANULE - in->used < size)) in = in->next;
  bool fresh = !in;
  if (fresh) {
    if (!charge(device, (int64_t)PH_GRANULE)) return NULL;
    char *base = reserve(PH_GRANULE);
    in = base ? calloc(1, sizeof *in) : NULL;
    if (!in) {
      if (base) ph_unmap_device(base, PH_GRANULE);
      charge(device, -(int64_t)PH_GRANULE);
      return NULL;
    }
    *in = (chunk){.next = chunks, .base = base, .device = device};
    chunks = in;
  }
  range *r = make(in->base + in->used, bytes, PH_SPACE_DEVICE, device, true);
  if (!r) return NULL;
  r->small = true;
  r->chunk = in;
  if (add(r)) {
    free(r);
    return NULL;
  }
  in->used += size;
  in->live++;
  return r;
}

static range *allocate_large(int device, size_t bytes) {
  size_t size = rounded(bytes, PH_GRANULE);
  if (size < bytes || !charge(device, (int64_t)size)) return NULL;
  void *base = reserve(size);
  range *r = base ? make(base, bytes, PH_SPACE_DEVICE, device, true) : NULL;
  if (!r || add(r)) {
    free(r);
    if (base) ph_unmap_device(base, size);
    charge(device, -(int64_t)size);
    return NULL;
  }
  r->charged = size;
  return r;
}

void *ph_memory_alloc(int device, size_t bytes) {
  if (!is_device(device) || !bytes || bytes > (size_t)INT64_MAX - PH_GRANULE) return NULL;
  pthread_mutex_lock(&lock);
  range *r = bytes <= SMALL_ALLOCATION ? allocate_small(device, bytes) : allocate_large(device, bytes);
  pthread_mutex_unlock(&lock);
  return r ? (void *)r->is.base : NULL;
}

static void release_chunk(chunk *dead) {
  chunk **at = &chunks;
  while (*at != dead) at = &(*at)->next;
  *at = dead->next;
  charge(dead->device, -(int64_t)PH_GRANULE);
  ph_unmap_device(dead->base, PH_GRANULE);
  free(dead);
}

size_t ph_memory_release(void *pointer) {
  pthread_mutex_lock(&lock);
  range *r = take(pointer, 1U << PH_SPACE_DEVICE, true);
  if (r && r->small) {
    clear_in(r, r->is.base, r->is.base + r->is.size);  // the chunk stays mapped
    if (--r->chunk->live == 0) release_chunk(r->chunk);
  } else if (r) {
    charge(r->is.device, -(int64_t)r->charged);
    ph_unmap_device(pointer, r->charged);
  }
  size_t size = r ? r->is.size : 0;
  if (r) discard(r);
  pthread_mutex_unlock(&lock);
  return size;
}

void *ph_pinned_alloc(size_t bytes) {
  if (!bytes || bytes > (size_t)INT64_MAX - PH_HOST_PAGE) return NULL;
  size_t size = rounded(bytes, PH_HOST_PAGE);
  void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return NULL;
  range *r = make(base, bytes, PH_SPACE_PINNED, -1, true);
  pthread_mutex_lock(&lock);
  if (!r || add(r)) {
    free(r);
    munmap(base, size);
    base = NULL;
  } else {
    r->charged = size;
  }
  pthread_mutex_unlock(&lock);
  if (base) ph_host_memory((int64_t)size, true);
  return base;
}

int ph_pinned_free(void *pointer) {
  pthread_mutex_lock(&lock);
  range *r = take(pointer, 1U << PH_SPACE_PINNED, true);
  int64_t size = r ? (int64_t)r->charged : 0;
  if (r) {
    munmap(pointer, r->charged);
    discard(r);
  }
  pthread_mutex_unlock(&lock);
  ph_host_memory(-size, true);
  return r ? 0 : -1;
}

int ph_register(void *pointer, size_t bytes, enum ph_space space, int device) {
  if (!pointer || !bytes || space == PH_SPACE_NONE) return -1;
  range *r = make(pointer, bytes, space, device, false);
  if (!r) return -1;
  pthread_mutex_lock(&lock);
  int error = add(r);
  pthread_mutex_unlock(&lock);
  if (!error) return 0;
  free(r);
  errno = error;
  return -1;
}

int ph_unregister(void *pointer) {
  pthread_mutex_lock(&lock);
  range *r = take(pointer, ~0U, false);
  if (r) discard(r);
  pthread_mutex_unlock(&lock);
  return r ? 0 : -1;
}

static void (*_Atomic mapping_changed)(const void *pointer, size_t bytes, bool mapped);

void ph_mapping_by(void (*changed)(const void *pointer, size_t bytes, bool mapped)) {
  atomic_store(&mapping_changed, changed);
}

void ph_mapping_changed(const void *pointer, size_t bytes, bool mapped) {
  void (*changed)(const void *, size_t, bool) = atomic_load(&mapping_changed);
  if (changed) changed(pointer, bytes, mapped);
}

bool ph_memory_find(const void *pointer, ph_range *out) {
  pthread_mutex_lock(&lock);
  range *r = find((uintptr_t)pointer);
  if (r) *out = r->is;
  pthread_mutex_unlock(&lock);
  return r != NULL;
}

// ---------------------------------------------------------------- true bytes
static bool map_pages(range *r) {
  if (r->pages) return true;
  size_t words = page_words(r);
  void *bits = mmap(NULL, (words + group_words(r)) * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (bits == MAP_FAILED) return false;
  r->pages = bits;
  r->groups = r->pages + words;
  return true;
}

// Pages of `r` that [from, to) touches: first and one past the last.
static void pages_of(const range *r, uintptr_t from, uintptr_t to, size_t *first, size_t *end) {
  uintptr_t origin = r->is.base / PH_HOST_PAGE * PH_HOST_PAGE;
  *first = (from - origin) / PH_HOST_PAGE;
  *end = (to - origin + PH_HOST_PAGE - 1) / PH_HOST_PAGE;
}
static uintptr_t page_address(const range *r, size_t page) {
  return r->is.base / PH_HOST_PAGE * PH_HOST_PAGE + page * PH_HOST_PAGE;
}

static void mark(range *r, uintptr_t from, uintptr_t to) {
  if (!map_pages(r)) abort();  // a few bytes of host memory are gone: nothing can go on
  size_t first, end, added = 0;
  pages_of(r, from, to, &first, &end);
  for (size_t page = first; page < end; page++) {
    uint64_t *word = &r->pages[page / 64], bit = 1ULL << page % 64;
    added += !(*word & bit);
    *word |= bit;
    r->groups[page / GROUP_PAGES / 64] |= 1ULL << page / GROUP_PAGES % 64;
  }
  atomic_fetch_add(&marked_pages, added);
}

// The next marked page in [page, end), or `end`. Skips empty groups and forgets them.
static size_t next_marked(range *r, size_t page, size_t end) {
  while (page < end) {
    size_t group = page / GROUP_PAGES;
    if (!(r->groups[group / 64] >> group % 64)) {
      page = (group / 64 + 1) * 64 * GROUP_PAGES;
      continue;
    }
    if (!(r->groups[group / 64] >> group % 64 & 1)) {
      page = (group + 1) * GROUP_PAGES;
      continue;
    }
    uint64_t word = r->pages[page / 64] >> page % 64;
    if (word) {
      page += (size_t)__builtin_ctzll(word);
      return page < end ? page : end;
    }
    page = (page / 64 + 1) * 64;
  }
  return end;
}

static void drop_empty_groups(range *r, size_t first, size_t end) {
  // Only groups that lie in [first, end) wholly are known to be empty.
  for (size_t g = (first + GROUP_PAGES - 1) / GROUP_PAGES; (g + 1) * GROUP_PAGES <= end; g++)
    r->groups[g / 64] &= ~(1ULL << g % 64);
}

static void clear_in(range *r, uintptr_t from, uintptr_t to) {
  if (!r->pages) return;
  size_t first, end;
  pages_of(r, from, to, &first, &end);
  size_t page = next_marked(r, first, end), removed = 0;
  if (page == end) return;
  while (page < end) {
    uintptr_t start = page_address(r, page);
    if (start < from || start + PH_HOST_PAGE > to) {  // in part: other bytes of the page stay
      uintptr_t low = start < from ? from : start, high = start + PH_HOST_PAGE > to ? to : start + PH_HOST_PAGE;
      memset((void *)low, 0, high - low);
      page = next_marked(r, page + 1, end);
      continue;
    }
    size_t run = page;
    while (run < end && page_address(r, run) + PH_HOST_PAGE <= to && (r->pages[run / 64] >> run % 64 & 1)) {
      r->pages[run / 64] &= ~(1ULL << run % 64);
      run++;
    }
    removed += run - page;
    size_t bytes = (run - page) * PH_HOST_PAGE;
    if (run - page < DROP_PAGES || !r->owned || madvise((void *)start, bytes, MADV_DONTNEED))
      memset((void *)start, 0, bytes);
    page = next_marked(r, run, end);
  }
  atomic_fetch_sub(&marked_pages, removed);
  drop_empty_groups(r, from > page_address(r, first) ? first + 1 : first, to < page_address(r, end) ? end - 1 : end);
}

// Calls `visit` for each piece of [pointer, pointer + bytes) that lies in device memory.
static void each_piece(const void *pointer, size_t bytes, void (*visit)(range *, uintptr_t, uintptr_t)) {
  uintptr_t at = (uintptr_t)pointer, end = at + bytes;
  for (size_t i = first_after(at); i < range_count && ranges[i].base < end; i++) {
    range *r = ranges[i].of;
    uintptr_t from = at > r->is.base ? at : r->is.base;
    uintptr_t stop = r->is.base + r->is.size;
    if (r->is.space == PH_SPACE_DEVICE) visit(r, from, end < stop ? end : stop);
  }
}

void ph_memory_wrote(void *pointer, size_t bytes) {
  if (!bytes) return;
  pthread_mutex_lock(&lock);
  each_piece(pointer, bytes, mark);
  pthread_mutex_unlock(&lock);
}

bool ph_memory_on_device(const void *pointer) {
  pthread_mutex_lock(&lock);
  range *r = find((uintptr_t)pointer);
  bool device = r && r->is.space == PH_SPACE_DEVICE;
  pthread_mutex_unlock(&lock);
  return device;
}

void ph_memory_zero(void *pointer, size_t bytes) {
  if (!atomic_load_explicit(&marked_pages, memory_order_relaxed)) return;
  pthread_mutex_lock(&lock);
  each_piece(pointer, bytes, clear_in);
  pthread_mutex_unlock(&lock);
}

void ph_memory_store(void *pointer, const void *data, size_t bytes) {
  memcpy(pointer, data, bytes);
  ph_memory_wrote(pointer, bytes);
}

bool ph_memory_true(const void *pointer, size_t bytes) {
  uintptr_t at = (uintptr_t)pointer, end = at + bytes;
  bool found = false;
  pthread_mutex_lock(&lock);
  for (size_t i = first_after(at); !found && i < range_count && ranges[i].base < end; i++) {
    range *r = ranges[i].of;
    uintptr_t stop = r->is.base + r->is.size;
    if (r->is.space != PH_SPACE_DEVICE || !r->pages) continue;
    size_t first, last;
    pages_of(r, at > r->is.base ? at : r->is.base, end < stop ? end : stop, &first, &last);
    found = next_marked(r, first, last) < last;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

void ph_memory_run(const void *pointer, size_t bytes, const char **from, const char **to) {
  uintptr_t at = (uintptr_t)pointer, end = at + bytes;
  pthread_mutex_lock(&lock);
  range *r = find(at);
  uintptr_t stop = r && r->is.base + r->is.size < end ? r->is.base + r->is.size : end;
  *from = *to = (const char *)stop;
  if (r && r->pages) {
    size_t first, last;
    pages_of(r, at, stop, &first, &last);
    size_t page = next_marked(r, first, last), run = page;
    while (run < last && (r->pages[run / 64] >> run % 64 & 1)) run++;
    if (page < last) {
      *from = (const char *)(page_address(r, page) < at ? at : page_address(r, page));
      *to = (const char *)(page_address(r, run) > stop ? stop : page_address(r, run));
    }
  }
  pthread_mutex_unlock(&lock);
}

size_t ph_memory_held(void) { return atomic_load_explicit(&marked_pages, memory_order_relaxed) * PH_HOST_PAGE; }
