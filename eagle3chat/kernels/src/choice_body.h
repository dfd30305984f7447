// The arithmetic of choice.cpp in lanes. See each_variant.h.

// The finaliser of the noise (constants "lowbias32": C. Wellons, hash-prospector).
LANE I mix(I x) {
  x = mul(differ(x, right<16>(x)), splat_word(0x7feb352du));
  x = mul(differ(x, right<15>(x)), splat_word(0x846ca68bu));
  return differ(x, right<16>(x));
}

// Of 32 random bits. log1p(-v) = log(u) - (v - (1 - u)) / u with u = 1 - v rounded: exact for small v too.
LANE F gumbel_of(I h) {
  const F low = add(number(both(h, splat_word(0xffffu))), splat(0.5f));
  F v = mul(fma(number(right<16>(h)), splat(65536.0f), low), splat(0x1p-32f));
  v = smaller(v, splat(1.0f - 0x1p-24f));
  const F u = sub(splat(1.0f), v);
  const F lost = sub(v, sub(splat(1.0f), u));
  const F exponential_draw = sub(quotient(lost, u), logarithm(u));
  return sub(splat(0.0f), logarithm(exponential_draw));
}

// Token ids from .. from + count - 1.
void gumbel_span(std::uint32_t first, std::uint32_t second, int from, int count, float* out) {
  std::uint32_t steps[W];
  for (int i = 0; i < W; ++i) steps[i] = std::uint32_t(from + i) * kIdStep + first;
  I at = load_words(steps);
  const I step = splat_word(kIdStep * W), key = splat_word(second);
  int j = 0;
  for (; j + W <= count; j += W, at = add(at, step)) store(out + j, gumbel_of(mix(differ(mix(at), key))));
  if (j == count) return;
  float rest[W];
  store(rest, gumbel_of(mix(differ(mix(at), key))));
  std::memcpy(out + j, rest, sizeof(float) * std::size_t(count - j));
}

// `count` < W values, the other lanes minus infinity.
LANE F load_row(const float* p, int count) {
  if (count >= W) return load(p);
  float padded[W];
  for (int i = 0; i < W; ++i) padded[i] = i < count ? p[i] : -INFINITY;
  return load(padded);
}

void scan_segment(const Row& row, int from, int count, Segment* out) {
  const F inverse = splat(row.inverse), alpha = splat(row.alpha);
  float best = -INFINITY;
  for (int block = 0, at = 0; at < count; ++block, at += kBlockIds) {
    const int end = count - at < kBlockIds ? count : at + kBlockIds;
    F top = splat(-INFINITY), won = top;
    for (int j = at; j < end; j += W) {
      const F s = mul(load_row(row.logits + from + j, end - j), inverse);
      top = larger(s, top);
      if (row.noise != nullptr) won = larger(fma(s, alpha, load_row(row.noise + from + j, end - j)), won);
    }
    out->tops[block] = highest(top);
    out->scores[block] = row.noise != nullptr ? highest(won) : out->tops[block];
    best = best < out->tops[block] ? out->tops[block] : best;
  }
  out->best = best;
  out->sum = 0.0f;
  if (best == -INFINITY) return;
  F part = splat(0.0f);
  for (int j = 0; j < count; j += W) {
    const F s = mul(load_row(row.logits + from + j, count - j), inverse);
    part = add(part, exponential(sub(s, splat(best))));
  }
  out->sum = sum(part);
  if (count % W != 0) out->sum -= float(W - count % W) * 1.6458115e-38f;  // the padding's e^-87
}
