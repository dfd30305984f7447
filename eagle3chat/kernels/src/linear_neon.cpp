// 8 outputs in two registers; up to 4 rows share each load of weights. The dot product is one of signed bytes: 8-bit
// codes are taken as u - 128, and 128 times the sum of a block's activations is added once. All of it is exact.
#include "linear.h"

#if E3_DOT_PRODUCT
#include <arm_neon.h>

#if defined(__clang__)
#define E3_DOT
#else
#define E3_DOT __attribute__((target("arch=armv8.2-a+dotprod")))
#endif

namespace e3 {
namespace {

constexpr int kAhead = 2048;  // bytes of codes between the ones in use and the ones asked for
constexpr int kHalf = 8;      // outputs

E3_INLINE float32x4_t widen(ScaleType type, const std::uint8_t* params, int index) {
  if (type == kFloat32) return vld1q_f32(reinterpret_cast<const float*>(params) + index);
  const uint16x4_t halves = vld1_u16(reinterpret_cast<const std::uint16_t*>(params) + index);
  if (type == kFloat16) return vcvt_f32_f16(vreinterpret_f16_u16(halves));
  return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
}

// dots[m] += the products of four columns, 4 * Lane .. of sixteen activations.
template <int M, int Lane>
E3_DOT E3_INLINE void four_columns(int8x16_t w0, int8x16_t w1, const int8x16_t (&rows)[M], int32x4_t (&dots)[M][2]) {
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
    dots[m][0] = vdotq_laneq_s32(dots[m][0], w0, rows[m], Lane);
    dots[m][1] = vdotq_laneq_s32(dots[m][1], w1, rows[m], Lane);
  }
}

// The chunk that begins at column 4 * Lane of sixteen activations.
template <int M, int Bits, int Lane>
E3_DOT E3_INLINE void chunk_dots(const std::uint8_t* codes, const int8x16_t (&rows)[M], int32x4_t (&dots)[M][2]) {
  const uint8x16_t a = vld1q_u8(codes), b = vld1q_u8(codes + 16);
  __builtin_prefetch(codes + kAhead);
  if constexpr (Bits == 8) {
    const uint8x16_t sign = vdupq_n_u8(128);
    four_columns<M, Lane>(vreinterpretq_s8_u8(veorq_u8(a, sign)), vreinterpretq_s8_u8(veorq_u8(b, sign)), rows, dots);
  } else {
    const uint8x16_t low = vdupq_n_u8(15);
    four_columns<M, Lane>(vreinterpretq_s8_u8(vandq_u8(a, low)), vreinterpretq_s8_u8(vandq_u8(b, low)), rows, dots);
    four_columns<M, Lane + 1>(vreinterpretq_s8_u8(vshrq_n_u8(a, 4)), vreinterpretq_s8_u8(vshrq_n_u8(b, 4)), rows, dots);
  }
}

// dots[m] += the products of one block; codes of the half tile.
template <int M, int Bits>
E3_DOT E3_INLINE void block_dots(const std::uint8_t* codes, const std::int8_t* rows, int32x4_t (&dots)[M][2]) {
#pragma GCC unroll 2
  for (int sixteen = 0; sixteen < 2; ++sixteen, codes += 64 * Bits / 2) {
    int8x16_t x[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) x[m] = vld1q_s8(rows + kBlock * m + 16 * sixteen);
    chunk_dots<M, Bits, 0>(codes, x, dots);
    if constexpr (Bits == 8) {
      chunk_dots<M, Bits, 1>(codes + 64, x, dots);
      chunk_dots<M, Bits, 2>(codes + 128, x, dots);
      chunk_dots<M, Bits, 3>(codes + 192, x, dots);
    } else {
      chunk_dots<M, Bits, 2>(codes + 64, x, dots);
    }
  }
}

template <int M, int Bits, bool Offsets>
E3_DOT E3_INLINE void half_tile(const Packed& w, const Rows& rows, const std::uint8_t* codes,
                                const std::uint8_t* params, int half, float (&sums)[M][kTile]) {
  const int param_bytes = w.param_bytes(), place = kHalf * half;
  float32x4_t acc[M][2];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = vdupq_n_f32(0.0f);
  codes += 32 * half;
  for (int block = 0; block < w.blocks; params += param_bytes) {
    const float32x4_t scale[2] = {widen(w.type, params, place), widen(w.type, params, place + 4)};
    float32x4_t offset[2] = {};
    if (Offsets) offset[0] = widen(w.type, params, kTile + place), offset[1] = widen(w.type, params, kTile + place + 4);
    for (int end = block + w.group_blocks; block < end; ++block, codes += kTile * kBlock * Bits / 8) {
      int32x4_t dots[M][2];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        int first = Offsets ? 0 : rows.zero_sums[block * M + m];
        if (Bits == 8) first += 128 * static_cast<int>(rows.sums[block * M + m]);
        dots[m][0] = dots[m][1] = vdupq_n_s32(first);
      }
      block_dots<M, Bits>(codes, rows.codes + static_cast<std::int64_t>(block) * M * kBlock, dots);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
          float32x4_t part = vmulq_f32(scale[i], vcvtq_f32_s32(dots[m][i]));
          if (Offsets) part = vfmaq_n_f32(part, offset[i], rows.sums[block * M + m]);
          acc[m][i] = vfmaq_n_f32(acc[m][i], part, rows.steps[block * M + m]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
    vst1q_f32(sums[m] + place, acc[m][0]);
    vst1q_f32(sums[m] + place + 4, acc[m][1]);
  }
}

template <int M, int Bits, bool Offsets>
E3_DOT void span(const Packed& w, const Rows& rows, const Output& out, int from_tile, int to_tile) {
  const int groups = w.blocks / w.group_blocks;
  for (int tile = from_tile; tile < to_tile; ++tile) {
    const std::uint8_t* codes = w.codes + static_cast<std::int64_t>(tile) * w.blocks * w.code_bytes();
    const std::uint8_t* params = w.params + static_cast<std::int64_t>(tile) * groups * w.param_bytes();
    alignas(64) float sums[M][kTile];
    half_tile<M, Bits, Offsets>(w, rows, codes, params, 0, sums);
    half_tile<M, Bits, Offsets>(w, rows, codes, params, 1, sums);
    for (int m = 0; m < M; ++m) finish(w, out, m, tile, sums[m]);
  }
}

template <int Bits, bool Offsets>
void span_of_rows(const Packed& w, const Rows& rows, const Output& out, int from_tile, int to_tile) {
  switch (rows.rows) {
    case 1: return span<1, Bits, Offsets>(w, rows, out, from_tile, to_tile);
    case 2: return span<2, Bits, Offsets>(w, rows, out, from_tile, to_tile);
    case 3: return span<3, Bits, Offsets>(w, rows, out, from_tile, to_tile);
    default: return span<4, Bits, Offsets>(w, rows, out, from_tile, to_tile);
  }
}

void any_span(const Packed& w, const Rows& rows, const Output& out, int from_tile, int to_tile) {
  if (w.bits == 4) {
    return w.zero < 0 ? span_of_rows<4, true>(w, rows, out, from_tile, to_tile)
                      : span_of_rows<4, false>(w, rows, out, from_tile, to_tile);
  }
  return w.zero < 0 ? span_of_rows<8, true>(w, rows, out, from_tile, to_tile)
                    : span_of_rows<8, false>(w, rows, out, from_tile, to_tile);
}

E3_INLINE int16x8_t eight_codes(uint16x8_t halves, float inverse) {  // half to even
  const float32x4_t low = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16));
  const float32x4_t high = vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(halves), 16));
  return vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(low, inverse))),
                      vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(high, inverse))));
}

void quantise(const std::uint16_t* x, int rows, int k, int zero, const Quantised& to) {
  const uint16x8_t size = vdupq_n_u16(0x7fff);
  for (int m = 0; m < rows; ++m) {
    for (int block = 0; block < k / kBlock; ++block) {
      const int at = block * rows + m;
      const std::uint16_t* from = x + static_cast<std::int64_t>(m) * k + block * kBlock;
      const uint16x8_t h[4] = {vld1q_u16(from), vld1q_u16(from + 8), vld1q_u16(from + 16), vld1q_u16(from + 24)};
      const uint16x8_t top = vmaxq_u16(vmaxq_u16(vandq_u16(h[0], size), vandq_u16(h[1], size)),
                                       vmaxq_u16(vandq_u16(h[2], size), vandq_u16(h[3], size)));
      const Step step = step_of(vmaxvq_u16(top));
      const int8x16_t low = vcombine_s8(vqmovn_s16(eight_codes(h[0], step.inverse)),
                                        vqmovn_s16(eight_codes(h[1], step.inverse)));
      const int8x16_t high = vcombine_s8(vqmovn_s16(eight_codes(h[2], step.inverse)),
                                         vqmovn_s16(eight_codes(h[3], step.inverse)));
      std::int8_t* codes = to.codes + static_cast<std::int64_t>(at) * kBlock;
      vst1q_s8(codes, low);
      vst1q_s8(codes + 16, high);
      const int sum = vaddlvq_s8(low) + vaddlvq_s8(high);
      to.steps[at] = step.step;
      to.sums[at] = static_cast<float>(sum);
      to.zero_sums[at] = -zero * sum;
    }
  }
}

}  // namespace

const Kernel& neon_kernel() {
  static const Kernel kernel{4, quantise, any_span};
  return kernel;
}

}  // namespace e3
#endif
