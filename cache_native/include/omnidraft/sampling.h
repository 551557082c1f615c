// From logits to the distribution that sampling parameters make of them.
#pragma once

#include <cstdint>
#include <vector>

#include "omnidraft/bitset.h"
#include "omnidraft/chance.h"
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
  // Forgets all but the first `count` of the distinct tokens.
  void truncate(std::size_t count);
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
// Their sum alone at temperature 1, with a relative error below 2e-4, in a fraction of the time.
double rough_exp_sum(Span<const float> logits, float maximum);
// A sum with a fixed order of additions.
double sum(Span<const float> values);

// Rows are drawn from in two steps: a block of kBlock weights, then one of them. So only the sums
// of blocks need all of the row, and they can be taken while something else reads it.
constexpr std::size_t kBlock = 1024;
void block_sums(Span<const float> weights, std::vector<double>& sums);
std::size_t draw_row(Span<const float> weights, Span<const double> sums, Chance& chance);

// A row of the target's logits as sampling parameters shape it: weight(t) / total() is the
// probability of t. Weights are computed where they are asked for; one pass over the row finds the
// total and the tokens that top-k, top-p and min-p leave.
class Distribution {
 public:
  // The logits must outlive their use. Throws std::domain_error when they contain NaN or +inf, or
  // nothing but -inf, std::invalid_argument when the temperature is 0 or the history belongs to a
  // vocabulary of another size.
  void assign(Span<const float> logits, const SamplingParameters& parameters,
              const History& history);

  double total() const { return total_; }
  float weight(Token token) const;
  // All of them; the memory of `result` is reused.
  void weights(std::vector<float>& result) const;
  Token draw(Chance& chance);
  // The inverse of the cumulative distribution, at `uniform` in [0, 1): tokens in ascending order,
  // each with a part of [0, 1) as long as it is probable. The same bits on every platform.
  Token quantile(double uniform) const;

 private:
  struct Candidate {
    std::uint32_t token;
    float weight;
  };
  // How many weights, and how much they weigh.
  struct Tally {
    std::size_t count = 0;
    double mass = 0;
    void add(float weight);
  };

  float floor_for(const SamplingParameters& parameters);
  void collect(std::size_t begin, Span<const float> weights, float floor, float logit_floor);
  template <typename Visit>
  void for_each_of_block(std::size_t block, Visit visit) const;
  template <typename Enough>
  void cut(Enough enough);
  void drop_below(float threshold);

  Span<const float> logits_;  // after the repetition penalty
  float maximum_ = 0, scale_ = 0;
  double total_ = 0;
  float threshold_ = 0;          // lesser weights are 0; at 0, kept_ is not used
  std::vector<Candidate> kept_;  // ascending tokens
  std::vector<double> sums_;     // of blocks
  std::vector<float> penalised_, maxima_, order_;
  std::vector<Tally> tallies_;
  std::vector<double> block_;
  std::vector<Token> tokens_;
};

// The token that greedy decoding takes: argmax after the repetition penalty.
Token greedy_token(Span<const float> logits, double repetition_penalty, const History& history,
                   std::vector<float>& scratch);

}  // namespace omnidraft
