#if defined(__x86_64__)

#include <immintrin.h>

#include "linear_kernels.h"
#include "loads.h"
#include "x86_features.h"

namespace omnidraft {
namespace {

namespace avx512 {

#define OMNIDRAFT_TARGET __attribute__((target("avx512f,avx512vnni")))

constexpr std::size_t kLanes = 16;
constexpr std::size_t kVectors = 2;
constexpr std::size_t kMostRows = 12;
constexpr std::size_t kMostRowsAlone = 16;
constexpr std::int32_t kZero = 128;
using Weights = __m512i;
using Levels = __m512i;
using Products = __m512i;

OMNIDRAFT_TARGET inline Products zero_products() { return _mm512_setzero_si512(); }
OMNIDRAFT_TARGET inline Weights load_weights(const std::int8_t* at) {
  return _mm512_loadu_si512(at);
}
OMNIDRAFT_TARGET inline Levels load_levels(const std::uint8_t* at) {
  return _mm512_set1_epi32(four(at));
}
OMNIDRAFT_TARGET inline Products dot(Products products, Weights weights, Levels levels) {
  return _mm512_dpbusd_epi32(products, levels, weights);
}
OMNIDRAFT_TARGET inline void store_products(Products products, std::int32_t* to) {
  _mm512_store_si512(to, products);
}

#include "linear_rows.h"

#undef OMNIDRAFT_TARGET

}  // namespace avx512

// What both kernels for vectors of 256 bits need.
#define OMNIDRAFT_AVX2 __attribute__((target("avx2")))

namespace vectors256 {

constexpr std::size_t kLanes = 8;
using Weights = __m256i;
using Products = __m256i;

OMNIDRAFT_AVX2 inline Products zero_products() { return _mm256_setzero_si256(); }
OMNIDRAFT_AVX2 inline Weights load_weights(const std::int8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
OMNIDRAFT_AVX2 inline void store_products(Products products, std::int32_t* to) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), products);
}

}  // namespace vectors256

namespace avx_vnni {

#define OMNIDRAFT_TARGET __attribute__((target("avx2,avxvnni")))

using namespace vectors256;  // NOLINT: what the loops are written in
constexpr std::size_t kVectors = 2;
constexpr std::size_t kMostRows = 5;
constexpr std::size_t kMostRowsAlone = 8;
constexpr std::int32_t kZero = 128;
using Levels = __m256i;

OMNIDRAFT_TARGET inline Levels load_levels(const std::uint8_t* at) {
  return _mm256_set1_epi32(four(at));
}
OMNIDRAFT_TARGET inline Products dot(Products products, Weights weights, Levels levels) {
  return _mm256_dpbusd_avx_epi32(products, levels, weights);
}

#include "linear_rows.h"

#undef OMNIDRAFT_TARGET

}  // namespace avx_vnni

namespace avx2 {

#define OMNIDRAFT_TARGET OMNIDRAFT_AVX2

using namespace vectors256;  // NOLINT: what the loops are written in
constexpr std::size_t kVectors = 2;
constexpr std::size_t kMostRows = 5;
constexpr std::size_t kMostRowsAlone = 6;
constexpr std::int32_t kZero = 0;

// A product's sign goes to the weight, as two of at most 128 * 127 fit 16 bits and more would not.
struct Levels {
  __m256i magnitudes;
  __m256i signs;
};

OMNIDRAFT_TARGET inline Levels load_levels(const std::uint8_t* at) {
  constexpr int kMiddle = static_cast<int>(0x80808080U);
  const __m256i levels = _mm256_set1_epi32(four(at) ^ kMiddle);
  return {_mm256_abs_epi8(levels), levels};
}
OMNIDRAFT_TARGET inline Products dot(Products products, Weights weights, const Levels& levels) {
  const __m256i pairs =
      _mm256_maddubs_epi16(levels.magnitudes, _mm256_sign_epi8(weights, levels.signs));
  return _mm256_add_epi32(products, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#include "linear_rows.h"

#undef OMNIDRAFT_TARGET

}  // namespace avx2

}  // namespace

void add_fast_kernels(std::vector<IntegerKernel>& kernels) {
  const bool wide = __builtin_cpu_supports("avx2") != 0;
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vnni") != 0) {
    kernels.push_back({"avx512-vnni", avx512::multiply_panels});
  }
  if (wide && has_avx_vnni()) {
    kernels.push_back({"avx-vnni", avx_vnni::multiply_panels});
  }
  if (wide) {
    kernels.push_back({"avx2", avx2::multiply_panels});
  }
}

}  // namespace omnidraft

#endif
