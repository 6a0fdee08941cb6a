#include "tracer/sequences.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "tracer/assumptions.h"
#include "tracer/host_calls.h"
#include "tracer/tensors.h"

namespace tracer {

constexpr int64_t MOST_TOKENS = 1 << 22;  // of a lookup of which values are read
constexpr int64_t MOST_ENDS = 64;         // numbers that tokens are compared with at once
constexpr int64_t NONE = -1;

// ---------------------------------------------------------------- lengths
struct Lengths {
  enum { UNSET, CONSTANT, UNIFORM, LOGNORMAL } kind = UNSET;
  double first = 0, second = 0, most = INFINITY;  // N; LOW, HIGH; MEDIAN, SIGMA
  std::string text;
};
static Lengths lengths;
static int64_t end_token = NONE;  // given, or seen in a comparison

void assume_lengths(const std::string &length, const std::string &end) {
  if (!end.empty()) end_token = atoll(end.c_str());
  lengths.text = length;
  const char *text = length.c_str();
  if (sscanf(text, "lognormal:%lf:%lf:%lf", &lengths.first, &lengths.second, &lengths.most) >= 2)
    lengths.kind = Lengths::LOGNORMAL;
  else if (sscanf(text, "uniform:%lf:%lf", &lengths.first, &lengths.second) == 2)
    lengths.kind = Lengths::UNIFORM;
  else if (sscanf(text, "%lf", &lengths.first) == 1)
    lengths.kind = Lengths::CONSTANT;
}

static double fraction(uint64_t prompt, uint64_t draw) {  // in (0, 1)
  uint64_t key[2] = {prompt, draw};
  return (static_cast<double>(ph_hash(key, sizeof key, 0) >> 11) + 0.5) * 0x1p-53;
}

// Tokens of the `nth` sequence that follows a prompt, its last included.
static int64_t drawn_length(uint64_t prompt, uint64_t nth) {
  double x = lengths.first;
  if (lengths.kind == Lengths::UNIFORM) {
    x += fraction(prompt, nth) * (lengths.second - lengths.first);
  } else if (lengths.kind == Lengths::LOGNORMAL) {  // by Box and Muller
    double normal =
        std::sqrt(-2 * std::log(fraction(prompt, 2 * nth))) * std::cos(2 * M_PI * fraction(prompt, 2 * nth + 1));
    x *= std::exp(lengths.second * normal);
  }
  return std::max<int64_t>(1, std::llround(std::min(x, lengths.most)));
}

// ---------------------------------------------------------------- sequences
// A sampled token names its sequence: the next lookup of it shows in which row the sequence goes on.
struct Sequence {
  int64_t length = 0, done = 0;
  bool alive = false;
};

struct Lookup {
  std::vector<int64_t> last;       // token of each row
  std::vector<uint64_t> prompts;   // hash of each row
  int64_t width = 0;               // tokens of a row
  bool sampled = false, fresh = false;  // it has sampled tokens; nothing was sampled since
};

struct State {
  std::mutex lock;
  int64_t table = 0;     // rows of the largest table that was looked up
  int64_t largest = 0;   // candidates of a choice so far
  bool whole = true;     // the table has a row for each candidate; else tensor parallelism splits it
  Lookup lookup;
  int64_t former_width = 0;
  std::vector<Sequence> sequences;  // by name
  std::vector<int64_t> rows, tokens;  // of the last sample: names, NONE for an ended sequence
  bool several = false;  // the last sample was a topk
  uint64_t begun = 0;
  int64_t endless = 0;   // samples without a known end
  std::unordered_map<uint64_t, uint64_t> seen;  // prompts
};
static State &state() {
  static auto *s = new State();
  return *s;
}

// Names are tokens from the middle of the vocabulary, without the end token: special tokens are mostly first or last.
static int64_t first_name(const State &s) { return s.largest / 4; }
static int64_t token_of(const State &s, int64_t name) {
  int64_t token = first_name(s) + name;
  return token + (end_token >= first_name(s) && token >= end_token);
}
static int64_t name_of(const State &s, int64_t token) {
  if (token == end_token) return NONE;
  int64_t name = token - first_name(s) - (end_token >= first_name(s) && token > end_token);
  bool lives =
      name >= 0 && name < static_cast<int64_t>(s.sequences.size()) && s.sequences[static_cast<size_t>(name)].alive;
  return lives ? name : NONE;
}

static int64_t begin(State &s, uint64_t prompt) {
  if (s.sequences.empty()) s.sequences.resize(static_cast<size_t>(std::max<int64_t>(1, s.largest / 2)));
  auto name = static_cast<size_t>(s.begun++ % s.sequences.size());
  s.sequences[name] = {drawn_length(prompt, s.seen[prompt]++), 0, true};
  return static_cast<int64_t>(name);
}

void note_lookup(const Frame &f) {
  const Tensor &table = f.args[0].toTensor(), &ids = f.args[1].toTensor();
  State &s = state();
  if (f.backward || !table.dim() || table.size(0) < s.table) return;
  s.table = table.size(0);
  if (lengths.kind == Lengths::UNSET || !ids.numel() || ids.numel() > MOST_TOKENS || !fits(ids)) return;
  PlainCalls plain;
  Tensor tokens = on_host(ids).to(at::kLong).contiguous();
  int64_t width = ids.dim() > 1 ? ids.size(-1) : 1, count = ids.numel() / width;
  std::lock_guard<std::mutex> guard(s.lock);
  s.lookup = {{}, {}, width, is_unknown(ids), true};
  const int64_t *row = tokens.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < count; ++r, row += width) {
    s.lookup.last.push_back(row[width - 1]);
    s.lookup.prompts.push_back(ph_hash(row, static_cast<size_t>(width) * sizeof *row, 0));
  }
}

// One prompt without a dimension for the batch.
static void join_tokens(Lookup &lookup) {
  lookup.width = static_cast<int64_t>(lookup.last.size());
  lookup.prompts = {ph_hash(lookup.last.data(), lookup.last.size() * sizeof(int64_t), 0)};
  lookup.last = {lookup.last.back()};
}

// Whether the lookup is of sequences that were sampled from, not of new prompts: it has their last tokens, or all
// tokens and one more than before.
static bool goes_on(const State &s) {
  int64_t grown = s.lookup.width - s.former_width;
  if (s.lookup.width > 1 && grown != 0 && grown != 1) return false;
  bool named =
      std::any_of(s.lookup.last.begin(), s.lookup.last.end(), [&](int64_t token) { return name_of(s, token) != NONE; });
  return s.lookup.sampled || (named && s.whole);
}

// The sequence of each row. Prompts begin sequences; a sampled token continues its own, in whatever row it is now.
// Without a lookup (a compiled model) rows stay what they are.
static std::vector<int64_t> rows_of(State &s, size_t count) {
  Lookup &lookup = s.lookup;
  if (lookup.fresh && count == 1 && lookup.last.size() > 1 && lookup.width == 1) join_tokens(lookup);
  bool seen = lookup.fresh && lookup.last.size() == count;
  std::vector<int64_t> rows = s.rows;
  bool same = rows.size() == count;
  rows.resize(count, NONE);
  bool over = std::all_of(rows.begin(), rows.end(), [](int64_t row) { return row == NONE; });
  if (seen ? !goes_on(s) : !same || over) {
    for (size_t r = 0; r < count; ++r) rows[r] = begin(s, seen && s.whole ? lookup.prompts[r] : s.begun);
  } else if (seen && s.whole) {
    std::unordered_set<int64_t> taken;
    for (size_t r = 0; r < count; ++r) {
      int64_t token = lookup.last[r], name = name_of(s, token);
      bool ended = lookup.sampled || token == end_token;
      if (name != NONE)
        rows[r] = taken.insert(name).second ? name : begin(s, lookup.prompts[r]);  // a copy goes its own way
      else if (!ended)
        rows[r] = begin(s, lookup.prompts[r]);
      else if (!same)
        rows[r] = NONE;
    }
  }
  if (lookup.fresh) s.former_width = lookup.width;
  return rows;
}

static int64_t next_token(State &s, int64_t &name) {
  if (name == NONE) return end_token == NONE ? first_name(s) : end_token;
  Sequence &sequence = s.sequences[static_cast<size_t>(name)];
  if (++sequence.done < sequence.length || end_token == NONE) return token_of(s, name);
  sequence.alive = false;
  name = NONE;
  note_assumption("a sequence ends by length=" + lengths.text);
  return end_token;
}

// Rows that a token is sampled for from a vocabulary; 0: it is another choice (of a router, of beams).
static int64_t sampled_rows(State &s, const Frame &f, const Tensor &result) {
  bool several = f.op->name == "aten::topk";
  if (f.op->tokens != Tokens::SAMPLES || f.backward) return 0;
  const Tensor &input = f.args[0].toTensor();
  if (!input.dim() || !input.numel() || result.scalar_type() != at::kLong || !has_room(result)) return 0;
  int64_t candidates = input.size(-1), count = input.numel() / candidates;
  if (candidates * 10 < 9 * std::max(s.table, s.largest) || result.numel() % count) return 0;
  bool more = s.table && candidates * 10 > 11 * s.table;
  if (several ? more : result.numel() != count) return 0;
  if (candidates > s.largest) {
    s.largest = candidates;
    s.sequences.clear();
    s.rows.clear();
  }
  s.whole = !more;
  return count;
}

bool sample(const Frame &f, const Tensor &result) {
  State &s = state();
  std::lock_guard<std::mutex> guard(s.lock);
  int64_t count = sampled_rows(s, f, result);
  if (!count) return false;
  if (lengths.kind == Lengths::UNSET) {
    if (s.table) s.tokens = {s.largest / 2};  // row 0's choice (assumptions.cpp); a router needs no embedding
    return false;
  }
  // A choice among several afterwards is no sample of its own, nor is a multinomial of more than the argmax below it.
  bool several = f.op->name == "aten::topk", around = f.op->name == "aten::multinomial" && f.below_launched;
  bool again = (around || (s.several && !several)) && !s.lookup.fresh && s.tokens.size() == static_cast<size_t>(count);
  if (!again) {
    s.rows = rows_of(s, static_cast<size_t>(count));
    s.tokens.clear();
    for (int64_t &name : s.rows) s.tokens.push_back(next_token(s, name));
    if (end_token == NONE && s.endless++) note_assumption("no sequence ends: --assume eos=TOKEN names the token");
  }
  s.several = several;
  s.lookup.fresh = false;
  PlainCalls plain;
  int64_t each = result.numel() / count;
  Tensor host = at::empty({count, each}, at::TensorOptions().dtype(at::kLong).device(at::kCPU));
  auto *to = host.data_ptr<int64_t>();
  for (int64_t token : s.tokens) to = std::fill_n(to, each, token);
  alias(result).copy_(host.view(result.sizes()));
  ph_memory_wrote(bytes_of(result), extent_of(result));
  mark(result, true);
  return true;
}

// ---------------------------------------------------------------- the token that ends a sequence
// The known number that `f` compares unknown ones with; NONE without one.
static int64_t compared_with(const IValue &v) {
  if (v.isScalar()) return v.toScalar().isIntegral(/*includeBool=*/false) ? v.toScalar().toLong() : NONE;
  if (!v.isTensor()) return NONE;
  const Tensor &t = v.toTensor();
  if (!t.defined() || !t.numel() || t.numel() > MOST_ENDS || !c10::isIntegralType(t.scalar_type(), false)) return NONE;
  if (t.is_cuda() && (!fits(t) || is_unknown(t))) return NONE;
  return on_host(t).flatten()[0].item<int64_t>();
}

void note_comparison(const Frame &f) {
  State &s = state();
  if (end_token != NONE || s.tokens.empty()) return;
  const Tensor &tokens = f.args[0].toTensor();
  if (!on_device(tokens) || tokens.scalar_type() != at::kLong || tokens.numel() > MOST_TOKENS || !fits(tokens) ||
      !is_unknown(tokens))
    return;
  PlainCalls plain;
  int64_t number = compared_with(f.args[1]);
  if (number < 0) return;
  Tensor host = on_host(tokens).contiguous();
  const auto *first = host.const_data_ptr<int64_t>(), *last = first + host.numel();
  std::lock_guard<std::mutex> guard(s.lock);
  for (int64_t token : s.tokens)
    if (std::find(first, last, token) == last) return;
  if (lengths.kind == Lengths::UNSET)
    note_assumption("no sampled token is " + std::to_string(number) + " (--assume length)");
  else
    end_token = number;
}

}  // namespace tracer
