// Vectors of W floats, and functions that are compiled for several widths and run at the widest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#define OMNIDRAFT_INLINE inline __attribute__((always_inline))

namespace omnidraft {

template <std::size_t W>
struct Vector {
  using Floats __attribute__((vector_size(W * 4))) = float;
  using Bits __attribute__((vector_size(W * 4))) = std::uint32_t;
  using Signs __attribute__((vector_size(W * 4))) = std::int32_t;
  using Doubles __attribute__((vector_size(W * 8))) = double;
};

template <std::size_t W>
OMNIDRAFT_INLINE typename Vector<W>::Floats load(const float* from) {
  typename Vector<W>::Floats vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

template <std::size_t W>
OMNIDRAFT_INLINE void store(typename Vector<W>::Floats vector, float* to) {
  std::memcpy(to, &vector, sizeof vector);
}

// 1.5 * 2^23: adding it rounds to an integer, which is then in the lower bits.
constexpr float kRound = 12582912.0F;
constexpr std::uint32_t kRoundBits = 0x4b400000U;

// 2^x for x <= 0, as 2^n * 2^f with |f| <= 1/2; 0 below -126. Precise: Cephes' polynomial. Else the
// cubic that is 1 at 0 and has the least relative error, 1.02e-4.
template <std::size_t W, bool kPrecise>
OMNIDRAFT_INLINE typename Vector<W>::Floats exp2_of(typename Vector<W>::Floats x) {
  using Floats = typename Vector<W>::Floats;
  using Bits = typename Vector<W>::Bits;
  const Floats shifted = x + kRound;
  const Floats f = x - (shifted - kRound);
  Floats p;
  if (kPrecise) {
    p = f * 1.535336188319500e-4F + 1.339887440266574e-3F;
    p = p * f + 9.618437357674640e-3F;
    p = p * f + 5.550332471162809e-2F;
    p = p * f + 2.402264791363012e-1F;
    p = p * f + 6.931472028550421e-1F;
  } else {
    p = f * 5.500893e-2F + 2.4221096e-1F;
    p = p * f + 6.9328293e-1F;
  }
  p = p * f + 1.0F;
  Bits bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits - (kRoundBits - 127U)) << 23;  // the exponent of 2^n
  Floats power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -126.0F ? Floats{} : p * power;
}

#if defined(__x86_64__)

enum class Unit { kSse2, kAvx2, kAvx512 };

inline Unit best_unit() {
  return __builtin_cpu_supports("avx512f") != 0                                      ? Unit::kAvx512
         : __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 ? Unit::kAvx2
                                                                                     : Unit::kSse2;
}

// Tests lower it.
inline Unit kUnit = best_unit();

#endif

}  // namespace omnidraft

// Defines a function of the header by name_with<W>, the widest that the machine can run.
#if defined(__x86_64__)
#define OMNIDRAFT_DISPATCH(result, name, parameters, arguments, avx512, avx2, narrow) \
  __attribute__((target("avx512f"))) static result name##_avx512 parameters {         \
    return name##_with<avx512> arguments;                                             \
  }                                                                                   \
  __attribute__((target("avx2,fma"))) static result name##_avx2 parameters {          \
    return name##_with<avx2> arguments;                                               \
  }                                                                                   \
  result name parameters {                                                            \
    return kUnit == Unit::kAvx512 ? name##_avx512 arguments                           \
           : kUnit == Unit::kAvx2 ? name##_avx2 arguments                             \
                                  : name##_with<narrow>                               \
                                        arguments;                                    \
  }
#else
#define OMNIDRAFT_DISPATCH(result, name, parameters, arguments, avx512, avx2, narrow) \
  result name parameters { return name##_with<narrow> arguments; }
#endif
