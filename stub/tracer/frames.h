// The stack of operators that a thread is in, and what else the tracer keeps for a thread.
#pragma once
#include <map>
#include <memory>

#include "tracer/operators.h"

namespace tracer {

struct Snapshot {
  char *data;
  size_t offset, bytes;
};

// Memory of an operator's results.
struct Made {
  char *data;
  size_t bytes;
  bool large;
};

struct Frame {
  ph_frame ph{};
  const at::RecordFunction *owner = nullptr;
  Operator *op = nullptr;      // null: a kernel of torch.compile, with a given signature
  bool pushed = false;         // known to the runtime: it may launch
  bool below_launched = false; // an operator below it launched something
  bool unsettled = false;      // its tensors are true, but no CPU form took them: the operator around it may know
  bool below_unsettled = false;
  bool unsaved = false;  // a small tensor that it changes in place was still to be computed: no snapshot was taken
  bool below_accessed = false;  // an operator below it has its accesses to pinned memory compared
  bool carried = false;  // a copy from the host that keeps its bytes
  bool below_mutated = false;  // an operator below it changed a large tensor that it changes in place
  bool backward = false;
  bool large = false;  // it, or an operator below it, made a large block, at the thread's `place`
  bool moved_host = false;  // it, or an operator below it, worked on the host's memory
  uint32_t signature = 0;
  int64_t start = 0;
  uint64_t python = 0;  // Python frames that had been charged when it began
  uint64_t mark = 0;  // values kept by captures before it began
  std::vector<IValue> args;
  std::vector<Snapshot> snapshots;
  std::vector<char> saved;
  std::vector<ph_operand> operands;  // what is touched of the GPU's memory
  int device = -1;  // on which those lie
  std::vector<Made> made;  // by operators below it, if it is an extension's
  uint32_t made_kernels = 0;  // kernels that it had launched itself when its last inner operator began
  torch::jit::Stack early;  // results that were computed to answer what the operator reads back
};

struct alignas(32) OperatorSlot {
  const char *name = nullptr, *overload = nullptr;
  Operator *op = nullptr;
};
struct SignatureSlot {
  uint64_t hash = 0;
  uint32_t id = 0;
};

struct Module {
  uint32_t name = 0;
  int64_t start = 0;
  std::string place;  // a node's: where its forward operator was called, if that is noted
};

constexpr size_t OPERATOR_BITS = 9,
                 OPERATOR_WAYS = 8;  // slots of a thread for operators, and those in which one may be

struct Thread {
  std::vector<std::unique_ptr<Frame>> frames;  // a pool used as a stack
  size_t depth = 0;
  int nodes = 0;  // autograd nodes being applied
  int native_nodes = 0;  // of them, those written in C++: their operators have no Python between
  int allocated = -1;  // device on which this thread's last allocation awaits its record
  bool large = false;  // it made a large block: its place in the program is to be recorded
  std::string place;   // of the last of them
  bool failed = false; // its last allocation failed
  std::vector<Module> modules;  // with a forward pass that runs, the innermost last
  std::vector<Module> node_modules;  // of the nodes being applied; no name: unknown
  bool collects = false;  // garbage of Python
  bool optimizing = false;  // inside an optimizer's step or zero_grad
  std::string phase;  // with the module: "FSDP::post_backward_reduce (layers.0)", "ZeRO fetch, module layers.0"
  std::map<const Operator *, size_t> lists;  // first lists that its operators took
  int64_t listed = 0;  // when the last operator on lists of parameters ran, for ph_charge_cold
  int64_t list =
      0;  // numbers of the CPU tensor that aten::empty made last: those of a Python list, if lift_fresh follows
  int silent = 0;  // operators that are called to compute values are not the program's
  OperatorSlot operators[(1 << OPERATOR_BITS) + OPERATOR_WAYS];
  SignatureSlot signatures[1024];
};

Thread &this_thread();

}  // namespace tracer
