// Eight float32 lanes of AVX2 and FMA. No include guard: included inside a variant's namespace, see lanes.h.
constexpr int W = 8;
using F = __m256;
using Mask = __m256;

LANE F load(const float* p) { return _mm256_loadu_ps(p); }
LANE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
LANE F splat(float x) { return _mm256_set1_ps(x); }
LANE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
LANE F add(F a, F b) { return _mm256_add_ps(a, b); }
LANE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
LANE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
LANE F quotient(F a, F b) { return _mm256_div_ps(a, b); }
LANE F larger(F a, F b) { return _mm256_max_ps(a, b); }  // b where one is not a number
LANE F smaller(F a, F b) { return _mm256_min_ps(a, b); }
LANE Mask first(int n) {
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}
LANE F choose(Mask m, F a, F b) { return _mm256_blendv_ps(b, a, m); }  // a where m

LANE F load(const bf16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

LANE void store(bf16* p, F x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256 broken = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), _mm256_castps_si256(broken));
  rounded = _mm256_srli_epi32(rounded, 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

// x * 2^round(y), and round(y).
LANE F rounded(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
LANE F scaled(F x, F power) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(x, _mm256_castsi256_ps(exponent));
}

// W rows of W 32-bit words, in place: the word j of row i and the word i of row j change places.
LANE void transpose(F (&r)[W]) {
  F a[W], b[W];
  UNROLL for (int i = 0; i < W; i += 2) {
    a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  UNROLL for (int i = 0; i < W; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  UNROLL for (int j = 0; j < 4; ++j) {
    r[j] = _mm256_permute2f128_ps(b[j], b[j + 4], 0x20);
    r[j + 4] = _mm256_permute2f128_ps(b[j], b[j + 4], 0x31);
  }
}

// The lower and the upper bfloat16 of each 32-bit word.
LANE F low_half(F x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 16)); }
LANE F high_half(F x) {
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(int(0xffff0000u))));
}

// W words of 32 bits, without a sign unless said; products and sums wrap.
using I = __m256i;
LANE I load_words(const std::uint32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
LANE I splat_word(std::uint32_t x) { return _mm256_set1_epi32(int(x)); }
LANE I words(F x) { return _mm256_castps_si256(x); }
LANE F of_words(I x) { return _mm256_castsi256_ps(x); }
LANE I add(I a, I b) { return _mm256_add_epi32(a, b); }
LANE I mul(I a, I b) { return _mm256_mullo_epi32(a, b); }
LANE I differ(I a, I b) { return _mm256_xor_si256(a, b); }
LANE I both(I a, I b) { return _mm256_and_si256(a, b); }
template <int n> LANE I right(I a) { return _mm256_srli_epi32(a, n); }
LANE F number(I signed_words) { return _mm256_cvtepi32_ps(signed_words); }
