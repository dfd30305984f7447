// Sixteen float32 lanes of AVX512. No include guard: included inside a variant's namespace, see lanes.h.
constexpr int W = 16;
using F = __m512;
using Mask = __mmask16;

LANE F load(const float* p) { return _mm512_loadu_ps(p); }
LANE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
LANE F splat(float x) { return _mm512_set1_ps(x); }
LANE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
LANE F add(F a, F b) { return _mm512_add_ps(a, b); }
LANE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
LANE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
LANE F quotient(F a, F b) { return _mm512_div_ps(a, b); }
LANE F larger(F a, F b) { return _mm512_max_ps(a, b); }  // b where one is not a number
LANE F smaller(F a, F b) { return _mm512_min_ps(a, b); }
LANE Mask first(int n) { return n >= W ? Mask(0xffff) : n <= 0 ? Mask(0) : Mask((1u << n) - 1); }
LANE F choose(Mask m, F a, F b) { return _mm512_mask_blend_ps(m, b, a); }  // a where m

LANE F load(const bf16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

LANE void store(bf16* p, F x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const Mask broken = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_blend_epi32(broken, rounded, _mm512_set1_epi32(0x7fc00000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

// x * 2^round(y), and round(y).
LANE F rounded(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
LANE F scaled(F x, F power) { return _mm512_scalef_ps(x, power); }

// W rows of W 32-bit words, in place: the word j of row i and the word i of row j change places.
LANE void transpose(F (&r)[W]) {
  __m512i a[W], b[W];
  UNROLL for (int i = 0; i < W; ++i) a[i] = _mm512_castps_si512(r[i]);
  UNROLL for (int i = 0; i < W; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  UNROLL for (int i = 0; i < W; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  UNROLL for (int i = 0; i < W; i += 8) {
    UNROLL for (int j = 0; j < 4; ++j) {
      b[i + j] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0x88);
      b[i + j + 4] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0xdd);
    }
  }
  UNROLL for (int j = 0; j < 8; ++j) {
    r[j] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(b[j], b[j + 8], 0x88));
    r[j + 8] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(b[j], b[j + 8], 0xdd));
  }
}

// The lower and the upper bfloat16 of each 32-bit word.
LANE F low_half(F x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 16)); }
LANE F high_half(F x) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(int(0xffff0000u))));
}

// W words of 32 bits, without a sign unless said; products and sums wrap.
using I = __m512i;
LANE I load_words(const std::uint32_t* p) { return _mm512_loadu_si512(p); }
LANE I splat_word(std::uint32_t x) { return _mm512_set1_epi32(int(x)); }
LANE I words(F x) { return _mm512_castps_si512(x); }
LANE F of_words(I x) { return _mm512_castsi512_ps(x); }
LANE I add(I a, I b) { return _mm512_add_epi32(a, b); }
LANE I mul(I a, I b) { return _mm512_mullo_epi32(a, b); }
LANE I differ(I a, I b) { return _mm512_xor_si512(a, b); }
LANE I both(I a, I b) { return _mm512_and_si512(a, b); }
template <int n> LANE I right(I a) { return _mm512_srli_epi32(a, n); }
LANE F number(I signed_words) { return _mm512_cvtepi32_ps(signed_words); }
