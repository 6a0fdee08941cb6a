// The host time of Python between operators: every Python frame that a clock-moving thread enters
// costs the host profile's PY_FRAME, and PY_CODE for every 1,000 units of its code.
//
// Frames are counted, not timed, so the clock stays deterministic. CPython offers a hook for it
// (PEP 523) that costs about 10 ns a frame and slows nothing else down; a profiler would switch off
// the interpreter's specialisation. The length of a function's code stands for the work in one call
// of it: C functions that it calls, attribute look-ups, arithmetic. The code of the import system is
// free of charge, because what it does depends on compiled files that an earlier run may have left.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "abi/export.h"
#include "rank.h"

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
static int64_t frame_ns, code_ns;

#define F_CODE_311 4  // words before f_code in 3.11's _PyInterpreterFrame, which has no accessor
#define UNIT_BYTES 2

static bool is_free(const char *file) {
  return !strncmp(file, "<frozen importlib", 17) || !strncmp(file, "<frozen zipimport", 17) ||
         strstr(file, "/importlib/") || strstr(file, "/phantora/launch/");
}

// What a call of `code` costs, plus one: 0 means not known yet.
static intptr_t weigh(ph_pyobject *code) {
  int64_t ns = 0;
  ph_pyobject *file = PyObject_GetAttrString(code, "co_filename");
  ph_pyobject *bytes = PyObject_GetAttrString(code, "co_code");
  const char *name = file ? PyUnicode_AsUTF8AndSize(file, NULL) : NULL;
  if (name && bytes && !is_free(name)) ns = frame_ns + code_ns * (PyObject_Size(bytes) / UNIT_BYTES) / 1000;
  if (file) Py_DecRef(file);
  if (bytes) Py_DecRef(bytes);
  PyErr_Clear();
  intptr_t weight = (intptr_t)(ns + 1);
  set_extra(code, extra_index, (void *)weight);
  return weight;
}

static ph_pyobject *counted(void *thread, void *frame, int exception) {
  if (!exception && ph_moves_clock()) {
    ph_pyobject *code = frame_code ? frame_code(frame) : ((ph_pyobject **)frame)[F_CODE_311];
    void *weight = NULL;
    if (get_extra(code, extra_index, &weight)) PyErr_Clear();
    if (!weight) weight = (void *)weigh(code);
    if (frame_code) Py_DecRef(code);
    ph_advance((intptr_t)weight - 1);
  }
  return evaluate(thread, frame, exception);
}

static void *either(const char *now, const char *before) {
  void *symbol = dlsym(RTLD_DEFAULT, now);
  return symbol ? symbol : dlsym(RTLD_DEFAULT, before);
}

// Charges Python frames from now on. False when this interpreter has no such hook.
PH_EXPORT bool ph_count_frames(void) {
  if (!ph_connected() || ph_null_mode() || ph_shared()->host_mode != PH_HOST_MODELLED) return true;
  frame_ns = ph_shared()->api_ns[PH_API_PY_FRAME];
  code_ns = ph_shared()->api_ns[PH_API_PY_CODE];
  int minor = atoi(Py_GetVersion() + 2);
  void (*install)(void *, eval_function) = dlsym(RTLD_DEFAULT, "_PyInterpreterState_SetEvalFrameFunc");
  long (*request)(void (*)(void *)) = either("PyUnstable_Eval_RequestCodeExtraIndex", "_PyEval_RequestCodeExtraIndex");
  evaluate = dlsym(RTLD_DEFAULT, "_PyEval_EvalFrameDefault");
  get_extra = either("PyUnstable_Code_GetExtra", "_PyCode_GetExtra");
  set_extra = either("PyUnstable_Code_SetExtra", "_PyCode_SetExtra");
  frame_code = minor == 11 ? NULL : either("PyUnstable_InterpreterFrame_GetCode", "PyFrame_GetCode");
  if (!install || !request || !evaluate || !get_extra || !set_extra || (minor != 11 && !frame_code)) return false;
  if (extra_index < 0) extra_index = request(NULL);
  if (extra_index < 0) return false;
  install(PyInterpreterState_Get(), counted);
  return true;
}
