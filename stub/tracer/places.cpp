#include "tracer/places.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "tracer/frames.h"
#include "tracer/modules.h"

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

// Calls visit(file, its line as text) for each frame, the innermost first, until it returns false.
template <typename F>
static void each_frame(const Python &p, F visit) {
  int state = p.ensure();
  void *held = nullptr;
  for (void *frame = p.frame(); frame;) {
    std::string file = file_of(p, frame);
    if (!visit(file, shortened(file) + ":" + std::to_string(p.line(frame)))) break;
    void *outer = p.back(frame);
    if (held) p.drop(held);
    frame = held = outer;
  }
  if (held) p.drop(held);
  p.release(state);
}

std::string place() {
  const Python *p = python();
  if (!p) return "?";
  std::string found = "autograd";  // its threads have no Python frames
  each_frame(*p, [&](const std::string &file, std::string line) {
    found = std::move(line);
    return !is_program(file);
  });
  return found;
}

// "LIBRARY.py:LINE, from SCRIPT.py:LINE, module NAME": the library and the module only where there is one.
static std::string call_site(const Thread &thread) {
  std::string found = "autograd", inner, script;
  const Python *p = thread.native_nodes ? nullptr : python();  // below a node written in C++ there is no Python
  if (p)
    each_frame(*p, [&](const std::string &file, std::string line) {
      if (!is_program(file)) return true;
      bool library = file.find("-packages/") != std::string::npos;
      if (!library) script = std::move(line);
      else if (inner.empty()) inner = std::move(line);
      return library;
    });
  found = inner.empty() ? script : script.empty() ? inner : inner + ", from " + script;
  if (found.empty()) found = "autograd";
  const std::string module = module_of(thread);
  return module.empty() ? found : found + ", module " + module;
}

static uint32_t site() {
  std::string text = call_site(this_thread());
  return ph_name(ph_hash(text.data(), text.size(), 0), text.data(), text.size());
}

void install_sites() { ph_site_by(site); }

}  // namespace tracer
