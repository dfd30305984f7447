// What is said once for all variants in terms of their lanes. Included inside a variant's namespace, see lanes.h.

// The sum of all lanes, halves first, always in the same order.
LANE float sum(F x) {
  float lane[W];
  store(lane, x);
  for (int half = W / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}

LANE float highest(F x) {
  float lane[W];
  store(lane, x);
  for (int half = W / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
  }
  return lane[0];
}

// e^x, within 2 units of the last place for -87 <= x <= 88, and the value at the border beyond; what is not a
// number stays so. x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by its Taylor series up to r^7.
LANE F exponential(F x) {
  x = smaller(splat(88.0f), larger(splat(-87.0f), x));
  const F n = rounded(mul(x, splat(1.44269504f)));
  F r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  F y = splat(1.0f / 5040);
  y = fma(y, r, splat(1.0f / 720));
  y = fma(y, r, splat(1.0f / 120));
  y = fma(y, r, splat(1.0f / 24));
  y = fma(y, r, splat(1.0f / 6));
  y = fma(y, r, splat(0.5f));
  y = fma(y, r, splat(1.0f));
  y = fma(y, r, splat(1.0f));
  return scaled(y, n);
}

// ln x of a positive normal number, to about 2 units of the last place. x = 2^e m with m of sqrt(1/2) .. sqrt(2),
// ln m by the polynomial of S. Moshier's Cephes library (logf).
LANE F logarithm(F x) {
  const F half = splat(0.70710678f);
  const I bits = words(x);
  F m = of_words(add(both(bits, splat_word(0x007fffffu)), splat_word(0x3f000000u)));  // 1/2 .. 1
  F e = sub(number(right<23>(bits)), splat(126.0f));
  const F below = larger(splat(0.0f), smaller(splat(1.0f), mul(sub(half, m), splat(3.0e38f))));  // 1: m < sqrt(1/2)
  e = sub(e, below);
  m = fma(m, below, m);
  const F r = sub(m, splat(1.0f)), z = mul(r, r);
  F y = splat(7.0376836292e-2f);
  y = fma(y, r, splat(-1.1514610310e-1f));
  y = fma(y, r, splat(1.1676998740e-1f));
  y = fma(y, r, splat(-1.2420140846e-1f));
  y = fma(y, r, splat(1.4249322787e-1f));
  y = fma(y, r, splat(-1.6668057665e-1f));
  y = fma(y, r, splat(2.0000714765e-1f));
  y = fma(y, r, splat(-2.4999993993e-1f));
  y = fma(y, r, splat(3.3333331174e-1f));
  y = mul(mul(y, r), z);
  y = fma(e, splat(-2.12194440e-4f), y);
  y = fma(z, splat(-0.5f), y);
  return fma(e, splat(0.693359375f), add(r, y));
}
