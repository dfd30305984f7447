// See tape.h. Knows no order of calls.
#include "tape.h"

#include <cstring>

#include "attention.h"
#include "linear.h"
#include "parts.h"
#include "table.h"

namespace e3 {
namespace {

void copy_rows(const E3Step& s) {
  for (int row = 0; row < s.rows; ++row) {
    std::memcpy(static_cast<char*>(s.out) + row * s.c, static_cast<const char*>(s.x) + row * s.b,
                static_cast<std::size_t>(s.a));
  }
}

void play(const E3Step& s, int start) {
  switch (s.kind) {
    case kLinear: return e3_linear_run(s.what, s.x, s.out, s.rows, static_cast<int>(s.a), nullptr);
    case kAttend: return e3_attend(static_cast<const E3Attention*>(s.what), s.x, s.out, s.rows, start);
    case kNorm: return e3_norm(static_cast<const E3Norm*>(s.what), s.x, s.out, s.rows);
    case kAddNorm: return e3_add_norm(static_cast<const E3Norm*>(s.what), s.x, s.y, s.sum, s.out, s.rows);
    case kGate:
      return e3_gate(static_cast<int>(s.a), static_cast<int>(s.b), static_cast<int>(s.c), s.x, s.out, s.rows);
    case kRows:
      return e3_table_rows(static_cast<const E3Table*>(s.what), static_cast<const std::int64_t*>(s.x), s.rows, s.out);
    case kCopy: return copy_rows(s);
  }
}

}  // namespace
}  // namespace e3

void e3_play(const E3Step* steps, int count, int start) {
  for (int i = 0; i < count; ++i) e3::play(steps[i], start);
}
