// The plan of a call; the arithmetic is in attention_body.h.
//
// Positions fall into chunks of kChunk, counted from 0. Each (kv head, chunk) is a unit of work on its own: softmax
// relative to the chunk's own maximum, for all rows that see it. A last step joins the chunks of a row in ascending
// order. So what is added to what depends on positions alone, and units may run on any thread.
#include "attention.h"

#include <algorithm>
#include <vector>

#include "lanes.h"

namespace e3 {
namespace {

constexpr int kChunk = 128;         // positions
constexpr int kBatch = 24;          // queries whose scores are held at once
constexpr std::int64_t kScratch = 2 << 20;  // floats; more rows than fit are done in turns
constexpr std::int64_t kShared = 50000;     // multiply-adds that are worth a second thread
constexpr std::int64_t kPart = 25000;       // and those of one part

// Rows of one turn: [first, first + rows) of the call.
struct Turn {
  const E3Attention* layer;
  int start;       // the position of the turn's first row
  int rows;
  int group;       // query heads a kv head
  int chunks;      // that the last row sees
  int units_part;  // units a part
  int units;
  float* queries;  // [kv, rows, group, d], rotated and scaled
  float* sums;     // [kv, chunks, rows * group, d]: values weighted relative to the chunk's maximum
  float* highest;  // [kv, chunks, rows * group]
  float* weights;  // [kv, chunks, rows * group]: sums of exponentials
};

}  // namespace
}  // namespace e3

#define E3_BODY "attention_body.h"
#define E3_WANT_BF16 1
#include "each_variant.h"

namespace e3 {
namespace {

void run_part(void* context, int part) {
  const Turn& turn = *static_cast<const Turn*>(context);
  const int end = std::min(turn.units, (part + 1) * turn.units_part);
  for (int unit = part * turn.units_part; unit < end; ++unit) {
    E3_CALL(attend_unit, turn, unit / turn.chunks, unit % turn.chunks);
  }
}

// Memory of the calling thread, which grows to the largest call and is kept.
float* scratch(std::int64_t floats) {
  thread_local std::vector<float> kept;
  if (static_cast<std::int64_t>(kept.size()) < floats) kept.resize(floats);
  return kept.data();
}

void run_turn(Turn& turn, const char* qkv, char* out) {
  const E3Attention& layer = *turn.layer;
  const std::int64_t queries = static_cast<std::int64_t>(turn.rows) * turn.group * layer.kv_heads;
  const std::int64_t partials = queries * turn.chunks;
  turn.queries = scratch(queries * layer.head_dim + partials * (layer.head_dim + 2));
  turn.sums = turn.queries + queries * layer.head_dim;
  turn.highest = turn.sums + partials * layer.head_dim;
  turn.weights = turn.highest + partials;
  turn.units = layer.kv_heads * turn.chunks;
  const std::int64_t work = queries * (turn.start + turn.rows) * layer.head_dim * 2;
  const std::int64_t of_unit = std::max<std::int64_t>(1, work / turn.units);
  turn.units_part = static_cast<int>(std::max<std::int64_t>(1, kPart / of_unit));
  if (work < kShared) turn.units_part = turn.units;
  E3_CALL(prepare_queries, turn, qkv);
  pool_run((turn.units + turn.units_part - 1) / turn.units_part, run_part, &turn);
  E3_CALL(join_chunks, turn, out);
}

}  // namespace
}  // namespace e3

void e3_attend(const E3Attention* layer, const void* qkv, void* out, int rows, int start) {
  using namespace e3;
  const int size = layer->is_bf16 ? 2 : 4;
  const std::int64_t in_row = (layer->heads + 2 * layer->kv_heads) * std::int64_t(layer->head_dim) * size;
  const std::int64_t out_row = layer->heads * std::int64_t(layer->head_dim) * size;
  const int chunks = (start + rows + kChunk - 1) / kChunk;
  const std::int64_t of_row = std::int64_t(layer->heads) * (layer->head_dim + 2) * (chunks + 1);
  const int step = static_cast<int>(std::clamp<std::int64_t>(kScratch / of_row, 1, rows));
  E3_CALL(write_rows, *layer, qkv, rows, start);
  for (int first = 0; first < rows; first += step) {
    Turn turn{};
    turn.layer = layer;
    turn.start = start + first;
    turn.rows = std::min(step, rows - first);
    turn.group = layer->heads / layer->kv_heads;
    turn.chunks = (turn.start + turn.rows + kChunk - 1) / kChunk;
    run_turn(turn, static_cast<const char*>(qkv) + first * in_row, static_cast<char*>(out) + first * out_row);
  }
}
