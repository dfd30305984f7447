// Attention of one layer over a few rows: head norms, rotation, cache rows and the attention itself in one call.
#pragma once

#include <cstdint>

#include "pool.h"

constexpr int kMaxDim = 512;  // of a head

// What does not change from pass to pass. "Elements" are bfloat16 or float32.
struct E3Attention {
  void* cache;          // elements [2 * kv_heads, capacity, head_dim]: keys, then values; position = row
  const void* cosines;  // [.., head_dim] of each position, `table_stride` apart
  const void* sines;    // the first half's are negative
  const float* q_norm;  // [head_dim] or null: RMS norm of each head before the rotation
  const float* k_norm;
  std::int64_t head_stride;   // of the cache: elements from head to head
  std::int64_t table_stride;  // of the tables: elements from position to position
  std::int32_t heads;         // of queries; a multiple of kv_heads
  std::int32_t kv_heads;
  std::int32_t head_dim;  // a multiple of 16, at most 512
  std::int32_t is_bf16;   // rows and cache: bfloat16, else float32
  std::int32_t table_is_bf16;
  float eps;    // of the head norms
  float scale;  // of the scores
};

// qkv [rows, (heads + 2 * kv_heads) * head_dim], out [rows, heads * head_dim]: row i is position start + i, its key
// and value go to the cache, and it sees positions 0 .. start + i. A row's bits depend on its input and on the cache
// before it alone: not on rows, start's place in a block or threads. Where the CPU multiplies bfloat16 (AVX512_BF16),
// queries and weights of bfloat16 rows are rounded to bfloat16.
E3_EXPORT void e3_attend(const E3Attention* layer, const void* qkv, void* out, int rows, int start);

// The same for many rows: faster there, and with other rounding (weights of bfloat16 rows are rounded to bfloat16). A
// row's bits depend on its input, its position and the cache before it alone.
E3_EXPORT void e3_attend_many(const E3Attention* layer, const void* qkv, void* out, int rows, int start);
