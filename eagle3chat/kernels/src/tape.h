// The calls of a pass, one after another, without the caller in between.
#pragma once

#include <cstdint>

#include "pool.h"

enum E3Kind : std::int32_t { kLinear = 0, kAttend = 1, kNorm = 2, kAddNorm = 3, kGate = 4, kRows = 5, kCopy = 6 };

// One call. `what` is the call's own structure (a packed weight, E3Attention, E3Norm, E3Table), the rest is as the
// function of that kind takes it:
//     kLinear   x, out; a: whether out is float32        kGate   x, out; a: width, b: whether GELU, c: whether bfloat16
//     kAttend   x, out, at the start that is played      kRows   x: ids, out
//     kNorm     x, out                                   kCopy   x, out; a: bytes of a row, b, c: bytes from row to row
//     kAddNorm  x, y, sum, out                                   of x and of out
struct E3Step {
  E3Kind kind;
  std::int32_t rows;
  const void* what;
  const void* x;
  const void* y;
  void* sum;
  void* out;
  std::int64_t a, b, c;
};

// Plays the steps in order; `start` is the position of the first row. Nothing is checked.
E3_EXPORT void e3_play(const E3Step* steps, int count, int start);
