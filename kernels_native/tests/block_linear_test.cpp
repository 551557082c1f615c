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
  BlockForm form;
  std::size_t rows, blocks, outputs;
  std::size_t panels = (outputs + kBlockPanel - 1) / kBlockPanel;
  std::vector<std::int8_t> levels;
  std::vector<float> steps, sums, halves, units;
  std::vector<int> codes;              // as a matrix
  std::vector<float> scales, offsets;  // for each 16 inputs, and each block
  std::vector<std::uint8_t> weights;

  Case(BlockForm form, std::size_t rows, std::size_t groups, std::size_t outputs, Weights kind)
      : form(form),
        rows(rows),
        blocks(groups * layout_of(form).group),
        outputs(outputs),
        levels(rows * blocks * kBlock),
        steps(rows * blocks),
        sums(rows * blocks),
        halves(2 * rows * blocks),
        units(outputs),
        codes(outputs * blocks * kBlock),
        scales(2 * outputs * blocks),
        offsets(outputs * blocks),
        weights(panels * groups * layout_of(form).group_bytes()) {
    std::mt19937 random(7);
    const bool largest = kind == Weights::kLargest;
    for (std::size_t i = 0; i < levels.size(); ++i) {
      const int level = static_cast<int>(random() % 255) - 127;
      levels[i] = static_cast<std::int8_t>(largest ? (i / kBlock % 2 == 0 ? 127 : -127) : level);
      sums[i / kBlock] += static_cast<float>(levels[i]);
    }
    sum_halves(levels.data(), rows * blocks, halves.data());
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
    const BlockLayout layout = layout_of(form);
    for (std::size_t output = 0; output < outputs; ++output) {
      const std::size_t j = output % kBlockPanel;
      for (std::size_t group = 0; group < groups; ++group) {
        std::uint8_t* at =
            weights.data() + (output / kBlockPanel * groups + group) * layout.group_bytes();
        Half group_units[2];
        for (std::size_t i = 0; i < layout.header / 32; ++i, at += 32) {
          group_units[i] = half();
          std::memcpy(at + 2 * j, &group_units[i].bits, 2);
        }
        for (std::size_t b = group * layout.group; b < (group + 1) * layout.group; ++b) {
          for (std::size_t i = 0; i < kBlock; ++i) {
            put_code(at, output, b, i,
                     kind == Weights::kZero ? 0
                     : largest              ? -1
                                            : static_cast<int>(random() % 256));
          }
          at += layout.codes;
          for (std::size_t i = 0; i < layout.scales + layout.offsets; ++i, at += layout.factors) {
            float value = 0;
            if (layout.units) {
              const auto integer = static_cast<std::int8_t>(largest ? -128 : random() % 256);
              at[j] = static_cast<std::uint8_t>(integer);
              value = group_units[i < layout.scales ? 0 : 1].value() * static_cast<float>(integer);
            } else {
              const Half factor = half();
              std::memcpy(at + 2 * j, &factor.bits, 2);
              value = factor.value();
            }
            const std::size_t block = output * blocks + b;
            (i < layout.scales ? scales[2 * block + i] : offsets[block]) = value;
          }
          if (layout.scales == 1) {
            scales[2 * (output * blocks + b) + 1] = scales[2 * (output * blocks + b)];
          }
        }
      }
    }
  }

  // From a byte, of which all bits count, or the lower four.
  void put_code(std::uint8_t* block, std::size_t output, std::size_t b, std::size_t i, int byte) {
    int& code = codes[(output * blocks + b) * kBlock + i];
    const std::size_t j = output % kBlockPanel;
    if (layout_of(form).nibbles) {
      std::uint8_t& both = block[i % 16 / 4 * 64 + j * 4 + i % 4];
      both = static_cast<std::uint8_t>(both | (i < 16 ? byte & 15 : (byte & 15) << 4));
      code = (byte & 15) - (form == BlockForm::kScaled4 ? 8 : 0);
    } else {
      code = static_cast<std::int8_t>(byte);
      block[i / 4 * 64 + j * 4 + i % 4] = static_cast<std::uint8_t>(byte);
    }
  }

  float expected(std::size_t row, std::size_t output) const {
    float total = 0;
    const std::size_t parts = layout_of(form).scales;
    for (std::size_t b = 0; b < blocks; ++b) {
      const std::size_t at = output * blocks + b;
      for (std::size_t part = 0; part < parts; ++part) {
        int products = 0;
        for (std::size_t i = part * kBlock / parts; i < (part + 1) * kBlock / parts; ++i) {
          products += codes[at * kBlock + i] * levels[(row * blocks + b) * kBlock + i];
        }
        const auto sum = static_cast<float>(products);
        float both = sum * scales[2 * at + part];
        if (layout_of(form).offsets) {
          both = std::fma(sum, scales[2 * at + part], offsets[at] * sums[row * blocks + b]);
        }
        total = std::fma(steps[row * blocks + b], both, total);
      }
    }
    return units[output] * total;
  }

  std::vector<float> multiplied(const BlockKernel& kernel, std::size_t begin,
                                std::size_t end) const {
    std::vector<float> result(rows * outputs, -7.0F);
    BlockLinear linear = matrix();
    linear.rows = rows;
    linear.levels = levels.data();
    linear.steps = steps.data();
    linear.sums = sums.data();
    linear.halves = halves.data();
    linear.result = result.data();
    kernel.multiply(linear, begin, end);
    return result;
  }

  BlockLinear matrix() const {
    BlockLinear linear;
    linear.form = form;
    linear.blocks = blocks;
    linear.outputs = outputs;
    linear.weights = weights.data();
    linear.units = units.data();
    return linear;
  }
};

std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

const std::vector<BlockForm>& forms() {
  static const std::vector<BlockForm> kForms = [] {
    std::vector<BlockForm> all;
    for (std::size_t i = 0; i < kBlockForms; ++i) {
      all.push_back(static_cast<BlockForm>(i));
    }
    return all;
  }();
  return kForms;
}

// A result may be not a number where halves overflow: any such will do.
void expect_same(float found, float expected, const std::string& where) {
  if (!std::isnan(expected) || !std::isnan(found)) {
    ASSERT_EQ(bits_of(found), bits_of(expected)) << where << ": " << found;
  }
}

TEST(BlockLinear, EveryKernelGivesTheBitsOfTheDefinition) {
  for (const BlockForm form : forms()) {
    for (const Weights kind : {Weights::kRandom, Weights::kZero, Weights::kLargest}) {
      for (const std::size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 65}) {
        for (const auto& [groups, outputs] :
             {std::pair<std::size_t, std::size_t>{1, 1}, {1, 16}, {2, 17}, {3, 33}}) {
          const Case test(form, rows, groups, outputs, kind);
          std::vector<float> expected;
          for (std::size_t i = 0; i < rows * outputs; ++i) {
            expected.push_back(test.expected(i / outputs, i % outputs));
          }
          for (const BlockKernel& kernel : block_kernels()) {
            const std::vector<float> found = test.multiplied(kernel, 0, test.panels);
            const std::string where = std::string(kernel.name) + " form " +
                                      std::to_string(static_cast<int>(form)) + " rows " +
                                      std::to_string(rows) + " outputs " + std::to_string(outputs);
            for (std::size_t i = 0; i < found.size(); ++i) {
              expect_same(found[i], expected[i], where + " at " + std::to_string(i));
            }
          }
        }
      }
    }
  }
}

TEST(BlockLinear, WeightsAreReadAsTheyAreMultiplied) {
  for (const BlockForm form : forms()) {
    const Case test(form, 1, 2, 18, Weights::kRandom);
    std::vector<float> weights(test.blocks * kBlock);
    for (std::size_t output = 0; output < test.outputs; ++output) {
      read_weights(test.matrix(), output, weights.data());
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const std::size_t block = output * test.blocks + i / kBlock;
        const float scale = test.scales[2 * block + i % kBlock / 16];
        const auto code = static_cast<float>(test.codes[output * weights.size() + i]);
        ASSERT_EQ(weights[i], test.units[output] * std::fma(code, scale, test.offsets[block]));
      }
    }
  }
}

TEST(BlockLinear, WhatIsNotANumberStaysSo) {
  Case test(BlockForm::kAffine4, 5, 3, 20, Weights::kRandom);
  test.steps[1 * 3 + 2] = std::numeric_limits<float>::quiet_NaN();
  for (const BlockKernel& kernel : block_kernels()) {
    const std::vector<float> found = test.multiplied(kernel, 0, test.panels);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(std::isnan(found[i]), i / 20 == 1) << kernel.name;
    }
  }
}

TEST(BlockLinear, WritesTheOutputsOfItsPanelsOnly) {
  const Case test(BlockForm::kAffine4, 3, 2, 5 * kBlockPanel - 3, Weights::kRandom);
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
