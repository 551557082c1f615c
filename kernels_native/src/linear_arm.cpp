#if defined(__aarch64__)

#include <arm_neon.h>

#include "arm_features.h"
#include "linear_kernels.h"
#include "loads.h"

namespace omnidraft {
namespace {

namespace dotprod {

#define OMNIDRAFT_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))

constexpr std::size_t kLanes = 4;
constexpr std::size_t kVectors = 4;
constexpr std::size_t kMostRows = 4;
constexpr std::size_t kMostRowsAlone = 8;
constexpr std::int32_t kZero = 0;
using Weights = int8x16_t;
using Levels = int8x16_t;
using Products = int32x4_t;

OMNIDRAFT_TARGET inline Products zero_products() { return vdupq_n_s32(0); }
OMNIDRAFT_TARGET inline Weights load_weights(const std::int8_t* at) { return vld1q_s8(at); }
OMNIDRAFT_TARGET inline Levels load_levels(const std::uint8_t* at) {
  constexpr auto kMiddle = static_cast<std::int32_t>(0x80808080U);
  return vreinterpretq_s8_s32(vdupq_n_s32(four(at) ^ kMiddle));
}
OMNIDRAFT_TARGET inline Products dot(Products products, Weights weights, Levels levels) {
  return vdotq_s32(products, weights, levels);
}
OMNIDRAFT_TARGET inline void store_products(Products products, std::int32_t* to) {
  vst1q_s32(to, products);
}

#include "linear_rows.h"

#undef OMNIDRAFT_TARGET

}  // namespace dotprod
}  // namespace

void add_fast_kernels(std::vector<IntegerKernel>& kernels) {
  if (has_dot_products()) {
    kernels.push_back({"dotprod", dotprod::multiply_panels});
  }
}

}  // namespace omnidraft

#endif
