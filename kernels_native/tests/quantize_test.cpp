#include "quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace omnidraft {
namespace {

struct Quantized {
  std::vector<std::uint8_t> levels;
  std::vector<float> steps;
};

Quantized quantize(const std::vector<float>& x, std::size_t rows) {
  Quantized result{std::vector<std::uint8_t>(x.size()), std::vector<float>(rows)};
  quantize_rows(x.data(), rows, x.size() / rows, result.levels.data(), result.steps.data());
  return result;
}

TEST(QuantizeRows, LevelsAreTheNearest) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const std::size_t width : {1, 2, 15, 16, 17, 64, 576, 1537}) {
    constexpr std::size_t kRows = 3;
    std::vector<float> x(kRows * width);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = normal(random) * static_cast<float>(std::pow(100.0, static_cast<double>(i / width)));
    }
    const Quantized found = quantize(x, kRows);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float* row = x.data() + i / width * width;
      float largest = 0;
      for (std::size_t j = 0; j < width; ++j) {
        largest = std::max(largest, std::abs(row[j]));
      }
      const float step = found.steps[i / width];
      EXPECT_FLOAT_EQ(step, largest / 127.0F);
      EXPECT_EQ(found.levels[i], 128 + std::nearbyint(x[i] / step)) << width << " " << i;
    }
  }
}

TEST(QuantizeRows, EndsTiesAndZeros) {
  const Quantized found = quantize({127, -127, 0.5F, 1.5F, -0.5F, 2.5F, 0, 1}, 1);
  EXPECT_EQ(found.steps[0], 1.0F);
  EXPECT_EQ(found.levels, (std::vector<std::uint8_t>{255, 1, 128, 130, 128, 130, 128, 129}));
  const Quantized zeros = quantize(std::vector<float>(40), 2);
  EXPECT_EQ(zeros.steps, (std::vector<float>{1e-20F, 1e-20F}));
  EXPECT_EQ(zeros.levels, std::vector<std::uint8_t>(40, 128));
}

TEST(QuantizeRows, WhatIsNotANumberStaysNone) {
  for (const std::size_t width : {1, 16, 37}) {
    for (std::size_t place = 0; place < width; ++place) {
      std::vector<float> x(3 * width, 2.0F);
      x[width + place] = std::nanf("");
      const Quantized found = quantize(x, 3);
      EXPECT_TRUE(std::isnan(found.steps[1])) << width << " " << place;
      EXPECT_EQ(found.steps[0], 2.0F / 127.0F);
      EXPECT_EQ(found.steps[2], 2.0F / 127.0F);
      x[width + place] = -std::numeric_limits<float>::infinity();
      EXPECT_TRUE(std::isinf(quantize(x, 3).steps[1]));
    }
  }
}

}  // namespace
}  // namespace omnidraft
