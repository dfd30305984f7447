// The arithmetic of attention_many.cpp in lanes. See each_variant.h.
#include "attention_rows_body.h"

constexpr int kTiles = 4;  // of W positions, or of W columns, that a block of queries works on at once

// Products of 32-bit words: a float32, or two bfloat16 whose products are both added.
template <class T>
struct Words;

template <>
struct Words<float> {
  static constexpr int each = 1;
  using Lanes = F;
  static LANE F splat_of(const float* word) { return splat(*word); }
  static LANE F load_of(const float* words) { return load(words); }
  static LANE F product(F a, F b, F sum) { return fma(a, b, sum); }
  static LANE void narrow(float* to, F x) { store(to, x); }
};

#if E3_BF16_LANES
template <>
struct Words<bf16> {
  static constexpr int each = 2;
  using Lanes = __m512bh;
  static LANE Lanes splat_of(const float* word) { return (__m512bh)splat(*word); }
  static LANE Lanes load_of(const float* words) { return (__m512bh)load(words); }
  static LANE F product(Lanes a, Lanes b, F sum) { return _mm512_dpbf16_ps(sum, a, b); }
  static LANE void narrow(bf16* to, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(x)); }
};
#else
template <>
struct Words<bf16> {
  static constexpr int each = 2;
  struct Lanes {
    F low, high;
  };
  static LANE Lanes split(F x) { return {low_half(x), high_half(x)}; }
  static LANE Lanes splat_of(const float* word) { return split(splat(*word)); }
  static LANE Lanes load_of(const float* words) { return split(load(words)); }
  static LANE F product(Lanes a, Lanes b, F sum) { return fma(a.high, b.high, fma(a.low, b.low, sum)); }
  static LANE void narrow(bf16* to, F x) { store(to, x); }
};
#endif

// Keys [count, d] on their side: [kKeys / (kTiles * W), words of a row, kTiles, W]; positions from `count` on repeat
// the last one.
template <class T>
void lay_keys(const T* keys, int d, int count, float* to) {
  const int words = d / Words<T>::each;
  for (int tile = 0; tile * W < count; ++tile) {
    float* const own = to + std::int64_t(tile / kTiles) * words * kTiles * W + tile % kTiles * W;
    for (int word = 0; word < words; word += W) {
      F r[W];
      const int whole = std::min(W, words - word);  // W or, of 16 lanes, half of it
      for (int i = 0; i < W; ++i) {
        const T* from = keys + std::int64_t(std::min(tile * W + i, count - 1)) * d + word * Words<T>::each;
        r[i] = splat(0);
        if (whole == W) {
          std::memcpy(&r[i], from, sizeof(F));
        } else {
          std::memcpy(&r[i], from, W / 2 * 4);
        }
      }
      transpose(r);
      for (int i = 0; i < whole; ++i) store(own + std::int64_t(word + i) * kTiles * W, r[i]);
    }
  }
}

// Values [count, d] as words [count / each, d] of `each` positions; an odd last one has zeros beside it.
LANE void lay_values(const float* values, int d, int count, float* to) {
  std::memcpy(to, values, sizeof(float) * std::size_t(count) * std::size_t(d));
}
LANE void lay_values(const bf16* values, int d, int count, float* to) {
  for (int position = 0; position < count; position += 2, values += 2 * d, to += d) {
    for (int j = 0; j < d; j += W) {
      I word = right<16>(words(load(values + j)));
      if (position + 1 < count) word = differ(word, words(load(values + d + j)));
      store(to + j, of_words(word));
    }
  }
}

// Scores of R queries (of `words` words) against kTiles tiles, to scores[r * kKeys ..].
template <int R, class T>
LANE void score(const float* queries, int words, const float* tiles, float* scores) {
  using V = Words<T>;
  F acc[R][kTiles];
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int i = 0; i < kTiles; ++i) acc[r][i] = splat(0);
  }
  for (int j = 0; j < words; ++j, tiles += kTiles * W) {
    typename V::Lanes keys[kTiles];
    UNROLL for (int i = 0; i < kTiles; ++i) keys[i] = V::load_of(tiles + i * W);
    UNROLL for (int r = 0; r < R; ++r) {
      const auto query = V::splat_of(queries + r * words + j);
      UNROLL for (int i = 0; i < kTiles; ++i) acc[r][i] = V::product(keys[i], query, acc[r][i]);
    }
  }
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int i = 0; i < kTiles; ++i) store(scores + r * kKeys + i * W, acc[r][i]);
  }
}

// The first `seen` scores become weights relative to the largest one so far, those up to `count` 0; returns by how
// much the sums of before shrink.
template <class T>
LANE float soften(const float* scores, int seen, int count, float scale, float* top, float* totals, T* weights) {
  F high = splat(*top);
  for (int j = 0; j < seen; j += W) {
    const F x = load(scores + j);
    high = larger(j + W <= seen ? x : choose(first(seen - j), x, high), high);
  }
  const float before = *top;
  *top = highest(high);
  const F factor = splat(scale), minus = splat(-*top * scale);
  float shrink[W];
  store(shrink, exponential(splat((before - *top) * scale)));
  F total = mul(load(totals), splat(shrink[0]));
  int j = 0;
  for (; j < seen; j += W) {
    F y = exponential(fma(load(scores + j), factor, minus));
    if (j + W > seen) y = choose(first(seen - j), y, splat(0));
    total = add(total, y);
    Words<T>::narrow(weights + j, y);
  }
  for (; j < count; j += W) Words<T>::narrow(weights + j, splat(0));
  store(totals, total);
  return shrink[0];
}

// sums[r * d ..+ N * W] = shrink[r] * sums + weights of R queries times values; `words` of weights each.
template <int R, int N, class T>
LANE void weigh(const float* weights, const float* shrink, int words, const float* values, int d, float* sums) {
  using V = Words<T>;
  F acc[R][N];
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int n = 0; n < N; ++n) acc[r][n] = mul(load(sums + r * d + n * W), splat(shrink[r]));
  }
  for (int j = 0; j < words; ++j, values += d) {
    typename V::Lanes value[N];
    UNROLL for (int n = 0; n < N; ++n) value[n] = V::load_of(values + n * W);
    UNROLL for (int r = 0; r < R; ++r) {
      const auto weight = V::splat_of(weights + r * (kKeys / V::each) + j);
      UNROLL for (int n = 0; n < N; ++n) acc[r][n] = V::product(value[n], weight, acc[r][n]);
    }
  }
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int n = 0; n < N; ++n) store(sums + r * d + n * W, acc[r][n]);
  }
}

// R queries, from the `at`-th of the block on, and the keys that lie in `block`.
template <int R, class T>
void attend_queries(const Many& m, const Block& block, int at) {
  const E3Attention& layer = *m.layer;
  const int d = layer.head_dim, words = d / Words<T>::each;
  alignas(64) float scores[R * kKeys];
  alignas(64) T weights[R * kKeys];
  float shrink[R];
  for (int tile = 0; tile * kTiles * W < block.count; ++tile) {
    score<R, T>(block.queries + at * words, words, block.keys + std::int64_t(tile) * words * kTiles * W,
                scores + tile * kTiles * W);
  }
  for (int r = 0; r < R; ++r) {
    const int seen = std::min(block.count, block.start + (at + r) / m.group + 1 - block.from);
    shrink[r] = soften<T>(scores + r * kKeys, seen, block.count, layer.scale, block.tops + at + r,
                          block.totals + (at + r) * W, weights + r * kKeys);
  }
  const auto* given = reinterpret_cast<const float*>(weights);
  const int pairs = (block.count + Words<T>::each - 1) / Words<T>::each;
  float* const sums = block.sums + at * d;
  int c = 0;
  for (; c + kTiles * W <= d; c += kTiles * W) weigh<R, kTiles, T>(given, shrink, pairs, block.values + c, d, sums + c);
  for (; c < d; c += W) weigh<R, 1, T>(given, shrink, pairs, block.values + c, d, sums + c);
}

// The queries of one kv head of some rows, rotated: [rows, group, d] elements.
template <class T, class A>
void turn_queries(const Many& m, int head, int first, int rows, T* to) {
  float buffer[kMaxDim * 3 / 2];
  const E3Attention& layer = *m.layer;
  const std::int64_t d = layer.head_dim, across = (layer.heads + 2 * layer.kv_heads) * d;
  for (int row = first; row < first + rows; ++row) {
    const std::int64_t at = (m.start + row) * layer.table_stride;
    const T* x = static_cast<const T*>(m.qkv) + row * across + std::int64_t(head) * m.group * d;
    for (int query = 0; query < m.group; ++query, x += d, to += d) {
      turn_head<T, A>(layer, x, layer.q_norm, static_cast<const A*>(layer.cosines) + at,
                      static_cast<const A*>(layer.sines) + at, 1.0f, buffer, to, nullptr);
    }
  }
}

template <class T>
void attend_block_of(const Many& m, int head, int first) {
  const E3Attention& layer = *m.layer;
  const int d = layer.head_dim, rows = std::min(m.rows_unit, m.rows - first), all = rows * m.group;
  Block block = room_of(m, W);
  block.start = m.start + first;
  auto* const queries = reinterpret_cast<T*>(block.queries);
  if (layer.table_is_bf16) {
    turn_queries<T, bf16>(m, head, first, rows, queries);
  } else {
    turn_queries<T, float>(m, head, first, rows, queries);
  }
  std::fill(block.tops, block.tops + all, -INFINITY);
  std::fill(block.totals, block.totals + all * W, 0.0f);
  std::fill(block.sums, block.sums + std::int64_t(all) * d, 0.0f);
  const T* keys = static_cast<const T*>(layer.cache) + head * layer.head_stride;
  const T* values = keys + layer.kv_heads * layer.head_stride;
  const int end = block.start + rows;
  for (block.from = 0; block.from < end; block.from += kKeys) {
    block.count = std::min(kKeys, end - block.from);
    lay_keys<T>(keys + std::int64_t(block.from) * d, d, block.count, block.keys);
    lay_values(values + std::int64_t(block.from) * d, d, block.count, block.values);
    const int unseeing = std::max(0, block.from - block.start) * m.group;
    blocks(all - unseeing, [&](auto r, int at) { attend_queries<decltype(r)::value, T>(m, block, unseeing + at); });
  }
  for (int query = 0; query < all; ++query) {
    const std::int64_t row = first + query / m.group;
    T* to = static_cast<T*>(m.out) + (row * layer.heads + std::int64_t(head) * m.group + query % m.group) * d;
    const F inverse = splat(1.0f / sum(load(block.totals + query * W)));
    for (int j = 0; j < d; j += W) Words<T>::narrow(to + j, mul(load(block.sums + std::int64_t(query) * d + j), inverse));
  }
}

// The element types become template arguments.

void attend_block(const Many& m, int head, int first) {
  if (m.layer->is_bf16) {
    attend_block_of<bf16>(m, head, first);
  } else {
    attend_block_of<float>(m, head, first);
  }
}
