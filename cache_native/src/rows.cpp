#include "rows.h"

#include <cstdint>
#include <cstring>
#include <limits>

#include "omnidraft/vectors.h"

namespace omnidraft::rows {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows come from far away in memory, and the hardware's own prefetching ends with each page.
OMNIDRAFT_INLINE void prefetch(const float* values) {
  constexpr std::uintptr_t kAhead = 2048;
  __builtin_prefetch(
      reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(values) + kAhead));
}

template <std::size_t W>
OMNIDRAFT_INLINE void lanes_of(const float* values, std::size_t n, float* maxima) {
  using Floats = typename Vector<W>::Floats;
  using Signs = typename Vector<W>::Signs;
  constexpr std::size_t kVectors = kLanes / W;
  Floats best[kVectors];
  Signs bad[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    best[v] = Floats{} - kInfinity;
    bad[v] = Signs{};
  }
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    prefetch(values + i);
    for (std::size_t v = 0; v < kVectors; ++v) {
      const Floats x = load<W>(values + i + v * W);
      best[v] = x > best[v] ? x : best[v];
      bad[v] |= ~(x < kInfinity);
    }
  }
  for (std::size_t v = 0; v < kVectors; ++v) {
    const Floats result = bad[v] != 0 ? Floats{} + kInfinity : best[v];
    std::memcpy(maxima + v * W, &result, sizeof result);
  }
  for (std::size_t j = 0; i < n; ++i, ++j) {
    const float x = values[i] < kInfinity ? values[i] : kInfinity;
    maxima[j] = x > maxima[j] ? x : maxima[j];
  }
}

template <std::size_t W>
OMNIDRAFT_INLINE float max_with(const float* values, std::size_t n) {
  float lanes[kLanes];
  lanes_of<W>(values, n, lanes);
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) {
      lanes[j] = lanes[j + half] > lanes[j] ? lanes[j + half] : lanes[j];
    }
  }
  return lanes[0];
}

template <std::size_t W>
OMNIDRAFT_INLINE void lane_maxima_with(const float* values, std::size_t n, float* maxima) {
  std::size_t begin = 0;
  for (; begin + kMaximaBlock <= n; begin += kMaximaBlock, maxima += kLanes) {
    lanes_of<W>(values + begin, kMaximaBlock, maxima);
  }
  if (begin < n) {
    lanes_of<W>(values + begin, n - begin, maxima);
  }
}

template <std::size_t W>
OMNIDRAFT_INLINE void exp2_with(const float* logits, float maximum, float scale, float* weights,
                                std::size_t n) {
  std::size_t i = 0;
  typename Vector<W>::Floats x{};
  for (; i + W <= n; i += W) {
    std::memcpy(&x, logits + i, sizeof x);
    x = exp2_of<W, true>((x - maximum) * scale);
    std::memcpy(weights + i, &x, sizeof x);
  }
  if (i < n) {
    std::memcpy(&x, logits + i, (n - i) * sizeof(float));
    x = exp2_of<W, true>((x - maximum) * scale);
    std::memcpy(weights + i, &x, (n - i) * sizeof(float));
  }
}

template <std::size_t W>
OMNIDRAFT_INLINE double rough_exp2_sum_with(const float* logits, float maximum, float scale,
                                            std::size_t n) {
  using Floats = typename Vector<W>::Floats;
  constexpr std::size_t kVectors = kLanes / W;
  Floats sums[kVectors];
  for (Floats& sum : sums) {
    sum = Floats{};
  }
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const Floats x = load<W>(logits + i + v * W);
      sums[v] += exp2_of<W, false>((x - maximum) * scale);
    }
  }
  double total = 0;
  for (const Floats& sum : sums) {
    for (std::size_t j = 0; j < W; ++j) {
      total += static_cast<double>(sum[j]);
    }
  }
  for (; i < n; ++i) {
    total +=
        static_cast<double>(exp2_of<1, false>(Vector<1>::Floats{logits[i] - maximum} * scale)[0]);
  }
  return total;
}

// W floats at a time. Adding takes several cycles, so there are many sums to add to.
template <std::size_t W>
OMNIDRAFT_INLINE double sum_with(const float* values, std::size_t n) {
  using Floats = typename Vector<W>::Floats;
  using Doubles = typename Vector<W>::Doubles;
  constexpr std::size_t kSums = 2 * kLanes;
  Doubles vectors[kSums / W];
  for (Doubles& vector : vectors) {
    vector = Doubles{};
  }
  std::size_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (std::size_t v = 0; v < kSums / W; ++v) {
      const Floats x = load<W>(values + i + v * W);
      vectors[v] += __builtin_convertvector(x, Doubles);
    }
  }
  double sums[kSums];
  std::memcpy(sums, vectors, sizeof sums);
  for (std::size_t j = 0; i < n; ++i, ++j) {
    sums[j] += static_cast<double>(values[i]);
  }
  for (std::size_t half = kSums / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) {
      sums[j] += sums[j + half];
    }
  }
  return sums[0];
}

}  // namespace

OMNIDRAFT_DISPATCH(float, max, (const float* values, std::size_t n), (values, n), 16, 8, 4)
OMNIDRAFT_DISPATCH(void, lane_maxima, (const float* values, std::size_t n, float* maxima),
                   (values, n, maxima), 16, 8, 4)
OMNIDRAFT_DISPATCH(void, exp2,
                   (const float* logits, float maximum, float scale, float* weights, std::size_t n),
                   (logits, maximum, scale, weights, n), 16, 8, 4)
OMNIDRAFT_DISPATCH(double, rough_exp2_sum,
                   (const float* logits, float maximum, float scale, std::size_t n),
                   (logits, maximum, scale, n), 16, 8, 4)
// Half a vector of floats is a whole one of doubles.
OMNIDRAFT_DISPATCH(double, sum, (const float* values, std::size_t n), (values, n), 8, 4, 2)

float exp2(float logit, float maximum, float scale) {
  return exp2_of<1, true>(Vector<1>::Floats{logit - maximum} * scale)[0];
}

}  // namespace omnidraft::rows
