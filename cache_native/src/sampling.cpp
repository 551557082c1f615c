#include "omnidraft/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

// One binary, the best vector unit of the machine it runs on. Fused multiply-add stays off
// (-ffp-contract=off), so every variant computes the same bits.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) && \
    !defined(__SANITIZE_ADDRESS__)
#define OMNIDRAFT_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define OMNIDRAFT_VECTORISED
#endif

namespace omnidraft {
namespace {

constexpr std::size_t kLanes = 16;

// The largest value (or NaN, if any).
OMNIDRAFT_VECTORISED float max_of(const float* values, std::size_t n) {
  std::array<float, kLanes> lanes;
  lanes.fill(-std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      lanes[j] = lanes[j] >= values[i + j] ? lanes[j] : values[i + j];
    }
  }
  for (; i < n; ++i) {
    lanes[0] = lanes[0] >= values[i] ? lanes[0] : values[i];
  }
  float best = lanes[0];
  for (const float lane : lanes) {
    best = best >= lane ? best : lane;
  }
  return best;
}

OMNIDRAFT_VECTORISED bool has_nan(const float* values, std::size_t n) {
  std::array<std::uint32_t, kLanes> lanes{};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      lanes[j] |= values[i + j] != values[i + j] ? 1U : 0U;
    }
  }
  for (; i < n; ++i) {
    lanes[0] |= values[i] != values[i] ? 1U : 0U;
  }
  std::uint32_t any = 0;
  for (const std::uint32_t lane : lanes) {
    any |= lane;
  }
  return any != 0;
}

// exp(x) for x <= 0 by 2^n * p(r), |r| <= ln(2)/2 (Cephes' polynomial).
inline float exp_of(float x) {
  constexpr float kLog2e = 1.44269504088896341F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float clamped = x < -87.0F ? -87.0F : x;
  const float shifted = clamped * kLog2e + kRound;
  const float n = shifted - kRound;
  float r = clamped - n * kLn2High;
  r = r - n * kLn2Low;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits - 0x4b400000U + 127U) << 23;  // the exponent of 2^n
  float scale = 0;
  std::memcpy(&scale, &bits, sizeof scale);
  return x < -87.0F ? 0.0F : p * scale;
}

OMNIDRAFT_VECTORISED void exp_all(const float* logits, float maximum, float inverse_temperature,
                                  float* weights, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    weights[i] = exp_of((logits[i] - maximum) * inverse_temperature);
  }
}

OMNIDRAFT_VECTORISED double sum_of(const float* values, std::size_t n) {
  std::array<double, kLanes> lanes{};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      lanes[j] += static_cast<double>(values[i + j]);
    }
  }
  for (; i < n; ++i) {
    lanes[0] += static_cast<double>(values[i]);
  }
  double total = 0;
  for (const double lane : lanes) {
    total += lane;
  }
  return total;
}

void penalise(float& logit, float penalty) {
  logit = logit > 0 ? logit / penalty : logit * penalty;
}

// Zeroes every weight below the threshold.
void keep_at_least(std::vector<float>& weights, float threshold) {
  for (float& weight : weights) {
    weight = weight >= threshold ? weight : 0.0F;
  }
}

// The candidates for top-k and top-p, found by lowering a floor until there are enough, so that a
// large vocabulary is never sorted whole. `enough` decides on (count, sum) of the candidates.
template <typename Enough>
std::vector<float> largest(const std::vector<float>& weights, Enough enough) {
  std::vector<float> found;
  for (float floor = 0.125F;; floor *= 0.0625F) {
    found.clear();
    const bool last = floor < 1e-37F;
    double total = 0;
    for (const float weight : weights) {
      if (weight >= floor || (last && weight > 0)) {
        found.push_back(weight);
        total += static_cast<double>(weight);
      }
    }
    if (last || enough(found.size(), total)) {
      std::sort(found.begin(), found.end(), std::greater<>());
      return found;
    }
  }
}

void keep_top_k(Distribution& result, std::size_t k) {
  if (k >= result.weights.size()) {
    return;
  }
  const auto top = largest(result.weights, [&](std::size_t count, double) { return count >= k; });
  if (top.size() > k) {
    keep_at_least(result.weights, top[k - 1]);  // ties with the k-th stay, as in transformers
    result.total = sum(result.weights);
  }
}

void keep_top_p(Distribution& result, double top_p) {
  const double wanted = top_p * result.total;
  const auto top =
      largest(result.weights, [&](std::size_t, double total) { return total >= wanted; });
  double reached = 0;
  for (const float weight : top) {
    reached += static_cast<double>(weight);
    if (reached >= wanted) {
      keep_at_least(result.weights, weight);
      break;
    }
  }
  result.total = sum(result.weights);
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
  if (!seen_.test(i)) {
    seen_.set(i);
    distinct_.push_back(token);
  }
}

void exp_weights(Span<const float> logits, float maximum, float inverse_temperature,
                 Span<float> weights) {
  exp_all(logits.data(), maximum, inverse_temperature, weights.data(), logits.size());
}

double sum(Span<const float> values) { return sum_of(values.data(), values.size()); }

std::size_t argmax(Span<const float> logits) {
  constexpr std::size_t kBlock = 1024;
  float best = -std::numeric_limits<float>::infinity();
  std::size_t best_block = 0;
  bool nan = false;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::size_t n = std::min(kBlock, logits.size() - begin);
    const float block = max_of(logits.data() + begin, n);
    nan = nan || has_nan(logits.data() + begin, n);
    if (block > best) {
      best = block;
      best_block = begin;
    }
  }
  if (nan || best == std::numeric_limits<float>::infinity()) {
    throw std::domain_error("the model returned logits that are not numbers");
  }
  const float* const first = logits.data() + best_block;
  const float* const last = logits.data() + std::min(best_block + kBlock, logits.size());
  return best_block + static_cast<std::size_t>(std::find(first, last, best) - first);
}

void shape(Span<const float> logits, const SamplingParameters& parameters, const History& history,
           Distribution& result) {
  std::vector<float>& weights = result.weights;
  weights.assign(logits.begin(), logits.end());
  if (parameters.repetition_penalty != 1) {
    for (const Token token : history.distinct()) {
      penalise(weights[static_cast<std::size_t>(token)],
               static_cast<float>(parameters.repetition_penalty));
    }
  }
  const float maximum = weights[argmax(weights)];
  if (maximum == -std::numeric_limits<float>::infinity()) {
    throw std::domain_error("the model returned no finite logit");
  }
  const auto inverse = static_cast<float>(1 / parameters.temperature);
  exp_all(weights.data(), maximum, inverse, weights.data(), weights.size());
  result.total = sum(weights);
  if (parameters.top_k > 0) {
    keep_top_k(result, static_cast<std::size_t>(parameters.top_k));
  }
  if (parameters.top_p < 1) {
    keep_top_p(result, parameters.top_p);
  }
  if (parameters.min_p > 0) {
    keep_at_least(weights, static_cast<float>(parameters.min_p));  // the largest weight is 1
    result.total = sum(weights);
  }
}

Token greedy_token(Span<const float> logits, double repetition_penalty, const History& history,
                   std::vector<float>& scratch) {
  if (repetition_penalty == 1) {
    return static_cast<Token>(argmax(logits));
  }
  scratch.assign(logits.begin(), logits.end());
  for (const Token token : history.distinct()) {
    penalise(scratch[static_cast<std::size_t>(token)], static_cast<float>(repetition_penalty));
  }
  return static_cast<Token>(argmax(scratch));
}

}  // namespace omnidraft
