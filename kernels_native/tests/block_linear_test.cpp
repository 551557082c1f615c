#include "block_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace omnidraft {
namespace {

enum class Weights { kRandom, kZero, kLargest };

// A half's bits, and the value that IEEE 754 gives them.
struct Half {
  std::uint16_t bits = 0;

  float value() const {
    const int exponent = bits >> 10 & 31;
    const int mantissa = bits & 1023;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    return static_cast<float>(bits >> 15 != 0 ? -magnitude : magnitude);
  }
};

// A matrix, its form in memory, and the inputs; every product by its definition.
struct Case {
  std::size_t rows, blocks, outputs;
  std::size_t panels = (outputs + kBlockPanel - 1) / kBlockPanel;
  std::vector<std::int8_t> levels;
  std::vector<float> steps, sums, units;
  std::vector<int> codes;  // as a matrix
  std::vector<Half> scales, offsets;
  std::vector<std::uint8_t> weights;

  Case(std::size_t rows, std::size_t blocks, std::size_t outputs, Weights kind)
      : rows(rows),
        blocks(blocks),
        outputs(outputs),
        levels(rows * blocks * kBlock),
        steps(rows * blocks),
        sums(rows * blocks),
        units(outputs),
        codes(outputs * blocks * kBlock),
        scales(outputs * blocks),
        offsets(outputs * blocks),
        weights(panels * blocks * kBlockBytes) {
    std::mt19937 random(7);
    const bool largest = kind == Weights::kLargest;
    for (std::size_t i = 0; i < levels.size(); ++i) {
      const int level = static_cast<int>(random() % 255) - 127;
      levels[i] = static_cast<std::int8_t>(largest ? (i / kBlock % 2 == 0 ? 127 : -127) : level);
      sums[i / kBlock] += static_cast<float>(levels[i]);
    }
    for (auto& step : steps) {
      step =
          std::ldexp(static_cast<float>(random() % 1000 + 1), static_cast<int>(random() % 8) - 9);
    }
    for (auto& unit : units) {
      unit = std::ldexp(1.0F, static_cast<int>(random() % 20) - 10);
    }
    const auto half = [&] {
      if (kind == Weights::kZero) {
        return Half{};
      }
      // Subnormal ones among them; 0x7bff is the largest of all.
      return largest ? Half{static_cast<std::uint16_t>(0x7bffU | (random() % 2 << 15))}
                     : Half{static_cast<std::uint16_t>((random() % 2 << 15) | random() % 0x6000U)};
    };
    for (std::size_t i = 0; i < scales.size(); ++i) {
      scales[i] = half();
      offsets[i] = half();
    }
    for (auto& code : codes) {
      code = kind == Weights::kZero ? 0 : largest ? 15 : static_cast<int>(random() % 16);
    }
    for (std::size_t output = 0; output < outputs; ++output) {
      for (std::size_t b = 0; b < blocks; ++b) {
        const std::size_t j = output % kBlockPanel;
        std::uint8_t* const block =
            weights.data() + (output / kBlockPanel * blocks + b) * kBlockBytes;
        for (std::size_t i = 0; i < kBlock; ++i) {
          const std::size_t at = i % 16 / 4 * 64 + j * 4 + i % 4;
          const int code = codes[(output * blocks + b) * kBlock + i];
          block[at] = static_cast<std::uint8_t>(block[at] | (i < 16 ? code : code << 4));
        }
        std::memcpy(block + 256 + 2 * j, &scales[output * blocks + b].bits, 2);
        std::memcpy(block + 288 + 2 * j, &offsets[output * blocks + b].bits, 2);
      }
    }
  }

  float expected(std::size_t row, std::size_t output) const {
    float total = 0;
    for (std::size_t b = 0; b < blocks; ++b) {
      int products = 0;
      for (std::size_t i = 0; i < kBlock; ++i) {
        products +=
            codes[(output * blocks + b) * kBlock + i] * levels[(row * blocks + b) * kBlock + i];
      }
      const std::size_t at = output * blocks + b;
      const float shift = offsets[at].value() * sums[row * blocks + b];
      const float both = std::fma(static_cast<float>(products), scales[at].value(), shift);
      total = std::fma(steps[row * blocks + b], both, total);
    }
    return units[output] * total;
  }

  std::vector<float> multiplied(const BlockKernel& kernel, std::size_t begin,
                                std::size_t end) const {
    std::vector<float> result(rows * outputs, -7.0F);
    BlockLinear linear;
    linear.rows = rows;
    linear.blocks = blocks;
    linear.outputs = outputs;
    linear.levels = levels.data();
    linear.steps = steps.data();
    linear.sums = sums.data();
    linear.weights = weights.data();
    linear.units = units.data();
    linear.result = result.data();
    kernel.multiply(linear, begin, end);
    return result;
  }
};

std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

TEST(BlockLinear, EveryKernelGivesTheBitsOfTheDefinition) {
  for (const Weights kind : {Weights::kRandom, Weights::kZero, Weights::kLargest}) {
    for (const std::size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 65}) {
      for (const auto& [blocks, outputs] :
           {std::pair<std::size_t, std::size_t>{1, 1}, {1, 16}, {2, 17}, {3, 48}, {18, 33}}) {
        const Case test(rows, blocks, outputs, kind);
        std::vector<std::uint32_t> expected;
        for (std::size_t i = 0; i < rows * outputs; ++i) {
          expected.push_back(bits_of(test.expected(i / outputs, i % outputs)));
        }
        for (const BlockKernel& kernel : block_kernels()) {
          const std::vector<float> found = test.multiplied(kernel, 0, test.panels);
          for (std::size_t i = 0; i < found.size(); ++i) {
            ASSERT_EQ(bits_of(found[i]), expected[i])
                << kernel.name << " rows " << rows << " blocks " << blocks << " outputs " << outputs
                << " at " << i << ": " << found[i];
          }
        }
      }
    }
  }
}

TEST(BlockLinear, WhatIsNotANumberStaysSo) {
  Case test(5, 3, 20, Weights::kRandom);
  test.steps[1 * 3 + 2] = std::numeric_limits<float>::quiet_NaN();
  for (const BlockKernel& kernel : block_kernels()) {
    const std::vector<float> found = test.multiplied(kernel, 0, test.panels);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(std::isnan(found[i]), i / 20 == 1) << kernel.name;
    }
  }
}

TEST(BlockLinear, WritesTheOutputsOfItsPanelsOnly) {
  const Case test(3, 2, 5 * kBlockPanel - 3, Weights::kRandom);
  for (const BlockKernel& kernel : block_kernels()) {
    const std::vector<float> found = test.multiplied(kernel, 1, 4);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t output = i % test.outputs;
      const bool asked = output >= kBlockPanel && output < 4 * kBlockPanel;
      EXPECT_EQ(found[i], asked ? test.expected(i / test.outputs, output) : -7.0F) << kernel.name;
    }
  }
}

TEST(BlockLinear, ThereIsAlwaysAPortableKernelWhichComesLast) {
  EXPECT_EQ(block_kernels().back().name, std::string("portable"));
}

TEST(QuantizeBlocks, IsAsDefined) {
  constexpr std::size_t kCount = 40;
  std::mt19937 random(3);
  std::vector<float> x(kCount * kBlock);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float value = static_cast<float>(static_cast<int>(random() % 20001) - 10000) / 10000.0F;
    x[i] = std::ldexp(value, static_cast<int>(i / kBlock) - 20);
  }
  std::fill_n(x.begin() + 5 * kBlock, kBlock, 0.0F);
  std::fill_n(x.begin() + 6 * kBlock, kBlock, std::numeric_limits<float>::denorm_min());
  std::fill_n(x.begin() + 7 * kBlock, kBlock, -std::numeric_limits<float>::max());
  x[8 * kBlock + 31] = std::numeric_limits<float>::quiet_NaN();
  x[9 * kBlock] = std::numeric_limits<float>::infinity();
  std::vector<std::int8_t> levels(x.size());
  std::vector<float> steps(kCount), sums(kCount);
  quantize_blocks(x.data(), kCount, levels.data(), steps.data(), sums.data());
  for (std::size_t block = 0; block < kCount; ++block) {
    if (block == 8 || block == 9) {
      EXPECT_TRUE(std::isnan(steps[block]));
      continue;
    }
    float largest = 0;
    for (std::size_t i = 0; i < kBlock; ++i) {
      largest = std::max(largest, std::abs(x[block * kBlock + i]));
    }
    const float step = std::max(largest * (1.0F / 127.0F), 1e-20F);
    EXPECT_EQ(steps[block], step);
    float sum = 0;
    for (std::size_t i = 0; i < kBlock; ++i) {
      const float level = std::nearbyint(x[block * kBlock + i] / step);
      EXPECT_EQ(levels[block * kBlock + i], level) << block;
      EXPECT_LE(std::abs(level), 127);
      sum += level;
    }
    EXPECT_EQ(sums[block], sum);
  }
}

}  // namespace
}  // namespace omnidraft
