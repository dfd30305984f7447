// No instructions in particular: for other CPUs, and the C++ twin of the other variants.
#include "linear.h"

namespace e3 {
namespace {

float widen_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t exponent = (half >> 10) & 31, fraction = half & 0x3ff;
  if (exponent == 0) {  // zero and subnormal: fraction * 2^-24 is exact
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return from_bits(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}

float widen(ScaleType type, const std::uint8_t* params, int index) {
  if (type == kFloat32) {
    float value;
    std::memcpy(&value, params + 4 * index, sizeof value);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, params + 2 * index, sizeof half);
  return type == kFloat16 ? widen_half(half) : from_bfloat16(half);
}

// Adds one block's products of all 16 outputs.
void block_dots(const Packed& w, const std::uint8_t* codes, const std::int8_t* row, std::int32_t (&dots)[kTile]) {
  for (int chunk = 0; chunk < w.bits; ++chunk, codes += 64) {
    for (int i = 0; i < kTile; ++i) {
      std::int32_t sum = 0;
      for (int j = 0; j < 4; ++j) {
        const int byte = codes[4 * i + j];
        sum += w.bits == 8 ? byte * row[4 * chunk + j] : (byte & 15) * row[8 * chunk + j] + (byte >> 4) * row[8 * chunk + 4 + j];
      }
      dots[i] += sum;
    }
  }
}

void row_of_tile(const Packed& w, const Rows& rows, int m, int tile, float (&acc)[kTile]) {
  const int groups = w.blocks / w.group_blocks;
  const std::uint8_t* codes = w.codes + static_cast<std::int64_t>(tile) * w.blocks * w.code_bytes();
  const std::uint8_t* params = w.params + static_cast<std::int64_t>(tile) * groups * w.param_bytes();
  for (float& value : acc) value = 0.0f;
  for (int block = 0; block < w.blocks; ++block, codes += w.code_bytes()) {
    const int at = block * rows.rows + m;
    const std::uint8_t* group = params + static_cast<std::int64_t>(block / w.group_blocks) * w.param_bytes();
    std::int32_t dots[kTile];
    for (std::int32_t& dot : dots) dot = w.zero < 0 ? 0 : rows.zero_sums[at];
    block_dots(w, codes, rows.codes + static_cast<std::int64_t>(at) * kBlock, dots);
    for (int i = 0; i < kTile; ++i) {
      float part = widen(w.type, group, i) * static_cast<float>(dots[i]);
      if (w.zero < 0) part = std::fma(widen(w.type, group, kTile + i), rows.sums[at], part);
      acc[i] = std::fma(rows.steps[at], part, acc[i]);
    }
  }
}

void span(const Packed& w, const Rows& rows, const Output& out, int from_tile, int to_tile) {
  for (int tile = from_tile; tile < to_tile; ++tile) {
    for (int m = 0; m < rows.rows; ++m) {
      float acc[kTile];
      row_of_tile(w, rows, m, tile, acc);
      finish(w, out, m, tile, acc);
    }
  }
}

void quantise(const std::uint16_t* x, int rows, int k, int zero, const Quantised& to) {
  for (int m = 0; m < rows; ++m) {
    for (int block = 0; block < k / kBlock; ++block) {
      const int at = block * rows + m;
      const std::uint16_t* from = x + static_cast<std::int64_t>(m) * k + block * kBlock;
      std::uint16_t largest = 0;
      for (int i = 0; i < kBlock; ++i) largest = (from[i] & 0x7fff) > largest ? from[i] & 0x7fff : largest;
      const Step step = step_of(largest);
      int sum = 0;
      for (int i = 0; i < kBlock; ++i) {
        const float scaled = step.inverse == 0.0f ? 0.0f : std::nearbyint(from_bfloat16(from[i]) * step.inverse);
        to.codes[static_cast<std::int64_t>(at) * kBlock + i] = static_cast<std::int8_t>(scaled);
        sum += static_cast<int>(scaled);
      }
      to.steps[at] = step.step;
      to.sums[at] = static_cast<float>(sum);
      to.zero_sums[at] = -zero * sum;
    }
  }
}

}  // namespace

const Kernel& portable_kernel() {
  static const Kernel kernel{4, quantise, span};
  return kernel;
}

}  // namespace e3
