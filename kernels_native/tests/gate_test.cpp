#include "gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "omnidraft/vectors.h"

namespace omnidraft {
namespace {

double activated(Activation activation, double x) {
  const double u = activation == Activation::kSilu
                       ? x
                       : 2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
  return x / (1 + std::exp(-u));
}

class GateTest : public testing::TestWithParam<Activation> {};

TEST_P(GateTest, EqualsTheDefinition) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0F, 4.0F);
  for (const std::size_t width : {1U, 3U, 16U, 21U, 64U, 1536U}) {
    std::vector<float> joined(2 * width);
    for (float& value : joined) {
      value = normal(random);
    }
    joined[0] = -200.0F;
    std::vector<float> result(width + 1, 7.0F);
    gate(GetParam(), joined.data(), 1, width, result.data());
    for (std::size_t i = 0; i < width; ++i) {
      const double expected = activated(GetParam(), joined[i]) * joined[width + i];
      ASSERT_NEAR(result[i], expected, 1e-6 * std::fabs(expected) + 1e-6) << joined[i];
    }
    ASSERT_EQ(result[width], 7.0F);
  }
}

TEST_P(GateTest, ARowIsTheSameAmongOthers) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  constexpr std::size_t kRows = 7;
  for (const std::size_t width : {5U, 48U, 83U}) {
    std::vector<float> joined(kRows * 2 * width);
    for (float& value : joined) {
      value = normal(random);
    }
    std::vector<float> together(kRows * width);
    gate(GetParam(), joined.data(), kRows, width, together.data());
    for (std::size_t row = 0; row < kRows; ++row) {
      std::vector<float> alone(width);
      gate(GetParam(), joined.data() + row * 2 * width, 1, width, alone.data());
      ASSERT_EQ(std::memcmp(alone.data(), together.data() + row * width, width * sizeof(float)), 0);
    }
  }
}

TEST_P(GateTest, WhatIsNoNumberStaysNone) {
  constexpr float kBad = std::numeric_limits<float>::quiet_NaN();
  for (const std::size_t place : {0U, 1U, 20U, 22U, 23U}) {
    std::vector<float> joined(46, 1.0F);
    joined[place] = kBad;
    std::vector<float> result(23);
    gate(GetParam(), joined.data(), 1, 23, result.data());
    for (std::size_t i = 0; i < result.size(); ++i) {
      EXPECT_EQ(std::isnan(result[i]), i == place % 23);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Activations, GateTest,
                         testing::Values(Activation::kSilu, Activation::kGelu));

}  // namespace
}  // namespace omnidraft
