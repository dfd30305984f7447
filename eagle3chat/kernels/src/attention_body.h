// The arithmetic of attention.cpp in lanes. See each_variant.h.
#include "attention_rows_body.h"

LANE float* pick_queries(const Turn& t, int head, int row) {
  return t.queries + (std::int64_t(head) * t.rows + row) * t.group * t.layer->head_dim;
}

// The row of a (kv head, chunk) in `highest` and `weights`, and times d in `sums`.
LANE std::int64_t place(const Turn& t, int head, int chunk) {
  return (std::int64_t(head) * t.chunks + chunk) * t.rows * t.group;
}

template <class T, class A>
void prepare_queries_of(const Turn& t, const T* qkv) {
  float buffer[kMaxDim * 3 / 2];
  const E3Attention& layer = *t.layer;
  const std::int64_t d = layer.head_dim;
  for (int row = 0; row < t.rows; ++row) {
    const std::int64_t at = (t.start + row) * layer.table_stride;
    const A* cosine = static_cast<const A*>(layer.cosines) + at;
    const A* sine = static_cast<const A*>(layer.sines) + at;
    const T* x = qkv + std::int64_t(row) * (layer.heads + 2 * layer.kv_heads) * d;
    for (int head = 0; head < layer.heads; ++head) {
      float* to = pick_queries(t, head / t.group, row) + head % t.group * d;
      turn_head<T, A>(layer, x + head * d, layer.q_norm, cosine, sine, layer.scale, buffer, nullptr, to);
    }
  }
}

// Two tiles of W positions each, of which `count` from `keys` on exist, turned on their side:
// [d / 2, tile, parity of the column, W].
template <class T>
LANE void lay_keys(const T* keys, int d, int count, float* tiles) {
  constexpr int kWords = 4 / sizeof(T);  // columns a 32-bit word
  const int words = d / kWords;
  for (int tile = 0; tile < 2; ++tile) {
    for (int word = 0; word < words; word += W) {
      F r[W];
      const int whole = words - word < W ? words - word : W;
      UNROLL for (int i = 0; i < W; ++i) {
        const int position = tile * W + i < count ? tile * W + i : count - 1;
        const T* from = keys + std::int64_t(position) * d + word * kWords;
        if (whole == W) {
          std::memcpy(&r[i], from, sizeof(F));
        } else {
          r[i] = splat(0);
          std::memcpy(&r[i], from, W / 2 * 4);  // d is a multiple of 16: only 16 lanes can be half filled
        }
      }
      transpose(r);
      float* to = tiles + (sizeof(T) == 2 ? word * 4 * W : word * 2 * W) + tile * 2 * W;
      UNROLL for (int i = 0; i < W; ++i) {
        if (i >= whole) break;
        if (sizeof(T) == 2) {
          store(to + i * 4 * W, low_half(r[i]));
          store(to + i * 4 * W + W, high_half(r[i]));
        } else {
          store(to + i / 2 * 4 * W + i % 2 * W, r[i]);
        }
      }
    }
  }
}

// Scores of R queries [R, d] against two tiles, to scores[r * kChunk].
template <int R>
void score(const float* queries, int d, const float* tiles, float* scores) {
  F even[R][2], odd[R][2];
  UNROLL for (int r = 0; r < R; ++r) even[r][0] = even[r][1] = odd[r][0] = odd[r][1] = splat(0);
  for (int j = 0; j < d; j += 2, tiles += 4 * W) {
    const F k0 = load(tiles), k1 = load(tiles + W), k2 = load(tiles + 2 * W), k3 = load(tiles + 3 * W);
    UNROLL for (int r = 0; r < R; ++r) {
      const F a = splat(queries[r * d + j]), b = splat(queries[r * d + j + 1]);
      even[r][0] = fma(k0, a, even[r][0]);
      odd[r][0] = fma(k1, b, odd[r][0]);
      even[r][1] = fma(k2, a, even[r][1]);
      odd[r][1] = fma(k3, b, odd[r][1]);
    }
  }
  UNROLL for (int r = 0; r < R; ++r) {
    store(scores + r * kChunk, add(even[r][0], odd[r][0]));
    store(scores + r * kChunk + W, add(even[r][1], odd[r][1]));
  }
}

// The first n scores become exponentials relative to their maximum.
LANE void soften(float* scores, int n, float* highest_score, float* total) {
  F top = splat(-INFINITY);
  for (int j = 0; j < n; j += W) top = larger(top, choose(first(n - j), load(scores + j), splat(-INFINITY)));
  const float maximum = highest(top);
  F all = splat(0);
  for (int j = 0; j < n; j += W) {
    const F y = choose(first(n - j), exponential(sub(load(scores + j), splat(maximum))), splat(0));
    store(scores + j, y);
    all = add(all, y);
  }
  *highest_score = maximum;
  *total = sum(all);
}

// sums[r * d ..+ N * W] of R queries: each sees the first seen[r] values, which ascend with r.
template <int R, int N, class T>
void weigh(const float* weights, const int* seen, const T* values, int d, float* sums) {
  F acc[R][N];
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int n = 0; n < N; ++n) acc[r][n] = splat(0);
  }
  int position = 0;
  for (; position < seen[0]; ++position, values += d) {
    F v[N];
    UNROLL for (int n = 0; n < N; ++n) v[n] = load(values + n * W);
    UNROLL for (int r = 0; r < R; ++r) {
      const F weight = splat(weights[r * kChunk + position]);
      UNROLL for (int n = 0; n < N; ++n) acc[r][n] = fma(v[n], weight, acc[r][n]);
    }
  }
  for (; position < seen[R - 1]; ++position, values += d) {
    UNROLL for (int r = 1; r < R; ++r) {
      if (position >= seen[r]) continue;
      const F weight = splat(weights[r * kChunk + position]);
      UNROLL for (int n = 0; n < N; ++n) acc[r][n] = fma(load(values + n * W), weight, acc[r][n]);
    }
  }
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int n = 0; n < N; ++n) store(sums + std::int64_t(r) * d + n * W, acc[r][n]);
  }
}

template <int R, class T>
void weigh_columns(const float* weights, const int* seen, const T* values, int d, float* sums) {
  int column = 0;
  for (; column + 4 * W <= d; column += 4 * W) weigh<R, 4, T>(weights, seen, values + column, d, sums + column);
  for (; column + 2 * W <= d; column += 2 * W) weigh<R, 2, T>(weights, seen, values + column, d, sums + column);
  for (; column < d; column += W) weigh<R, 1, T>(weights, seen, values + column, d, sums + column);
}

template <class T>
void attend_unit_of(const Turn& t, int head, int chunk) {
  alignas(64) float tiles[2 * W * kMaxDim];
  alignas(64) float scores[kBatch * kChunk];
  int seen[kBatch];
  const E3Attention& layer = *t.layer;
  const int d = layer.head_dim, from = chunk * kChunk;
  const int count = std::min(kChunk, t.start + t.rows - from);  // positions that the last row sees
  const int unseeing = std::max(0, from - t.start);             // rows before the chunk
  const T* keys = static_cast<const T*>(layer.cache) + head * layer.head_stride + std::int64_t(from) * d;
  const T* values = keys + layer.kv_heads * layer.head_stride;
  const int all = t.rows * t.group;
  for (int begin = unseeing * t.group; begin < all; begin += kBatch) {
    const int number = std::min(kBatch, all - begin);
    const float* queries = pick_queries(t, head, 0) + std::int64_t(begin) * d;
    for (int position = 0; position < count; position += 2 * W) {
      lay_keys<T>(keys + std::int64_t(position) * d, d, count - position, tiles);
      blocks(number, [&](auto r, int at) {
        score<decltype(r)::value>(queries + std::int64_t(at) * d, d, tiles, scores + at * kChunk + position);
      });
    }
    const std::int64_t to = place(t, head, chunk) + begin;
    for (int i = 0; i < number; ++i) {
      seen[i] = std::min(kChunk, t.start + (begin + i) / t.group + 1 - from);
      soften(scores + i * kChunk, seen[i], t.highest + to + i, t.weights + to + i);
    }
    blocks(number, [&](auto r, int at) {
      weigh_columns<decltype(r)::value, T>(scores + at * kChunk, seen + at, values, d, t.sums + (to + at) * d);
    });
  }
}

template <class T>
void join_chunks_of(const Turn& t, T* out) {
  const E3Attention& layer = *t.layer;
  const int d = layer.head_dim;
  const std::int64_t step = std::int64_t(t.rows) * t.group;
  for (int row = 0; row < t.rows; ++row) {
    const int chunks = (t.start + row) / kChunk + 1;
    for (int query = 0; query < layer.heads; ++query) {
      const std::int64_t at = place(t, query / t.group, 0) + row * t.group + query % t.group;
      float top = -INFINITY, total = 0;
      for (int c = 0; c < chunks; ++c) top = std::max(top, t.highest[at + c * step]);
      float* const sums = t.sums + at * d;  // of the first chunk: the others are added to it
      for (int c = 0; c < chunks; ++c) {
        const float* own = t.sums + (at + c * step) * d;
        const F share = exponential(splat(t.highest[at + c * step] - top));
        float factor[W];
        store(factor, share);
        total += t.weights[at + c * step] * factor[0];
        for (int j = 0; j < d; j += W) {
          store(sums + j, c == 0 ? mul(load(own + j), share) : fma(load(own + j), share, load(sums + j)));
        }
      }
      const F inverse = splat(1.0f / total);
      T* to = out + (std::int64_t(row) * layer.heads + query) * d;
      for (int j = 0; j < d; j += W) store(to + j, mul(load(sums + j), inverse));
    }
  }
}

#if E3_BF16_LANES
#include "attention_bf16_body.h"
#else
LANE void attend_unit_bf16(const Turn& t, int head, int chunk) { attend_unit_of<bf16>(t, head, chunk); }
#endif

// The element types become template arguments.

void prepare_queries(const Turn& t, const void* qkv) {
  const auto* b = static_cast<const bf16*>(qkv);
  const auto* f = static_cast<const float*>(qkv);
  if (t.layer->is_bf16 && t.layer->table_is_bf16) prepare_queries_of<bf16, bf16>(t, b);
  if (t.layer->is_bf16 && !t.layer->table_is_bf16) prepare_queries_of<bf16, float>(t, b);
  if (!t.layer->is_bf16 && t.layer->table_is_bf16) prepare_queries_of<float, bf16>(t, f);
  if (!t.layer->is_bf16 && !t.layer->table_is_bf16) prepare_queries_of<float, float>(t, f);
}

void attend_unit(const Turn& t, int head, int chunk) {
  if (t.layer->is_bf16) {
    attend_unit_bf16(t, head, chunk);
  } else {
    attend_unit_of<float>(t, head, chunk);
  }
}

void join_chunks(const Turn& t, void* out) {
  if (t.layer->is_bf16) {
    join_chunks_of<bf16>(t, static_cast<bf16*>(out));
  } else {
    join_chunks_of<float>(t, static_cast<float*>(out));
  }
}
