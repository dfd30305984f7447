// Splits a product over threads and rows. Each thread quantises the activations for itself: that costs less than a
// second meeting of the threads, and the numbers are the same.
#include "linear.h"

#include <algorithm>
#include <memory>
#include <new>

namespace e3 {
namespace {

constexpr int kChunkRows = 64;                 // rows whose codes stay in the second cache beside a few tiles
constexpr int kTilesAtOnce = 4;                // that stay in the first one while many rows pass
constexpr int kRaceTiles = 512;                // whose results, of few rows, stay in the second one
constexpr std::int64_t kSmall = 48 * 1024;     // bytes of weights that one thread reads before another would start

struct Call {
  const Packed* w;
  const std::uint16_t* x;
  Output out;
  int rows;
  int parts;
  int tiles_part;  // of a race
  const Kernel* kernel;
};

const Kernel& kernel_in_use() {
  switch (variant()) {
#if defined(__x86_64__)
    case kAvx512Bf16:
    case kAvx512: return avx512_kernel();
    case kAvx2: return avx2_kernel();
#elif E3_DOT_PRODUCT
    case kNeon: return neon_kernel();
#endif
    default: return portable_kernel();
  }
}

struct Free {
  void operator()(std::uint8_t* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
};

// Memory that grows as needed.
struct Scratch {
  std::unique_ptr<std::uint8_t[], Free> memory;
  std::size_t size = 0;
  std::uint8_t* of(std::size_t bytes) {
    if (size < bytes) {
      memory.reset();
      memory.reset(static_cast<std::uint8_t*>(::operator new[](bytes, std::align_val_t{64})));
      size = bytes;
    }
    return memory.get();
  }
};

// Room for the quantised rows of one block of rows: codes, then the three arrays beside them.
std::size_t room(const Packed& w, int rows) {
  const std::size_t blocks = static_cast<std::size_t>(rows) * static_cast<std::size_t>(w.blocks);
  return (blocks * (kBlock + 12) + 63) / 64 * 64;
}

Quantised layout(const Packed& w, int rows, std::uint8_t* memory) {
  const std::int64_t blocks = static_cast<std::int64_t>(rows) * w.blocks;
  auto* steps = reinterpret_cast<float*>(memory + blocks * kBlock);
  return {reinterpret_cast<std::int8_t*>(memory), steps, steps + blocks,
          reinterpret_cast<std::int32_t*>(steps + 2 * blocks)};
}

Output row_of(const Output& out, const Packed& w, int row) {
  const std::int64_t at = static_cast<std::int64_t>(row) * w.n;
  return {static_cast<std::uint8_t*>(out.y) + at * (out.wide ? 4 : 2),
          out.residual == nullptr ? nullptr : out.residual + at, out.wide};
}

void work(void* context, int part) {
  const Call& call = *static_cast<const Call*>(context);
  const Packed& w = *call.w;
  const int most = call.kernel->rows;
  const int from = static_cast<int>(static_cast<std::int64_t>(w.tiles) * part / call.parts);
  const int to = static_cast<int>(static_cast<std::int64_t>(w.tiles) * (part + 1) / call.parts);
  const std::size_t size = room(w, most);
  thread_local Scratch scratch;
  std::uint8_t* memory = scratch.of(size * static_cast<std::size_t>((call.rows + most - 1) / most));
  for (int row = 0; row < call.rows; row += most) {
    const int rows = call.rows - row < most ? call.rows - row : most;
    const Quantised to_fill = layout(w, rows, memory + size * static_cast<std::size_t>(row / most));
    call.kernel->quantise(call.x + static_cast<std::int64_t>(row) * w.k, rows, w.k, w.zero < 0 ? 0 : w.zero, to_fill);
  }
  const int step = call.rows <= most ? to - from : kTilesAtOnce;
  for (int tile = from; tile < to; tile += step) {
    const int end = tile + step < to ? tile + step : to;
    for (int row = 0; row < call.rows; row += most) {
      const int rows = call.rows - row < most ? call.rows - row : most;
      const Quantised q = layout(w, rows, memory + size * static_cast<std::size_t>(row / most));
      call.kernel->span(w, {q.codes, q.steps, q.sums, q.zero_sums, rows}, row_of(call.out, w, row), tile, end);
    }
  }
}

// What a thread knows of a race of few rows (see pool.h): all but the weight's numbers, which e3_linear_free guards.
struct Known {
  Packed w{};
  Output out{};
  const Kernel* kernel = nullptr;
  Rows rows{};
  int tiles_part = 0;
  std::uint8_t* made = nullptr;  // a part's results, until they are kept
  Scratch scratch;

  int from(int part) const { return part * tiles_part; }
  int to(int part) const { return std::min(w.tiles, from(part) + tiles_part); }
};

Known& known() {
  thread_local Known mine;
  return mine;
}

void race_read(const void* context) {
  const Call& call = *static_cast<const Call*>(context);
  Known& k = known();
  k.w = *call.w;
  k.out = call.out;
  k.kernel = call.kernel;
  k.tiles_part = call.tiles_part;
  const std::size_t size = room(k.w, call.rows);
  std::uint8_t* memory = k.scratch.of(size + static_cast<std::size_t>(call.rows * call.tiles_part) * kTile * 4);
  const Quantised q = layout(k.w, call.rows, memory);
  k.kernel->quantise(call.x, call.rows, k.w.k, k.w.zero < 0 ? 0 : k.w.zero, q);
  k.rows = {q.codes, q.steps, q.sums, q.zero_sums, call.rows};
  k.made = memory + size;
}

void race_work(int part) {
  const Known& k = known();
  k.kernel->span(k.w, k.rows, k.out, k.from(part), k.to(part));
}

int outputs_of(const Known& k, int part) { return std::min(k.w.n, k.to(part) * kTile) - k.from(part) * kTile; }

void race_make(int part) {
  const Known& k = known();
  Packed w = k.w;  // the part's tiles as a weight of its own
  w.tiles = k.to(part) - k.from(part);
  w.n = outputs_of(k, part);
  w.codes += static_cast<std::int64_t>(k.from(part)) * w.blocks * w.code_bytes();
  w.params += static_cast<std::int64_t>(k.from(part)) * (w.blocks / w.group_blocks) * w.param_bytes();
  if (w.bias != nullptr) w.bias += k.from(part) * kTile;
  k.kernel->span(w, k.rows, {k.made, nullptr, k.out.wide}, 0, w.tiles);
}

void race_keep(int part) {
  const Known& k = known();
  const std::int64_t size = k.out.wide ? 4 : 2, bytes = outputs_of(k, part) * size;
  auto* y = static_cast<std::uint8_t*>(k.out.y) + k.from(part) * kTile * size;
  for (int row = 0; row < k.rows.rows; ++row) {
    std::memcpy(y + row * k.w.n * size, k.made + row * bytes, static_cast<std::size_t>(bytes));
  }
}

constexpr Race kRace{race_read, race_work, race_make, race_keep};

// Whether it was run so; else nothing was done.
bool run_race(Call& call) {
  const int share = (call.w->tiles + call.parts - 1) / call.parts;
  const int least = (call.w->tiles + kMaxRaceParts - 1) / kMaxRaceParts;
  call.tiles_part = std::max(std::min(share, kRaceTiles), least);
  return pool_race((call.w->tiles + call.tiles_part - 1) / call.tiles_part, kRace, &call);
}

}  // namespace
}  // namespace e3

// x bfloat16 [m, k], y bfloat16 or (wide) float32 [m, n], residual bfloat16 [m, n] or null (not with wide), each
// contiguous. y may be the residual itself.
E3_EXPORT void e3_linear_run(const void* handle, const void* x, void* y, int m, int wide, const void* residual) {
  using namespace e3;
  const auto* w = static_cast<const Packed*>(handle);
  const Output out{y, static_cast<const std::uint16_t*>(residual), wide != 0};
  int parts = w->bytes < kSmall ? 1 : pool_threads();
  parts = parts < w->tiles ? parts : w->tiles;
  for (int row = 0; row < m; row += kChunkRows) {
    const int rows = m - row < kChunkRows ? m - row : kChunkRows;
    const auto* from = static_cast<const std::uint16_t*>(x) + static_cast<std::int64_t>(row) * w->k;
    Call call{w, from, row_of(out, *w, row), rows, parts, 0, &kernel_in_use()};
    const bool few = parts > 1 && rows <= call.kernel->rows && residual == nullptr;
    if (!few || !run_race(call)) pool_run(parts, work, &call);
  }
}
