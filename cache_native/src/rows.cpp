#include "rows.h"

#include <cstdint>
#include <cstring>
#include <limits>

namespace omnidraft::rows {
namespace {

#define OMNIDRAFT_INLINE inline __attribute__((always_inline))

constexpr std::size_t kLanes = 16;

template <std::size_t W>
struct Vector {
  using Floats __attribute__((vector_size(W * 4))) = float;
  using Bits __attribute__((vector_size(W * 4))) = std::uint32_t;
  using Signs __attribute__((vector_size(W * 4))) = std::int32_t;
  using Doubles __attribute__((vector_size(W * 8))) = double;
};

template <std::size_t W>
OMNIDRAFT_INLINE float max_with(const float* values, std::size_t n) {
  using Floats = typename Vector<W>::Floats;
  using Signs = typename Vector<W>::Signs;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::size_t kVectors = kLanes / W;
  Floats best[kVectors];
  Signs bad[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    best[v] = Floats{} - kInfinity;
    bad[v] = Signs{};
  }
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      Floats x;
      std::memcpy(&x, values + i + v * W, sizeof x);
      best[v] = x > best[v] ? x : best[v];
      bad[v] |= ~(x < kInfinity);
    }
  }
  float result = -kInfinity;
  std::int32_t any_bad = 0;
  for (std::size_t v = 0; v < kVectors; ++v) {
    for (std::size_t j = 0; j < W; ++j) {
      result = best[v][j] > result ? best[v][j] : result;
      any_bad |= bad[v][j];
    }
  }
  for (; i < n; ++i) {
    result = values[i] > result ? values[i] : result;
    any_bad |= values[i] < kInfinity ? 0 : 1;
  }
  return any_bad != 0 ? kInfinity : result;
}

// 2^x for x <= 0, as 2^n * 2^f with |f| <= 1/2 (Cephes' polynomial); 0 below -126.
template <typename V>
OMNIDRAFT_INLINE typename V::Floats exp2_of(typename V::Floats x) {
  using Floats = typename V::Floats;
  using Bits = typename V::Bits;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const Floats shifted = x + kRound;
  const Floats f = x - (shifted - kRound);
  Floats p = f * 1.535336188319500e-4F + 1.339887440266574e-3F;
  p = p * f + 9.618437357674640e-3F;
  p = p * f + 5.550332471162809e-2F;
  p = p * f + 2.402264791363012e-1F;
  p = p * f + 6.931472028550421e-1F;
  p = p * f + 1.0F;
  Bits bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits - (0x4b400000U - 127U)) << 23;  // the exponent of 2^n
  Floats power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -126.0F ? Floats{} : p * power;
}

template <std::size_t W>
OMNIDRAFT_INLINE void exp2_with(const float* logits, float maximum, float scale, float* weights,
                                std::size_t n) {
  using V = Vector<W>;
  std::size_t i = 0;
  for (; i + W <= n; i += W) {
    typename V::Floats x;
    std::memcpy(&x, logits + i, sizeof x);
    x = exp2_of<V>((x - maximum) * scale);
    std::memcpy(weights + i, &x, sizeof x);
  }
  if (i < n) {
    typename V::Floats x{};
    std::memcpy(&x, logits + i, (n - i) * sizeof(float));
    x = exp2_of<V>((x - maximum) * scale);
    std::memcpy(weights + i, &x, (n - i) * sizeof(float));
  }
}

template <std::size_t W>
OMNIDRAFT_INLINE double sum_with(const float* values, std::size_t n) {
  using Floats = typename Vector<W>::Floats;
  using Doubles = typename Vector<W>::Doubles;
  constexpr std::size_t kVectors = kLanes / W;
  Doubles lanes[kVectors];
  for (Doubles& lane : lanes) {
    lane = Doubles{};
  }
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      Floats x;
      std::memcpy(&x, values + i + v * W, sizeof x);
      lanes[v] += __builtin_convertvector(x, Doubles);
    }
  }
  double total = 0;
  for (const Doubles& lane : lanes) {
    for (std::size_t j = 0; j < W; ++j) {
      total += lane[j];
    }
  }
  for (; i < n; ++i) {
    total += static_cast<double>(values[i]);
  }
  return total;
}

#if defined(__x86_64__)

enum class Unit { kSse2, kAvx2, kAvx512 };

Unit best_unit() {
  return __builtin_cpu_supports("avx512f") != 0 ? Unit::kAvx512
         : __builtin_cpu_supports("avx2") != 0  ? Unit::kAvx2
                                                : Unit::kSse2;
}

const Unit kUnit = best_unit();

__attribute__((target("avx2"))) float max_avx2(const float* values, std::size_t n) {
  return max_with<8>(values, n);
}
__attribute__((target("avx512f"))) float max_avx512(const float* values, std::size_t n) {
  return max_with<16>(values, n);
}
__attribute__((target("avx2"))) void exp2_avx2(const float* logits, float maximum, float scale,
                                               float* weights, std::size_t n) {
  exp2_with<8>(logits, maximum, scale, weights, n);
}
__attribute__((target("avx512f"))) void exp2_avx512(const float* logits, float maximum, float scale,
                                                    float* weights, std::size_t n) {
  exp2_with<16>(logits, maximum, scale, weights, n);
}
__attribute__((target("avx2"))) double sum_avx2(const float* values, std::size_t n) {
  return sum_with<4>(values, n);
}
__attribute__((target("avx512f"))) double sum_avx512(const float* values, std::size_t n) {
  return sum_with<16>(values, n);
}

#endif

}  // namespace

float max(const float* values, std::size_t n) {
#if defined(__x86_64__)
  if (kUnit != Unit::kSse2) {
    return kUnit == Unit::kAvx512 ? max_avx512(values, n) : max_avx2(values, n);
  }
#endif
  return max_with<4>(values, n);
}

void exp2(const float* logits, float maximum, float scale, float* weights, std::size_t n) {
#if defined(__x86_64__)
  if (kUnit != Unit::kSse2) {
    kUnit == Unit::kAvx512 ? exp2_avx512(logits, maximum, scale, weights, n)
                           : exp2_avx2(logits, maximum, scale, weights, n);
    return;
  }
#endif
  exp2_with<4>(logits, maximum, scale, weights, n);
}

double sum(const float* values, std::size_t n) {
#if defined(__x86_64__)
  if (kUnit != Unit::kSse2) {
    return kUnit == Unit::kAvx512 ? sum_avx512(values, n) : sum_avx2(values, n);
  }
#endif
  return sum_with<2>(values, n);
}

}  // namespace omnidraft::rows
