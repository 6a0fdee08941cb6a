// The host time of Python between operators: every Python frame that a clock-moving thread enters
// costs the host profile's PY_FRAME, and PY_CODE for every 1,000 units of its code.
//
// Code that ran a moment ago runs faster: on a real host a frame of the same PyTorch code took 0.15 us in a loop
// of 53 frames, 0.45 in one of 167 and 0.8 to 1 us in FSDP2's steps (validation/probes/host_time.py). So its units
// count as far as it is cold.
//
// Frames are counted, not timed, so the clock stays deterministic. CPython offers a hook for it
// (PEP 523) that costs about 36 ns a frame, since calls are no longer inlined; a profiler would switch off
// the interpreter's specialisation. The length of a function's code stands for the work in one call
// of it: C functions that it calls, attribute look-ups, arithmetic. The code of the import system is
// free of charge, because what it does depends on compiled files that an earlier run may have left; so is
// what __eq__ does, because a dict calls it when hashes collide, and many hashes are made of addresses; what __del__ does,
// because the collector of garbage calls it when all threads together have made enough, in any of them; and what waits
// for other threads and processes, because how often it looks whether they are done depends on their real speed.
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
static int (*get_extra)(ph_pyobject *code, long index, void **extra);
static int (*set_extra)(ph_pyobject *code, long index, void *extra);
static long extra_index = -1;

#define F_CODE_311 4  // words before f_code in 3.11's _PyInterpreterFrame, which has no accessor
#define UNIT_BYTES 2
#define MAX_UNITS 64   // of a call that count: a long function mostly returns early or takes one of many ways

// Parts of paths in Python's standard library.
static const char *const waiting[] = {
  "/multiprocessing/", "/concurrent/futures/", "/asyncio/", "/threading.py", "/queue.py", "/selectors.py",
  "/socket.py", "/subprocess.py",
};

static bool is_free(const char *file) {
  if (!strncmp(file, "<frozen importlib", 17) || !strncmp(file, "<frozen zipimport", 17) ||
      strstr(file, "/importlib/") || strstr(file, "/phantora/launch/"))
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
// Tables of decompositions and of sympy's methods are made, and DeepSpeed's modules are wrapped, in the order of sets of
// operators and classes, whose hashes are addresses: these depend on the lengths of paths, on the environment and on
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

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), tail = strlen(end);
  return length >= tail && !strcmp(text + length - tail, end);
}

static bool lies_in(const char *file, const char *place) {
  return ends_with(place, "/") ? strstr(file, place) != NULL : ends_with(file, place);
}

static bool depends_on_others(const char *file, const char *function) {
  for (size_t i = 0; i < sizeof of_others / sizeof *of_others; i++)
    if (lies_in(file, of_others[i].file) && (!of_others[i].function || !strcmp(function, of_others[i].function)))
      return true;
  return false;
}

typedef struct ph_code {  // what is kept with a code object
  bool free;              // of charge
  bool covers;            // neither it nor what it calls is charged
  bool enters_autograd;
  bool torch_function;    // torch packs the arguments of a call for it, as for DeviceContext of set_default_device
  size_t units;
  uint32_t number;        // of ph_note_function
  int64_t last;           // when it ran last, for ph_charge_frame
} ph_code;

static ph_code *look_at(ph_pyobject *code) {
  ph_code *facts = calloc(1, sizeof *facts);
  if (!facts) return NULL;
  ph_pyobject *file = PyObject_GetAttrString(code, "co_filename"), *name = PyObject_GetAttrString(code, "co_name");
  ph_pyobject *bytes = PyObject_GetAttrString(code, "co_code");
  const char *path = file ? PyUnicode_AsUTF8AndSize(file, NULL) : NULL;
  const char *function = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
  facts->free = !path || !function || !bytes || is_free(path);
  if (!facts->free) {
    facts->units = (size_t)PyObject_Size(bytes) / UNIT_BYTES;
    if (facts->units > MAX_UNITS) facts->units = MAX_UNITS;
    facts->enters_autograd = !strcmp(function, "_engine_run_backward") && ends_with(path, "torch/autograd/graph.py");
    facts->torch_function = !strcmp(function, "__torch_function__");
    facts->number = ph_note_function(path, function);
  }
  // What is done to a module after its import is our work, not the script's.
  bool ours = function && path && !strcmp(function, "excluded") && ends_with(path, "/phantora/launch/importhook.py");
  bool any_time = !facts->free && (!strcmp(function, "__eq__") || !strcmp(function, "__del__"));
  facts->covers = ours || any_time || (path && function && depends_on_others(path, function));
  if (file) Py_DecRef(file);
  if (name) Py_DecRef(name);
  if (bytes) Py_DecRef(bytes);
  PyErr_Clear();
  if (set_extra(code, extra_index, facts)) PyErr_Clear();
  return facts;
}

static void charge(ph_code *code) {
  if (code->free) return;
  ph_charge_frame(&code->last, code->units, code->number);
  if (code->enters_autograd) ph_enter_backward();
  if (code->torch_function) ph_charge(PH_API_PY_TORCH_FUNCTION);
}

static _Thread_local int covered;

static ph_pyobject *counted(void *thread, void *frame, int exception) {
  ph_code *facts = NULL;
  if (!exception && ph_moves_clock()) {
    ph_pyobject *code = frame_code ? frame_code(frame) : ((ph_pyobject **)frame)[F_CODE_311];
    void *extra = NULL;
    if (get_extra(code, extra_index, &extra)) PyErr_Clear();
    facts = extra ? extra : look_at(code);
    if (frame_code) Py_DecRef(code);
    if (facts && !facts->covers && !covered) charge(facts);
  }
  if (!facts || (facts->free && !facts->covers)) return evaluate(thread, frame, exception);
  if (!facts->covers) {
    int called = ph_enter_frame();
    ph_pyobject *result = evaluate(thread, frame, exception);
    ph_leave_frame(called);
    return result;
  }
  covered++;
  ph_pyobject *result = evaluate(thread, frame, exception);
  covered--;
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
  get_extra = either("PyUnstable_Code_GetExtra", "_PyCode_GetExtra");
  set_extra = either("PyUnstable_Code_SetExtra", "_PyCode_SetExtra");
  frame_code = minor == 11 ? NULL : either("PyUnstable_InterpreterFrame_GetCode", "PyFrame_GetCode");
  if (!install || !request || !evaluate || !get_extra || !set_extra || (minor != 11 && !frame_code)) return false;
  if (extra_index < 0) extra_index = request(free);
  if (extra_index < 0) return false;
  install(PyInterpreterState_Get(), counted);
  return true;
}
