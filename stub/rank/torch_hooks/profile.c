// A profiler in the rank: the calls that it records, and the clocks by which it dates them.
//
// torch's profiler reads the processor's time stamp counter at every operator and turns the readings into time at the
// end, by a line through a few readings of both clocks. Virtual time is no line: it moves in our calls alone. So each
// of its moves is kept with the counter at that moment, and the converter that torch asks for translates a reading.
#define _GNU_SOURCE
#include "rank/torch_hooks/torch_hooks.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct move {
  uint64_t counter;
  int64_t clock;  // from then on
} move;

static pthread_mutex_t moves_lock = PTHREAD_MUTEX_INITIALIZER;
static move *moves;
static size_t count, room;
static _Thread_local bool in_virtual_time;

static void clock_moved(int64_t now) {
  pthread_mutex_lock(&moves_lock);
  if (count == room) {
    size_t larger = room ? 2 * room : 1 << 16;
    move *grown = realloc(moves, larger * sizeof *grown);
    if (!grown) abort();
    moves = grown;
    room = larger;
  }
  uint64_t counter = __builtin_ia32_rdtsc();
  if (!count || moves[count - 1].clock < now) moves[count++] = (move){counter, now};
  pthread_mutex_unlock(&moves_lock);
}

// The host clock when the counter stood at `counter`.
static int64_t clock_at(uint64_t counter) {
  pthread_mutex_lock(&moves_lock);
  size_t low = 0, high = count;  // the last move that is not after it
  while (high - low > 1) {
    size_t middle = low + (high - low) / 2;
    if (moves[middle].counter <= counter)
      low = middle;
    else
      high = middle;
  }
  int64_t clock = count ? moves[low].clock : 0;
  pthread_mutex_unlock(&moves_lock);
  return clock;
}

void ph_profile(ph_listener *listener) {
  if (listener) {
    int64_t now = ph_now();
    ph_upper.clock_moved = clock_moved;
    atomic_store(&ph_listens, listener);
    clock_moved(now);
  } else {
    atomic_store(&ph_listens, NULL);
  }
}

uint32_t ph_last_correlation(void) { return ph_self.correlation; }

size_t ph_activities(ph_activity *out, size_t places) {
  if (!ph_recording()) return 0;
  ph_record record = {.kind = PH_PROFILE};
  int64_t value;
  return ph_ask_bytes(&record, out, places * sizeof *out, &value) / sizeof *out;
}

size_t ph_activity_name(int32_t name, char *out, size_t places) {
  if (!ph_recording() || name < 0) return 0;
  ph_record record = {.kind = PH_PROFILE_NAME, .id = (uint32_t)name};
  int64_t value;
  return ph_ask_bytes(&record, out, places, &value);
}

void ph_profiler_clock(bool on) { in_virtual_time = on; }
int64_t ph_unix_ns(void) { return (ph_shared() ? ph_shared()->epoch_ns : 0) + ph_now(); }

// ------------------------------------------------------------------ torch's clocks
// A time point is its count of nanoseconds.
static int64_t system_clock_now(void) {
  if (in_virtual_time && ph_recording()) return ph_unix_ns();
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return ph_watchdog_moment((int64_t)t.tv_sec * 1000000000 + t.tv_nsec);
}

// std::function<int64_t(unsigned long long)> of libstdc++.
typedef struct std_function {
  uint64_t captured[2];
  bool (*manage)(void *, const void *, int);
  int64_t (*call)(const void *, unsigned long long *);
} std_function;

static bool manage(void *to, const void *from, int operation) {
  enum { TYPE, POINTER, CLONE, DESTROY };
  if (operation == CLONE)
    memcpy(to, from, 2 * sizeof(uint64_t));
  else if (operation == POINTER)
    *(const void **)to = from;
  else if (operation == TYPE)
    *(void **)to = NULL;
  return false;
}

#define IS_TIME 1600000000000000000  // nanoseconds since 1970 passed it in 2020; a counter takes 13 years at 4 GHz

static int64_t convert(const void *captured, unsigned long long *reading) {
  (void)captured;
  if (*reading > IS_TIME) return (int64_t)*reading;  // of a GPU: cupti tells time
  return ph_shared() ? ph_shared()->epoch_ns + clock_at(*reading) : clock_at(*reading);
}

#define MAKE_CONVERTER "_ZN3c1035ApproximateClockToUnixTimeConverter13makeConverterEv"

// c10::ApproximateClockToUnixTimeConverter::makeConverter()
static std_function *make_converter(std_function *out, void *self) {
  if (in_virtual_time && ph_recording()) {
    *out = (std_function){.manage = manage, .call = convert};
    return out;
  }
  static std_function *(*own)(std_function *, void *);
  if (!own) {
    void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    void *found = library ? dlsym(library, MAKE_CONVERTER) : NULL;
    if (!found) abort();  // libtorch, which calls us, is linked to it
    memcpy(&own, &found, sizeof own);
  }
  return own(out, self);
}

const ph_import ph_clock_imports[] = {
    {"_ZNSt6chrono3_V212system_clock3nowEv", (void *)system_clock_now, NULL},  // std::chrono::system_clock::now()
    {MAKE_CONVERTER, (void *)make_converter, NULL},
    {NULL, NULL, NULL},
};
