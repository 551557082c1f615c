#if defined(__x86_64__)

#include <immintrin.h>

#include "block_linear_kernels.h"
#include "loads.h"

namespace omnidraft {
namespace {

#define OMNIDRAFT_TARGET __attribute__((target("avx512f,avx512vnni")))

// The highest bit of each of four bytes.
constexpr int kSigns = static_cast<int>(0x80808080U);

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

}  // namespace

void add_avx512(std::vector<BlockKernel>& kernels) {
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vnni") != 0) {
    kernels.push_back({"avx512-vnni", multiply_panels});
  }
}

}  // namespace omnidraft

#endif
