// Loops over a row as wide as a vocabulary, for the best vector unit of the machine at hand.
// Whatever its width, a sum has sixteen lanes and nothing is contracted, so the bits are the same.
#pragma once

#include <cstddef>

namespace omnidraft::rows {

// The largest value; +inf if any is +inf or NaN.
float max(const float* values, std::size_t n);
// weights[i] = 2^((logits[i] - maximum) * scale), 0 below 2^-126; `weights` may be `logits`.
void exp2(const float* logits, float maximum, float scale, float* weights, std::size_t n);
double sum(const float* values, std::size_t n);

}  // namespace omnidraft::rows
