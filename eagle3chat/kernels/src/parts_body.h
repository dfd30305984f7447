// The arithmetic of parts.cpp in lanes. See each_variant.h.

// n < W values, the other lanes 0; and back.
template <class T>
LANE F load_some(const T* p, int n) {
  T padded[W] = {};
  std::memcpy(padded, p, n * sizeof(T));
  return load(padded);
}
template <class T>
LANE void store_some(T* p, F x, int n) {
  T padded[W];
  store(padded, x);
  std::memcpy(p, padded, n * sizeof(T));
}

// Four partial sums: one alone would wait for itself.
template <class T>
LANE float square_sum(const T* x, int width) {
  F part[4] = {splat(0), splat(0), splat(0), splat(0)};
  int j = 0;
  for (; j + 4 * W <= width; j += 4 * W) {
    UNROLL for (int i = 0; i < 4; ++i) {
      const F value = load(x + j + i * W);
      part[i] = fma(value, value, part[i]);
    }
  }
  for (; j < width; j += W) {
    const F value = width - j < W ? load_some(x + j, width - j) : load(x + j);
    part[0] = fma(value, value, part[0]);
  }
  return sum(add(add(part[0], part[1]), add(part[2], part[3])));
}

template <class T>
LANE void norm_row(const E3Norm& norm, const T* x, T* out) {
  const int width = norm.width;
  const F inverse = splat(1.0f / std::sqrt(square_sum(x, width) / float(width) + norm.eps));
  int j = 0;
  for (; j + W <= width; j += W) store(out + j, mul(mul(load(x + j), inverse), load(norm.weight + j)));
  if (j < width) {
    const F y = mul(mul(load_some(x + j, width - j), inverse), load_some(norm.weight + j, width - j));
    store_some(out + j, y, width - j);
  }
}

template <class T>
LANE void add_row(const T* x, const T* y, T* sum, int width) {
  int j = 0;
  for (; j + W <= width; j += W) store(sum + j, add(load(x + j), load(y + j)));
  if (j < width) store_some(sum + j, add(load_some(x + j, width - j), load_some(y + j, width - j)), width - j);
}

// SiLU: x / (1 + e^-x). GELU, tanh form: x (1 + tanh u) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <bool gelu>
LANE F gated(F gate, F up) {
  F minus = sub(splat(0), gate);
  if (gelu) {
    const F inner = fma(mul(gate, gate), splat(0.044715f), splat(1.0f));
    minus = mul(mul(gate, splat(-2.0f * 0.7978845608f)), inner);
  }
  return mul(quotient(gate, add(splat(1.0f), exponential(minus))), up);
}

template <class T, bool gelu>
void gate_row_of(const T* gate, const T* up, T* out, int count) {
  int j = 0;
  for (; j + W <= count; j += W) store(out + j, gated<gelu>(load(gate + j), load(up + j)));
  if (j < count) {
    store_some(out + j, gated<gelu>(load_some(gate + j, count - j), load_some(up + j, count - j)), count - j);
  }
}

template <class T>
void norm_rows_of(const E3Norm& norm, const T* x, T* out, int rows) {
  for (int row = 0; row < rows; ++row, x += norm.width, out += norm.width) norm_row(norm, x, out);
}

template <class T>
void add_norm_rows_of(const E3Norm& norm, const T* x, const T* y, T* sum, T* out, int rows) {
  const int width = norm.width;
  for (int row = 0; row < rows; ++row, x += width, y += width, sum += width, out += width) {
    add_row(x, y, sum, width);
    norm_row(norm, sum, out);
  }
}

// The element types become template arguments.

void norm_rows(const E3Norm& norm, const void* x, void* out, int rows) {
  if (norm.is_bf16) {
    norm_rows_of(norm, static_cast<const bf16*>(x), static_cast<bf16*>(out), rows);
  } else {
    norm_rows_of(norm, static_cast<const float*>(x), static_cast<float*>(out), rows);
  }
}

void add_norm_rows(const E3Norm& norm, const void* x, const void* y, void* sum, void* out, int rows) {
  if (norm.is_bf16) {
    add_norm_rows_of(norm, static_cast<const bf16*>(x), static_cast<const bf16*>(y), static_cast<bf16*>(sum),
                     static_cast<bf16*>(out), rows);
  } else {
    add_norm_rows_of(norm, static_cast<const float*>(x), static_cast<const float*>(y), static_cast<float*>(sum),
                     static_cast<float*>(out), rows);
  }
}

template <class T>
void gate_row_as(const void* gate, const void* up, void* out, int count, bool is_gelu) {
  const auto* g = static_cast<const T*>(gate);
  const auto* u = static_cast<const T*>(up);
  if (is_gelu) {
    gate_row_of<T, true>(g, u, static_cast<T*>(out), count);
  } else {
    gate_row_of<T, false>(g, u, static_cast<T*>(out), count);
  }
}

void gate_row(const void* gate, const void* up, void* out, int count, bool is_gelu, bool is_bf16) {
  if (is_bf16) {
    gate_row_as<bf16>(gate, up, out, count, is_gelu);
  } else {
    gate_row_as<float>(gate, up, out, count, is_gelu);
  }
}
