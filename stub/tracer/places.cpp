#include "tracer/places.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "tracer/operators.h"

namespace tracer {

// The interpreter's functions; the tracer is loaded by Python and links no library of it.
struct Python {
  int (*ensure)();
  void (*release)(int);
  void *(*frame)();
  void *(*back)(void *);
  void *(*code)(void *);
  int (*line)(void *);
  void *(*attribute)(void *, const char *);
  const char *(*text)(void *);
  void (*drop)(void *);
};

static const Python *python() {
  static Python *found = [] {
    auto *p = new Python();
    auto take = [](auto *to, const char *name) { *reinterpret_cast<void **>(to) = dlsym(RTLD_DEFAULT, name); return *to != nullptr; };
    bool all = take(&p->ensure, "PyGILState_Ensure") && take(&p->release, "PyGILState_Release") &&
               take(&p->frame, "PyEval_GetFrame") && take(&p->back, "PyFrame_GetBack") && take(&p->code, "PyFrame_GetCode") &&
               take(&p->line, "PyFrame_GetLineNumber") && take(&p->attribute, "PyObject_GetAttrString") &&
               take(&p->text, "PyUnicode_AsUTF8") && take(&p->drop, "Py_DecRef");
    return all ? p : nullptr;
  }();
  return found;
}

static std::string file_of(const Python &p, void *frame) {
  void *code = p.code(frame), *name = code ? p.attribute(code, "co_filename") : nullptr;
  const char *text = name ? p.text(name) : nullptr;
  std::string file = text ? text : "?";
  if (name) p.drop(name);
  if (code) p.drop(code);
  return file;
}

// Below the working directory, else below the folder of packages, so that it reads the same on every machine.
static std::string shortened(const std::string &file) {
  static const char packages[] = "-packages/";
  size_t in = file.rfind(packages);
  if (in != std::string::npos) return file.substr(in + sizeof packages - 1);
  std::unique_ptr<char, void (*)(void *)> here(getcwd(nullptr, 0), free);
  if (here && starts_with(file, here.get()) && file[strlen(here.get())] == '/') return file.substr(strlen(here.get()) + 1);
  return file;
}

static bool is_program(const std::string &file) {  // not what stands between the program and its operators
  for (const char *other : {"-packages/torch/", "-packages/triton/", "/phantora/launch/"})
    if (file.find(other) != std::string::npos) return false;
  return file[0] != '<';
}

std::string place() {
  const Python *p = python();
  if (!p) return "?";
  int state = p->ensure();
  std::string found = "autograd";  // its threads have no Python frames
  void *held = nullptr;
  for (void *frame = p->frame(); frame;) {
    std::string file = file_of(*p, frame);
    found = shortened(file) + ":" + std::to_string(p->line(frame));
    if (is_program(file)) break;
    void *outer = p->back(frame);
    if (held) p->drop(held);
    frame = held = outer;
  }
  if (held) p->drop(held);
  p->release(state);
  return found;
}

}  // namespace tracer
