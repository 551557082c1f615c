#if defined(__x86_64__)

#include <immintrin.h>

#include "block_linear_kernels.h"
#include "loads.h"
#include "x86_features.h"

namespace omnidraft {
namespace {

#define OMNIDRAFT_TARGET __attribute__((target("avx2,fma,f16c")))

#include "block_linear_256.h"

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

}  // namespace

void add_avx2(std::vector<BlockKernel>& kernels) {
  if (has_avx2_fma_f16c()) {
    kernels.push_back({"avx2", multiply_panels});
  }
}

}  // namespace omnidraft

#endif
