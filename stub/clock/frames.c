// The host time of Python between operators: every Python frame that a clock-moving thread enters
// costs the host profile's PY_FRAME, and PY_CODE for every 1,000 units of its code.
//
// Code that ran a moment ago runs faster: on a real host a frame of the same PyTorch code took 0.15 us in a loop
// of 53 frames, 0.45 in one of 167 and 0.8 to 1 us in FSDP2's steps (validation/probes/host_time.py). So its units
// count as far as it is cold.
//
// Frames are counted, not timed, so the clock stays deterministic. CPython offers a hook for it
// (PEP 523) that costs about 90 ns a frame, since calls are no longer inlined; a profiler would switch off
// the interpreter's specialisation. The length of a function's code stands for the work in one call
// of it: C functions that it calls, attribute look-ups, arithmetic. The code of the import system is
// free of charge, because what it does depends on compiled files that an earlier run may have left; so is
// what __eq__ does, because a dict calls it when hashes collide, and many hashes are made of addresses; what __del__
// does, because the collector of garbage calls it when all threads together have made enough, in any of them; and what
// waits for other threads and processes, because how often it looks whether they are done depends on their real speed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "abi/export.h"
#include "rank/rank.h"

typedef struct ph_pyobject ph_pyobject;
typedef ph_pyobject *(*eval_function)(void *thread, void *frame, int exception);

extern const char *Py_GetVersion(void);
extern void *PyInterpreterState_Get(void);
extern void Py_DecRef(ph_pyobject *object);
extern ph_pyobject *PyObject_GetAttrString(ph_pyobject *object, const char *name);
extern const char *PyUnicode_AsUTF8AndSize(ph_pyobject *text, long *length);
extern long PyObject_Size(ph_pyobject *object);
extern void PyErr_Clear(void);

// Not in the stable ABI, and under different names since 3.12: looked up when installed.
static eval_function evaluate;
static ph_pyobject *(*frame_code)(void *frame);  // 3.10 and 3.12 on; a new reference
static int (*set_extra)(ph_pyobject *code, long index, void *extra);
static long extra_index = -1;

#define F_CODE_311 4  // words before f_code in 3.11's _PyInterpreterFrame, which has no accessor
#define UNIT_BYTES 2
#define MAX_UNITS 64   // of a call that count: a long function mostly returns early or takes one of many ways

// Parts of paths in Python's standard library.
static const char *const waiting[] = {
    "/multiprocessing/", "/concurrent/futures/", "/asyncio/",  "/threading.py",
    "/queue.py",         "/selectors.py",        "/socket.py", "/subprocess.py",
};

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), tail = strlen(end);
  return length >= tail && !strcmp(text + length - tail, end);
}

static bool is_ours(const char *file) {  // Python of phantora in a rank
  return strstr(file, "/phantora/rank/") || strstr(file, "/phantora/launch/") ||
         ends_with(file, "/phantora/process.py");
}

static bool is_free(const char *file) {
  if (!strncmp(file, "<frozen importlib", 17) || !strncmp(file, "<frozen zipimport", 17) ||
      strstr(file, "/importlib/") || is_ours(file))
    return true;
  if (!strstr(file, "/python3") || strstr(file, "-packages/")) return false;  // modules of the same names
  for (size_t i = 0; i < sizeof waiting / sizeof *waiting; i++)
    if (strstr(file, waiting[i])) return true;
  return false;
}

// What these do, and call, depends on how far other threads and processes are: a DataLoader's workers deliver and end
// when they do; an executor starts a thread or process for a task unless one is idle; a callback is called at once
// where what it waits for is done already, else by another thread; a lock that another process holds is asked for again
// and again; a folder is made by the first rank of the first run; a folder on sys.path that another process wrote to is
// listed once more for the version of a package. What a weak reference calls when its object dies is called sooner or
// later, or never, for a process or thread that is over.
// Tables of decompositions and of sympy's methods are made, and DeepSpeed's modules are wrapped, in the order of sets
// of operators and classes, whose hashes are addresses: these depend on the lengths of paths, on the environment and on
// what threads allocate meanwhile. NetworkX goes through all variables of the environment when it is imported.
static const struct {
  const char *file, *function;  // the end of a path, or a folder in it; NULL: all functions
} of_others[] = {
    {"/torch/utils/data/_utils/signal_handling.py", NULL},
    {"/torch/utils/data/dataloader.py", "_get_data"},
    {"/concurrent/futures/_base.py", "add_done_callback"},
    {"/concurrent/futures/thread.py", "_adjust_thread_count"},
    {"/concurrent/futures/process.py", "_adjust_process_count"},
    {"/filelock/", NULL},
    {"/importlib/metadata/", NULL},
    {"/deepspeed/runtime/zero/partition_parameters.py", "_enable_class"},
    {"/deepspeed/runtime/zero/partition_parameters.py", "_disable_class"},
    {"/deepspeed/runtime/zero/partition_parameters.py", "_enable_class_apply"},
    {"/deepspeed/runtime/zero/partition_parameters.py", "_disable_class_apply"},
    {"/weakref.py", "remove"},
    {"/_weakrefset.py", "_remove"},
    {"/torch/export/decomp_utils.py", NULL},
    {"/networkx/utils/backends.py", "_set_configs_from_environment"},
    {"/sympy/multipledispatch/conflict.py", NULL},
    {"/sympy/multipledispatch/dispatcher.py", "dispatch"},
    {"<frozen os>", "makedirs"},
    {"/os.py", "makedirs"},  // of 3.10
    {"/pathlib.py", "mkdir"},
};

static bool lies_in(const char *file, const char *place) {
  return ends_with(place, "/") ? strstr(file, place) != NULL : ends_with(file, place);
}

static bool depends_on_others(const char *file, const char *function) {
  for (size_t i = 0; i < sizeof of_others / sizeof *of_others; i++)
    if (lies_in(file, of_others[i].file) && (!of_others[i].function || !strcmp(function, of_others[i].function)))
      return true;
  return false;
}

// A file that Inductor writes, named by the hash of its text: FOLDER/ab/cab....py. Its functions have no branches, so
// a call runs all of their code: 2,000 units for the forward pass of a transformer's block.
#define GENERATED_NAME 55  // characters

static bool is_generated(const char *file) {
  size_t length = strlen(file);
  if (length < GENERATED_NAME + 4) return false;
  const char *name = file + length - GENERATED_NAME;
  return name[-1] == '/' && name[-4] == '/' && name[0] == 'c' && !strncmp(name - 3, name + 1, 2) &&
         ends_with(name, ".py");
}

// Facts about a code object. Frames find it in one table by the address of their code: a frame's entry is rarely in
// a near cache, so one line is read for it and not three.
enum { FREE = 1, COVERS = 2, ENTERS_AUTOGRAD = 4, TORCH_FUNCTION = 8 };
typedef struct ph_code {
  ph_pyobject *code;  // NULL: no entry
  int64_t last;       // when it ran last, for ph_enter_frame
  uint32_t number;    // of ph_note_function
  uint16_t units;
  uint8_t flags;  // FREE of charge; COVERS: neither it nor what it calls is charged; TORCH_FUNCTION: torch packs the
                  // arguments of a call for it, as for DeviceContext of set_default_device
} ph_code;

// Python's lock protects the table. It is never more than half full, entries of freed code included.
#define FIRST_BITS 12
static ph_code *codes;
static unsigned bits;
static size_t entries;
static ph_pyobject *const freed = (ph_pyobject *)&entries;  // the code of an entry whose own is no more

static ph_code *entry_of(const ph_pyobject *code) {
  size_t mask = ((size_t)1 << bits) - 1, at = (size_t)(((uintptr_t)code >> 4) * PH_GOLDEN >> (64 - bits));
  while (codes[at].code && codes[at].code != code) at = (at + 1) & mask;
  return &codes[at];
}

static bool make_room(void) {
  if (codes && 2 * entries < (size_t)1 << bits) return true;
  ph_code *old = codes;
  size_t old_size = old ? (size_t)1 << bits : 0, living = 0;
  for (size_t i = 0; i < old_size; i++) living += old[i].code && old[i].code != freed;
  unsigned wanted = !old ? FIRST_BITS : 4 * living < old_size ? bits : bits + 1;
  ph_code *larger = aligned_alloc(64, sizeof *larger << wanted);
  if (!larger) return false;
  memset(larger, 0, sizeof *larger << wanted);
  codes = larger;
  bits = wanted;
  entries = living;
  for (size_t i = 0; i < old_size; i++)
    if (old[i].code && old[i].code != freed) *entry_of(old[i].code) = old[i];
  free(old);
  return true;
}

// CPython calls it for the extra of a code object that it frees, which is the address of that.
static void forget(void *code) {
  if (!code || !codes) return;
  ph_code *entry = entry_of(code);
  if (entry->code) entry->code = freed;
}

static ph_code facts_of(ph_pyobject *code) {
  ph_pyobject *file = PyObject_GetAttrString(code, "co_filename"), *name = PyObject_GetAttrString(code, "co_name");
  ph_pyobject *bytes = PyObject_GetAttrString(code, "co_code");
  const char *path = file ? PyUnicode_AsUTF8AndSize(file, NULL) : NULL;
  const char *function = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
  ph_code facts = {.code = code};
  bool charged = path && function && bytes && !is_free(path);
  if (charged) {
    size_t units = (size_t)PyObject_Size(bytes) / UNIT_BYTES;
    size_t most = is_generated(path) ? UINT16_MAX : MAX_UNITS;
    facts.units = (uint16_t)(units > most ? most : units);
    if (!strcmp(function, "_engine_run_backward") && ends_with(path, "torch/autograd/graph.py"))
      facts.flags |= ENTERS_AUTOGRAD;
    if (!strcmp(function, "__torch_function__")) facts.flags |= TORCH_FUNCTION;
    facts.number = ph_note_function(path, function);
  } else {
    facts.flags |= FREE;
  }
  // Changes to a module after its import are our work, not the script's.
  bool ours = function && path && !strcmp(function, "excluded") && ends_with(path, "/phantora/rank/importhook.py");
  bool any_time = charged && (!strcmp(function, "__eq__") || !strcmp(function, "__del__"));
  if (ours || any_time || (path && function && depends_on_others(path, function))) facts.flags |= COVERS;
  if (file) Py_DecRef(file);
  if (name) Py_DecRef(name);
  if (bytes) Py_DecRef(bytes);
  PyErr_Clear();
  return facts;
}

// The entry of a code object that has run for the first time; NULL without memory.
static ph_code *look_at(ph_pyobject *code) {
  ph_code facts = facts_of(code);
  if (!make_room() || set_extra(code, extra_index, code)) {
    PyErr_Clear();
    return NULL;
  }
  ph_code *entry = entry_of(code);
  *entry = facts;
  entries++;
  return entry;
}

static ph_pyobject *counted(void *thread, void *frame, int exception) {
  if (exception || !ph_pays()) return evaluate(thread, frame, exception);
  ph_pyobject *code = frame_code ? frame_code(frame) : ((ph_pyobject **)frame)[F_CODE_311];
  ph_code *entry = codes ? entry_of(code) : NULL;
  if (!entry || !entry->code) entry = look_at(code);
  if (frame_code) Py_DecRef(code);
  unsigned flags = entry ? entry->flags : FREE;
  if (flags & COVERS) {
    ph_cover_frames(1);
    ph_pyobject *result = evaluate(thread, frame, exception);
    ph_cover_frames(-1);
    return result;
  }
  if (flags & FREE) return evaluate(thread, frame, exception);
  int called = ph_enter_frame(&entry->last, entry->units, entry->number);
  if (flags & ENTERS_AUTOGRAD && !ph_frames_covered()) ph_enter_backward();
  if (flags & TORCH_FUNCTION && !ph_frames_covered()) ph_charge(PH_API_PY_TORCH_FUNCTION);
  ph_pyobject *result = evaluate(thread, frame, exception);
  ph_leave_frame(called);
  return result;
}

static void *either(const char *now, const char *before) {
  void *symbol = dlsym(RTLD_DEFAULT, now);
  return symbol ? symbol : dlsym(RTLD_DEFAULT, before);
}

// Charges Python frames from now on. False when this interpreter has no such hook.
PH_EXPORT bool ph_count_frames(void) {
  if (!ph_connected() || ph_null_mode() || ph_shared()->host_mode != PH_HOST_MODELLED) return true;
  int minor = atoi(Py_GetVersion() + 2);
  void (*install)(void *, eval_function) = dlsym(RTLD_DEFAULT, "_PyInterpreterState_SetEvalFrameFunc");
  long (*request)(void (*)(void *)) = either("PyUnstable_Eval_RequestCodeExtraIndex", "_PyEval_RequestCodeExtraIndex");
  evaluate = dlsym(RTLD_DEFAULT, "_PyEval_EvalFrameDefault");
  set_extra = either("PyUnstable_Code_SetExtra", "_PyCode_SetExtra");
  frame_code = minor == 11 ? NULL : either("PyUnstable_InterpreterFrame_GetCode", "PyFrame_GetCode");
  if (!install || !request || !evaluate || !set_extra || (minor != 11 && !frame_code)) return false;
  if (extra_index < 0) extra_index = request(forget);
  if (extra_index < 0) return false;
  install(PyInterpreterState_Get(), counted);
  return true;
}
