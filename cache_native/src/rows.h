// Loops over a row as wide as a vocabulary, for the best vector unit of the machine at hand.
// Whatever its width, partial sums are as many and nothing is contracted, so the bits are the same.
#pragma once

#include <cstddef>

namespace omnidraft::rows {

constexpr std::size_t kLanes = 16;

// The largest value; +inf if any is +inf or NaN.
float max(const float* values, std::size_t n);
// The largest value of each lane (values i, i + kLanes, i + 2 * kLanes, ...) of each block of
// kMaximaBlock values: kLanes maxima a block, +inf where any value is +inf or NaN.
constexpr std::size_t kMaximaBlock = 256;
void lane_maxima(const float* values, std::size_t n, float* maxima);
// weights[i] = 2^((logits[i] - maximum) * scale), 0 below 2^-126; `weights` may be `logits`.
void exp2(const float* logits, float maximum, float scale, float* weights, std::size_t n);
// The same for one of them.
float exp2(float logit, float maximum, float scale);
// The sum of such weights, with a relative error below 2e-4, in a fraction of the time.
double rough_exp2_sum(const float* logits, float maximum, float scale, std::size_t n);
double sum(const float* values, std::size_t n);

}  // namespace omnidraft::rows
