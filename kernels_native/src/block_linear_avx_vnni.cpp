#if defined(__x86_64__)

#include <immintrin.h>

#include "block_linear_kernels.h"
#include "loads.h"
#include "x86_features.h"

namespace omnidraft {
namespace {

#define OMNIDRAFT_TARGET __attribute__((target("avx2,fma,f16c,avxvnni")))

#include "block_linear_256.h"

// The highest bit of each of four bytes.
constexpr int kSigns = static_cast<int>(0x80808080U);

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

}  // namespace

void add_avx_vnni(std::vector<BlockKernel>& kernels) {
  if (has_avx2_fma_f16c() && has_avx_vnni()) {
    kernels.push_back({"avx-vnni", multiply_panels});
  }
}

}  // namespace omnidraft

#endif
