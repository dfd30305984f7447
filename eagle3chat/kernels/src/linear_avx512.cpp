// 16 outputs in a register; up to 8 rows share each load of weights.
#include "linear.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define E3_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

namespace e3 {
namespace {

constexpr int kAhead = 4096;  // bytes of codes between the ones in use and the ones asked for

E3_AVX512 E3_INLINE __m512 widen_bfloat16(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

E3_AVX512 E3_INLINE __m512 widen(ScaleType type, const std::uint8_t* at) {
  if (type == kFloat32) return _mm512_loadu_ps(at);
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  if (type == kFloat16) return _mm512_cvtph_ps(halves);
  return widen_bfloat16(halves);
}

E3_AVX512 E3_INLINE __m512i four_columns(const std::int8_t* codes) {
  std::int32_t four;
  std::memcpy(&four, codes, sizeof four);
  return _mm512_set1_epi32(four);
}

// dots[m] += the products of one block.
template <int M, int Bits>
E3_AVX512 E3_INLINE void block_dots(const std::uint8_t* codes, const std::int8_t* rows, __m512i (&dots)[M]) {
  const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 8
  for (int chunk = 0; chunk < Bits; ++chunk) {
    __m512i bytes = _mm512_load_si512(codes + 64 * chunk);
    __asm__("" : "+v"(bytes));  // keeps the compiler from loading it once for each use
    _mm_prefetch(reinterpret_cast<const char*>(codes + 64 * chunk + kAhead), _MM_HINT_T0);
    if constexpr (Bits == 8) {
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        dots[m] = _mm512_dpbusd_epi32(dots[m], bytes, four_columns(rows + kBlock * m + 4 * chunk));
      }
    } else {
      const __m512i first = _mm512_and_si512(bytes, low);
      const __m512i second = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        dots[m] = _mm512_dpbusd_epi32(dots[m], first, four_columns(rows + kBlock * m + 8 * chunk));
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        dots[m] = _mm512_dpbusd_epi32(dots[m], second, four_columns(rows + kBlock * m + 8 * chunk + 4));
      }
    }
  }
}

E3_AVX512 E3_INLINE __m256i narrow(__m512 values) {  // to bfloat16, as to_bfloat16
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i raised = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  const __m512i rounded = _mm512_mask_mov_epi32(_mm512_srli_epi32(raised, 16), nan, _mm512_set1_epi32(0x7fc0));
  return _mm512_cvtepi32_epi16(rounded);
}

// `finish` of linear.h with masks.
E3_AVX512 E3_INLINE void finish_row(const Packed& w, const Output& out, int row, int tile, __m512 sum) {
  const int first = tile * kTile, left = w.n - first;
  const auto mask = static_cast<__mmask16>(left >= kTile ? 0xffff : (1 << left) - 1);
  const std::int64_t at = static_cast<std::int64_t>(row) * w.n + first;
  if (w.bias != nullptr) sum = _mm512_add_ps(sum, _mm512_load_ps(w.bias + first));
  if (out.wide) return _mm512_mask_storeu_ps(static_cast<float*>(out.y) + at, mask, sum);
  __m256i halves = narrow(sum);
  if (out.residual != nullptr) {
    const __m512 other = widen_bfloat16(_mm256_maskz_loadu_epi16(mask, out.residual + at));
    halves = narrow(_mm512_add_ps(other, widen_bfloat16(halves)));
  }
  _mm256_mask_storeu_epi16(static_cast<std::uint16_t*>(out.y) + at, mask, halves);
}

template <int M, int Bits, bool Offsets>
E3_AVX512 void span(const Packed& w, const Rows& rows, const Output& out, int from_tile, int to_tile) {
  const int param_bytes = w.param_bytes(), groups = w.blocks / w.group_blocks;
  const ScaleType type = w.type;
  const std::uint8_t* codes = w.codes + static_cast<std::int64_t>(from_tile) * w.blocks * w.code_bytes();
  const std::uint8_t* params = w.params + static_cast<std::int64_t>(from_tile) * groups * param_bytes;
  for (int tile = from_tile; tile < to_tile; ++tile) {
    __m512 acc[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) acc[m] = _mm512_setzero_ps();
    int block = 0;
    for (int group = 0; group < groups; ++group, params += param_bytes) {
      const __m512 scale = widen(type, params);
      const __m512 offset = Offsets ? widen(type, params + param_bytes / 2) : _mm512_setzero_ps();
      _mm_prefetch(reinterpret_cast<const char*>(params + kAhead / 4), _MM_HINT_T0);
      for (int end = block + w.group_blocks; block < end; ++block, codes += kTile * kBlock * Bits / 8) {
        __m512i dots[M];
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          dots[m] = Offsets ? _mm512_setzero_si512() : _mm512_set1_epi32(rows.zero_sums[block * M + m]);
        }
        block_dots<M, Bits>(codes, rows.codes + static_cast<std::int64_t>(block) * M * kBlock, dots);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          __m512 part = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(dots[m]));
          if (Offsets) part = _mm512_fmadd_ps(offset, _mm512_set1_ps(rows.sums[block * M + m]), part);
          acc[m] = _mm512_fmadd_ps(_mm512_set1_ps(rows.steps[block * M + m]), part, acc[m]);
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) finish_row(w, out, m, tile, acc[m]);
  }
}

template <int Bits, bool Offsets>
void span_of_rows(const Packed& w, const Rows& rows, const Output& out, int from_tile, int to_tile) {
  switch (rows.rows) {
    case 1: return span<1, Bits, Offsets>(w, rows, out, from_tile, to_tile);
    case 2: return span<2, Bits, Offsets>(w, rows, out, from_tile, to_tile);
    case 3: return span<3, Bits, Offsets>(w, rows, out, from_tile, to_tile);
    case 4: return span<4, Bits, Offsets>(w, rows, out, from_tile, to_tile);
    case 5: return span<5, Bits, Offsets>(w, rows, out, from_tile, to_tile);
    case 6: return span<6, Bits, Offsets>(w, rows, out, from_tile, to_tile);
    case 7: return span<7, Bits, Offsets>(w, rows, out, from_tile, to_tile);
    default: return span<8, Bits, Offsets>(w, rows, out, from_tile, to_tile);
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

E3_AVX512 E3_INLINE std::uint16_t largest_of(__m512i halves) {
  const __m512i sizes = _mm512_and_si512(halves, _mm512_set1_epi16(0x7fff));
  const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(sizes), _mm512_extracti64x4_epi64(sizes, 1));
  const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi16(-1)));
  return static_cast<std::uint16_t>(~_mm_cvtsi128_si32(smallest));
}

E3_AVX512 E3_INLINE __m128i sixteen_codes(__m256i halves, __m512 inverse) {
  return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(widen_bfloat16(halves), inverse)));
}

E3_AVX512 E3_INLINE int sum_of(__m256i codes) {
  const __m256i fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

E3_AVX512 void quantise(const std::uint16_t* x, int rows, int k, int zero, const Quantised& to) {
  for (int m = 0; m < rows; ++m) {
    for (int block = 0; block < k / kBlock; ++block) {
      const int at = block * rows + m;
      const __m512i halves = _mm512_loadu_si512(x + static_cast<std::int64_t>(m) * k + block * kBlock);
      const Step step = step_of(largest_of(halves));
      const __m512 inverse = _mm512_set1_ps(step.inverse);
      const __m256i codes = _mm256_set_m128i(sixteen_codes(_mm512_extracti64x4_epi64(halves, 1), inverse),
                                             sixteen_codes(_mm512_castsi512_si256(halves), inverse));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to.codes + static_cast<std::int64_t>(at) * kBlock), codes);
      const int sum = sum_of(codes);
      to.steps[at] = step.step;
      to.sums[at] = static_cast<float>(sum);
      to.zero_sums[at] = -zero * sum;
    }
  }
}

}  // namespace

const Kernel& avx512_kernel() {
  static const Kernel kernel{8, quantise, any_span};
  return kernel;
}

}  // namespace e3
#endif
