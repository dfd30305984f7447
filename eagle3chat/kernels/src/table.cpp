// See table.h. Rows are short and few: no lanes, no threads.
#include "table.h"

#include "linear.h"

void e3_table_rows(const E3Table* table, const std::int64_t* ids, int count, void* out) {
  const int width = table->width, groups = width / table->group;
  for (int row = 0; row < count; ++row) {
    const std::uint8_t* codes = table->codes + ids[row] * width;
    const float* params = table->params + ids[row] * 2 * groups;
    for (int g = 0; g < groups; ++g) {
      const float scale = params[g], bias = params[groups + g];
      for (int j = g * table->group; j < (g + 1) * table->group; ++j) {
        const float value = float(codes[j]) * scale + bias;
        const std::int64_t at = std::int64_t(row) * width + j;
        if (table->is_bf16) {
          static_cast<std::uint16_t*>(out)[at] = e3::to_bfloat16(value);
        } else {
          static_cast<float*>(out)[at] = value;
        }
      }
    }
  }
}
