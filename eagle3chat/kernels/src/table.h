// Rows of an embedding kept in 8 bits.
#pragma once

#include <cstdint>

#include "pool.h"

struct E3Table {
  const std::uint8_t* codes;  // [rows, width]
  const float* params;        // [rows, 2, width / group]: scales, then biases
  std::int32_t width, group;
  std::int32_t is_bf16;  // what is written; else float32
};

// out [count, width] = code * scale + bias of the rows `ids`, each operation rounded to float32, then to out's type.
E3_EXPORT void e3_table_rows(const E3Table* table, const std::int64_t* ids, int count, void* out);
