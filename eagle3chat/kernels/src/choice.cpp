// The exported functions of choice.h; the arithmetic is in choice_body.h.
#include "choice.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lanes.h"

namespace e3 {
namespace {

constexpr std::uint32_t kIdStep = 0x9e3779b1u;  // 2^32 / golden ratio, odd
constexpr int kBlockIds = 128;                  // ids that have one maximum
constexpr int kSegment = 8192;                  // ids, a part
constexpr int kSegmentBlocks = kSegment / kBlockIds;

// s = logits * inverse; scores = s * alpha + noise, or s.
struct Row {
  const float* logits;
  const float* noise;
  float inverse, alpha;
};

// What a scan says: the maxima of each block, the largest s, and the sum of e^(s - best).
struct Segment {
  float tops[kSegmentBlocks], scores[kSegmentBlocks];
  float best, sum;
};

}  // namespace
}  // namespace e3

#define E3_BODY "choice_body.h"
#include "each_variant.h"

namespace e3 {
namespace {

struct Scored {
  float value = -INFINITY;
  int place = 0;
};

// The n largest, the first of equal ones first.
template <int n>
struct Largest {
  Scored at[n];
  void offer(float value, int place) {
    if (!(value > at[n - 1].value)) return;
    int i = n - 1;
    for (; i > 0 && value > at[i - 1].value; --i) at[i] = at[i - 1];
    at[i] = {value, place};
  }
};

struct Scan {
  const Row* rows;
  Segment* segments;
  int width, per_row;
};

void run_scan(void* context, int part) {
  const Scan& s = *static_cast<const Scan*>(context);
  const int from = part % s.per_row * kSegment;
  E3_CALL(scan_segment, s.rows[part / s.per_row], from, std::min(kSegment, s.width - from), &s.segments[part]);
}

// A scanned row.
struct Read {
  const Row& row;
  const Segment* segments;
  int width, per_row;

  float value(int place) const { return row.logits[place] * row.inverse; }
  float score(int place) const {
    return row.noise == nullptr ? value(place) : std::fma(value(place), row.alpha, row.noise[place]);
  }
  double log_sum() const {
    float best = -INFINITY;
    for (int i = 0; i < per_row; ++i) best = std::max(best, segments[i].best);
    double sum = 0.0;
    for (int i = 0; i < per_row; ++i) sum += double(segments[i].sum) * std::exp(double(segments[i].best) - best);
    return best + std::log(sum);
  }
  // The n largest values, or scores: they lie in the n blocks with the largest maxima.
  template <int n>
  Largest<n> largest(bool scores) const {
    Largest<n> blocks, found;
    for (int i = 0; i < per_row; ++i) {
      const float* maxima = scores ? segments[i].scores : segments[i].tops;
      const int count = (std::min(kSegment, width - i * kSegment) + kBlockIds - 1) / kBlockIds;
      for (int block = 0; block < count; ++block) blocks.offer(maxima[block], i * kSegmentBlocks + block);
    }
    int starts[n];
    for (int i = 0; i < n; ++i) starts[i] = blocks.at[i].value == -INFINITY ? width : blocks.at[i].place * kBlockIds;
    std::sort(starts, starts + n);
    for (int start : starts) {
      const int end = std::min(width, start + kBlockIds);
      for (int place = start; place < end; ++place) found.offer(scores ? score(place) : value(place), place);
    }
    return found;
  }
};

// Scans rows that lie one after the other and hands each to `take`.
template <class Take>
void scan(const std::vector<Row>& rows, int width, Take take) {
  thread_local std::vector<Segment> segments;  // kept: a call lasts microseconds
  const int per_row = (width + kSegment - 1) / kSegment;
  segments.resize(rows.size() * std::size_t(per_row));
  Scan s{rows.data(), segments.data(), width, per_row};
  pool_run(int(rows.size()) * per_row, run_scan, &s);
  for (std::size_t i = 0; i < rows.size(); ++i) take(int(i), Read{rows[i], &segments[i * per_row], width, per_row});
}

struct Spans {
  const std::uint32_t* keys;
  float* out;
  int width, per_row;
};

void run_gumbel(void* context, int part) {
  const Spans& s = *static_cast<const Spans*>(context);
  const int row = part / s.per_row, from = part % s.per_row * kSegment;
  float* out = s.out + std::int64_t(row) * s.width + from;
  E3_CALL(gumbel_span, s.keys[2 * row], s.keys[2 * row + 1], from, std::min(kSegment, s.width - from), out);
}

}  // namespace
}  // namespace e3

void e3_gumbel(const std::uint32_t* keys, int rows, int width, float* out) {
  e3::Spans s{keys, out, width, (width + e3::kSegment - 1) / e3::kSegment};
  e3::pool_run(rows * s.per_row, e3::run_gumbel, &s);
}

void e3_judge(const float* logits, const float* noise, const std::int64_t* drafted, int rows, int width,
              float temperature, float* out) {
  std::vector<e3::Row> all;
  for (int i = 0; i < rows; ++i) {
    const std::int64_t at = std::int64_t(i) * width;
    all.push_back({logits + at, noise == nullptr ? nullptr : noise + at, 1.0f / temperature, 1.0f});
  }
  e3::scan(all, width, [&](int i, const e3::Read& read) {
    const auto top = read.largest<kRunnersUp>(false);
    const auto score = read.largest<2>(true);
    const double log_sum = read.log_sum();
    const auto p = [&](int place) { return float(std::exp(double(read.value(place)) - log_sum)); };
    float* row = out + std::int64_t(i) * kColumns;
    row[0] = float(score.at[0].place);
    row[1] = p(score.at[0].place);
    row[2] = score.at[0].value - score.at[1].value;
    row[3] = p(int(drafted[i]));
    for (int j = 0; j < kRunnersUp; ++j) {
      row[4 + j] = float(top.at[j].place);
      row[4 + kRunnersUp + j] = top.at[j].value == -INFINITY ? 0.0f : p(top.at[j].place);
    }
  });
}

void e3_pick(const float* logits, const float* noise, const std::int64_t* ids, int width, float temperature,
             float sharpness, std::int64_t* id, float* p) {
  thread_local std::vector<float> heard;
  if (noise != nullptr) {
    heard.resize(std::size_t(width));
    for (int i = 0; i < width; ++i) heard[i] = noise[ids[i]];
  }
  const std::vector<e3::Row> one{{logits, noise == nullptr ? nullptr : heard.data(), 1.0f / temperature, 1.0f / sharpness}};
  e3::scan(one, width, [&](int, const e3::Read& read) {
    const int place = read.largest<1>(true).at[0].place;
    *id = ids[place];
    *p = float(std::exp(double(read.value(place)) - read.log_sum()));
  });
}
