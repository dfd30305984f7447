// Puts a weight into the layout of linear.h. Nothing is rounded: parameters are stored in 16 bits where all of them
// are 16-bit numbers, in 32 where not, and offsets are dropped where they follow from the scales.
#include <new>

#include "arena.h"
#include "linear.h"

namespace e3 {
namespace {

struct Source {
  const std::uint8_t* codes;  // [n, k]
  const float* scales;        // [n, k / group]
  const float* offsets;
  int groups;
};

std::uint16_t narrow_half(float value) {  // exact or not: the caller compares
  const std::uint32_t bits = to_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const int exponent = static_cast<int>((bits >> 23) & 255) - 112;
  const std::uint32_t fraction = bits & 0x7fffff;
  if (exponent >= 31) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (exponent > 0) return static_cast<std::uint16_t>(sign | exponent << 10 | fraction >> 13);
  if (exponent < -9) return static_cast<std::uint16_t>(sign);
  return static_cast<std::uint16_t>(sign | (fraction | 0x800000) >> (14 - exponent));
}

bool is_half(float value) {
  const std::uint32_t bits = to_bits(value);
  const int exponent = static_cast<int>((bits >> 23) & 255) - 112;
  if ((bits & 0x7fffffff) == 0) return true;
  if (exponent >= 31 || exponent < -9) return false;
  const int dropped = exponent > 0 ? 13 : 14 - exponent;
  return (((bits & 0x7fffff) | 0x800000) & ((1u << dropped) - 1)) == 0;
}

bool is_bfloat16(float value) { return (to_bits(value) & 0xffff) == 0; }

template <typename Check>
bool all(const Packed& w, const Source& from, Check check) {
  const std::int64_t count = static_cast<std::int64_t>(w.n) * from.groups;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!check(from.scales[i]) || (w.zero < 0 && !check(from.offsets[i]))) return false;
  }
  return true;
}

// The whole number z with offset = -z * scale everywhere, or -1.
int common_zero(const Packed& w, const Source& from) {
  const std::int64_t count = static_cast<std::int64_t>(w.n) * from.groups;
  int zero = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    if (from.scales[i] == 0.0f && from.offsets[i] == 0.0f) continue;
    const float ratio = -from.offsets[i] / from.scales[i];
    if (zero < 0) {
      if (!(ratio >= 0.0f && ratio <= 255.0f) || ratio != std::floor(ratio)) return -1;
      zero = static_cast<int>(ratio);
    }
    if (from.offsets[i] != -static_cast<float>(zero) * from.scales[i]) return -1;
  }
  return zero < 0 ? 0 : zero;
}

void store(const Packed& w, std::uint8_t* at, int index, float value) {
  if (w.type == kFloat32) {
    std::memcpy(at + 4 * index, &value, sizeof value);
    return;
  }
  const auto half = w.type == kFloat16 ? narrow_half(value) : static_cast<std::uint16_t>(to_bits(value) >> 16);
  std::memcpy(at + 2 * index, &half, sizeof half);
}

void pack_params(const Packed& w, const Source& from) {
  for (int n = 0; n < w.n; ++n) {
    for (int group = 0; group < from.groups; ++group) {
      std::uint8_t* at = w.params + (static_cast<std::int64_t>(n / kTile) * from.groups + group) * w.param_bytes();
      const std::int64_t source = static_cast<std::int64_t>(n) * from.groups + group;
      store(w, at, n % kTile, from.scales[source]);
      if (w.zero < 0) store(w, at, kTile + n % kTile, from.offsets[source]);
    }
  }
}

void pack_codes(const Packed& w, const Source& from) {
  const int wide = w.bits == 4 ? 8 : 4;  // columns in a chunk
  for (int n = 0; n < w.n; ++n) {
    const std::uint8_t* row = from.codes + static_cast<std::int64_t>(n) * w.k;
    for (int block = 0; block < w.blocks; ++block, row += kBlock) {
      std::uint8_t* to = w.codes + (static_cast<std::int64_t>(n / kTile) * w.blocks + block) * w.code_bytes();
      for (int column = 0; column < kBlock; ++column) {
        const int place = 64 * (column / wide) + 4 * (n % kTile) + column % 4;
        const bool high = column % wide >= 4;
        to[place] = static_cast<std::uint8_t>(to[place] | (high ? row[column] << 4 : row[column]));
      }
    }
  }
}

std::uint8_t* zeroed(std::int64_t bytes) { return static_cast<std::uint8_t*>(arena_take(static_cast<std::size_t>(bytes))); }

}  // namespace
}  // namespace e3

E3_EXPORT void e3_linear_free(void* handle) {
  auto* w = static_cast<e3::Packed*>(handle);
  if (w == nullptr) return;
  e3::pool_settle();
  e3::arena_give(w->codes);
  e3::arena_give(w->params);
  e3::arena_give(w->bias);
  delete w;
}

// codes uint8 [n, k] below 2^bits; scales and offsets float32 [n, k / group]; bias float32 [n] or null; k and group
// multiples of 32, k of group; bits 4 or 8. Null when memory is short.
E3_EXPORT void* e3_linear_new(const std::uint8_t* codes, const float* scales, const float* offsets, const float* bias,
                              int n, int k, int bits, int group) {
  using namespace e3;
  auto* w = new (std::nothrow) Packed{};
  if (w == nullptr) return nullptr;
  const Source from{codes, scales, offsets, k / group};
  w->n = n;
  w->k = k;
  w->tiles = (n + kTile - 1) / kTile;
  w->blocks = k / kBlock;
  w->group_blocks = group / kBlock;
  w->bits = bits;
  w->zero = -1;
  w->zero = common_zero(*w, from);
  w->type = all(*w, from, is_half) ? kFloat16 : all(*w, from, is_bfloat16) ? kBfloat16 : kFloat32;
  const std::int64_t code_bytes = static_cast<std::int64_t>(w->tiles) * w->blocks * w->code_bytes();
  const std::int64_t param_bytes = static_cast<std::int64_t>(w->tiles) * from.groups * w->param_bytes();
  const std::int64_t bias_bytes = bias == nullptr ? 0 : static_cast<std::int64_t>(w->tiles) * kTile * 4;
  w->codes = zeroed(code_bytes);
  w->params = zeroed(param_bytes);
  w->bias = bias == nullptr ? nullptr : reinterpret_cast<float*>(zeroed(bias_bytes));
  w->bytes = code_bytes + param_bytes + bias_bytes;
  if (w->codes == nullptr || w->params == nullptr || (bias != nullptr && w->bias == nullptr)) {
    e3_linear_free(w);
    return nullptr;
  }
  pack_codes(*w, from);
  pack_params(*w, from);
  if (bias != nullptr) std::memcpy(w->bias, bias, static_cast<std::size_t>(n) * 4);
  return w;
}

E3_EXPORT std::int64_t e3_linear_bytes(const void* handle) { return static_cast<const e3::Packed*>(handle)->bytes; }
