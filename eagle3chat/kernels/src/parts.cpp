// The exported functions of parts.h; the arithmetic is in parts_body.h. Rows are done one by one, and a gate's columns
// one by one, so bits do not depend on rows or threads.
#include "parts.h"

#include <algorithm>

#include "lanes.h"

#define E3_BODY "parts_body.h"
#include "each_variant.h"

namespace e3 {
namespace {

constexpr int kColumns = 1024;     // of a gate, a part
constexpr int kGateAlone = 8192;     // values of a gate that a second thread is not worth
constexpr int kNormAlone = 32768;  // and those of a norm
constexpr int kNormValues = 8192;  // of a norm, a part

struct Gate {
  const char* gate_up;
  char* out;
  int rows, width, parts_row;
  bool is_gelu, is_bf16;
};

void gate_columns(const Gate& g, int row, int from, int to) {
  const std::int64_t size = g.is_bf16 ? 2 : 4;
  const char* gate = g.gate_up + (std::int64_t(row) * 2 * g.width + from) * size;
  char* out = g.out + (std::int64_t(row) * g.width + from) * size;
  E3_CALL(gate_row, gate, gate + g.width * size, out, to - from, g.is_gelu, g.is_bf16);
}

void run_gate(void* context, int part) {
  const Gate& g = *static_cast<const Gate*>(context);
  const int from = part % g.parts_row * kColumns;
  gate_columns(g, part / g.parts_row, from, std::min(g.width, from + kColumns));
}

struct NormRows {
  const E3Norm& norm;
  const char* x;
  const char* y;  // null: nothing is added
  char* sum;
  char* out;
  int rows, rows_part;
};

void run_norm(void* context, int part) {
  const NormRows& n = *static_cast<const NormRows*>(context);
  const int first = part * n.rows_part, rows = std::min(n.rows_part, n.rows - first);
  const std::int64_t at = std::int64_t(first) * n.norm.width * (n.norm.is_bf16 ? 2 : 4);
  if (n.y == nullptr) {
    E3_CALL(norm_rows, n.norm, n.x + at, n.out + at, rows);
  } else {
    E3_CALL(add_norm_rows, n.norm, n.x + at, n.y + at, n.sum + at, n.out + at, rows);
  }
}

void run_norms(const E3Norm& norm, const void* x, const void* y, void* sum, void* out, int rows) {
  NormRows n{norm, static_cast<const char*>(x), static_cast<const char*>(y), static_cast<char*>(sum),
             static_cast<char*>(out), rows, rows};
  if (std::int64_t(rows) * norm.width > kNormAlone) n.rows_part = std::max(1, kNormValues / norm.width);
  pool_run((rows + n.rows_part - 1) / n.rows_part, run_norm, &n);
}

}  // namespace
}  // namespace e3

void e3_norm(const E3Norm* norm, const void* x, void* out, int rows) {
  e3::run_norms(*norm, x, nullptr, nullptr, out, rows);
}

void e3_add_norm(const E3Norm* norm, const void* x, const void* y, void* sum, void* out, int rows) {
  e3::run_norms(*norm, x, y, sum, out, rows);
}

void e3_gate(int width, int is_gelu, int is_bf16, const void* gate_up, void* out, int rows) {
  using namespace e3;
  Gate g{static_cast<const char*>(gate_up), static_cast<char*>(out), rows, width, 0, is_gelu != 0, is_bf16 != 0};
  if (std::int64_t(rows) * width <= kGateAlone) {
    for (int row = 0; row < rows; ++row) gate_columns(g, row, 0, width);
    return;
  }
  g.parts_row = (width + kColumns - 1) / kColumns;
  pool_run(rows * g.parts_row, run_gate, &g);
}
