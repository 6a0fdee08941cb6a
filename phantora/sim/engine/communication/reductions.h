// The bytes of small collectives, computed from every member's contribution.
#pragma once
#include <math.h>
#include <string.h>

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "basics.h"

namespace phe {

inline float half_to_float(uint16_t h) {
  int exponent = h >> 10 & 31, mantissa = h & 1023;
  float value = exponent == 0    ? ldexpf(static_cast<float>(mantissa), -24)
                : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                 : ldexpf(static_cast<float>(mantissa + 1024), exponent - 25);
  return h & 0x8000 ? -value : value;
}

constexpr uint32_t INFINITE = 0x7f800000;  // bits of an infinite float; above are NaNs

inline uint16_t float_to_half(float f) {  // round to nearest even
  uint32_t x;
  memcpy(&x, &f, 4);
  uint32_t sign = x >> 16 & 0x8000, mag = x & 0x7fffffff;
  if (mag > INFINITE) return static_cast<uint16_t>(sign | 0x7e00);
  if (mag >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (mag < 0x38800000) {  // subnormal
    float v;
    memcpy(&v, &mag, 4);
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(nearbyintf(ldexpf(v, 24))));
  }
  uint32_t rounded = mag + 0xfff + (mag >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

inline float bf16_to_float(uint16_t h) {
  uint32_t x = static_cast<uint32_t>(h) << 16;
  float f;
  memcpy(&f, &x, 4);
  return f;
}

inline uint16_t float_to_bf16(float f) {
  uint32_t x;
  memcpy(&x, &f, 4);
  if ((x & 0x7fffffff) > INFINITE) return 0x7fc0;
  return static_cast<uint16_t>((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

// As a GPU does: whole numbers lose what is beyond their bits. 64-bit arithmetic is enough for all of them.
template <typename T>
T product(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return a * b;
}

template <typename T>
T total(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return a + b;
}

template <typename T>
T combine(T a, T b, int op) {
  switch (op) {
    case 1:
      return product(a, b);
    case 2:
      return std::max(a, b);
    case 3:
      return std::min(a, b);
    default:
      return total(a, b);  // sum, avg, pre-multiplied sum
  }
}

// The factor of a pre-multiplied sum in the type of the elements: the nearest of an integer's values, 0 for no number.
template <typename A>
A factor_as(double scale) {
  if constexpr (std::is_integral_v<A>) {
    if (!(scale == scale)) return 0;
    if (scale >= ldexp(1.0, std::numeric_limits<A>::digits)) return std::numeric_limits<A>::max();
    if (scale <= static_cast<double>(std::numeric_limits<A>::min())) return std::numeric_limits<A>::min();
  }
  return static_cast<A>(scale);
}

inline size_t longest(const std::vector<const std::string *> &parts) {
  size_t bytes = 0;
  for (const std::string *part : parts) bytes = std::max(bytes, part->size());
  return bytes;
}

// Accumulates in A, stores as T. op: ncclRedOp_t; above 4 a pre-multiplied sum.
template <typename T, typename A, typename Load, typename Store>
std::string reduce_as(const std::vector<const std::string *> &parts, int op, double scale, Load load, Store store) {
  size_t count = longest(parts) / sizeof(T);  // zeros at the end may be left out
  std::string out(count * sizeof(T), '\0');
  for (size_t i = 0; i < count; ++i) {
    A sum{};
    for (size_t p = 0; p < parts.size(); ++p) {
      T raw{};
      if (parts[p]->size() >= (i + 1) * sizeof(T)) memcpy(&raw, parts[p]->data() + i * sizeof(T), sizeof(T));
      A value = load(raw);
      if (op > 4) value = product(value, factor_as<A>(scale));
      sum = p ? combine<A>(sum, value, op) : value;
    }
    if (op == 4) sum = static_cast<A>(sum / static_cast<A>(parts.size()));
    T result = store(sum);
    memcpy(&out[i * sizeof(T)], &result, sizeof(T));
  }
  return out;
}

inline std::string reduce(const std::vector<const std::string *> &parts, int dtype, int op, double scale) {
#define PHE_PLAIN(T) return reduce_as<T, T>(parts, op, scale, [](T v) { return v; }, [](T v) { return v; })
  switch (dtype) {
    case 0:
      PHE_PLAIN(int8_t);
    case 1:
      PHE_PLAIN(uint8_t);
    case 2:
      PHE_PLAIN(int32_t);
    case 3:
      PHE_PLAIN(uint32_t);
    case 4:
      PHE_PLAIN(int64_t);
    case 5:
      PHE_PLAIN(uint64_t);
    case 6:
      return reduce_as<uint16_t, float>(parts, op, scale, half_to_float, float_to_half);
    case 7:
      PHE_PLAIN(float);
    case 8:
      PHE_PLAIN(double);
    case 9:
      return reduce_as<uint16_t, float>(parts, op, scale, bf16_to_float, float_to_bf16);
    default:
      return std::string(longest(parts), '\0');  // fp8 sums are data of large tensors: zero
  }
#undef PHE_PLAIN
}

inline std::string slice(const std::string &data, size_t index, size_t bytes) {
  size_t from = std::min(data.size(), index * bytes);
  std::string out = data.substr(from, bytes);
  out.resize(bytes, '\0');
  return out;
}

inline bool same_for_all(const ph_collective_fields &call) {
  if (call.coll == PH_COLL_ALL_REDUCE) return call.redop <= 4;  // a factor is each member's own
  return call.coll == PH_COLL_ALL_GATHER || call.coll == PH_COLL_BROADCAST;
}

// Bytes that member `me` receives. `record` is its COLLECTIVE record.
inline std::string collective_result(const ph_record &record, int me, const std::vector<const std::string *> &parts,
                                     double scale) {
  static const size_t sizes[] = PH_NCCL_DTYPE_BYTES;
  const ph_collective_fields &call = record.collective;
  int kind = call.coll, dtype = call.dtype, op = call.redop;
  size_t root = static_cast<uint32_t>(call.root);
  size_t element = static_cast<size_t>(dtype) < std::size(sizes) ? sizes[dtype] : 1, chunk = call.count * element;
  std::string out;
  switch (kind) {
    case PH_COLL_ALL_REDUCE:
    case PH_COLL_ONE_SHOT_ALL_REDUCE:
    case PH_COLL_TWO_SHOT_ALL_REDUCE:
      return reduce(parts, dtype, op, scale);
    case PH_COLL_REDUCE:
      return static_cast<size_t>(me) == root ? reduce(parts, dtype, op, scale) : out;
    case PH_COLL_REDUCE_SCATTER:
    case PH_COLL_PULLED_REDUCE_SCATTER:
      return slice(reduce(parts, dtype, op, scale), static_cast<size_t>(me), chunk);
    case PH_COLL_BROADCAST:
      return root < parts.size() ? *parts[root] : out;
    case PH_COLL_ALL_GATHER:
    case PH_COLL_GATHER:
      if (kind == PH_COLL_GATHER && static_cast<size_t>(me) != root) return out;
      for (const std::string *p : parts) out += slice(*p, 0, chunk);
      return out;
    case PH_COLL_ALL_TO_ALL:
      for (const std::string *p : parts) out += slice(*p, static_cast<size_t>(me), chunk);
      return out;
    case PH_COLL_SCATTER:
      return root < parts.size() ? slice(*parts[root], static_cast<size_t>(me), chunk) : out;
    default:
      return out;
  }
}

}  // namespace phe
