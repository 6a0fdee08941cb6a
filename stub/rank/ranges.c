// NVTX ranges and marks of the program become annotation rows.
//
// NVTX is headers only: at its first call in a library it loads the tool that NVTX_INJECTION64_PATH names (this one,
// see phantora/rank/stub_loader.py), calls InitializeInjectionNvtx2 and lets it fill tables of function pointers. So
// ranges of torch.cuda.nvtx, of the nvtx package and of C++ extensions are seen in the same way. The layouts are those
// of NVTX 3 (nvtxTypes.h). Ranges cost no virtual time: without a tool they cost next to none.
#include "rank/rank.h"
#include "abi/export.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#define NAME_ROOM 256
#define NO_LEVEL (-2)  // NVTX_NO_PUSH_POP_TRACKING

enum { ETID_CALLBACKS = 1, MODULE_CORE = 1, MODULE_CORE2 = 5 };
enum { MESSAGE_ASCII = 1, MESSAGE_UNICODE = 2, MESSAGE_REGISTERED = 3 };
enum {
  MARK_EX = 1,
  MARK_A,
  MARK_W,
  START_EX,
  START_A,
  START_W,
  END,
  PUSH_EX,
  PUSH_A,
  PUSH_W,
  POP,  // of the core
  DOMAIN_MARK_EX = 1,
  DOMAIN_START_EX,
  DOMAIN_END,
  DOMAIN_PUSH_EX,
  DOMAIN_POP,                  // of domains
  REGISTER_A = 10,
  REGISTER_W,
  DOMAIN_CREATE_A,
  DOMAIN_CREATE_W,
};

typedef struct attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  union {
    const char *ascii;
    const wchar_t *wide;
    const char *registered;
  } message;
} attributes;
typedef struct callbacks {
  size_t size;
  int (*table)(int module, void ****slots, unsigned *count);
} callbacks;

// CUDA's own C++ libraries mark each of their calls; those are torch's matter, not the program's.
static const char silent_domain[] = "CCCL", program_domain[] = "";

typedef struct range {
  const char *name;  // interned
  int64_t start;
} range;

static range *open_ranges;  // by start and end: index + 1 is the range's number
static size_t open_count, open_room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local range *stack;
static _Thread_local size_t depth, room;

static const char *narrow(const wchar_t *wide, char *into) {
  size_t length = 0;
  for (; wide && wide[length] && length < NAME_ROOM - 1; length++)
    into[length] = wide[length] < 128 ? (char)wide[length] : '?';
  into[length] = 0;
  return into;
}

static const char *message_of(const attributes *a, char *into) {
  if (!a) return "";
  const char *text = a->message_type == MESSAGE_UNICODE ? narrow(a->message.wide, into) : a->message.ascii;
  return a->message_type >= MESSAGE_ASCII && a->message_type <= MESSAGE_REGISTERED && text ? text : "";
}

static bool silent;
// For a framework that marks each of its functions (phantora/rank/shims/deepspeed.py).
PH_EXPORT void phantora_silence_ranges(void) { silent = true; }

static void emit(const char *name, int64_t start) {
  if (silent || !ph_connected() || ph_null_mode()) return;
  ph_enter();
  size_t length = strlen(name);
  ph_record record = {.kind = PH_ANNOTATION, .id = ph_name(ph_hash(name, length, 0), name, length)};
  record.span.start = start;
  ph_emit(&record);
  ph_leave();
}

static range begun(const char *name) {
  char *copy = strdup(name);
  if (!copy) abort();
  return (range){copy, ph_connected() ? ph_now() : 0};
}

static void ended(range r) {
  emit(r.name, r.start);
  free((char *)r.name);
}

static int push(const char *name) {
  if (depth == room) {
    room = room ? 2 * room : 16;
    stack = realloc(stack, room * sizeof *stack);
    if (!stack) abort();
  }
  stack[depth] = begun(name);
  return (int)depth++;
}

static int pop(void) {
  if (!depth) return NO_LEVEL;
  ended(stack[--depth]);
  return (int)depth;
}

static uint64_t start(const char *name) {
  range r = begun(name);
  pthread_mutex_lock(&lock);
  size_t at = 0;
  while (at < open_count && open_ranges[at].name) at++;
  if (at == open_room) {
    open_room = open_room ? 2 * open_room : 16;
    open_ranges = realloc(open_ranges, open_room * sizeof *open_ranges);
    if (!open_ranges) abort();
  }
  if (at == open_count) open_count++;
  open_ranges[at] = r;
  pthread_mutex_unlock(&lock);
  return at + 1;
}

static void end(uint64_t id) {
  range r = {NULL, 0};
  pthread_mutex_lock(&lock);
  if (id && id <= open_count) {
    r = open_ranges[id - 1];
    open_ranges[id - 1].name = NULL;
  }
  pthread_mutex_unlock(&lock);
  if (r.name) ended(r);
}

static void mark(const char *name) { emit(name, ph_now()); }

static void mark_a(const char *name) { mark(name ? name : ""); }
static int push_a(const char *name) { return push(name ? name : ""); }
static uint64_t start_a(const char *name) { return start(name ? name : ""); }
static void mark_w(const wchar_t *name) { mark(narrow(name, (char[NAME_ROOM]){0})); }
static int push_w(const wchar_t *name) { return push(narrow(name, (char[NAME_ROOM]){0})); }
static uint64_t start_w(const wchar_t *name) { return start(narrow(name, (char[NAME_ROOM]){0})); }
static void mark_ex(const attributes *a) { mark(message_of(a, (char[NAME_ROOM]){0})); }
static int push_ex(const attributes *a) { return push(message_of(a, (char[NAME_ROOM]){0})); }
static uint64_t start_ex(const attributes *a) { return start(message_of(a, (char[NAME_ROOM]){0})); }

static void domain_mark(const char *domain, const attributes *a) {
  if (domain != silent_domain) mark_ex(a);
}
static int domain_push(const char *domain, const attributes *a) {
  return domain == silent_domain ? NO_LEVEL : push_ex(a);
}
static int domain_pop(const char *domain) { return domain == silent_domain ? NO_LEVEL : pop(); }
static uint64_t domain_start(const char *domain, const attributes *a) {
  return domain == silent_domain ? 0 : start_ex(a);
}
static void domain_end(const char *domain, uint64_t id) {
  if (domain != silent_domain) end(id);
}
static const char *create_a(const char *name) {
  return name && !strcmp(name, silent_domain) ? silent_domain : program_domain;
}
static const char *create_w(const wchar_t *name) { return create_a(narrow(name, (char[NAME_ROOM]){0})); }
static const char *register_a(const char *domain, const char *text) { return (void)domain, strdup(text ? text : ""); }
static const char *register_w(const char *domain, const wchar_t *text) {
  return register_a(domain, narrow(text, (char[NAME_ROOM]){0}));
}

typedef struct slot {
  unsigned at;
  void *function;
} slot;

static void fill(const callbacks *given, int module, const slot *slots, size_t count) {
  void ***table;
  unsigned size;
  if (!given->table(module, &table, &size)) return;
  for (size_t i = 0; i < count; i++)
    if (slots[i].at < size && table[slots[i].at]) *table[slots[i].at] = slots[i].function;
}

// Called by NVTX in each library that uses it. 1: loaded.
PH_EXPORT int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
  static const slot core[] = {
      {MARK_EX, mark_ex}, {MARK_A, mark_a},   {MARK_W, mark_w}, {START_EX, start_ex},
      {START_A, start_a}, {START_W, start_w}, {END, end},       {PUSH_EX, push_ex},
      {PUSH_A, push_a},   {PUSH_W, push_w},   {POP, pop},
  };
  static const slot domains[] = {
      {DOMAIN_MARK_EX, domain_mark}, {DOMAIN_START_EX, domain_start}, {DOMAIN_END, domain_end},
      {DOMAIN_PUSH_EX, domain_push}, {DOMAIN_POP, domain_pop},        {REGISTER_A, register_a},
      {REGISTER_W, register_w},      {DOMAIN_CREATE_A, create_a},     {DOMAIN_CREATE_W, create_w},
  };
  const callbacks *given = export_table(ETID_CALLBACKS);
  if (!given || given->size < sizeof *given || !given->table) return 0;
  fill(given, MODULE_CORE, core, sizeof core / sizeof *core);
  fill(given, MODULE_CORE2, domains, sizeof domains / sizeof *domains);
  return 1;
}
