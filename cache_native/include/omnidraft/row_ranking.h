// The most probable tokens of a row, without sorting all of it.
#pragma once

#include <vector>

#include "omnidraft/span.h"
#include "omnidraft/vocabulary.h"

namespace omnidraft {

class RowRanking {
 public:
  // The logits must outlive their use. Throws std::domain_error when they contain NaN or +inf.
  void assign(Span<const float> logits);

  // -inf when all are.
  float maximum() const { return maximum_; }

  // At least `count` tokens, or all those above -inf, by descending logit, the lower token first
  // among equals. No token that is left out has a higher logit than one of these.
  void top(std::size_t count, std::vector<Token>& result);

 private:
  Span<const float> logits_;
  float maximum_ = 0;
  std::vector<float> maxima_, order_;
};

}  // namespace omnidraft
