// What lies between the matrix products of a layer: norms, residual sums, gates. Rows of bfloat16 or float32.
#pragma once

#include <cstdint>

#include "pool.h"

struct E3Norm {
  const float* weight;  // [width]
  std::int32_t width;
  std::int32_t is_bf16;  // the rows
  float eps;
};

// out = x / sqrt(mean(x^2) + eps) * weight; x, out [rows, width].
E3_EXPORT void e3_norm(const E3Norm* norm, const void* x, void* out, int rows);

// sum = x + y, rounded to the rows' type, and out = the norm of that. sum may be x or y.
E3_EXPORT void e3_add_norm(const E3Norm* norm, const void* x, const void* y, void* sum, void* out, int rows);

// out = act(gate) * up; gate_up [rows, 2 * width]: gate, up; out [rows, width]. act: SiLU, or GELU's tanh form.
E3_EXPORT void e3_gate(int width, int is_gelu, int is_bf16, const void* gate_up, void* out, int rows);
