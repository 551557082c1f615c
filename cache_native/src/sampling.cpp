#include "omnidraft/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>

#include "rows.h"

namespace omnidraft {
namespace {

constexpr const char* kNotNumbers = "the model returned logits that are not numbers";

std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Finite, so that 0 * scale is 0.
float scale_for(double temperature) {
  constexpr double kLog2e = 1.4426950408889634;
  return static_cast<float>(
      std::min(kLog2e / temperature, static_cast<double>(std::numeric_limits<float>::max())));
}

Span<const float> block_of(Span<const float> row, std::size_t begin) {
  return {row.data() + begin, std::min(kBlock, row.size() - begin)};
}

void require(bool condition, const char* name, const char* range, double value) {
  if (!condition) {
    std::ostringstream message;  // which writes a number shortly, unlike std::to_string
    message << name << " must be " << range << ", not " << value;
    throw std::invalid_argument(message.str());
  }
}

}  // namespace

void SamplingParameters::validate() const {
  // Written so that NaN fails.
  require(temperature >= 0 && temperature <= 100, "temperature", "between 0 and 100", temperature);
  require(top_k >= 0, "top-k", "0 (off) or positive", top_k);
  require(top_p > 0 && top_p <= 1, "top-p", "above 0 and at most 1", top_p);
  require(min_p >= 0 && min_p <= 1, "min-p", "between 0 and 1", min_p);
  // Logits, which are divided by it, stay far from overflow.
  require(repetition_penalty >= 0.01 && repetition_penalty <= 100, "repetition-penalty",
          "between 0.01 and 100", repetition_penalty);
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

void History::truncate(std::size_t count) {
  for (; distinct_.size() > count; distinct_.pop_back()) {
    seen_.reset(static_cast<std::size_t>(distinct_.back()));
  }
}

double exp_weights(Span<const float> logits, float maximum, double temperature,
                   Span<float> weights) {
  const float scale = scale_for(temperature);
  double total = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = block_of(logits, begin);
    rows::exp2(block.data(), maximum, scale, weights.data() + begin, block.size());
    total += rows::sum(weights.data() + begin, block.size());
  }
  return total;
}

double rough_exp_sum(Span<const float> logits, float maximum) {
  return rows::rough_exp2_sum(logits.data(), maximum, scale_for(1), logits.size());
}

double sum(Span<const float> values) { return rows::sum(values.data(), values.size()); }

void block_sums(Span<const float> weights, std::vector<double>& sums) {
  sums.clear();
  for (std::size_t begin = 0; begin < weights.size(); begin += kBlock) {
    sums.push_back(sum(block_of(weights, begin)));
  }
}

std::size_t draw_row(Span<const float> weights, Span<const double> sums, Chance& chance) {
  const std::size_t begin = chance.draw(sums) * kBlock;
  const auto block = block_of(weights, begin);
  std::array<double, kBlock> wide;
  std::copy(block.begin(), block.end(), wide.begin());
  return begin + chance.draw({wide.data(), block.size()});
}

std::size_t argmax(Span<const float> logits) {
  float best = -std::numeric_limits<float>::infinity();
  std::size_t best_begin = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = block_of(logits, begin);
    const float largest = rows::max(block.data(), block.size());
    if (largest > best) {
      best = largest;
      best_begin = begin;
    }
  }
  if (best == std::numeric_limits<float>::infinity()) {
    throw std::domain_error(kNotNumbers);
  }
  const auto block = block_of(logits, best_begin);
  return best_begin +
         static_cast<std::size_t>(std::find(block.begin(), block.end(), best) - block.begin());
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

void Distribution::Tally::add(float weight) {
  ++count;
  mass += static_cast<double>(weight);
}

void Distribution::assign(Span<const float> logits, const SamplingParameters& parameters,
                          const History& history) {
  if (parameters.greedy()) {
    throw std::invalid_argument("greedy decoding has no distribution: temperature is 0");
  }
  logits_ = penalised(logits, parameters.repetition_penalty, history, penalised_);
  const std::size_t blocks = (logits_.size() + rows::kMaximaBlock - 1) / rows::kMaximaBlock;
  maxima_.resize(blocks * rows::kLanes);
  rows::lane_maxima(logits_.data(), logits_.size(), maxima_.data());
  maximum_ = rows::max(maxima_.data(), maxima_.size());
  if (maximum_ == std::numeric_limits<float>::infinity()) {
    throw std::domain_error(kNotNumbers);
  }
  if (maximum_ == -std::numeric_limits<float>::infinity()) {
    throw std::domain_error("the model returned no finite logit");
  }
  scale_ = scale_for(parameters.temperature);
  threshold_ = floor_for(parameters);
  // Of logits, with room for what rounding does to weights: it only saves looking at them.
  const auto logit_floor = static_cast<float>(
      std::max(static_cast<double>(std::numeric_limits<float>::lowest()),
               static_cast<double>(maximum_) + (std::log2(static_cast<double>(threshold_)) - 1e-3) /
                                                   static_cast<double>(scale_)));
  kept_.clear();
  sums_.clear();
  std::array<float, kBlock> weights;
  for (std::size_t begin = 0; begin < logits_.size(); begin += kBlock) {
    const auto block = block_of(logits_, begin);
    rows::exp2(block.data(), maximum_, scale_, weights.data(), block.size());
    sums_.push_back(rows::sum(weights.data(), block.size()));
    if (threshold_ > 0) {
      collect(begin, {weights.data(), block.size()}, threshold_, logit_floor);
    }
  }
  total_ = std::accumulate(sums_.begin(), sums_.end(), 0.0);
  if (threshold_ == 0) {
    return;
  }
  double mass = total_;  // of what is left
  if (parameters.top_k > 0) {
    const auto k = static_cast<std::size_t>(parameters.top_k);
    cut([&](const Tally& tally) { return tally.count >= k; });
    mass = 0;
    for (const Candidate& candidate : kept_) {
      mass += static_cast<double>(candidate.weight);
    }
  }
  if (parameters.top_p < 1) {
    const double wanted = parameters.top_p * mass;
    cut([&](const Tally& tally) { return tally.mass >= wanted; });
  }
  drop_below(static_cast<float>(parameters.min_p));  // the largest weight is 1
  auto candidate = kept_.begin();
  for (std::size_t block = 0; block < sums_.size(); ++block) {
    double sum = 0;
    for (; candidate != kept_.end() && candidate->token / kBlock == block; ++candidate) {
      sum += static_cast<double>(candidate->weight);
    }
    sums_[block] = sum;
  }
  total_ = std::accumulate(sums_.begin(), sums_.end(), 0.0);
}

// No weight below it can stay, which is known before any of them is; 0 when all may.
float Distribution::floor_for(const SamplingParameters& parameters) {
  constexpr float kLeast = std::numeric_limits<float>::min();  // lesser weights are 0
  const auto min_p = static_cast<float>(parameters.min_p);
  if (parameters.top_k > 0) {
    // There are k weights not below that of the k-th largest maximum.
    const auto k = static_cast<std::size_t>(parameters.top_k);
    if (k > maxima_.size()) {
      return kLeast;
    }
    order_ = maxima_;
    while (order_.size() / 2 > 16 * k) {  // the same is true of the maxima of pairs of lanes
      const std::size_t half = order_.size() / 2;
      for (std::size_t i = 0; i < half; ++i) {
        order_[i] = std::max(order_[i], order_[i + half]);
      }
      order_.resize(half);
    }
    const auto kth = order_.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(order_.begin(), kth, order_.end(), std::greater<>());
    return std::max(kLeast, rows::exp2(*kth, maximum_, scale_) * 0.9999F);
  }
  if (parameters.top_p < 1) {
    // The total is at least 1, and all weights below this are less than 1 - top-p together.
    const double share = (1 - parameters.top_p) / static_cast<double>(logits_.size());
    return std::max({kLeast, static_cast<float>(share * 0.9999), min_p});
  }
  return min_p;
}

// Adds the weights of a block that are not below the floor. Lanes whose maxima are below it need no
// look. Without branches that depend on a weight: in a flat row they would be guesses.
void Distribution::collect(std::size_t begin, Span<const float> weights, float floor,
                           float logit_floor) {
  std::array<Candidate, kBlock> found;
  std::size_t size = 0;
  for (std::size_t part = 0; part < weights.size(); part += rows::kMaximaBlock) {
    const float* const maxima = maxima_.data() + (begin + part) / rows::kMaximaBlock * rows::kLanes;
    std::array<std::size_t, rows::kLanes> lanes{};
    std::size_t count = 0;
    for (std::size_t j = 0; j < rows::kLanes; ++j) {
      lanes[count] = j;
      count += maxima[j] >= logit_floor ? 1 : 0;
    }
    if (count == 0) {
      continue;
    }
    const std::size_t end = std::min(part + rows::kMaximaBlock, weights.size());
    for (std::size_t row = part; row < end; row += rows::kLanes) {
      for (std::size_t l = 0; l < count && row + lanes[l] < end; ++l) {
        const std::size_t i = row + lanes[l];
        found[size] = {static_cast<std::uint32_t>(begin + i), weights[i]};
        size += weights[i] >= floor ? 1 : 0;
      }
    }
  }
  kept_.insert(kept_.end(), found.begin(), found.begin() + static_cast<std::ptrdiff_t>(size));
}

// Raises the threshold as far as what is not below it is `enough`, which decides on its Tally. The
// weights, within [0, 1], are counted by their leading bits, and the last of these buckets sorted.
template <typename Enough>
void Distribution::cut(Enough enough) {
  constexpr int kLowBits = 16;
  const std::uint32_t lowest = bits_of(threshold_) >> kLowBits;
  const auto bucket_of = [&](float weight) { return (bits_of(weight) >> kLowBits) - lowest; };
  tallies_.assign(bucket_of(1.0F) + 1, Tally());
  for (const Candidate& candidate : kept_) {
    tallies_[bucket_of(candidate.weight)].add(candidate.weight);
  }
  std::size_t last = tallies_.size() - 1;
  Tally above;
  while (last > 0 &&
         !enough(Tally{above.count + tallies_[last].count, above.mass + tallies_[last].mass})) {
    above.count += tallies_[last].count;
    above.mass += tallies_[last].mass;
    --last;
  }
  order_.clear();
  for (const Candidate& candidate : kept_) {
    if (bucket_of(candidate.weight) == last) {
      order_.push_back(candidate.weight);
    }
  }
  std::sort(order_.begin(), order_.end(), std::greater<>());
  float threshold = threshold_;
  for (const float weight : order_) {
    above.add(weight);
    if (enough(above)) {
      threshold = weight;
      break;
    }
  }
  drop_below(threshold);
}

void Distribution::drop_below(float threshold) {
  threshold_ = std::max(threshold_, threshold);
  std::size_t size = 0;
  for (const Candidate candidate : kept_) {
    kept_[size] = candidate;
    size += candidate.weight >= threshold_ ? 1 : 0;
  }
  kept_.resize(size);
}

float Distribution::weight(Token token) const {
  const float weight = rows::exp2(logits_[static_cast<std::size_t>(token)], maximum_, scale_);
  return weight >= threshold_ ? weight : 0;
}

void Distribution::weights(std::vector<float>& result) const {
  if (threshold_ == 0) {
    result.resize(logits_.size());
    rows::exp2(logits_.data(), maximum_, scale_, result.data(), logits_.size());
    return;
  }
  result.assign(logits_.size(), 0);
  for (const Candidate& candidate : kept_) {
    result[candidate.token] = candidate.weight;
  }
}

// Calls visit(token, weight) for the tokens of a block, in ascending order.
template <typename Visit>
void Distribution::for_each_of_block(std::size_t block, Visit visit) const {
  const std::size_t begin = block * kBlock;
  const auto logits = block_of(logits_, begin);
  if (threshold_ == 0) {
    std::array<float, kBlock> weights;
    rows::exp2(logits.data(), maximum_, scale_, weights.data(), logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i) {
      visit(static_cast<Token>(begin + i), static_cast<double>(weights[i]));
    }
    return;
  }
  auto candidate =
      std::lower_bound(kept_.begin(), kept_.end(), begin,
                       [](const Candidate& c, std::size_t token) { return c.token < token; });
  for (; candidate != kept_.end() && candidate->token < begin + logits.size(); ++candidate) {
    visit(static_cast<Token>(candidate->token), static_cast<double>(candidate->weight));
  }
}

Token Distribution::draw(Chance& chance) {
  const std::size_t block = chance.draw(sums_);
  block_.clear();
  tokens_.clear();
  for_each_of_block(block, [&](Token token, double weight) {
    tokens_.push_back(token);
    block_.push_back(weight);
  });
  return tokens_[chance.draw(block_)];
}

Token Distribution::quantile(double uniform) const {
  // Rounding may carry us past an end: the last one that weighs anything is taken then.
  std::size_t block = 0;
  double left = 0;  // of the cumulative weight, at the block's beginning
  double rest = uniform * total_;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    if (sums_[i] > 0) {
      block = i;
      left = rest;
      if (left < sums_[i]) {
        break;
      }
      rest -= sums_[i];
    }
  }
  Token chosen = kNoToken;
  bool found = false;
  for_each_of_block(block, [&](Token token, double weight) {
    if (!found && weight > 0) {
      chosen = token;
      found = left < weight;
      left -= weight;
    }
  });
  return chosen;
}

Token greedy_token(Span<const float> logits, double repetition_penalty, const History& history,
                   std::vector<float>& scratch) {
  return static_cast<Token>(argmax(penalised(logits, repetition_penalty, history, scratch)));
}

}  // namespace omnidraft
