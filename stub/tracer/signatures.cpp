#include "tracer/signatures.h"

#include <cmath>
#include <cstring>

#include "tracer/tensors.h"

namespace tracer {

// Numbers that change from step to step (learning rates, bias corrections) must not make a new
// signature each time: halves up to 16 stay as they are, others keep their first digit.
struct Rounded {
  bool exact;
  double value;
  int digit, exponent;
};
static Rounded rounded(double x) {
  double twice = x * 2;
  if (!std::isfinite(x) || (std::abs(x) <= PH_EXACT_SCALAR && twice == std::trunc(twice))) return {true, x, 0, 0};
  double magnitude = std::abs(x);
  int exponent = static_cast<int>(std::floor(std::log10(magnitude) + 1e-12));
  int digit = static_cast<int>(magnitude / std::pow(10.0, exponent) + 1e-9);
  if (digit < 1) digit = 1;
  if (digit > 9) digit = 9;
  return {false, x, x < 0 ? -digit : digit, exponent};
}

static void hash_tensor(Hash &hash, const Tensor &t) {
  if (!t.defined()) return hash.add(1);
  if (is_python(t)) return hash.add(static_cast<uint64_t>(t.scalar_type()) << 32);
  hash.add(static_cast<uint64_t>(t.scalar_type()) << 16 | static_cast<uint64_t>(t.device().type()) << 8 |
           static_cast<uint64_t>(t.layout()));
  if (!has_sizes(t)) return;
  hash.add(static_cast<uint64_t>(t.dim()));
  for (int64_t size : t.sizes()) hash.add(static_cast<uint64_t>(size));
  if (t.layout() != at::kStrided) hash.add(static_cast<uint64_t>(stored_in(t)));
  if (t.layout() == at::kStrided)
    for (int64_t stride : t.strides()) hash.add(static_cast<uint64_t>(stride));
}

static void hash_number(Hash &hash, double x, uint64_t tag) {
  Rounded r = rounded(x);
  uint64_t bits;
  memcpy(&bits, &r.value, sizeof bits);
  hash.add(tag);
  hash.add(r.exact ? bits : static_cast<uint64_t>(static_cast<int64_t>(r.exponent) * 32 + r.digit));
}

static void totals(c10::ArrayRef<IValue> list, int64_t *numel, int64_t *bytes) {
  *numel = *bytes = 0;
  for (const IValue &v : list) {
    if (!v.isTensor() || !v.toTensor().defined() || !has_sizes(v.toTensor())) continue;
    int64_t n = v.toTensor().numel();
    *numel += n;
    *bytes += n * static_cast<int64_t>(v.toTensor().itemsize());
  }
}

static void hash_value(Hash &hash, const IValue &v, Role role) {
  if (v.isTensor()) return hash_tensor(hash, v.toTensor());
  if (v.isNone()) return hash.add(2);
  if (v.isInt()) {
    if (role == Role::NUMBER) return hash_number(hash, static_cast<double>(v.toInt()), 3);
    hash.add(4);
    return hash.add(static_cast<uint64_t>(v.toInt()));
  }
  if (v.isDouble()) return hash_number(hash, v.toDouble(), 5);
  if (v.isBool()) return hash.add(v.toBool() ? 7 : 6);
  if (v.isList()) {
    c10::ArrayRef<IValue> list = v.toListRef();
    hash.add(list.size() << 8 | 8);
    bool tensors = !list.empty() && list[0].isTensor();
    size_t shown = list.size() > PH_LONG_LIST ? PH_LIST_HEAD : list.size();
    for (size_t i = 0; i < shown; ++i) hash_value(hash, list[i], role);
    if (shown == list.size() || !tensors) return;
    int64_t numel, bytes;
    totals(list, &numel, &bytes);
    hash.add(static_cast<uint64_t>(numel));
    return hash.add(static_cast<uint64_t>(bytes));
  }
  if (v.isString()) return hash.add(ph_hash(v.toStringRef().data(), v.toStringRef().size(), 9));
  if (v.isDevice()) return hash.add(static_cast<uint64_t>(v.toDevice().type()) << 8 | 10);
  if (v.isComplexDouble()) {
    hash_number(hash, v.toComplexDouble().real(), 11);
    return hash_number(hash, v.toComplexDouble().imag(), 11);
  }
  hash.add(12);
}

static std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kHalf:
      return "float16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kComplexHalf:
      return "complex32";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    default:
      break;
  }
  std::string name = c10::toString(type);  // BFloat16, Bool, Float8_e4m3fn, UInt16, ...
  for (char &c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

static std::string device_name(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

static const char *layout_name(int64_t layout) {
  static const char *names[] = {"strided",    "sparse_coo", "sparse_csr", "mkldnn",
                                "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"};
  return layout >= 0 && layout < 8 ? names[layout] : "other";
}

static const char *memory_format_name(int64_t format) {
  static const char *names[] = {"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"};
  return format >= 0 && format < 4 ? names[format] : "other";
}

static void write_string(std::string &out, const std::string &text) {
  out += '"';
  for (char c : text) {
    auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u < 0x20) {
      char escaped[8];
      snprintf(escaped, sizeof escaped, "\\u%04x", u);
      out += escaped;
    } else {
      out += c;
    }
  }
  out += '"';
}

static void write_ints(std::string &out, c10::IntArrayRef values) {
  out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) out += ',';
    out += std::to_string(values[i]);
  }
  out += ']';
}

static void write_number(std::string &out, double x, bool integer) {
  if (std::isnan(x)) {
    out += "\"nan\"";
  } else if (std::isinf(x)) {
    out += x < 0 ? "\"-inf\"" : "\"inf\"";
  } else {
    Rounded r = rounded(x);
    double value =
        r.exact ? r.value : std::strtod((std::to_string(r.digit) + "e" + std::to_string(r.exponent)).c_str(), nullptr);
    char text[40];
    snprintf(text, sizeof text, integer ? "%.0f" : "%.15g", value);
    out += text;
    if (!integer && !strpbrk(text, ".e")) out += ".0";
  }
}

static void write_tensor(std::string &out, const Tensor &t) {
  if (!t.defined()) {
    out += "null";
    return;
  }
  out += "{\"t\":\"" + dtype_name(t.scalar_type()) + "\",\"s\":";
  bool python = is_python(t), sizes = has_sizes(t), strided = !python && t.layout() == at::kStrided;
  write_ints(out, sizes ? t.sizes() : c10::IntArrayRef());
  out += ",\"st\":";
  write_ints(out, sizes && strided ? t.strides() : c10::IntArrayRef());
  if (int64_t stored = stored_in(t); stored >= 0) out += ",\"nnz\":" + std::to_string(stored);
  if (!strided && !python) out += std::string(",\"layout\":\"") + layout_name(static_cast<int64_t>(t.layout())) + "\"";
  if (!python && !t.device().is_cuda()) out += ",\"d\":\"" + device_name(t.device().type()) + "\"";
  out += '}';
}

static void write_value(std::string &out, const IValue &v, Role role) {
  if (v.isTensor()) {
    write_tensor(out, v.toTensor());
  } else if (v.isNone()) {
    out += "null";
  } else if (v.isInt()) {
    int64_t i = v.toInt();
    if (role == Role::DTYPE)
      write_string(out, dtype_name(static_cast<at::ScalarType>(i)));
    else if (role == Role::LAYOUT)
      write_string(out, layout_name(i));
    else if (role == Role::MEMORY_FORMAT)
      write_string(out, memory_format_name(i));
    else if (role == Role::NUMBER)
      write_number(out, static_cast<double>(i), true);
    else
      out += std::to_string(i);
  } else if (v.isDouble()) {
    write_number(out, v.toDouble(), false);
  } else if (v.isBool()) {
    out += v.toBool() ? "true" : "false";
  } else if (v.isString()) {
    write_string(out, v.toStringRef());
  } else if (v.isDevice()) {
    write_string(out, device_name(v.toDevice().type()));
  } else if (v.isList()) {
    c10::ArrayRef<IValue> list = v.toListRef();
    bool tensors = role == Role::PLAIN && !list.empty() && list[0].isTensor();
    for (const IValue &element : list) tensors |= element.isTensor();
    bool wrap = tensors || list.size() > PH_LONG_LIST;
    size_t shown = list.size() > PH_LONG_LIST ? PH_LIST_HEAD : list.size();
    out += wrap ? "{\"l\":[" : "[";
    for (size_t i = 0; i < shown; ++i) {
      if (i) out += ',';
      write_value(out, list[i], role);
    }
    out += ']';
    if (shown < list.size()) {
      out += ",\"n\":" + std::to_string(list.size());
      if (tensors) {
        int64_t numel, bytes;
        totals(list, &numel, &bytes);
        out += ",\"numel\":" + std::to_string(numel) + ",\"bytes\":" + std::to_string(bytes);
      }
    }
    if (wrap) out += '}';
  } else if (v.isComplexDouble()) {
    std::string text;
    write_number(text, v.toComplexDouble().real(), false);
    text += " ";
    write_number(text, v.toComplexDouble().imag(), false);
    write_string(out, text + "j");
  } else if (v.isGenerator()) {
    out += "\"generator\"";
  } else {
    write_string(out, v.tagKind());
  }
}

static bool is_one(const Tensor &a, const Tensor &b) {
  if (a.is_same(b)) return true;
  return a.defined() && b.defined() && on_device(a) && on_device(b) && has_sizes(a) && has_sizes(b) &&
         bytes_of(a) == bytes_of(b) && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

bool is_square(const Frame &f) {
  if (C10_LIKELY(!f.op || f.op->squares == SIZE_MAX) || f.op->squares + 1 >= f.args.size()) return false;
  const IValue &a = f.args[f.op->squares], &b = f.args[f.op->squares + 1];
  if (a.isTensor() && b.isTensor()) return is_one(a.toTensor(), b.toTensor());
  if (!a.isTensorList() || !b.isTensorList()) return false;
  c10::ArrayRef<IValue> one = a.toListRef(), other = b.toListRef();
  if (one.empty() || one.size() != other.size()) return false;
  for (size_t i = 0; i < one.size(); ++i)
    if (!is_one(one[i].toTensor(), other[i].toTensor())) return false;
  return true;
}

static std::string signature_text(const Frame &f, const c10::ArrayRef<IValue> *outputs = nullptr) {
  std::string out = "{\"op\":";
  write_string(out, f.op->text);
  out += ",\"args\":[";
  for (size_t i = 0; i < f.args.size(); ++i) {
    if (i) out += ',';
    write_value(out, f.args[i], f.op->arguments[i].role);
  }
  out += f.backward ? "],\"bwd\":true" : "],\"bwd\":false";
  if (is_square(f)) out += ",\"square\":true";
  if (outputs) {
    out += ",\"out\":[";
    for (size_t i = 0; i < outputs->size(); ++i) {
      if (i) out += ',';
      write_value(out, (*outputs)[i], Role::PLAIN);
    }
    out += ']';
  }
  out += '}';
  return out;
}

uint64_t signature_hash(const Frame &f) {
  Hash hash{f.op->key ^ (f.backward ? 0x5bd1e995ULL : 0)};
  for (size_t i = 0; i < f.args.size(); ++i) hash_value(hash, f.args[i], f.op->arguments[i].role);
  if (is_square(f)) hash.add(13);
  return hash.h;
}

uint32_t signature_of(Thread &thread, const Frame &f) {
  uint64_t hash = signature_hash(f);
  SignatureSlot &slot = thread.signatures[hash >> 54];
  if (C10_LIKELY(slot.hash == hash && slot.id)) return slot.id;
  uint32_t id;
  if (!ph_name_known(hash, &id)) {
    std::string text = signature_text(f);
    id = ph_define(hash, PH_DEFINE_SIGNATURE, text.data(), text.size());
  }
  slot = {hash, id};
  return id;
}

uint32_t signature_with(const Frame &f, c10::ArrayRef<IValue> outputs) {
  size_t count = std::min(outputs.size(), f.op->returns_view.size());  // a boxed call shows its whole stack
  c10::ArrayRef<IValue> own = outputs.slice(outputs.size() - count);
  Hash hash{signature_hash(f) ^ 0x6f757470757473ULL};
  for (const IValue &v : own) hash_value(hash, v, Role::PLAIN);
  uint32_t id;
  if (!ph_name_known(hash.h, &id)) {
    std::string text = signature_text(f, &own);
    id = ph_define(hash.h, PH_DEFINE_SIGNATURE, text.data(), text.size());
  }
  return id;
}

}  // namespace tracer
