// Four float32 lanes of GCC's and Clang's vector extension: what SSE2 and NEON have at least, without intrinsics but
// for the fused product of `E3_NEON_LANES`. No include guard: included inside a variant's namespace, see lanes.h.
constexpr int W = 4;
typedef float F __attribute__((vector_size(16)));
typedef std::int32_t Mask __attribute__((vector_size(16)));
typedef std::uint32_t Word __attribute__((vector_size(16)));

LANE F load(const float* p) { F x; std::memcpy(&x, p, sizeof x); return x; }
LANE void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
LANE F splat(float x) { return F{x, x, x, x}; }
#if E3_NEON_LANES
LANE F fma(F a, F b, F c) { return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#else
LANE F fma(F a, F b, F c) { return a * b + c; }  // two roundings: not every CPU fuses them
#endif
LANE F add(F a, F b) { return a + b; }
LANE F sub(F a, F b) { return a - b; }
LANE F mul(F a, F b) { return a * b; }
LANE F quotient(F a, F b) { return a / b; }
LANE F larger(F a, F b) { return a > b ? a : b; }  // b where one is not a number
LANE F smaller(F a, F b) { return a < b ? a : b; }
LANE Mask first(int n) { return Mask{0, 1, 2, 3} < Mask{n, n, n, n}; }
LANE F choose(Mask m, F a, F b) { return m ? a : b; }  // a where m

LANE F load(const bf16* p) {
  const Word wide{p[0], p[1], p[2], p[3]};
  return (F)(wide << 16);
}

LANE void store(bf16* p, F x) {
  const Word bits = (Word)x;
  const Word rounded = bits + ((bits >> 16) & 1u) + 0x7fffu;
  const Word broken{0x7fc00000u, 0x7fc00000u, 0x7fc00000u, 0x7fc00000u};
  const Word high = (Word)choose(x == x, (F)rounded, (F)broken) >> 16;
  for (int i = 0; i < W; ++i) p[i] = bf16(high[i]);
}

// x * 2^round(y), and round(y) for |y| < 2^22.
LANE F rounded(F x) {
  const F large = splat(12582912.0f);
  return x + large - large;
}
LANE F scaled(F x, F power) {
  const Mask exponent = (__builtin_convertvector(power, Mask) + 127) << 23;
  return x * (F)exponent;
}

// W rows of W 32-bit words, in place: the word j of row i and the word i of row j change places.
#if defined(__clang__)
#define E3_MIX(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define E3_MIX(a, b, i, j, k, l) __builtin_shuffle(a, b, Mask{i, j, k, l})
#endif
LANE void transpose(F (&r)[W]) {
  const F a = E3_MIX(r[0], r[1], 0, 4, 1, 5), b = E3_MIX(r[2], r[3], 0, 4, 1, 5);
  const F c = E3_MIX(r[0], r[1], 2, 6, 3, 7), d = E3_MIX(r[2], r[3], 2, 6, 3, 7);
  r[0] = E3_MIX(a, b, 0, 1, 4, 5);
  r[1] = E3_MIX(a, b, 2, 3, 6, 7);
  r[2] = E3_MIX(c, d, 0, 1, 4, 5);
  r[3] = E3_MIX(c, d, 2, 3, 6, 7);
}
#undef E3_MIX

// The lower and the upper bfloat16 of each 32-bit word.
LANE F low_half(F x) { return (F)((Word)x << 16); }
LANE F high_half(F x) { return (F)((Word)x & 0xffff0000u); }

// W words of 32 bits, without a sign unless said; products and sums wrap.
using I = Word;
LANE I load_words(const std::uint32_t* p) { I x; std::memcpy(&x, p, sizeof x); return x; }
LANE I splat_word(std::uint32_t x) { return I{x, x, x, x}; }
LANE I words(F x) { return (I)x; }
LANE F of_words(I x) { return (F)x; }
LANE I add(I a, I b) { return a + b; }
LANE I mul(I a, I b) { return a * b; }
LANE I differ(I a, I b) { return a ^ b; }
LANE I both(I a, I b) { return a & b; }
template <int n> LANE I right(I a) { return a >> n; }
LANE F number(I signed_words) { return __builtin_convertvector((Mask)signed_words, F); }
