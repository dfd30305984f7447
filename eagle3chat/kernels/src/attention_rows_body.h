// What both kinds of attention do with rows, in lanes: head norms, rotation, rows of the cache. See each_variant.h.

// Queries that share what is loaded: as many as the registers hold.
#if defined(__aarch64__)
constexpr int kQueries = 6;
#else
constexpr int kQueries = W == 16 ? 6 : 2;
#endif

// One head of one row, normed and rotated: x [d] -> y [d]. buffer: [d * 3 / 2].
template <class T, class A>
LANE void turn_head(const E3Attention& layer, const T* x, const float* norm, const A* cosine, const A* sine,
                    float factor, float* buffer, T* y, float* wide) {
  const int d = layer.head_dim;
  F square = splat(0);
  for (int j = 0; j < d; j += W) {
    const F value = load(x + j);
    square = fma(value, value, square);
    store(buffer + j, value);
  }
  if (norm != nullptr) {
    const F inverse = splat(1.0f / std::sqrt(sum(square) / float(d) + layer.eps));
    for (int j = 0; j < d; j += W) store(buffer + j, mul(mul(load(buffer + j), inverse), load(norm + j)));
  }
  std::memcpy(buffer + d, buffer, d / 2 * sizeof(float));
  for (int j = 0; j < d; j += W) {
    const F turned = fma(load(buffer + d / 2 + j), load(sine + j), mul(load(buffer + j), load(cosine + j)));
    if (wide != nullptr) {
      store(wide + j, mul(turned, splat(factor)));
    } else {
      store(y + j, turned);
    }
  }
}

template <class T, class A>
void write_rows_of(const E3Attention& layer, const T* qkv, int rows, int start) {
  float buffer[kMaxDim * 3 / 2];
  const std::int64_t d = layer.head_dim;
  T* const cache = static_cast<T*>(layer.cache);
  for (int row = 0; row < rows; ++row) {
    const std::int64_t position = start + row;
    const A* cosine = static_cast<const A*>(layer.cosines) + position * layer.table_stride;
    const A* sine = static_cast<const A*>(layer.sines) + position * layer.table_stride;
    const T* keys = qkv + (std::int64_t(row) * (layer.heads + 2 * layer.kv_heads) + layer.heads) * d;
    for (int head = 0; head < layer.kv_heads; ++head) {
      T* key = cache + head * layer.head_stride + position * d;
      turn_head<T, A>(layer, keys + head * d, layer.k_norm, cosine, sine, 1.0f, buffer, key, nullptr);
      T* value = cache + (layer.kv_heads + head) * layer.head_stride + position * d;
      std::memcpy(value, keys + (layer.kv_heads + head) * d, d * sizeof(T));
    }
  }
}

void write_rows(const E3Attention& layer, const void* qkv, int rows, int start) {
  const auto* b = static_cast<const bf16*>(qkv);
  const auto* f = static_cast<const float*>(qkv);
  if (layer.is_bf16 && layer.table_is_bf16) write_rows_of<bf16, bf16>(layer, b, rows, start);
  if (layer.is_bf16 && !layer.table_is_bf16) write_rows_of<bf16, float>(layer, b, rows, start);
  if (!layer.is_bf16 && layer.table_is_bf16) write_rows_of<float, bf16>(layer, f, rows, start);
  if (!layer.is_bf16 && !layer.table_is_bf16) write_rows_of<float, float>(layer, f, rows, start);
}

// Calls step(R, at) for blocks of R = kQueries, and for what is left as one block.
template <int R, class Step>
LANE void rest(int at, int count, Step step) {
  if constexpr (R > 0) {
    if (count - at == R) {
      step(std::integral_constant<int, R>{}, at);
    } else {
      rest<R - 1>(at, count, step);
    }
  }
}
template <class Step>
LANE void blocks(int count, Step step) {
  int at = 0;
  for (; at + kQueries <= count; at += kQueries) step(std::integral_constant<int, kQueries>{}, at);
  rest<kQueries - 1>(at, count, step);
}
