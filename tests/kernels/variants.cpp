// Every variant of the kernels that a CPU has against plain code in double precision, without Python: for CPUs that
// are only emulated, and for sanitisers. Prints the best variant, then what each came to; with any argument the first
// alone. Exit code 1: a number is wrong. test_arm.py builds and runs it for AArch64; here, from the repository's root:
//   g++ -std=c++17 -O1 -g -ffp-contract=off -pthread -fsanitize=address,undefined eagle3chat/kernels/src/*.cpp
//       tests/kernels/variants.cpp -o /tmp/variants && /tmp/variants
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../../eagle3chat/kernels/src/attention.h"
#include "../../eagle3chat/kernels/src/choice.h"
#include "../../eagle3chat/kernels/src/parts.h"
#include "../../eagle3chat/kernels/src/variant.h"

extern "C" {
void* e3_linear_new(const std::uint8_t* codes, const float* scales, const float* offsets, const float* bias, int n,
                    int k, int bits, int group);
void e3_linear_free(void* handle);
void e3_linear_run(const void* handle, const void* x, void* y, int m, int wide, const void* residual);
}

namespace {

using Half = std::uint16_t;  // bfloat16
constexpr int kBlock = 32;
const char* const kNames[] = {"portable", "avx2", "avx512", "neon", "avx512_bf16"};
constexpr int kBf16 = 4;  // its place there
int wrong = 0;
std::mt19937 random_bits(7);

float draw() { return std::normal_distribution<float>()(random_bits); }
float widen(Half half) {
  const std::uint32_t bits = std::uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
Half narrow(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return Half((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
std::vector<Half> halves(std::size_t count) {
  std::vector<Half> made(count);
  for (Half& value : made) value = narrow(draw());
  return made;
}

void expect(bool right, const std::string& what) {
  if (right || ++wrong > 20) return;
  std::printf("wrong: %s, %s\n", kNames[e3_variant()], what.c_str());
}

struct Weight {
  int n, k, group, bits;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales, offsets;
  Weight(int n, int k, int group, int bits, int zero) : n(n), k(k), group(group), bits(bits), codes(std::size_t(n * k)) {
    for (auto& code : codes) code = std::uint8_t(random_bits() % (1u << bits));
    for (int i = 0; i < n * k / group; ++i) {
      scales.push_back(widen(narrow(draw() / 64)));
      offsets.push_back(zero < 0 ? widen(narrow(draw() / 8)) : -float(zero) * scales.back());
    }
  }
  std::string name(int m) const {
    return "linear of " + std::to_string(bits) + " bits, n " + std::to_string(n) + ", k " + std::to_string(k) + ", group " +
           std::to_string(group) + ", m " + std::to_string(m);
  }
};

// The rule of linear.h for one row and output, in double after the quantisation; `size`: the sum of the terms' sizes.
double product(const Weight& w, const Half* x, int n, double* size) {
  double sum = 0.0;
  *size = 0.0;
  for (int block = 0; block < w.k / kBlock; ++block) {
    float largest = 0.0f;
    for (int j = 0; j < kBlock; ++j) largest = std::max(largest, std::fabs(widen(x[block * kBlock + j])));
    for (int j = 0; j < kBlock && largest >= 0x1p-100f; ++j) {
      const int at = block * kBlock + j, group = n * (w.k / w.group) + at / w.group;
      const double q = std::nearbyint(widen(x[at]) * (127.0f / largest));
      const double step = largest / 127.0f, code = w.codes[std::size_t(n) * w.k + at];
      sum += step * q * (double(w.scales[group]) * code + w.offsets[group]);
      *size += step * std::fabs(q) * (std::fabs(double(w.scales[group])) * code + std::fabs(double(w.offsets[group])));
    }
  }
  return sum;
}

void check_linear(const Weight& w, int m) {
  std::vector<Half> x = halves(std::size_t(m) * w.k);
  if (m > 1) std::fill(x.begin(), x.begin() + std::min(w.k, 40), Half(0));  // a block of zeros, and part of one
  std::vector<float> y(std::size_t(m) * w.n), plain(y.size());
  void* handle = e3_linear_new(w.codes.data(), w.scales.data(), w.offsets.data(), nullptr, w.n, w.k, w.bits, w.group);
  e3_linear_run(handle, x.data(), y.data(), m, 1, nullptr);
  for (int row = 0; row < m; ++row) {
    for (int n = 0; n < w.n; ++n) {
      double size;
      const double wanted = product(w, x.data() + std::size_t(row) * w.k, n, &size);
      expect(std::fabs(y[std::size_t(row) * w.n + n] - wanted) <= 3e-7 * size + 1e-30, w.name(m));
    }
  }
  const int own = e3_variant();
  e3_use_variant(0);
  e3_linear_run(handle, x.data(), plain.data(), m, 1, nullptr);
  e3_use_variant(own);
  expect(y == plain, w.name(m) + ": other bits than the portable variant's");
  e3_linear_free(handle);
}

void check_linears() {
  for (int bits : {4, 8}) {
    for (int group : {32, 64, 128}) {
      for (const auto& [n, k] : {std::pair{1, 32}, {17, 64}, {33, 128}, {50, 384}}) {
        if (k % group != 0) continue;
        for (int zero : {-1, 1 << (bits - 1)}) {
          const Weight w(n, k, group, bits, zero);
          for (int m : {1, 2, 3, 4, 5, 6, 7, 8, 13}) check_linear(w, m);
        }
      }
    }
  }
  for (int bits : {4, 8}) {  // large enough for two threads
    const Weight w(4200, 64, 32, bits, -1);
    for (int m : {1, 3, 8}) check_linear(w, m);
  }
}

void check_parts() {
  for (int width : {1, 3, 16, 37, 64, 577}) {
    const std::string name = "of width " + std::to_string(width);
    std::vector<float> weight(width), x(width), out(width);
    double square = 0.0;
    for (int i = 0; i < width; ++i) weight[i] = draw(), x[i] = draw(), square += double(x[i]) * x[i];
    const E3Norm norm{weight.data(), width, 0, 1e-5f};
    e3_norm(&norm, x.data(), out.data(), 1);
    for (int i = 0; i < width; ++i) {
      const double wanted = x[i] / std::sqrt(square / width + 1e-5f) * weight[i];
      expect(std::fabs(out[i] - wanted) <= 1e-5 * std::fabs(wanted) + 1e-7, "norm " + name);
    }
    const std::vector<Half> gate_up = halves(std::size_t(2) * width);
    std::vector<Half> gated(width);
    e3_gate(width, 0, 1, gate_up.data(), gated.data(), 1);
    for (int i = 0; i < width; ++i) {
      const double gate = widen(gate_up[i]), wanted = gate / (1.0 + std::exp(-gate)) * widen(gate_up[width + i]);
      expect(std::fabs(widen(gated[i]) - wanted) <= std::fabs(wanted) / 128 + 1e-30, "gate " + name);
    }
  }
}

// `rows` rows behind `start` cached ones, without a rotation.
void check_attention(int heads, int kv_heads, int d, int start, int rows) {
  const int capacity = start + rows, across = (heads + 2 * kv_heads) * d, seen = heads / kv_heads;
  std::vector<Half> cache = halves(std::size_t(2) * kv_heads * capacity * d), qkv = halves(std::size_t(rows) * across);
  const std::vector<float> cosines(std::size_t(capacity) * d, 1.0f), sines(cosines.size(), 0.0f);
  const E3Attention layer{cache.data(), cosines.data(), sines.data(), nullptr, nullptr, std::int64_t(capacity) * d, d,
                          heads, kv_heads, d, 1, 0, 0.0f, 0.3f};
  std::vector<Half> out(std::size_t(rows) * heads * d);
  (rows > 16 ? e3_attend_many : e3_attend)(&layer, qkv.data(), out.data(), rows, start);
  for (int row = 0; row < rows; ++row) {
    for (int head = 0; head < heads; ++head) {
      const Half* query = qkv.data() + std::size_t(row) * across + head * d;
      const Half* keys = cache.data() + std::size_t(head / seen) * capacity * d;
      const Half* values = keys + std::size_t(kv_heads) * capacity * d;
      std::vector<double> sums(d, 0.0);
      double total = 0.0;
      for (int position = 0; position <= start + row; ++position) {
        double score = 0.0;
        for (int j = 0; j < d; ++j) score += double(widen(query[j])) * widen(keys[position * d + j]);
        const double share = std::exp(0.3 * score);
        total += share;
        for (int j = 0; j < d; ++j) sums[j] += share * widen(values[position * d + j]);
      }
      for (int j = 0; j < d; ++j) {
        const double got = widen(out[(std::size_t(row) * heads + head) * d + j]), wanted = sums[j] / total;
        // values of about 1; where bfloat16 is multiplied, queries and weights are rounded to 2^-9 of themselves
        expect(std::fabs(got - wanted) <= std::fabs(wanted) / 64 + (e3_variant() == kBf16 ? 6e-3 : 2e-3),
               "attention of " + std::to_string(d) + " columns, " + std::to_string(rows) + " rows after " + std::to_string(start));
      }
    }
  }
}

void check_choice() {
  const int width = 1037;
  std::vector<float> logits(width), noise(width), out(kColumns);
  const std::uint32_t keys[] = {11, 13};
  e3_gumbel(keys, 1, width, noise.data());
  for (float& value : logits) value = draw();
  const std::int64_t drafted = 5;
  e3_judge(logits.data(), noise.data(), &drafted, 1, width, 0.5f, out.data());
  double total = 0.0, mean = 0.0;
  int best = 0;
  for (int i = 0; i < width; ++i) {
    total += std::exp(2.0 * logits[i]);
    mean += noise[i] / width;
    if (2.0 * logits[i] + noise[i] > 2.0 * logits[best] + noise[best]) best = i;
  }
  expect(std::fabs(mean - 0.5772) < 0.15, "the noise's mean");
  expect(int(out[0]) == best, "the chosen id");
  expect(std::fabs(out[3] - std::exp(2.0 * logits[drafted]) / total) < 1e-5, "the probability of the drafted id");
}

}  // namespace

int main(int count, char**) {
  std::printf("%s\n", kNames[e3_variant()]);
  if (count > 1) return 0;
  e3_set_threads(2);
  for (int variant = 0; variant < 5; ++variant) {
    if (!e3_use_variant(variant)) continue;
    check_linears();
    check_parts();
    for (int start : {0, 5, 127, 140}) {
      for (int rows : {1, 3, 8}) check_attention(4, 2, 32, start, rows);
    }
    check_attention(3, 3, 48, 20, 4);
    check_attention(3, 1, 64, 100, 40);
    check_attention(2, 2, 48, 0, 37);
    check_choice();
    std::printf("%s: %d wrong\n", kNames[variant], wrong);
  }
  return wrong == 0 ? 0 : 1;
}
