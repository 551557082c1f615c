#if defined(__aarch64__)

#include <arm_neon.h>

#include "arm_features.h"
#include "block_linear_kernels.h"
#include "loads.h"

namespace omnidraft {
namespace {

// What all kernels share.
constexpr std::size_t kLanes = 4;
constexpr std::size_t kMostRows = 4;
constexpr int kByteZero = 0;
using Floats = float32x4_t;
using Codes = uint8x16_t;

inline Floats zero_floats() { return vdupq_n_f32(0); }
inline Codes load_codes(const std::uint8_t* at) { return vld1q_u8(at); }
inline Codes lower(Codes codes) { return vandq_u8(codes, vdupq_n_u8(15)); }
inline Codes upper(Codes codes) { return vshrq_n_u8(codes, 4); }
inline Codes held(Codes codes) { return codes; }
inline Floats floats_of_integers(const std::uint8_t* at) {
  const int8x8_t integers = vcreate_s8(static_cast<std::uint32_t>(four(at)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(integers))));
}
inline Floats floats_of_halves(const std::uint8_t* at) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
}
inline Floats floats_at(const float* at) { return vld1q_f32(at); }
inline Floats all_floats(float value) { return vdupq_n_f32(value); }
inline Floats multiply_floats(Floats a, Floats b) { return vmulq_f32(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
inline void store_floats(Floats floats, float* to) { vst1q_f32(to, floats); }

namespace neon {

#define OMNIDRAFT_TARGET

// Parts of the sums of two outputs each: of 16 bits, or for codes of 8 bits of 32.
struct Products {
  int32x4_t first;
  int32x4_t second;
};

inline Products zero_products() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
inline int8x8_t levels_at(const std::int8_t* levels) {
  return vreinterpret_s8_s32(vdup_n_s32(four(levels)));
}
inline int32x4_t add_small(int32x4_t sums, uint8x8_t codes, int8x8_t levels) {
  return vreinterpretq_s32_s16(
      vmlal_s8(vreinterpretq_s16_s32(sums), vreinterpret_s8_u8(codes), levels));
}
// A block adds kBlock / 4 products of at most 15 * 127 to each.
static_assert(kBlock / 4 * 15 * 127 < 32768);
inline Products dot(Products products, Codes codes, const std::int8_t* levels) {
  const int8x8_t four_twice = levels_at(levels);
  return {add_small(products.first, vget_low_u8(codes), four_twice),
          add_small(products.second, vget_high_u8(codes), four_twice)};
}
inline Floats floats_of(Products products) {
  return vcvtq_f32_s32(vpaddq_s32(vpaddlq_s16(vreinterpretq_s16_s32(products.first)),
                                  vpaddlq_s16(vreinterpretq_s16_s32(products.second))));
}
inline int32x4_t add_large(int32x4_t sums, uint8x8_t codes, int8x8_t levels) {
  return vpadalq_s16(sums, vmull_s8(vreinterpret_s8_u8(codes), levels));
}
inline Products dot_bytes(Products products, Codes codes, const std::int8_t* levels) {
  const int8x8_t four_twice = levels_at(levels);
  return {add_large(products.first, vget_low_u8(codes), four_twice),
          add_large(products.second, vget_high_u8(codes), four_twice)};
}
inline Floats floats_of_bytes(Products products) {
  return vcvtq_f32_s32(vpaddq_s32(products.first, products.second));
}

#include "block_linear_rows.h"

#undef OMNIDRAFT_TARGET

}  // namespace neon

namespace dotprod {

#define OMNIDRAFT_TARGET __attribute__((target("arch=armv8.2-a+dotprod")))

using Products = int32x4_t;

OMNIDRAFT_TARGET inline Products zero_products() { return vdupq_n_s32(0); }
OMNIDRAFT_TARGET inline Products dot(Products products, Codes codes, const std::int8_t* levels) {
  return vdotq_s32(products, vreinterpretq_s8_u8(codes),
                   vreinterpretq_s8_s32(vdupq_n_s32(four(levels))));
}
OMNIDRAFT_TARGET inline Floats floats_of(Products products) { return vcvtq_f32_s32(products); }
OMNIDRAFT_TARGET inline Products dot_bytes(Products products, Codes codes,
                                           const std::int8_t* levels) {
  return dot(products, codes, levels);
}
OMNIDRAFT_TARGET inline Floats floats_of_bytes(Products products) { return floats_of(products); }

#include "block_linear_rows.h"

#undef OMNIDRAFT_TARGET

}  // namespace dotprod

namespace i8mm {

#define OMNIDRAFT_TARGET __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))

using Products = int32x4_t;

OMNIDRAFT_TARGET inline Products zero_products() { return vdupq_n_s32(0); }

// Rows in pairs, two vectors for each: an instruction multiplies two rows with two outputs, eight
// inputs deep. A lone row would waste half of it.
template <std::size_t R>
constexpr std::size_t kSums = R == 1 ? 1 : (R + 1) / 2 * 2;
template <std::size_t R>
constexpr std::size_t kStep = R == 1 ? 1 : 2;

// Adds the products of eight codes of each output, of two chunks, with the rows' levels.
template <std::size_t R>
OMNIDRAFT_TARGET inline void add_eight(Codes codes, Codes next, const std::int8_t* levels,
                                       std::size_t width, Products (&products)[kSums<R>]) {
  const int32x4_t one = vreinterpretq_s32_u8(codes);
  const int32x4_t other = vreinterpretq_s32_u8(next);
  const int8x16_t first = vreinterpretq_s8_s32(vzip1q_s32(one, other));
  const int8x16_t second = vreinterpretq_s8_s32(vzip2q_s32(one, other));
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; r += 2) {
    const int8x8_t row = vld1_s8(levels + r * width);
    const int8x16_t pair = vcombine_s8(row, r + 1 < R ? vld1_s8(levels + (r + 1) * width) : row);
    products[r] = vmmlaq_s32(products[r], pair, first);
    products[r + 1] = vmmlaq_s32(products[r + 1], pair, second);
  }
}

template <BlockForm F, std::size_t R>
OMNIDRAFT_TARGET inline void add_products(const std::uint8_t* codes, const std::int8_t* levels,
                                          std::size_t width, std::size_t c,
                                          Products (&products)[kSums<R>]) {
  if constexpr (R == 1) {
    dotprod::add_products<F, 1>(codes, levels, width, c, products);
  } else {
    const Codes one = load_codes(codes);
    const Codes other = load_codes(codes + kBlockPanel * 4);
    const std::int8_t* at = levels + c * 4;
    if constexpr (layout_of(F).nibbles) {
      add_eight<R>(lower(one), lower(other), at, width, products);
      add_eight<R>(upper(one), upper(other), at + kBlock / 2, width, products);
    } else {
      add_eight<R>(one, other, at, width, products);
    }
  }
}

template <BlockForm F, std::size_t R>
OMNIDRAFT_TARGET inline Floats row_of(const Products (&products)[kSums<R>], std::size_t r) {
  if constexpr (R == 1) {
    return vcvtq_f32_s32(products[0]);
  } else {
    const int64x2_t one = vreinterpretq_s64_s32(products[r / 2 * 2]);
    const int64x2_t other = vreinterpretq_s64_s32(products[r / 2 * 2 + 1]);
    return vcvtq_f32_s32(
        vreinterpretq_s32_s64(r % 2 == 0 ? vzip1q_s64(one, other) : vzip2q_s64(one, other)));
  }
}

#include "block_linear_panels.h"

#undef OMNIDRAFT_TARGET

}  // namespace i8mm
}  // namespace

void add_arm(std::vector<BlockKernel>& kernels) {
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
