#include "tracer/modules.h"

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tracer/allocator.h"
#include "tracer/places.h"

namespace tracer {

// A forward operator and the node that autograd makes of it have the same sequence number. Names by number, in a ring:
// a graph of more nodes loses the modules of its first.
struct Noted {
  int64_t sequence = -1;
  uint32_t name = 0;
  std::string place;
};
constexpr size_t NODES = 1 << 18;
static std::vector<Noted> nodes;
static std::mutex nodes_lock;

static void emit_module(uint32_t name, int64_t start) {
  ph_record record{};
  record.kind = PH_ANNOTATION;
  record.id = name;
  record.span.start = start;
  ph_emit(&record);
}

static void note_node(int64_t sequence, std::string place) {
  const std::vector<Module> &modules = this_thread().modules;
  std::lock_guard<std::mutex> guard(nodes_lock);
  if (nodes.empty()) nodes.resize(NODES);
  nodes[static_cast<size_t>(sequence) % NODES] = {sequence, modules.empty() ? 0 : modules.back().name,
                                                  std::move(place)};
}

// An operator that makes no node has the number of the next one that does, which forgets what is noted of the first.
static void forget_node(int64_t sequence) {
  std::lock_guard<std::mutex> guard(nodes_lock);
  if (!nodes.empty()) nodes[static_cast<size_t>(sequence) % NODES].sequence = -1;
}

void note_module(const at::RecordFunction &fn) {
  if (fn.seqNr() < 0) return;
  if (this_thread().modules.empty())
    forget_node(fn.seqNr());
  else
    note_node(fn.seqNr(), "");
}

void note_function(const at::RecordFunction &fn) {
  if (fn.seqNr() >= 0) note_node(fn.seqNr(), program_lines());
}

void note_place(const at::RecordFunction &fn, const std::string &place) {
  if (fn.seqNr() >= 0) note_node(fn.seqNr(), place);
}

// Of this thread's last node with a module, and whether the last of all accumulates a gradient, which has no number: it
// follows the node of its operator. DDP's reducer is called after it.
static thread_local uint32_t latest = 0;
static thread_local bool accumulates = false;
static thread_local std::string latest_place;  // of its last node with a number

void enter_node(Thread &thread, const at::RecordFunction &fn) {
  Module own{0, ph_now(), ""};
  if (fn.seqNr() >= 0) {
    std::lock_guard<std::mutex> guard(nodes_lock);
    const Noted *noted = nodes.empty() ? nullptr : &nodes[static_cast<size_t>(fn.seqNr()) % NODES];
    if (noted && noted->sequence == fn.seqNr()) {
      own.name = noted->name;
      own.place = noted->place;
    }
  }
  accumulates = fn.seqNr() < 0;
  if (accumulates)
    own.place = latest_place;
  else
    latest_place = own.place;
  if (own.name) latest = own.name;
  thread.node_modules.push_back(std::move(own));
}

// Modules by name; written once for each.
static auto *texts = new std::map<uint32_t, std::string>();
static std::mutex texts_lock;

std::string module_of(const Thread &thread) {
  const std::vector<Module> &from = thread.modules.empty() ? thread.node_modules : thread.modules;
  uint32_t name = from.empty() ? 0 : from.back().name;
  if (!name && thread.modules.empty() && accumulates) name = latest;
  if (!name) return "";
  std::lock_guard<std::mutex> guard(texts_lock);
  return (*texts)[name];
}

std::string backward_place(const Thread &thread) {
  const std::string forward = thread.node_modules.empty() ? "" : thread.node_modules.back().place;
  return forward.empty() ? "backward" : "backward of " + forward;
}

void leave_node(Thread &thread) {
  if (thread.node_modules.empty()) return;  // began before the rank did
  Module own = thread.node_modules.back();
  thread.node_modules.pop_back();
  if (own.name) emit_module(own.name, own.start);
}

}  // namespace tracer

using namespace tracer;

// The forward pass of the module of this name begins; phantora_module_end ends it.
extern "C" __attribute__((visibility("default"))) void phantora_module_begin(const char *name) {
  if (!active()) return;
  size_t length = strlen(name);
  ph_enter();
  uint32_t id = ph_name(ph_hash(name, length, 0), name, length);
  {
    std::lock_guard<std::mutex> guard(texts_lock);
    std::string &text = (*texts)[id];
    if (text.empty()) text.assign(name, length);
  }
  this_thread().modules.push_back({id, ph_now(), ""});
  ph_leave();
}

extern "C" __attribute__((visibility("default"))) void phantora_module_end(void) {
  Thread &thread = this_thread();
  if (!active() || thread.modules.empty()) return;
  ph_enter();
  emit_module(thread.modules.back().name, thread.modules.back().start);
  thread.modules.pop_back();
  ph_leave();
}

// A phase of a framework for the places of its collectives, until the next one; "": none.
extern "C" __attribute__((visibility("default"))) void phantora_phase(const char *text) {
  if (active()) this_thread().phase = text;
}
