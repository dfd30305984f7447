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
