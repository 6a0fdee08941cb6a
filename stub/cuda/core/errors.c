// Names and texts of CUDA's error codes.
#include "cuda/core/device.h"

bool phc_is_sticky(cudaError_t code) {
  return code == 214 || code == 220 || code == 226 || (code >= 700 && code <= 702) || code == 710 ||
         (code >= 714 && code <= 719) || code == 721;
}

typedef struct error_row {
  int code;
  const char *runtime, *driver, *text;
} error_row;

static const error_row *error_find(int code) {
#define ROW(number, runtime, driver, text) {number, runtime, driver, text},
  static const error_row errors[] = {PH_CUDA_ERRORS(ROW)};
#undef ROW
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) return &errors[i];
  return NULL;
}

const char *phc_error_name(int code, bool driver) {
  const error_row *error = error_find(code);
  const char *name = !error ? "" : driver ? error->driver : error->runtime;
  return *name ? name : NULL;
}

const char *phc_error_text(int code, bool driver) {
  return phc_error_name(code, driver) ? error_find(code)->text : NULL;
}
