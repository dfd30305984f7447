// Scores and sums of attention_body.h by products of two bfloat16 at once, where the CPU has them: queries and weights
// are rounded to bfloat16 like the keys and values. Words are pairs of bfloat16. Included inside attention_body.h.

LANE __m512bh pair_of(const bf16* p) {
  std::uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return (__m512bh)_mm512_set1_epi32(int(word));
}

LANE void narrow(bf16* to, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(x)); }

// Two tiles of W positions each, of which `count` from `keys` on exist, turned on their side: [d / 2, tile, W] words.
// The same rows of `soon` begin to load: the cache comes from memory, and this at the same time as other work.
LANE void lay_pairs(const bf16* keys, const bf16* soon, int d, int count, float* tiles) {
  const int words = d / 2;
  for (int tile = 0; tile < 2; ++tile) {
    for (int word = 0; word < words; word += W) {
      F r[W];
      const __mmask16 whole = words - word < W ? __mmask16(0xff) : __mmask16(0xffff);  // d is a multiple of 16
      UNROLL for (int i = 0; i < W; ++i) {
        const int position = tile * W + i < count ? tile * W + i : count - 1;
        const std::int64_t at = std::int64_t(position) * d + word * 2;
        r[i] = _mm512_maskz_loadu_ps(whole, keys + at);
        __builtin_prefetch(soon + at);
      }
      transpose(r);
      float* to = tiles + (word * 2 + tile) * W;
      UNROLL for (int i = 0; i < W; ++i) {
        if (word + i < words) store(to + i * 2 * W, r[i]);
      }
    }
  }
}

// Scores of R queries [R, d] against two tiles, to scores[r * kChunk].
template <int R>
void score_pairs(const bf16* queries, int d, const float* tiles, float* scores) {
  F even[R][2], odd[R][2];
  UNROLL for (int r = 0; r < R; ++r) even[r][0] = even[r][1] = odd[r][0] = odd[r][1] = splat(0);
  for (int j = 0; j < d; j += 4, tiles += 4 * W) {
    const auto k0 = (__m512bh)load(tiles), k1 = (__m512bh)load(tiles + W);
    const auto k2 = (__m512bh)load(tiles + 2 * W), k3 = (__m512bh)load(tiles + 3 * W);
    UNROLL for (int r = 0; r < R; ++r) {
      const __m512bh a = pair_of(queries + r * d + j), b = pair_of(queries + r * d + j + 2);
      even[r][0] = _mm512_dpbf16_ps(even[r][0], k0, a);
      even[r][1] = _mm512_dpbf16_ps(even[r][1], k1, a);
      odd[r][0] = _mm512_dpbf16_ps(odd[r][0], k2, b);
      odd[r][1] = _mm512_dpbf16_ps(odd[r][1], k3, b);
    }
  }
  UNROLL for (int r = 0; r < R; ++r) {
    store(scores + r * kChunk, add(even[r][0], odd[r][0]));
    store(scores + r * kChunk + W, add(even[r][1], odd[r][1]));
  }
}

// The pairs of positions `even` and `odd` of 2 W columns: columns 8 i .. 8 i + 3 in the i-th quarter of `low`, the four
// after them in that of `high`.
struct Pairs {
  __m512bh low, high;
};
LANE Pairs pairs_of(const bf16* even, const bf16* odd, __mmask32 exists) {
  const __m512i a = _mm512_loadu_si512(even), b = _mm512_maskz_loadu_epi16(exists, odd);
  return {(__m512bh)_mm512_unpacklo_epi16(a, b), (__m512bh)_mm512_unpackhi_epi16(a, b)};
}

// sums[r * d ..+ N * 2 W] of R queries over `count` positions; weights [R, kChunk] are 0 where a query does not see.
// Rows of `soon` begin to load.
template <int R, int N>
void weigh_pairs(const bf16* weights, int count, const bf16* values, const bf16* soon, int d, float* sums) {
  F low[R][N], high[R][N];
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int n = 0; n < N; ++n) low[r][n] = high[r][n] = splat(0);
  }
  for (int position = 0; position < count; position += 2, values += 2 * d, soon += 2 * d) {
    const bool last = position + 1 == count;
    Pairs v[N];
    UNROLL for (int n = 0; n < N; ++n) {
      const bf16* own = values + n * 2 * W;
      __builtin_prefetch(soon + n * 2 * W);
      __builtin_prefetch(soon + n * 2 * W + d);
      v[n] = pairs_of(own, last ? own : own + d, last ? 0 : ~__mmask32(0));
    }
    UNROLL for (int r = 0; r < R; ++r) {
      const __m512bh weight = pair_of(weights + r * kChunk + position);
      UNROLL for (int n = 0; n < N; ++n) {
        low[r][n] = _mm512_dpbf16_ps(low[r][n], v[n].low, weight);
        high[r][n] = _mm512_dpbf16_ps(high[r][n], v[n].high, weight);
      }
    }
  }
  const __m512i front = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i back = _mm512_add_epi32(front, _mm512_set1_epi32(8));
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int n = 0; n < N; ++n) {
      float* to = sums + std::int64_t(r) * d + n * 2 * W;
      store(to, _mm512_permutex2var_ps(low[r][n], front, high[r][n]));
      store(to + W, _mm512_permutex2var_ps(low[r][n], back, high[r][n]));
    }
  }
}

// The last W columns, where d is an odd number of them.
template <int R>
void weigh_last(const bf16* weights, int count, const bf16* values, int d, float* sums) {
  F all[R];
  UNROLL for (int r = 0; r < R; ++r) all[r] = splat(0);
  for (int position = 0; position < count; position += 2, values += 2 * d) {
    I v = right<16>(words(load(values)));
    if (position + 1 < count) v = differ(v, words(load(values + d)));
    UNROLL for (int r = 0; r < R; ++r) {
      all[r] = _mm512_dpbf16_ps(all[r], (__m512bh)v, pair_of(weights + r * kChunk + position));
    }
  }
  UNROLL for (int r = 0; r < R; ++r) store(sums + std::int64_t(r) * d, all[r]);
}

template <int R>
void weigh_all_pairs(const bf16* weights, int count, const bf16* values, const bf16* soon, int d, float* sums) {
  int column = 0;
  for (; column + 4 * W <= d; column += 4 * W) {
    weigh_pairs<R, 2>(weights, count, values + column, soon + column, d, sums + column);
  }
  for (; column + 2 * W <= d; column += 2 * W) {
    weigh_pairs<R, 1>(weights, count, values + column, soon + column, d, sums + column);
  }
  if (column < d) weigh_last<R>(weights, count, values + column, d, sums + column);
}

void attend_unit_bf16(const Turn& t, int head, int chunk) {
  alignas(64) float tiles[W * kMaxDim];
  alignas(64) float scores[kBatch * kChunk];
  alignas(64) bf16 queries[kBatch * kMaxDim], weights[kBatch * kChunk];
  const E3Attention& layer = *t.layer;
  const int d = layer.head_dim, from = chunk * kChunk;
  const int count = std::min(kChunk, t.start + t.rows - from);  // positions that the last row sees
  const int unseeing = std::max(0, from - t.start);             // rows before the chunk
  const bf16* keys = static_cast<const bf16*>(layer.cache) + head * layer.head_stride + std::int64_t(from) * d;
  const bf16* values = keys + layer.kv_heads * layer.head_stride;
  const bf16* soon = chunk + 1 < t.chunks ? keys + std::int64_t(kChunk) * d : keys;  // the next unit's, most often
  const int all = t.rows * t.group;
  for (int begin = unseeing * t.group; begin < all; begin += kBatch) {
    const int number = std::min(kBatch, all - begin);
    const float* wide = pick_queries(t, head, 0) + std::int64_t(begin) * d;
    for (int j = 0; j < number * d; j += W) narrow(queries + j, load(wide + j));
    for (int position = 0; position < count; position += 2 * W) {
      lay_pairs(keys + std::int64_t(position) * d, values + std::int64_t(position) * d, d, count - position, tiles);
      blocks(number, [&](auto r, int at) {
        score_pairs<decltype(r)::value>(queries + std::int64_t(at) * d, d, tiles, scores + at * kChunk + position);
      });
    }
    const std::int64_t to = place(t, head, chunk) + begin;
    for (int i = 0; i < number; ++i) {
      const int seen = std::min(kChunk, t.start + (begin + i) / t.group + 1 - from);
      soften(scores + i * kChunk, seen, t.highest + to + i, t.weights + to + i);
      for (int j = 0; j < kChunk; j += W) {
        const F y = j < seen ? load(scores + i * kChunk + j) : splat(0);
        narrow(weights + i * kChunk + j, y);
      }
    }
    blocks(number, [&](auto r, int at) {
      weigh_all_pairs<decltype(r)::value>(weights + at * kChunk, count, values, soon, d, t.sums + (to + at) * d);
    });
  }
}
