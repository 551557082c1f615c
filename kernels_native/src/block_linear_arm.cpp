#if defined(__aarch64__)

#include <arm_neon.h>

#include "arm_features.h"
#include "block_linear_kernels.h"
#include "loads.h"

namespace omnidraft {
namespace {

#define OMNIDRAFT_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))

constexpr std::size_t kLanes = 4;
constexpr std::size_t kMostRows = 4;
using Floats = float32x4_t;
using Codes = uint8x16_t;
using Products = int32x4_t;

OMNIDRAFT_TARGET inline Floats zero_floats() { return vdupq_n_f32(0); }
OMNIDRAFT_TARGET inline Products zero_products() { return vdupq_n_s32(0); }
OMNIDRAFT_TARGET inline Codes load_codes(const std::uint8_t* at) { return vld1q_u8(at); }
OMNIDRAFT_TARGET inline Codes lower(Codes codes) { return vandq_u8(codes, vdupq_n_u8(15)); }
OMNIDRAFT_TARGET inline Codes upper(Codes codes) { return vshrq_n_u8(codes, 4); }
OMNIDRAFT_TARGET inline Products dot(Products products, Codes codes, const std::int8_t* levels) {
  return vdotq_s32(products, vreinterpretq_s8_u8(codes),
                   vreinterpretq_s8_s32(vdupq_n_s32(four(levels))));
}
OMNIDRAFT_TARGET inline Floats floats_of(Products products) { return vcvtq_f32_s32(products); }
constexpr int kByteZero = 0;
OMNIDRAFT_TARGET inline Codes held(Codes codes) { return codes; }
OMNIDRAFT_TARGET inline Products dot_bytes(Products products, Codes codes,
                                           const std::int8_t* levels) {
  return dot(products, codes, levels);
}
OMNIDRAFT_TARGET inline Floats floats_of_bytes(Products products) { return floats_of(products); }
OMNIDRAFT_TARGET inline Floats floats_of_integers(const std::uint8_t* at) {
  const int8x8_t integers = vcreate_s8(static_cast<std::uint32_t>(four(at)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(integers))));
}
OMNIDRAFT_TARGET inline Floats floats_of_halves(const std::uint8_t* at) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
}
OMNIDRAFT_TARGET inline Floats floats_at(const float* at) { return vld1q_f32(at); }
OMNIDRAFT_TARGET inline Floats all_floats(float value) { return vdupq_n_f32(value); }
OMNIDRAFT_TARGET inline Floats multiply_floats(Floats a, Floats b) { return vmulq_f32(a, b); }
OMNIDRAFT_TARGET inline Floats fused(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
OMNIDRAFT_TARGET inline void store_floats(Floats floats, float* to) { vst1q_f32(to, floats); }

#include "block_linear_rows.h"

}  // namespace

void add_dotprod(std::vector<BlockKernel>& kernels) {
  if (has_dot_products()) {
    kernels.push_back({"dotprod", multiply_panels});
  }
}

}  // namespace omnidraft

#endif
