// The choice of tokens: the noise of a position, what a target says of its rows, what a draft proposes.
//
// A row is scanned in segments of fixed places, so its numbers depend neither on the threads nor on other rows.
#pragma once

#include <cstdint>

#include "pool.h"

constexpr int kRunnersUp = 4;
constexpr int kColumns = 4 + 2 * kRunnersUp;  // of a judged row

// out [rows, width]: -log(-log1p(-v)), v = min((h + 1/2) / 2^32, 1 - 2^-24), h = mix(mix(id * 0x9e3779b1 + first) ^ second)
// of each token id; keys [rows, 2]: first, second.
E3_EXPORT void e3_gumbel(const std::uint32_t* keys, int rows, int width, float* out);

// For each row of logits [rows, width], with s = logits / temperature and the scores s + noise (noise null: s):
//     out [rows, kColumns] = the id with the largest score, its probability, its score less the second largest,
//         the probability of drafted, the ids of the kRunnersUp largest s, their probabilities
// of softmax(s). Of equal ones the first. A logit of minus infinity has no probability.
E3_EXPORT void e3_judge(const float* logits, const float* noise, const std::int64_t* drafted, int rows, int width,
                        float temperature, float* out);

// One row: the place with the largest s / sharpness + noise[ids[place]] (noise null: s). Writes ids[place], and the
// place's probability of softmax(s).
E3_EXPORT void e3_pick(const float* logits, const float* noise, const std::int64_t* ids, int width, float temperature,
                       float sharpness, std::int64_t* id, float* p);
