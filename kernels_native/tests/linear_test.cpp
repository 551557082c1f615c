#include "linear.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace omnidraft {
namespace {

// Random weights, the extreme ones among them, and what the product is by its definition.
struct Case {
  std::size_t rows, width, outputs;
  std::vector<std::uint8_t> levels;
  std::vector<std::int8_t> weights;  // as a matrix
  std::vector<std::int8_t> panels;
  std::vector<float> steps, scales;
  std::vector<std::int32_t> sums;

  Case(std::size_t rows, std::size_t width, std::size_t outputs)
      : rows(rows),
        width(width),
        outputs(outputs),
        levels(rows * width),
        weights(outputs * width),
        panels(outputs * width),
        steps(rows),
        scales(outputs),
        sums(outputs) {
    std::mt19937 random(5);
    for (auto& level : levels) {
      level = static_cast<std::uint8_t>(random() % 4 == 0 ? 255 : random() % 256);
    }
    for (auto& weight : weights) {
      weight = static_cast<std::int8_t>(random() % 4 == 0 ? -127
                                                          : static_cast<int>(random() % 255) - 127);
    }
    for (auto& step : steps) {
      step = 1e-3F * static_cast<float>(1 + random() % 1000);
    }
    for (std::size_t j = 0; j < outputs; ++j) {
      scales[j] = 1e-4F * static_cast<float>(1 + random() % 1000);
      for (std::size_t i = 0; i < width; ++i) {
        const std::int8_t weight = weights[j * width + i];
        sums[j] += weight;
        panels[((j / kPanel * (width / 4) + i / 4) * kPanel + j % kPanel) * 4 + i % 4] = weight;
      }
    }
  }

  std::vector<float> multiplied(const IntegerKernel& kernel, std::size_t begin,
                                std::size_t end) const {
    std::vector<float> result(rows * outputs, -7.0F);
    IntegerLinear linear;
    linear.rows = rows;
    linear.width = width;
    linear.outputs = outputs;
    linear.levels = levels.data();
    linear.steps = steps.data();
    linear.weights = panels.data();
    linear.scales = scales.data();
    linear.sums = sums.data();
    linear.result = result.data();
    kernel.multiply(linear, begin, end);
    return result;
  }

  float expected(std::size_t row, std::size_t output) const {
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < width; ++i) {
      sum += (levels[row * width + i] - 128) * weights[output * width + i];
    }
    return static_cast<float>(sum) * scales[output] * steps[row];
  }
};

TEST(IntegerLinear, EveryKernelIsExact) {
  for (const std::size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, 25}) {
    for (const auto& [width, outputs] :
         {std::pair<std::size_t, std::size_t>{4, 16}, {20, 48}, {576, 64}, {1536, 80}}) {
      const Case random(rows, width, outputs);
      std::vector<float> expected;
      for (std::size_t i = 0; i < rows * outputs; ++i) {
        expected.push_back(random.expected(i / outputs, i % outputs));
      }
      for (const IntegerKernel& kernel : integer_kernels()) {
        const std::vector<float> found = random.multiplied(kernel, 0, outputs / kPanel);
        ASSERT_EQ(found, expected) << kernel.name << " rows " << rows << " width " << width;
      }
    }
  }
}

TEST(IntegerLinear, WritesTheOutputsOfItsPanelsOnly) {
  const Case random(3, 32, 5 * kPanel);
  for (const IntegerKernel& kernel : integer_kernels()) {
    const std::vector<float> found = random.multiplied(kernel, 1, 4);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t output = i % random.outputs;
      const bool asked = output >= kPanel && output < 4 * kPanel;
      EXPECT_EQ(found[i], asked ? random.expected(i / random.outputs, output) : -7.0F)
          << kernel.name;
    }
  }
}

}  // namespace
}  // namespace omnidraft
