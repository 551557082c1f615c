// The token that plain decoding takes: whatever was drafted, a token that stands is this one.
#pragma once

#include <cstdint>
#include <vector>

#include "omnidraft/sampling.h"

namespace omnidraft {

class PlainChoice {
 public:
  // Greedy sampling takes the argmax after the repetition penalty. Otherwise it is the inverse of
  // the cumulative distribution at the random number that belongs to the seed and the token's
  // position. Throws std::domain_error for logits that are not numbers.
  Token operator()(Span<const float> row, const SamplingParameters& sampling,
                   const History& history, std::uint64_t seed, std::uint64_t position);

 private:
  Distribution distribution_;
  std::vector<float> scratch_;
};

}  // namespace omnidraft
