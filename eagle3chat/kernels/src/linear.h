// Products of few rows with a quantised weight: y[m, n] = sum over k of x[m, k] * w[n, k] (+ bias[n]).
//
// Weights: w = scale * u + offset, u of 4 or 8 bits, one scale and offset for each row and group of columns.
// Activations are bfloat16 and become int8, symmetric, for each row and block of 32 columns:
//     largest = max |x|, step = largest / 127, q = round(x * (127 / largest)), half to even; a block whose largest is
//     below 2^-100 counts as zeros; one that holds an infinity or NaN gives NaN.
// For each block, in order of k, in float32, with one accumulator for each row and output:
//     offsets in use:            acc = fma(step, fma(offset, sum q, scale * float(sum u * q)), acc)
//     offset = -zero * scale:    acc = fma(step, scale * float(sum (u - zero) * q), acc)
// That order is all that a number depends on: not the number of rows, a row's place, the threads or the variant.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "pool.h"
#include "variant.h"

#if defined(__GNUC__)
#define E3_INLINE inline __attribute__((always_inline))
#else
#define E3_INLINE inline
#endif

namespace e3 {

constexpr int kTile = 16;     // outputs that lie together
constexpr int kBlock = 32;    // columns that share an activation step
constexpr int kMaxRows = 8;   // rows that one pass over a weight serves, at most
constexpr float kTiny = 0x1p-100f;

enum ScaleType : int { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

// One weight. Codes: for each tile of 16 outputs and block of 32 columns, chunks of 64 bytes; byte 4 i + j of a
// chunk belongs to output i. 8 bits: chunk c holds column 4 c + j. 4 bits: chunk c holds column 8 c + j in the low
// and 8 c + 4 + j in the high half. Params: for each tile and group 16 scales, then 16 offsets unless `zero` >= 0.
struct Packed {
  std::uint8_t* codes;
  std::uint8_t* params;
  float* bias;  // [tiles * 16] or null
  std::int64_t bytes;
  int n, k, tiles, blocks;  // blocks of 32 columns
  int group_blocks;         // blocks in a group
  int bits;
  ScaleType type;
  int zero;  // -1: offsets are stored

  int code_bytes() const { return kTile * kBlock * bits / 8; }  // of one tile and block
  int param_bytes() const { return kTile * (type == kFloat32 ? 4 : 2) * (zero < 0 ? 2 : 1); }  // of a tile and group
};

// Up to kMaxRows quantised rows: codes [blocks][rows][32], steps and sums [blocks][rows].
struct Rows {
  const std::int8_t* codes;
  const float* steps;
  const float* sums;               // of the codes
  const std::int32_t* zero_sums;   // -zero * sum of the codes
  int rows;
};

// Where the rows' results go: y [rows, n], bfloat16 or float32. With a residual [rows, n] in bfloat16, y is first
// rounded to bfloat16, then added to it in float32 and rounded again, as separate operations would do.
struct Output {
  void* y;
  const std::uint16_t* residual;
  bool wide;
};

struct Quantised {
  std::int8_t* codes;
  float* steps;
  float* sums;
  std::int32_t* zero_sums;
};

// One variant's code.
struct Kernel {
  int rows;  // most that `span` takes at once
  void (*quantise)(const std::uint16_t* x, int rows, int k, int zero, const Quantised& to);
  void (*span)(const Packed& w, const Rows& rows, const Output& out, int from_tile, int to_tile);
};

const Kernel& portable_kernel();
#if defined(__x86_64__)
const Kernel& avx2_kernel();
const Kernel& avx512_kernel();
#elif E3_DOT_PRODUCT
const Kernel& neon_kernel();
#endif

E3_INLINE float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

E3_INLINE std::uint32_t to_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

E3_INLINE float from_bfloat16(std::uint16_t half) { return from_bits(static_cast<std::uint32_t>(half) << 16); }

E3_INLINE std::uint16_t to_bfloat16(float value) {
  const std::uint32_t bits = to_bits(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

// Writes one row's results of a tile, `count` of 16.
E3_INLINE void finish(const Packed& w, const Output& out, int row, int tile, const float* acc) {
  const int first = tile * kTile;
  const int count = w.n - first < kTile ? w.n - first : kTile;
  alignas(64) float sum[kTile];
  for (int i = 0; i < kTile; ++i) sum[i] = w.bias != nullptr ? acc[i] + w.bias[first + i] : acc[i];
  const std::int64_t at = static_cast<std::int64_t>(row) * w.n + first;
  if (out.wide) {
    std::memcpy(static_cast<float*>(out.y) + at, sum, sizeof(float) * static_cast<std::size_t>(count));
    return;
  }
  alignas(64) std::uint16_t narrow[kTile];
  for (int i = 0; i < kTile; ++i) narrow[i] = to_bfloat16(sum[i]);
  if (out.residual != nullptr) {
    alignas(64) std::uint16_t other[kTile] = {};
    std::memcpy(other, out.residual + at, sizeof(std::uint16_t) * static_cast<std::size_t>(count));
    for (int i = 0; i < kTile; ++i) narrow[i] = to_bfloat16(from_bfloat16(other[i]) + from_bfloat16(narrow[i]));
  }
  std::memcpy(static_cast<std::uint16_t*>(out.y) + at, narrow, sizeof(std::uint16_t) * static_cast<std::size_t>(count));
}

// Step and its inverse of a block whose largest |x| has these bfloat16 bits.
struct Step {
  float step, inverse;
};

E3_INLINE Step step_of(std::uint16_t largest) {
  const float value = from_bfloat16(largest);
  if (value < kTiny) return {0.0f, 0.0f};
  if (largest >= 0x7f80) return {from_bits(0x7fc00000), 0.0f};
  return {value / 127.0f, 127.0f / value};
}

}  // namespace e3

// See linear.cpp.
E3_EXPORT void e3_linear_run(const void* handle, const void* x, void* y, int m, int wide, const void* residual);
