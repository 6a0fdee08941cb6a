// Charges to the host clock, in order, in a file of each rank: they show the first difference of two equal runs.
// The environment variable PHANTORA_CHARGES names the folder. `determinism.py runs --charges` compares the files.
//
//   N                 cost N of the host profile (enum ph_api) or, above these, a frame of function N
//   N FILE:FUNCTION   which function that is; charges nothing
//   +NS               the clock advances otherwise: a read of the clock, a sleep
//   =NS               an answer of the simulator: the clock is at least this
#define _GNU_SOURCE
#include "rank/runtime/runtime.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>

static FILE *file;
static uint32_t frames;  // functions so far

void ph_charges_open(void) {
  const char *folder = getenv("PHANTORA_CHARGES");
  if (!folder) return;
  char *path = NULL;
  if (asprintf(&path, "%s/rank-%d.%u", folder, ph_rt.rank, ph_rt.predecessors) < 0) return;
  file = fopen(path, "we");
  if (!file) fprintf(stderr, "phantora: PHANTORA_CHARGES: cannot write %s: %m\n", path);
  free(path);
}

void ph_charges_close(void) {
  FILE *was = file;
  file = NULL;
  if (was) fclose(was);
}

void ph_charges_detach(void) {
  if (file) __fpurge(file);  // what is in its buffer is the parent's to write
  ph_charges_close();
}

uint32_t ph_note_function(const char *path, const char *function) {
  if (!file) return 0;
  uint32_t id = (uint32_t)PH_API_COSTS + frames++;
  fprintf(file, "%" PRIu32 " %s:%s\n", id, path, function);
  return id;
}

void ph_note_charge(uint32_t id) {
  if (file) fprintf(file, "%" PRIu32 "\n", id);
}

void ph_note_clock(char how, int64_t ns) {
  if (file) fprintf(file, "%c%" PRId64 "\n", how, ns);
}
