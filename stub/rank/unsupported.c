// Loud failure.
#define _GNU_SOURCE
#include "rank/rank.h"
#include "rank/torch_hooks/torch_hooks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_UNSUPPORTED 78  // EX_CONFIG

static bool first_report(uint64_t key) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static uint64_t *seen;
  static size_t count;
  bool first = true;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < count && first; i++) first = seen[i] != key;
  if (first) {
    uint64_t *grown = realloc(seen, (count + 1) * sizeof *seen);
    if (grown) {
      seen = grown;
      seen[count++] = key;
    }
  }
  pthread_mutex_unlock(&lock);
  return first;
}

static void report(const char *library, const char *call, bool soft, const char *passes, const char *passed) {
  bool fatal = !soft && ph_live() && ph_rt.header->unsupported == PH_UNSUPPORTED_ERROR;
  uint64_t key = ph_hash(call, strlen(call), ph_hash(library, strlen(library), 0));
  if (fatal) {
    dprintf(STDERR_FILENO,
            "phantora: %s (%s) is not supported by the simulator; run with --unsupported warn to %s, or avoid the "
            "call\n",
            call, library, passes);
    ph_exit(EXIT_UNSUPPORTED);
    _exit(EXIT_UNSUPPORTED);
  }
  if (!first_report(key)) return;
  dprintf(STDERR_FILENO, "phantora: %s (%s) is not supported by the simulator; %s\n", call, library, passed);
  if (!ph_recording()) return;
  ph_record record = {.kind = PH_UNSUPPORTED, .id = ph_name(key, call, strlen(call))};
  ph_emit(&record);
}

static _Atomic(const char *) refused;

const char *ph_refused(void) { return refused; }

void ph_unsupported(const char *library, const char *call, bool soft) {
  if (soft) refused = call;
  report(library, call, soft, "let it pass as a no-op", soft ? "the caller gets an error" : "the call does nothing");
}

void ph_unsupported_result(const char *library, const char *call, const char *passes, const char *passed) {
  report(library, call, false, passes, passed);
}

void ph_unsupported_passed(const char *library, const char *call, const char *passed) {
  report(library, call, true, NULL, passed);
}
