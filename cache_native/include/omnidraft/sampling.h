// From logits to the distribution that sampling parameters make of them.
#pragma once

#include <cstdint>
#include <vector>

#include "omnidraft/bitset.h"
#include "omnidraft/span.h"
#include "omnidraft/vocabulary.h"

namespace omnidraft {

// Applied in this order, as Hugging Face transformers does: repetition penalty, temperature, top-k,
// top-p, min-p. Tokens as probable as the least probable one that stays, stay too. Temperature 0 is
// greedy decoding.
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
  explicit History(std::size_t vocabulary_size)
      : vocabulary_size_(vocabulary_size), seen_(vocabulary_size) {}
  // Throws std::out_of_range for a token outside the vocabulary.
  void add(Token token);
  const std::vector<Token>& distinct() const { return distinct_; }
  std::size_t vocabulary_size() const { return vocabulary_size_; }

 private:
  std::size_t vocabulary_size_;
  Bitset seen_;
  std::vector<Token> distinct_;
};

// The largest logit's index, the lowest of equals. Throws std::domain_error on NaN or +inf.
std::size_t argmax(Span<const float> logits);
// weights[i] = exp((logits[i] - maximum) / temperature), and their sum: the same bits on every
// platform, relative error below 2e-7 * (1 + |exponent|); 0 where the exponent is below -87.
// `weights` may be the logits themselves.
double exp_weights(Span<const float> logits, float maximum, double temperature,
                   Span<float> weights);
// A sum with a fixed order of additions.
double sum(Span<const float> values);

// Unnormalised probabilities: probability(t) = weights[t] / total.
struct Distribution {
  std::vector<float> weights;
  double total = 0;
};

// Shapes logits. `result` is overwritten; its memory is reused. Throws std::domain_error when the
// logits contain NaN or +inf, or nothing but -inf, std::invalid_argument when the temperature is 0
// or the history belongs to a vocabulary of another size.
void shape(Span<const float> logits, const SamplingParameters& parameters, const History& history,
           Distribution& result);

// The token that greedy decoding takes: argmax after the repetition penalty.
Token greedy_token(Span<const float> logits, double repetition_penalty, const History& history,
                   std::vector<float>& scratch);

}  // namespace omnidraft
