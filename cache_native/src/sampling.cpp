#include "omnidraft/sampling.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>

#include "rows.h"

namespace omnidraft {
namespace {

std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

struct Tally {
  std::size_t count = 0;
  double mass = 0;

  void add(float weight) {
    ++count;
    mass += static_cast<double>(weight);
  }
};

// Weights not below `floor`, in their order, and their tally. `maxima` are those of blocks.
constexpr std::size_t kBlock = 128;
Tally collect(const std::vector<float>& weights, const std::vector<float>& maxima, float floor,
              std::vector<float>& found) {
  Tally tally;
  found.clear();
  for (std::size_t b = 0; b < maxima.size(); ++b) {
    if (maxima[b] >= floor) {
      const std::size_t end = std::min(weights.size(), (b + 1) * kBlock);
      for (std::size_t i = b * kBlock; i < end; ++i) {
        if (weights[i] >= floor) {
          found.push_back(weights[i]);
          tally.add(weights[i]);
        }
      }
    }
  }
  return tally;
}

// The largest threshold at which the weights not below it are `enough`, which decides on their
// Tally; 0 when all of them are not. The weights are within [0, 1]. `kept` is filled with those not
// below the threshold, in their order. A floor is lowered until it lets enough through; those few
// are counted by the leading bits of the weights, and only the last of these buckets is sorted.
template <typename Enough>
float threshold_for(const std::vector<float>& weights, Enough enough, std::vector<float>& kept) {
  std::vector<float> maxima;
  maxima.reserve(weights.size() / kBlock + 1);
  for (std::size_t begin = 0; begin < weights.size(); begin += kBlock) {
    maxima.push_back(rows::max(weights.data() + begin, std::min(kBlock, weights.size() - begin)));
  }
  float floor = 0.125F;
  while (!enough(collect(weights, maxima, floor, kept))) {
    floor *= 0.0625F;
    if (floor < std::numeric_limits<float>::min()) {
      return 0;
    }
  }

  constexpr int kLowBits = 16;
  const std::uint32_t lowest = bits_of(floor) >> kLowBits;
  const auto bucket_of = [&](float weight) { return (bits_of(weight) >> kLowBits) - lowest; };
  std::vector<Tally> buckets(bucket_of(1.0F) + 1);
  for (const float weight : kept) {
    buckets[bucket_of(weight)].add(weight);
  }
  std::size_t last = buckets.size() - 1;
  Tally above;
  while (last > 0 &&
         !enough(Tally{above.count + buckets[last].count, above.mass + buckets[last].mass})) {
    above.count += buckets[last].count;
    above.mass += buckets[last].mass;
    --last;
  }
  std::vector<float> bucket;
  std::copy_if(kept.begin(), kept.end(), std::back_inserter(bucket),
               [&](float weight) { return bucket_of(weight) == last; });
  std::sort(bucket.begin(), bucket.end(), std::greater<>());
  float threshold = floor;
  for (const float weight : bucket) {
    threshold = weight;
    above.add(weight);
    if (enough(above)) {
      break;
    }
  }
  kept.erase(
      std::remove_if(kept.begin(), kept.end(), [&](float weight) { return weight < threshold; }),
      kept.end());
  return threshold;
}

void require(bool condition, const char* name, const char* range, double value) {
  if (!condition) {
    throw std::invalid_argument(std::string(name) + " must be " + range + ", not " +
                                std::to_string(value));
  }
}

}  // namespace

void SamplingParameters::validate() const {
  // Written so that NaN fails.
  require(temperature >= 0 && temperature <= 100, "temperature", "between 0 and 100", temperature);
  require(top_k >= 0, "top-k", "0 (off) or positive", top_k);
  require(top_p > 0 && top_p <= 1, "top-p", "above 0 and at most 1", top_p);
  require(min_p >= 0 && min_p <= 1, "min-p", "between 0 and 1", min_p);
  require(repetition_penalty > 0 && repetition_penalty <= 100, "repetition penalty",
          "above 0 and at most 100", repetition_penalty);
}

void History::add(Token token) {
  const auto i = static_cast<std::size_t>(token);
  if (token < 0 || i >= vocabulary_size_) {
    throw std::out_of_range("token " + std::to_string(token) + " is outside the vocabulary of " +
                            std::to_string(vocabulary_size_));
  }
  if (!seen_.test(i)) {
    seen_.set(i);
    distinct_.push_back(token);
  }
}

double exp_weights(Span<const float> logits, float maximum, double temperature,
                   Span<float> weights) {
  constexpr std::size_t kBlock = 1024;  // while the block is in the nearest cache
  constexpr double kLog2e = 1.4426950408889634;
  // Finite, so that 0 * scale is 0.
  const auto scale = static_cast<float>(
      std::min(kLog2e / temperature, static_cast<double>(std::numeric_limits<float>::max())));
  double total = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::size_t n = std::min(kBlock, logits.size() - begin);
    rows::exp2(logits.data() + begin, maximum, scale, weights.data() + begin, n);
    total += rows::sum(weights.data() + begin, n);
  }
  return total;
}

double sum(Span<const float> values) { return rows::sum(values.data(), values.size()); }

std::size_t argmax(Span<const float> logits) {
  constexpr std::size_t kBlock = 1024;
  float best = -std::numeric_limits<float>::infinity();
  std::size_t best_block = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const float block = rows::max(logits.data() + begin, std::min(kBlock, logits.size() - begin));
    if (block > best) {
      best = block;
      best_block = begin;
    }
  }
  if (best == std::numeric_limits<float>::infinity()) {
    throw std::domain_error("the model returned logits that are not numbers");
  }
  const float* const first = logits.data() + best_block;
  const float* const last = logits.data() + std::min(best_block + kBlock, logits.size());
  return best_block + static_cast<std::size_t>(std::find(first, last, best) - first);
}

namespace {

// The logits after the repetition penalty: the very same ones, or a copy in `scratch`.
Span<const float> penalised(Span<const float> logits, double penalty, const History& history,
                            std::vector<float>& scratch) {
  if (history.vocabulary_size() != logits.size()) {
    throw std::invalid_argument("the history is of a vocabulary of " +
                                std::to_string(history.vocabulary_size()) + ", the logits of " +
                                std::to_string(logits.size()));
  }
  if (penalty == 1) {
    return logits;
  }
  scratch.assign(logits.begin(), logits.end());
  for (const Token token : history.distinct()) {
    float& logit = scratch[static_cast<std::size_t>(token)];
    logit = logit > 0 ? logit / static_cast<float>(penalty) : logit * static_cast<float>(penalty);
  }
  return {scratch.data(), scratch.size()};
}

}  // namespace

void shape(Span<const float> logits, const SamplingParameters& parameters, const History& history,
           Distribution& result) {
  if (parameters.greedy()) {
    throw std::invalid_argument("greedy decoding has no distribution: temperature is 0");
  }
  std::vector<float>& weights = result.weights;
  weights.resize(logits.size());
  const auto scores = penalised(logits, parameters.repetition_penalty, history, weights);
  const float maximum = scores[argmax(scores)];
  if (maximum == -std::numeric_limits<float>::infinity()) {
    throw std::domain_error("the model returned no finite logit");
  }
  result.total = exp_weights(scores, maximum, parameters.temperature, weights);
  float threshold = 0;
  std::vector<float> kept;  // after a cut, the weights that are left
  const auto cut = [&](auto enough) {
    std::vector<float> left;
    threshold = std::max(threshold, threshold_for(kept.empty() ? weights : kept, enough, left));
    kept = std::move(left);
  };
  if (parameters.top_k > 0) {
    const auto k = static_cast<std::size_t>(parameters.top_k);
    cut([&](Tally t) { return t.count >= k; });
  }
  if (parameters.top_p < 1) {
    const double wanted = parameters.top_p * (kept.empty() ? result.total : sum(kept));
    cut([&](Tally t) { return t.mass >= wanted; });
  }
  threshold = std::max(threshold, static_cast<float>(parameters.min_p));  // the largest weight is 1
  if (threshold > 0) {
    const auto cut_off = [&](float weight) { return weight >= threshold ? weight : 0.0F; };
    std::transform(weights.begin(), weights.end(), weights.begin(), cut_off);
    std::transform(kept.begin(), kept.end(), kept.begin(), cut_off);
    result.total = sum(kept.empty() ? weights : kept);
  }
}

Token greedy_token(Span<const float> logits, double repetition_penalty, const History& history,
                   std::vector<float>& scratch) {
  return static_cast<Token>(argmax(penalised(logits, repetition_penalty, history, scratch)));
}

}  // namespace omnidraft
