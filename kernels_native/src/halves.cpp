#include "halves.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>

#include "x86_features.h"
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace omnidraft {
namespace {

constexpr float kLargest = 65504.0F;
// Halves of a line of a cache.
constexpr std::size_t kLine = 32;

std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float bounded(float value) {
  return std::isfinite(value) ? std::clamp(value, -kLargest, kLargest) : value;
}

std::uint16_t half_of(float value) {
  const auto sign = static_cast<std::uint16_t>(bits_of(value) >> 16 & 0x8000U);
  const float size = std::fabs(value);
  if (!(size <= kLargest)) {
    return static_cast<std::uint16_t>(sign | (std::isnan(value) ? 0x7e00U : 0x7c00U));
  }
  if (size < 0x1p-14F) {  // a multiple of 2^-24, to which this sum rounds
    return static_cast<std::uint16_t>(sign | (bits_of(size + 0.5F) - bits_of(0.5F)));
  }
  const std::uint32_t bits = bits_of(size);
  const std::uint32_t rounded = bits + 0xfffU + (bits >> 13 & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112U << 10)));
}

float value_of(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t rest = half & 0x7fffU;
  if (rest >= 0x7c00U) {
    return float_of(sign | 0x7f800000U | (rest & 0x3ffU) << 13);
  }
  // Its exponent is one of a float that is 2^112 times smaller.
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112F));
}

void narrow_rest(const float* from, std::size_t begin, std::size_t count, std::uint16_t* to) {
  for (std::size_t i = begin; i < count; ++i) {
    to[i] = half_of(bounded(from[i]));
  }
}

void widen_rest(const std::uint16_t* from, std::size_t begin, std::size_t count, float* to) {
  for (std::size_t i = begin; i < count; ++i) {
    to[i] = value_of(from[i]);
  }
}

void narrow_anywhere(const float* from, std::size_t count, std::uint16_t* to) {
  narrow_rest(from, 0, count, to);
}

void widen_anywhere(const std::uint16_t* from, std::size_t rows, std::size_t width,
                    std::size_t stride, float* to, std::size_t /*ahead*/) {
  for (std::size_t row = 0; row < rows; ++row) {
    widen_rest(from + row * stride, 0, width, to + row * width);
  }
}

#if defined(__x86_64__)

__attribute__((target("f16c,avx"))) void narrow_wide(const float* from, std::size_t count,
                                                     std::uint16_t* to) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    float bound[8];
    for (std::size_t k = 0; k < 8; ++k) {
      bound[k] = bounded(from[i + k]);
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(bound), _MM_FROUND_TO_NEAREST_INT));
  }
  narrow_rest(from, i, count, to);
}

// The next tile: the hardware does not see where it lies. As a number: it may lie behind the
// buffer.
inline void prefetch(const std::uint16_t* at, std::size_t ahead) {
  const auto next = reinterpret_cast<std::uintptr_t>(at) + ahead * sizeof(std::uint16_t);
  _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
}

__attribute__((target("f16c,avx"))) void widen_8(const std::uint16_t* from, std::size_t rows,
                                                 std::size_t width, std::size_t stride, float* to,
                                                 std::size_t ahead) {
  for (std::size_t row = 0; row < rows; ++row, from += stride, to += width) {
    std::size_t i = 0;
    for (; i + 8 <= width; i += 8) {
      if (i % kLine == 0) {
        prefetch(from + i, ahead);
      }
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
    }
    widen_rest(from, i, width, to);
  }
}

__attribute__((target("avx512f"))) void widen_16(const std::uint16_t* from, std::size_t rows,
                                                 std::size_t width, std::size_t stride, float* to,
                                                 std::size_t ahead) {
  for (std::size_t row = 0; row < rows; ++row, from += stride, to += width) {
    std::size_t i = 0;
    for (; i + 16 <= width; i += 16) {
      if (i % kLine == 0) {
        prefetch(from + i, ahead);
      }
      const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
      // The form without a mask makes GCC 12 warn of what its own header leaves unset.
      _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(0xffff, halves));
    }
    widen_rest(from, i, width, to);
  }
}

#elif defined(__aarch64__)

void narrow_wide(const float* from, std::size_t count, std::uint16_t* to) {
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    float bound[4];
    for (std::size_t k = 0; k < 4; ++k) {
      bound[k] = bounded(from[i + k]);
    }
    vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(bound))));
  }
  narrow_rest(from, i, count, to);
}

void widen_wide(const std::uint16_t* from, std::size_t rows, std::size_t width, std::size_t stride,
                float* to, std::size_t ahead) {
  for (std::size_t row = 0; row < rows; ++row, from += stride, to += width) {
    std::size_t i = 0;
    for (; i + 4 <= width; i += 4) {
      if (i % kLine == 0) {
        __builtin_prefetch(from + i + ahead);
      }
      vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
    }
    widen_rest(from, i, width, to);
  }
}

#endif

}  // namespace

const std::vector<HalfKernel>& half_kernels() {
  static const std::vector<HalfKernel> kKernels = [] {
    std::vector<HalfKernel> kernels;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") != 0 && has_f16c()) {
      kernels.push_back({narrow_wide, widen_16});
    }
    if (__builtin_cpu_supports("avx") != 0 && has_f16c()) {
      kernels.push_back({narrow_wide, widen_8});
    }
#elif defined(__aarch64__)
    kernels.push_back({narrow_wide, widen_wide});
#endif
    kernels.push_back({narrow_anywhere, widen_anywhere});
    return kernels;
  }();
  return kKernels;
}

void narrow(const float* from, std::size_t count, std::uint16_t* to) {
  static const auto kNarrow = half_kernels().front().narrow;
  kNarrow(from, count, to);
}

void widen(const std::uint16_t* from, std::size_t rows, std::size_t width, std::size_t stride,
           float* to, std::size_t ahead) {
  static const auto kWiden = half_kernels().front().widen;
  kWiden(from, rows, width, stride, to, ahead);
}

}  // namespace omnidraft
