// Attention of a prompt's rows; the arithmetic is in attention_many_body.h.
//
// A unit of work is one kv head and a block of rows, whose queries are rotated once and stay beside it. It goes through
// the keys in chunks of kKeys, counted from position 0: scores, weights relative to the largest score so far, and sums
// of values that are scaled down when a larger score comes (Milakov and Gimelshein 2018; Dao et al. 2022).
#include <algorithm>
#include <memory>
#include <new>

#include "attention.h"
#include "lanes.h"

namespace e3 {
namespace {

constexpr int kKeys = 128;         // positions a chunk
constexpr int kUnitQueries = 192;  // about so many queries a unit

struct Many {
  const E3Attention* layer;
  const void* qkv;
  void* out;
  int start, rows;
  int group;      // query heads a kv head
  int rows_unit;  // rows a unit
  int units;      // of a kv head
};

// A unit's memory, and the chunk of keys that lies in it.
struct Block {
  float* queries;  // [queries, words of a head]
  float* keys;
  float* values;
  float* sums;    // [queries, d]
  float* totals;  // [queries, lanes]: of the weights
  float* tops;    // [queries]: the largest scores
  int start;      // position of the first row
  int from, count;
};

struct Free {
  void operator()(float* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
};

// Memory of the calling thread, which grows to the largest call and is kept.
Block room_of(const Many& m, int lanes) {
  thread_local std::unique_ptr<float[], Free> memory;
  thread_local std::size_t size = 0;
  const std::size_t d = std::size_t(m.layer->head_dim), queries = (std::size_t(m.rows_unit) * m.group + 15) / 16 * 16;
  const std::size_t wanted = 2 * queries * d + 2 * kKeys * d + queries * (std::size_t(lanes) + 1);
  if (size < wanted) {
    memory.reset();
    memory.reset(static_cast<float*>(::operator new[](wanted * sizeof(float), std::align_val_t{64})));
    size = wanted;
  }
  Block block{};
  block.queries = memory.get();
  block.sums = block.queries + queries * d;
  block.keys = block.sums + queries * d;
  block.values = block.keys + kKeys * d;
  block.totals = block.values + kKeys * d;
  block.tops = block.totals + queries * std::size_t(lanes);
  return block;
}

}  // namespace
}  // namespace e3

#define E3_BODY "attention_many_body.h"
#define E3_WANT_BF16 1
#include "each_variant.h"

namespace e3 {
namespace {

void run_unit(void* context, int part) {
  const Many& m = *static_cast<const Many*>(context);
  E3_CALL(attend_block, m, part / m.units, part % m.units * m.rows_unit);
}

}  // namespace
}  // namespace e3

void e3_attend_many(const E3Attention* layer, const void* qkv, void* out, int rows, int start) {
  using namespace e3;
  Many m{layer, qkv, out, start, rows, layer->heads / layer->kv_heads, 0, 0};
  m.rows_unit = std::clamp(kUnitQueries / m.group, 1, rows);
  m.units = (rows + m.rows_unit - 1) / m.rows_unit;
  E3_CALL(write_rows, *layer, qkv, rows, start);
  pool_run(layer->kv_heads * m.units, run_unit, &m);
}
