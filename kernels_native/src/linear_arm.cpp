#if defined(__aarch64__)

#include <arm_neon.h>

#include "arm_features.h"
#include "linear_kernels.h"
#include "loads.h"

namespace omnidraft {
namespace {

// What all kernels share.
constexpr std::size_t kLanes = 4;
constexpr std::int32_t kZero = 0;
using Weights = int8x16_t;
using Levels = int8x16_t;

inline Weights load_weights(const std::int8_t* at) { return vld1q_s8(at); }
inline Levels load_levels(const std::uint8_t* at) {
  constexpr auto kMiddle = static_cast<std::int32_t>(0x80808080U);
  return vreinterpretq_s8_s32(vdupq_n_s32(four(at) ^ kMiddle));
}

namespace neon {

#define OMNIDRAFT_TARGET

constexpr std::size_t kVectors = 2;
constexpr std::size_t kMostRows = 4;
constexpr std::size_t kMostRowsAlone = 8;

// Half the sums of two outputs each.
struct Products {
  int32x4_t first;
  int32x4_t second;
};

inline Products zero_products() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
inline Products dot(Products products, Weights weights, Levels levels) {
  const int8x8_t four_twice = vget_low_s8(levels);
  return {vpadalq_s16(products.first, vmull_s8(vget_low_s8(weights), four_twice)),
          vpadalq_s16(products.second, vmull_s8(vget_high_s8(weights), four_twice))};
}
inline void store_products(Products products, std::int32_t* to) {
  vst1q_s32(to, vpaddq_s32(products.first, products.second));
}

#include "linear_rows.h"

#undef OMNIDRAFT_TARGET

}  // namespace neon

namespace dotprod {

#define OMNIDRAFT_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))

constexpr std::size_t kVectors = 4;
constexpr std::size_t kMostRows = 4;
constexpr std::size_t kMostRowsAlone = 8;
using Products = int32x4_t;

OMNIDRAFT_TARGET inline Products zero_products() { return vdupq_n_s32(0); }
OMNIDRAFT_TARGET inline Products dot(Products products, Weights weights, Levels levels) {
  return vdotq_s32(products, weights, levels);
}
OMNIDRAFT_TARGET inline void store_products(Products products, std::int32_t* to) {
  vst1q_s32(to, products);
}

#include "linear_rows.h"

#undef OMNIDRAFT_TARGET

}  // namespace dotprod

namespace i8mm {

#define OMNIDRAFT_TARGET __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))

constexpr std::size_t kVectors = 4;
constexpr std::size_t kMostRows = 4;
constexpr std::size_t kMostRowsAlone = 8;

// A vector of outputs by eight inputs, from two groups: the first two outputs, then the others.
struct Eight {
  int8x16_t halves[2];
};

OMNIDRAFT_TARGET inline Eight join(Weights first, Weights second) {
  const int32x4_t one = vreinterpretq_s32_s8(first);
  const int32x4_t other = vreinterpretq_s32_s8(second);
  return {
      {vreinterpretq_s8_s32(vzip1q_s32(one, other)), vreinterpretq_s8_s32(vzip2q_s32(one, other))}};
}

// The levels of eight inputs, or of four and nothing.
template <bool kBoth>
OMNIDRAFT_TARGET inline int8x8_t load_eight(const std::uint8_t* at) {
  const uint8x8_t levels = kBoth ? vld1_u8(at) : vcreate_u8(static_cast<std::uint32_t>(four(at)));
  return vreinterpret_s8_u8(veor_u8(levels, vdup_n_u8(128)));
}

// Rows in pairs, R of them: an instruction multiplies two rows with two outputs.
template <std::size_t R, std::size_t V>
using Products = int32x4_t[(R + 1) / 2][V][2];

// Adds the products of two groups, or of one.
template <bool kBoth, std::size_t R, std::size_t V>
OMNIDRAFT_TARGET inline void add_groups(const std::int8_t* weights, const std::uint8_t* levels,
                                        std::size_t width, Products<R, V>& products) {
  Eight group[V];
#pragma GCC unroll 4
  for (std::size_t v = 0; v < V; ++v) {
    const std::int8_t* at = weights + v * kLanes * kGroup;
    group[v] = join(load_weights(at), kBoth ? load_weights(at + kPanel * kGroup) : vdupq_n_s8(0));
    prefetch(at);
  }
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; r += 2) {
    const int8x8_t one = load_eight<kBoth>(levels + r * width);
    const int8x8_t other = r + 1 < R ? load_eight<kBoth>(levels + (r + 1) * width) : one;
    const int8x16_t pair = vcombine_s8(one, other);
#pragma GCC unroll 4
    for (std::size_t v = 0; v < V; ++v) {
      int32x4_t(&sums)[2] = products[r / 2][v];
      sums[0] = vmmlaq_s32(sums[0], pair, group[v].halves[0]);
      sums[1] = vmmlaq_s32(sums[1], pair, group[v].halves[1]);
    }
  }
}

template <std::size_t R, std::size_t V>
OMNIDRAFT_TARGET void multiply_rows(const IntegerLinear& linear, std::size_t first,
                                    std::size_t row) {
  if constexpr (R == 1) {  // a lone row would waste half of each instruction
    dotprod::multiply_rows<1, V>(linear, first, row);
  } else {
    static_assert(kVectors * kLanes <= kPanel);
    const std::int8_t* weights =
        linear.weights + first / kPanel * kPanel * linear.width + first % kPanel * kGroup;
    const std::uint8_t* levels = linear.levels + row * linear.width;
    Products<R, V> products;
#pragma GCC unroll 16
    for (std::size_t p = 0; p < (R + 1) / 2; ++p) {
#pragma GCC unroll 4
      for (std::size_t v = 0; v < V; ++v) {
        products[p][v][0] = products[p][v][1] = vdupq_n_s32(0);
      }
    }
    std::size_t i = 0;
    for (; i + 2 * kGroup <= linear.width; i += 2 * kGroup) {
      add_groups<true, R, V>(weights + i * kPanel, levels + i, linear.width, products);
    }
    if (i < linear.width) {
      add_groups<false, R, V>(weights + i * kPanel, levels + i, linear.width, products);
    }
#pragma GCC unroll 16
    for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (std::size_t v = 0; v < V; ++v) {
        const int64x2_t one = vreinterpretq_s64_s32(products[r / 2][v][0]);
        const int64x2_t other = vreinterpretq_s64_s32(products[r / 2][v][1]);
        alignas(16) std::int32_t stored[kLanes];
        vst1q_s32(stored, vreinterpretq_s32_s64(r % 2 == 0 ? vzip1q_s64(one, other)
                                                           : vzip2q_s64(one, other)));
        finish(linear, row + r, first + v * kLanes, kLanes, stored, kZero);
      }
    }
  }
}

#include "linear_panels.h"

#undef OMNIDRAFT_TARGET

}  // namespace i8mm
}  // namespace

void add_fast_kernels(std::vector<IntegerKernel>& kernels) {
  if (has_matrix_products()) {
    kernels.push_back({"i8mm", i8mm::multiply_panels});
  }
  if (has_dot_products()) {
    kernels.push_back({"dotprod", dotprod::multiply_panels});
  }
  kernels.push_back({"neon", neon::multiply_panels});
}

}  // namespace omnidraft

#endif
