// From logits to the distribution that sampling parameters make of them.
#pragma once

#include <cstdint>
#include <vector>

#include "omnidraft/bitset.h"
#include "omnidraft/span.h"
#include "omnidraft/vocabulary.h"

namespace omnidraft {

// Applied in this order, as Hugging Face transformers does: repetition penalty, temperature, top-k,
// top-p, min-p. Temperature 0 is greedy decoding.
struct SamplingParameters {
  double temperature = 0;
  std::int32_t top_k = 0;  // 0: off
  double top_p = 1;        // 1: off
  double min_p = 0;        // 0: off
  double repetition_penalty = 1;

  bool greedy() const { return temperature == 0; }
  // Throws std::invalid_argument naming the parameter and its range.
  void validate() const;
};

// The target tokens of a sequence so far, for the repetition penalty.
class History {
 public:
  explicit History(std::size_t vocabulary_size) : seen_(vocabulary_size) {}
  void add(Token token);
  const std::vector<Token>& distinct() const { return distinct_; }

 private:
  Bitset seen_;
  std::vector<Token> distinct_;
};

// exp for weights: the same bits on every platform, relative error below 2e-7. x <= 0 is expected;
// below -87 the result is 0.
void exp_weights(Span<const float> logits, float maximum, float inverse_temperature,
                 Span<float> weights);
// The largest logit's index, the lowest of equals. Throws std::domain_error on NaN or +inf.
std::size_t argmax(Span<const float> logits);
// A sum with a fixed order of additions.
double sum(Span<const float> values);

// Unnormalised probabilities: probability(t) = weights[t] / total.
struct Distribution {
  std::vector<float> weights;
  double total = 0;
};

// Shapes logits. `result` is overwritten; its memory is reused. Throws std::domain_error when the
// logits contain NaN or +inf, or nothing but -inf.
void shape(Span<const float> logits, const SamplingParameters& parameters, const History& history,
           Distribution& result);

// The token that greedy decoding takes: argmax after the repetition penalty.
Token greedy_token(Span<const float> logits, double repetition_penalty, const History& history,
                   std::vector<float>& scratch);

}  // namespace omnidraft
