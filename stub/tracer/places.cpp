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
  void *(*intern)(const char *);
  void *(*attribute)(void *, void *);
  const char *(*text)(void *);
  void (*drop)(void *);
  void *(*interpreter)();
  void *(*threads)(void *);
  void *(*next)(void *);
  void *(*frame_of)(void *);
};

static const Python *python() {
  static Python *found = [] {
    auto *p = new Python();
    auto take = [](auto *to, const char *name) {
      *reinterpret_cast<void **>(to) = dlsym(RTLD_DEFAULT, name);
      return *to != nullptr;
    };
    bool all = take(&p->ensure, "PyGILState_Ensure") && take(&p->release, "PyGILState_Release") &&
               take(&p->frame, "PyEval_GetFrame") && take(&p->back, "PyFrame_GetBack") &&
               take(&p->code, "PyFrame_GetCode") && take(&p->line, "PyFrame_GetLineNumber") &&
               take(&p->intern, "PyUnicode_InternFromString") && take(&p->attribute, "PyObject_GetAttr") &&
               take(&p->text, "PyUnicode_AsUTF8") && take(&p->drop, "Py_DecRef") &&
               take(&p->interpreter, "PyInterpreterState_Get") && take(&p->threads, "PyInterpreterState_ThreadHead") &&
               take(&p->next, "PyThreadState_Next") && take(&p->frame_of, "PyThreadState_GetFrame");
    return all ? p : nullptr;
  }();
  return found;
}

// The working directory at the first call, with a slash at its end.
static const std::string &start_folder() {
  static const std::string folder = [] {
    std::unique_ptr<char, void (*)(void *)> here(getcwd(nullptr, 0), free);
    return std::string(here ? here.get() : "") + "/";
  }();
  return folder;
}

// Below the folder of packages, else below the working directory, so that it reads the same on every machine.
static std::string shortened(const std::string &file) {
  static const char packages[] = "-packages/";
  size_t in = file.rfind(packages);
  if (in != std::string::npos) return file.substr(in + sizeof packages - 1);
  const std::string &folder = start_folder();
  return folder.size() > 1 && starts_with(file, folder.c_str()) ? file.substr(folder.size()) : file;
}

static bool is_library(const char *file) { return strstr(file, "-packages/"); }

static bool is_program(const char *file) {  // not what stands between the program and its operators
  if (strstr(file, "/lib/python3.") && !is_library(file)) return false;  // Python's own: copy.py and others
  for (const char *other : {"-packages/torch/", "-packages/triton/", "/phantora/rank/", "/phantora/launch/"})
    if (strstr(file, other)) return false;
  return file[0] != '<';
}

// A walk over a thread's Python frames from the innermost outward, first of this thread's. Holds the interpreter's
// lock.
class Frames {
 public:
  explicit Frames(const Python &python) : p(python), state(p.ensure()), frame(p.frame()) {}
  ~Frames() {
    if (held) p.drop(held);
    p.release(state);
  }
  Frames(const Frames &) = delete;
  Frames &operator=(const Frames &) = delete;

  bool any() const { return frame; }

  bool outward() {  // false at the outermost frame, where it stays
    void *outer = p.back(frame);
    if (!outer) return false;
    if (held) p.drop(held);
    frame = held = outer;
    return true;
  }

  const char *file() const {  // valid as long as the frame: its code refers to it
    static void *const name = p.intern("co_filename");
    void *code = p.code(frame), *file = code ? p.attribute(code, name) : nullptr;
    const char *text = file ? p.text(file) : nullptr;
    if (file) p.drop(file);
    if (code) p.drop(code);
    return text ? text : "?";
  }

  // To those of the main thread, which waits in backward() while autograd's threads run. False: it has none.
  bool to_main_thread() {
    void *main = p.threads(p.interpreter());
    for (void *older; main && (older = p.next(main));) main = older;
    void *first = main ? p.frame_of(main) : nullptr;
    if (!first) return false;
    if (held) p.drop(held);
    frame = held = first;
    return true;
  }

  std::string line() const { return shortened(file()) + ":" + std::to_string(p.line(frame)); }

 private:
  const Python &p;
  int state;
  void *frame, *held = nullptr;
};

std::string place() {
  const Python *p = python();
  if (!p) return "?";
  Frames frames(*p);
  if (!frames.any()) return backward_place(this_thread());  // threads of autograd have no Python frames
  while (!is_program(frames.file()) && frames.outward()) {}
  return frames.line();
}

// The innermost lines of a library and of the script, where there are.
struct Lines {
  std::string library, script;

  std::string text() const {
    return library.empty() ? script : script.empty() ? library : library + ", from " + script;
  }
};

static Lines lines(const Python *python, bool of_main_thread) {
  Lines found;
  if (!python) return found;
  Frames frames(*python);
  bool more = of_main_thread ? frames.to_main_thread() : frames.any();
  for (; more && found.script.empty(); more = frames.outward()) {
    const char *file = frames.file();
    if (!is_program(file)) continue;
    if (!is_library(file))
      found.script = frames.line();
    else if (found.library.empty())
      found.library = frames.line();
  }
  return found;
}

std::string program_lines() { return lines(python(), false).text(); }

// "LIBRARY.py:LINE, from SCRIPT.py:LINE, module: NAME": the library and the module only where there is one. In a
// backward pass without lines of its own, "backward of SCRIPT.py:LINE, from SCRIPT.py:LINE": of the forward operator,
// and of backward(), in which the main thread waits.
static std::string call_site(const Thread &thread) {
  Lines own = lines(thread.native_nodes ? nullptr : python(), false);  // below a node written in C++ there is no Python
  Lines began = own.script.empty() || thread.nodes ? lines(python(), true) : Lines();
  bool backward = own.script.empty() || own.script == began.script;
  std::string found = own.text();
  if (own.library.empty() && backward) found = backward_place(thread);
  if (backward && !began.script.empty() && found.find(began.script) == std::string::npos)
    found += ", from " + began.script;
  if (!thread.phase.empty()) found += ", " + thread.phase;
  const std::string module = backward || thread.nodes || !thread.modules.empty() ? module_of(thread) : "";
  return module.empty() ? found : found + ", " + module;
}

static uint32_t site() {
  std::string text = call_site(this_thread());
  return ph_name(ph_hash(text.data(), text.size(), 0), text.data(), text.size());
}

void install_sites() { ph_site_by(site); }

}  // namespace tracer
