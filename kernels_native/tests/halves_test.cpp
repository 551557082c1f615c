#include "halves.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace omnidraft {
namespace {

constexpr std::size_t kAll = 65536;

std::vector<std::uint16_t> all_halves() {
  std::vector<std::uint16_t> halves(kAll);
  for (std::size_t i = 0; i < kAll; ++i) {
    halves[i] = static_cast<std::uint16_t>(i);
  }
  return halves;
}

// By the definition.
double value_of(std::uint16_t half) {
  const int exponent = half >> 10 & 31;
  const double mantissa = half & 1023;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  return (half & 0x8000) != 0 ? -size : size;
}

bool is_number(std::uint16_t half) { return (half & 0x7c00) != 0x7c00; }

TEST(Halves, WidenEveryOne) {
  const std::vector<std::uint16_t> halves = all_halves();
  for (const HalfKernel& kernel : half_kernels()) {
    std::vector<float> floats(kAll);
    kernel.widen(halves.data(), 1, kAll, kAll, floats.data(), 0);
    for (std::size_t i = 0; i < kAll; ++i) {
      if (is_number(halves[i])) {
        ASSERT_EQ(static_cast<double>(floats[i]), value_of(halves[i])) << i;
        ASSERT_EQ(std::signbit(floats[i]), i >= 32768) << i;
      } else {
        ASSERT_EQ(std::isnan(floats[i]), (i & 1023) != 0) << i;
        ASSERT_FALSE(std::isfinite(floats[i])) << i;
      }
    }
  }
}

TEST(Halves, NarrowToTheNearest) {
  // Every half, what lies between two, and what lies beside that: to the even one.
  std::vector<float> floats;
  std::vector<std::uint16_t> expected;
  for (std::uint16_t half = 0; half < 0x7bff; ++half) {
    const auto next = static_cast<std::uint16_t>(half + 1);
    const auto low = static_cast<float>(value_of(half));
    const auto middle = static_cast<float>((value_of(half) + value_of(next)) / 2);
    const float values[] = {low, std::nextafter(middle, 0.0F), middle,
                            std::nextafter(middle, 1e6F)};
    const std::uint16_t to[] = {half, half, half % 2 == 0 ? half : next, next};
    for (std::size_t i = 0; i < 4; ++i) {
      for (const bool negative : {false, true}) {
        floats.push_back(negative ? -values[i] : values[i]);
        expected.push_back(static_cast<std::uint16_t>(to[i] | (negative ? 0x8000 : 0)));
      }
    }
  }
  for (const HalfKernel& kernel : half_kernels()) {
    std::vector<std::uint16_t> found(floats.size());
    kernel.narrow(floats.data(), floats.size(), found.data());
    for (std::size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(found[i], expected[i]) << floats[i];
    }
  }
}

TEST(Halves, WhatIsTooLargeAndWhatIsNoNumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> floats = {65504.0F, 65519.0F,  65520.0F,   1e38F,
                                     -1e30F,   kInfinity, -kInfinity, std::nanf("")};
  for (const HalfKernel& kernel : half_kernels()) {
    std::vector<std::uint16_t> found(floats.size());
    kernel.narrow(floats.data(), floats.size(), found.data());
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(found[i], 0x7bff);
    }
    EXPECT_EQ(found[4], 0xfbff);
    EXPECT_EQ(found[5], 0x7c00);
    EXPECT_EQ(found[6], 0xfc00);
    EXPECT_FALSE(is_number(found[7]));
  }
}

TEST(Halves, RowsOfAnyWidth) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t width = 1 + random() % 70;
    const std::size_t rows = 1 + random() % 5;
    const std::size_t stride = width + random() % 9;
    std::vector<std::uint16_t> halves(rows * stride);
    for (std::uint16_t& half : halves) {
      half = static_cast<std::uint16_t>(random() & 0xbfff);
    }
    for (const HalfKernel& kernel : half_kernels()) {
      std::vector<float> floats(rows * width + 1, 7.0F);
      kernel.widen(halves.data(), rows, width, stride, floats.data(), rows * stride);
      std::vector<std::uint16_t> back(rows * width);
      kernel.narrow(floats.data(), rows * width, back.data());
      for (std::size_t i = 0; i < rows * width; ++i) {
        ASSERT_EQ(back[i], halves[i / width * stride + i % width]);
      }
      ASSERT_EQ(floats.back(), 7.0F);
    }
  }
}

}  // namespace
}  // namespace omnidraft
