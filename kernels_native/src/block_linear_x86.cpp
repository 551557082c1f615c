#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "block_linear_kernels.h"
#include "x86_features.h"

namespace omnidraft {
namespace {

void prefetch(const std::uint8_t* at) {
  // As a number: the place may lie behind the weights.
  const auto ahead = reinterpret_cast<std::uintptr_t>(at) + 4096;
  _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
}

int four(const std::int8_t* levels) {
  int value = 0;
  std::memcpy(&value, levels, sizeof value);
  return value;
}

// The highest bit of each of four bytes.
constexpr int kSigns = static_cast<int>(0x80808080U);

namespace avx512 {

#define OMNIDRAFT_TARGET __attribute__((target("avx512f,avx512vnni")))

constexpr std::size_t kLanes = 16;
constexpr std::size_t kMostRows = 12;
// The forms without a mask make GCC 12 warn of what its own header leaves unset.
constexpr __mmask16 kAll = 0xffff;
using Floats = __m512;
using Codes = __m512i;
using Products = __m512i;

OMNIDRAFT_TARGET inline Floats zero_floats() { return _mm512_setzero_ps(); }
OMNIDRAFT_TARGET inline Products zero_products() { return _mm512_setzero_si512(); }
OMNIDRAFT_TARGET inline Codes load_codes(const std::uint8_t* at) { return _mm512_loadu_si512(at); }
OMNIDRAFT_TARGET inline Codes lower(Codes codes) {
  return _mm512_and_si512(codes, _mm512_set1_epi32(0x0f0f0f0f));
}
OMNIDRAFT_TARGET inline Codes upper(Codes codes) {
  return lower(_mm512_maskz_srli_epi32(kAll, codes, 4));
}
OMNIDRAFT_TARGET inline Products dot(Products products, Codes codes, const std::int8_t* levels) {
  return _mm512_dpbusd_epi32(products, codes, _mm512_set1_epi32(four(levels)));
}
OMNIDRAFT_TARGET inline Floats floats_of(Products products) {
  return _mm512_maskz_cvtepi32_ps(kAll, products);
}
constexpr int kByteZero = 128;
OMNIDRAFT_TARGET inline Codes held(Codes codes) {
  return _mm512_xor_si512(codes, _mm512_set1_epi32(kSigns));
}
OMNIDRAFT_TARGET inline Products dot_bytes(Products products, Codes codes,
                                           const std::int8_t* levels) {
  return dot(products, codes, levels);
}
OMNIDRAFT_TARGET inline Floats floats_of_bytes(Products products) { return floats_of(products); }
OMNIDRAFT_TARGET inline Floats floats_of_integers(const std::uint8_t* at) {
  return floats_of(
      _mm512_maskz_cvtepi8_epi32(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}
OMNIDRAFT_TARGET inline Floats floats_of_halves(const std::uint8_t* at) {
  return _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
OMNIDRAFT_TARGET inline Floats floats_at(const float* at) { return _mm512_loadu_ps(at); }
OMNIDRAFT_TARGET inline Floats all_floats(float value) { return _mm512_set1_ps(value); }
OMNIDRAFT_TARGET inline Floats multiply_floats(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
OMNIDRAFT_TARGET inline Floats fused(Floats a, Floats b, Floats c) {
  return _mm512_fmadd_ps(a, b, c);
}
OMNIDRAFT_TARGET inline void store_floats(Floats floats, float* to) {
  _mm512_storeu_ps(to, floats);
}

#include "block_linear_rows.h"

#undef OMNIDRAFT_TARGET

}  // namespace avx512

// What both kernels for vectors of 256 bits need.
#define OMNIDRAFT_AVX2 __attribute__((target("avx2,fma,f16c")))

namespace vectors256 {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kMostRows = 4;
using Floats = __m256;
using Codes = __m256i;
using Products = __m256i;

OMNIDRAFT_AVX2 inline Floats zero_floats() { return _mm256_setzero_ps(); }
OMNIDRAFT_AVX2 inline Products zero_products() { return _mm256_setzero_si256(); }
OMNIDRAFT_AVX2 inline Codes load_codes(const std::uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
OMNIDRAFT_AVX2 inline Codes lower(Codes codes) {
  return _mm256_and_si256(codes, _mm256_set1_epi32(0x0f0f0f0f));
}
OMNIDRAFT_AVX2 inline Codes upper(Codes codes) { return lower(_mm256_srli_epi32(codes, 4)); }
OMNIDRAFT_AVX2 inline Floats floats_of_halves(const std::uint8_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
OMNIDRAFT_AVX2 inline Floats floats_of_integers(const std::uint8_t* at) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
}
OMNIDRAFT_AVX2 inline Floats floats_at(const float* at) { return _mm256_loadu_ps(at); }
OMNIDRAFT_AVX2 inline Floats all_floats(float value) { return _mm256_set1_ps(value); }
OMNIDRAFT_AVX2 inline Floats multiply_floats(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
OMNIDRAFT_AVX2 inline Floats fused(Floats a, Floats b, Floats c) {
  return _mm256_fmadd_ps(a, b, c);
}
OMNIDRAFT_AVX2 inline void store_floats(Floats floats, float* to) { _mm256_storeu_ps(to, floats); }

}  // namespace vectors256

namespace avx_vnni {

#define OMNIDRAFT_TARGET __attribute__((target("avx2,fma,f16c,avxvnni")))

using namespace vectors256;  // NOLINT: what the loops are written in

OMNIDRAFT_TARGET inline Products dot(Products products, Codes codes, const std::int8_t* levels) {
  return _mm256_dpbusd_avx_epi32(products, codes, _mm256_set1_epi32(four(levels)));
}
OMNIDRAFT_TARGET inline Floats floats_of(Products products) { return _mm256_cvtepi32_ps(products); }
constexpr int kByteZero = 128;
OMNIDRAFT_TARGET inline Codes held(Codes codes) {
  return _mm256_xor_si256(codes, _mm256_set1_epi32(kSigns));
}
OMNIDRAFT_TARGET inline Products dot_bytes(Products products, Codes codes,
                                           const std::int8_t* levels) {
  return dot(products, codes, levels);
}
OMNIDRAFT_TARGET inline Floats floats_of_bytes(Products products) { return floats_of(products); }

#include "block_linear_rows.h"

#undef OMNIDRAFT_TARGET

}  // namespace avx_vnni

namespace avx2 {

#define OMNIDRAFT_TARGET OMNIDRAFT_AVX2

using namespace vectors256;  // NOLINT: what the loops are written in

// Sums of two products, in 16 bits: a block adds up to 16 products of at most 15 * 127 there.
static_assert(kBlock / 2 * 15 * 128 < 32768);
OMNIDRAFT_TARGET inline Products dot(Products products, Codes codes, const std::int8_t* levels) {
  const __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi32(four(levels)));
  return _mm256_add_epi16(products, pairs);
}
OMNIDRAFT_TARGET inline Floats floats_of(Products products) {
  return _mm256_cvtepi32_ps(_mm256_madd_epi16(products, _mm256_set1_epi16(1)));
}
// Magnitudes times levels with the codes' signs: two products of at most 128 * 127 fit 16 bits.
constexpr int kByteZero = 0;
OMNIDRAFT_TARGET inline Codes held(Codes codes) { return codes; }
OMNIDRAFT_TARGET inline Products dot_bytes(Products products, Codes codes,
                                           const std::int8_t* levels) {
  const __m256i pairs = _mm256_maddubs_epi16(
      _mm256_abs_epi8(codes), _mm256_sign_epi8(_mm256_set1_epi32(four(levels)), codes));
  return _mm256_add_epi32(products, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
OMNIDRAFT_TARGET inline Floats floats_of_bytes(Products products) {
  return _mm256_cvtepi32_ps(products);
}

#include "block_linear_rows.h"

#undef OMNIDRAFT_TARGET

}  // namespace avx2

}  // namespace

void add_fast_kernels(std::vector<BlockKernel>& kernels) {
  const bool wide =
      __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c();
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
