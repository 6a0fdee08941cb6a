// Next to the address sanitizer, the one for undefined behaviour writes its reports to standard error whatever its
// option log_path says: the function that takes the path is found in the address sanitizer. Preloaded by sanitizers.py,
// this calls the one of its own library.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

__attribute__((constructor)) static void report(void) {
  const char *path = getenv("UNDEFINED_REPORTS");
  void *library = path ? dlopen("libubsan.so.1", RTLD_NOW) : NULL;
  void *found = library ? dlsym(library, "__sanitizer_set_report_path") : NULL;
  void (*set)(const char *);
  memcpy(&set, &found, sizeof set);
  if (set) set(path);
}
