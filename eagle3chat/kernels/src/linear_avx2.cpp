// 8 outputs in a register; up to 4 rows share each load of weights. Pairs of products are added in 16 bits: with
// 4-bit factors even the 16 products of a block that meet in one place stay below 15 * 128 * 16 = 30720. 8-bit codes
// are taken as two 4-bit halves.
#include "linear.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define E3_AVX2 __attribute__((target("avx2,fma,f16c")))

namespace e3 {
namespace {

constexpr int kAhead = 4096;
constexpr int kHalf = 8;  // outputs

E3_AVX2 E3_INLINE __m256 widen(ScaleType type, const std::uint8_t* params, int index) {
  if (type == kFloat32) return _mm256_loadu_ps(reinterpret_cast<const float*>(params) + index);
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(params + 2 * index));
  if (type == kFloat16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

E3_AVX2 E3_INLINE __m256i four_columns(const std::int8_t* codes) {
  std::int32_t four;
  std::memcpy(&four, codes, sizeof four);
  return _mm256_set1_epi32(four);
}

E3_AVX2 E3_INLINE __m256i add_products(__m256i sum, __m256i weights, const std::int8_t* row) {
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, four_columns(row)));
}

template <int M, int Bits>
E3_AVX2 E3_INLINE void block_dots(const std::uint8_t* codes, const std::int8_t* rows, __m256i (&dots)[M]) {
  const __m256i low = _mm256_set1_epi8(15);
  __m256i first[M], second[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) first[m] = second[m] = _mm256_setzero_si256();
#pragma GCC unroll 1
  for (int chunk = 0; chunk < Bits; ++chunk) {
    __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + 64 * chunk));
    __asm__("" : "+x"(bytes));  // keeps the compiler from loading it once for each use, and from starting many chunks
    _mm_prefetch(reinterpret_cast<const char*>(codes + 64 * chunk + kAhead), _MM_HINT_T0);
    const __m256i lows = _mm256_and_si256(bytes, low);
    const __m256i highs = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const std::int8_t* row = rows + kBlock * m + (Bits == 4 ? 8 : 4) * chunk;
      first[m] = add_products(first[m], lows, row);
      if constexpr (Bits == 4) {
        first[m] = add_products(first[m], highs, row + 4);
      } else {
        second[m] = add_products(second[m], highs, row);
      }
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
    dots[m] = _mm256_add_epi32(dots[m], _mm256_madd_epi16(first[m], _mm256_set1_epi16(1)));
    if (Bits == 8) dots[m] = _mm256_add_epi32(dots[m], _mm256_madd_epi16(second[m], _mm256_set1_epi16(16)));
  }
}

template <int M, int Bits, bool Offsets>
E3_AVX2 E3_INLINE void half_tile(const Packed& w, const Rows& rows, const std::uint8_t* codes,
                                 const std::uint8_t* params, int half, float (&sums)[M][kTile]) {
  const int param_bytes = w.param_bytes();
  __m256 acc[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) acc[m] = _mm256_setzero_ps();
  codes += 32 * half;
  for (int block = 0; block < w.blocks; params += param_bytes) {
    const __m256 scale = widen(w.type, params, kHalf * half);
    const __m256 offset = Offsets ? widen(w.type, params, kTile + kHalf * half) : _mm256_setzero_ps();
    for (int end = block + w.group_blocks; block < end; ++block, codes += kTile * kBlock * Bits / 8) {
      __m256i dots[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        dots[m] = Offsets ? _mm256_setzero_si256() : _mm256_set1_epi32(rows.zero_sums[block * M + m]);
      }
      block_dots<M, Bits>(codes, rows.codes + static_cast<std::int64_t>(block) * M * kBlock, dots);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        __m256 part = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(dots[m]));
        if (Offsets) part = _mm256_fmadd_ps(offset, _mm256_set1_ps(rows.sums[block * M + m]), part);
        acc[m] = _mm256_fmadd_ps(_mm256_set1_ps(rows.steps[block * M + m]), part, acc[m]);
      }
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) _mm256_storeu_ps(sums[m] + kHalf * half, acc[m]);
}

template <int M, int Bits, bool Offsets>
E3_AVX2 void span(const Packed& w, const Rows& rows, const Output& out, int from_tile, int to_tile) {
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

E3_AVX2 E3_INLINE std::uint16_t largest_of(__m256i a, __m256i b) {
  const __m256i size = _mm256_set1_epi16(0x7fff);
  const __m256i half = _mm256_max_epu16(_mm256_and_si256(a, size), _mm256_and_si256(b, size));
  const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1)));
  return static_cast<std::uint16_t>(~_mm_cvtsi128_si32(smallest));
}

E3_AVX2 E3_INLINE __m256i eight_codes(__m128i halves, __m256 inverse) {
  const __m256 x = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  return _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
}

E3_AVX2 E3_INLINE int sum_of(__m256i codes) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
  const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

E3_AVX2 void quantise(const std::uint16_t* x, int rows, int k, int zero, const Quantised& to) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works within halves of a register
  for (int m = 0; m < rows; ++m) {
    for (int block = 0; block < k / kBlock; ++block) {
      const int at = block * rows + m;
      const std::uint16_t* from = x + static_cast<std::int64_t>(m) * k + block * kBlock;
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 16));
      const Step step = step_of(largest_of(a, b));
      const __m256 inverse = _mm256_set1_ps(step.inverse);
      const __m256i low = _mm256_packs_epi32(eight_codes(_mm256_castsi256_si128(a), inverse),
                                             eight_codes(_mm256_extracti128_si256(a, 1), inverse));
      const __m256i high = _mm256_packs_epi32(eight_codes(_mm256_castsi256_si128(b), inverse),
                                              eight_codes(_mm256_extracti128_si256(b, 1), inverse));
      const __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
      _mm256_store_si256(reinterpret_cast<__m256i*>(to.codes + static_cast<std::int64_t>(at) * kBlock), codes);
      const int sum = sum_of(codes);
      to.steps[at] = step.step;
      to.sums[at] = static_cast<float>(sum);
      to.zero_sums[at] = -zero * sum;
    }
  }
}

}  // namespace

const Kernel& avx2_kernel() {
  static const Kernel kernel{4, quantise, any_span};
  return kernel;
}

}  // namespace e3
#endif
