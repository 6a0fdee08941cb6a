// Virtual time for Python: the functions that phantora.rank.clock puts in the place of
// time.time, perf_counter, monotonic and their _ns forms.
//
// They are called through CPython's method protocol (METH_NOARGS), which costs a fifth of a ctypes
// call. Only two functions of CPython's stable ABI are needed, so they are declared here and no
// Python headers have to be installed; the symbols come from the interpreter that loads us.
#include <time.h>

#include "abi/export.h"
#include "rank/rank.h"

typedef struct ph_pyobject ph_pyobject;
extern ph_pyobject *PyFloat_FromDouble(double value);
extern ph_pyobject *PyLong_FromLongLong(long long value);

// perf_counter() and monotonic() at virtual time 0. Scripts subtract, so any constant will do, but
// zero would make `if start:` false.
#define MONOTONIC_BASE_NS 1000000000LL
// One reading of the clock from Python (CPython 3.11: 44 ns). Without it a script that waits in a
// loop until a moment has come would wait for ever.
#define READ_NS 50

static int64_t real_ns(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return (int64_t)t.tv_sec * 1000000000LL + t.tv_nsec;
}

static bool is_virtual(void) { return (ph_connected() && !ph_null_mode()) || ph_follows() != PH_FRONT_REAL; }

static int64_t front_ns(void) {
  if (ph_follows() == PH_FRONT_LATEST) ph_reach(ph_latest_clock());
  return ph_now();
}

static int64_t virtual_ns(void) {
  if (!ph_connected()) return front_ns();
  if (ph_shared()->host_mode == PH_HOST_MEASURED) {
    ph_enter();  // charges the CPU time since the last call
    ph_leave();
  } else if (ph_moves_clock()) {
    ph_advance(READ_NS);
  }
  return ph_now();
}

static int64_t wall_ns(void) { return is_virtual() ? ph_epoch() + virtual_ns() : real_ns(CLOCK_REALTIME); }

static int64_t monotonic_ns(void) { return is_virtual() ? MONOTONIC_BASE_NS + virtual_ns() : real_ns(CLOCK_MONOTONIC); }

// METH_NOARGS functions: (self, unused) -> new reference.
#define PY_CLOCK(name, source)                                                       \
  PH_EXPORT ph_pyobject *ph_py_##name(ph_pyobject *self, ph_pyobject *unused) {      \
    (void)self, (void)unused;                                                        \
    return PyFloat_FromDouble((double)source() * 1e-9);                              \
  }                                                                                  \
  PH_EXPORT ph_pyobject *ph_py_##name##_ns(ph_pyobject *self, ph_pyobject *unused) { \
    (void)self, (void)unused;                                                        \
    return PyLong_FromLongLong(source());                                            \
  }

PY_CLOCK(time, wall_ns)
PY_CLOCK(monotonic, monotonic_ns)
