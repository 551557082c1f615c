// What the operators compute, as hashes of its bits in tests/vectors/kernels.txt: every platform,
// compiler and set of instructions must bring them back.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "attention.h"
#include "block_linear.h"
#include "gate.h"
#include "halves.h"
#include "linear.h"
#include "low_rank.h"
#include "omnidraft/fnv.h"
#include "omnidraft/vectors.h"
#include "quantize.h"

namespace omnidraft {
namespace {

// The same numbers everywhere: the standard fixes the generator, not its distributions.
class Numbers {
 public:
  explicit Numbers(std::uint32_t seed) : random_(seed) {}

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_()) % bound; }

  // Between -1 and 1, exactly.
  float fraction() {
    return static_cast<float>(static_cast<std::int32_t>(below(1U << 24)) - (1 << 23)) * 0x1p-23F;
  }

  // Of very different magnitudes.
  std::vector<float> floats(std::size_t count, float scale = 1.0F) {
    std::vector<float> values(count);
    for (float& value : values) {
      value = fraction() * std::ldexp(scale, 2 - static_cast<int>(below(6)));
    }
    return values;
  }

  template <typename Integer>
  std::vector<Integer> integers(std::size_t count, int least, int most) {
    std::vector<Integer> values(count);
    for (Integer& value : values) {
      value = static_cast<Integer>(
          least + static_cast<int>(below(static_cast<std::uint32_t>(most - least + 1))));
    }
    return values;
  }

 private:
  std::mt19937 random_;
};

template <typename T>
void hash(Fnv1a& hash, const std::vector<T>& values) {
  // The platforms are all little-endian.
  hash.update(
      std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

template <typename... Vectors>
std::string hash_of(const Vectors&... vectors) {
  Fnv1a all;
  (hash(all, vectors), ...);
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(all.value()));
  return text;
}

const std::map<std::string, std::string>& recorded() {
  static const std::map<std::string, std::string> kLines = [] {
    std::map<std::string, std::string> lines;
    std::ifstream file(std::string(OMNIDRAFT_VECTORS) + "/kernels.txt");
    EXPECT_TRUE(file.good()) << "no kernels.txt in " << OMNIDRAFT_VECTORS;
    for (std::string line; std::getline(file, line);) {
      const std::size_t space = line.rfind(' ');
      if (!line.empty() && line[0] != '#' && space != std::string::npos) {
        lines[line.substr(0, space)] = line.substr(space + 1);
      }
    }
    return lines;
  }();
  return kLines;
}

void expect_recorded(const std::string& name, const std::string& by, const std::string& found) {
  const auto line = recorded().find(name);
  const std::string expected = line == recorded().end() ? "nothing" : line->second;
  EXPECT_EQ(found, expected) << "by " << by << "; the line would read: " << name << " " << found;
}

// Calls `body` with each width of vectors that this processor has, by name.
void with_units([[maybe_unused]] bool fused, const std::function<void(const std::string&)>& body) {
#if defined(__x86_64__)
  const Unit best = kUnit;
  const std::pair<Unit, const char*> units[] = {
      {Unit::kSse2, "SSE2"}, {Unit::kAvx2, "AVX2"}, {Unit::kAvx512, "AVX-512"}};
  for (const auto& [unit, name] : units) {
    if (unit <= best && (unit != Unit::kSse2 || !fused)) {
      kUnit = unit;
      body(name);
    }
  }
  kUnit = best;
#else
  body("NEON");
#endif
}

TEST(Recorded, IntegerLinear) {
  for (const auto& [rows, width, panels] :
       {std::array<std::size_t, 3>{1, 576, 5}, {2, 20, 3}, {3, 4, 1}, {7, 72, 4}, {18, 64, 5}}) {
    Numbers numbers(1);
    IntegerLinear linear;
    linear.rows = rows;
    linear.width = width;
    linear.outputs = panels * kPanel;
    const auto levels = numbers.integers<std::uint8_t>(rows * width, 0, 255);
    const auto weights = numbers.integers<std::int8_t>(linear.outputs * width, -127, 127);
    const auto steps = numbers.floats(rows);
    const auto scales = numbers.floats(linear.outputs);
    std::vector<std::int32_t> sums(linear.outputs);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      sums[i / (width * kPanel) * kPanel + i / 4 % kPanel] += weights[i];
    }
    linear.levels = levels.data();
    linear.steps = steps.data();
    linear.weights = weights.data();
    linear.scales = scales.data();
    linear.sums = sums.data();
    for (const IntegerKernel& kernel : integer_kernels()) {
      std::vector<float> result(rows * linear.outputs);
      linear.result = result.data();
      kernel.multiply(linear, 0, panels);
      expect_recorded("integer_linear " + std::to_string(rows) + " " + std::to_string(width),
                      kernel.name, hash_of(result));
    }
  }
}

TEST(Recorded, BlockLinear) {
  for (std::size_t form = 0; form < kBlockForms; ++form) {
    for (const std::size_t rows : {1U, 2U, 7U, 17U}) {
      Numbers numbers(2);
      BlockLinear linear;
      linear.form = static_cast<BlockForm>(form);
      const BlockLayout layout = layout_of(linear.form);
      linear.rows = rows;
      linear.blocks = 2 * layout.group;
      linear.outputs = 3 * kBlockPanel - 5;
      auto weights = numbers.integers<std::uint8_t>(3 * 2 * layout.group_bytes(), 0, 255);
      // No half is infinite or no number: the second byte of each holds its exponent.
      for (std::size_t at = 0; at < weights.size(); at += layout.group_bytes()) {
        const std::size_t begin = layout.units ? 0 : layout.codes;
        const std::size_t end = layout.units ? layout.header : layout.group_bytes();
        for (std::size_t i = begin + 1; i < end; i += 2) {
          weights[at + i] &= 0xbfU;
        }
      }
      const auto x = numbers.floats(rows * linear.blocks * kBlock);
      const auto units = numbers.floats(linear.outputs);
      linear.weights = weights.data();
      linear.units = units.data();
      const std::string name = std::to_string(form) + " " + std::to_string(rows);
      std::vector<std::int8_t> levels(x.size());
      std::vector<float> steps(x.size() / kBlock), sums(steps.size()), halves(2 * steps.size());
      with_units(false, [&](const std::string& unit) {
        quantize_blocks(x.data(), steps.size(), levels.data(), steps.data(), sums.data());
        sum_halves(levels.data(), steps.size(), halves.data());
        expect_recorded("quantize_blocks " + name, unit, hash_of(levels, steps, sums, halves));
      });
      linear.levels = levels.data();
      linear.steps = steps.data();
      linear.sums = sums.data();
      linear.halves = halves.data();
      for (const BlockKernel& kernel : block_kernels()) {
        std::vector<float> result(rows * linear.outputs);
        linear.result = result.data();
        kernel.multiply(linear, 0, 3);
        expect_recorded("block_linear " + name, kernel.name, hash_of(result));
      }
      std::vector<float> row(linear.blocks * kBlock);
      read_weights(linear, linear.outputs - 2, row.data());
      expect_recorded("block_rows " + name, "the processor", hash_of(row));
    }
  }
}

TEST(Recorded, QuantizeRows) {
  for (const std::size_t width : {1U, 19U, 576U}) {
    const auto x = Numbers(3).floats(3 * width);
    with_units(false, [&](const std::string& unit) {
      std::vector<std::uint8_t> levels(x.size());
      std::vector<float> steps(3);
      quantize_rows(x.data(), 3, width, levels.data(), steps.data());
      expect_recorded("quantize_rows " + std::to_string(width), unit, hash_of(levels, steps));
    });
  }
}

TEST(Recorded, Halves) {
  Numbers numbers(4);
  auto x = numbers.floats(1000, 30'000.0F);
  const auto small = numbers.floats(1000, 0x1p-18F);
  x.insert(x.end(), small.begin(), small.end());
  for (const HalfKernel& kernel : half_kernels()) {
    std::vector<std::uint16_t> halves(x.size());
    kernel.narrow(x.data(), x.size(), halves.data());
    std::vector<float> wide(x.size());
    kernel.widen(halves.data(), 4, 500, 500, wide.data(), 0);
    expect_recorded("halves", "a kernel", hash_of(halves, wide));
  }
}

TEST(Recorded, Gate) {
  for (std::size_t activation = 0; activation < kActivations; ++activation) {
    for (const std::size_t width : {1U, 21U, 500U}) {
      const auto joined = Numbers(5).floats(3 * 2 * width, 8.0F);
      with_units(true, [&](const std::string& unit) {
        std::vector<float> result(3 * width);
        gate(static_cast<Activation>(activation), joined.data(), 3, width, result.data());
        expect_recorded("gate " + std::to_string(activation) + " " + std::to_string(width), unit,
                        hash_of(result));
      });
    }
  }
}

TEST(Recorded, LowRank) {
  for (const std::size_t rank : {1U, 8U, 21U}) {
    Numbers numbers(6);
    constexpr std::size_t kRows = 5, kWidth = 40, kOutputs = 83;
    const auto x = numbers.floats(kRows * kWidth), base = numbers.floats(kRows * kOutputs);
    const auto a = numbers.floats(kWidth * rank), b = numbers.floats(rank * kOutputs);
    with_units(true, [&](const std::string& unit) {
      std::vector<float> result(kRows * kOutputs);
      add_low_rank(
          {kWidth, rank, kOutputs, x.data(), base.data(), a.data(), b.data(), result.data()}, 0,
          kRows);
      expect_recorded("low_rank " + std::to_string(rank), unit, hash_of(result));
    });
  }
}

// A chain of 100 tokens, and a tree behind it.
TEST(Recorded, Attention) {
  constexpr std::size_t kRows = 100, kNodes = 3, kLength = 3 * kKeyTile;
  for (const char* kind : {"plain", "norms", "window", "cap", "halves"}) {
    const std::string name = kind;
    Numbers numbers(7);
    AttentionShape shape;
    shape.heads = 4;
    shape.kv_heads = 2;
    shape.head_size = 24;
    shape.scale = 0.25F;
    shape.norm_epsilon = 1e-6F;
    shape.window = name == "window" ? 60 : 0;
    shape.cap = name == "cap" ? 20.0F : 0.0F;
    const std::size_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_size;
    const auto qkv = numbers.floats((kRows + kNodes) * width);
    const auto angles = numbers.floats(kLength * shape.head_size, 0.5F);  // of no circle
    const auto norms = numbers.floats(2 * shape.head_size);
    std::vector<std::int64_t> positions(kRows + kNodes, kRows);
    for (std::size_t i = 0; i < kRows; ++i) {
      positions[i] = static_cast<std::int64_t>(i);
    }
    positions.back() = kRows + 1;
    const std::vector<std::int64_t> paths = {100, -1, 101, -1, 101, 102};
    with_units(true, [&](const std::string& unit) {
      const std::size_t size = kLength * shape.kv_heads * shape.head_size;
      std::vector<float> keys(size), values(size), output((kRows + kNodes) * shape.heads * 24);
      std::vector<std::uint16_t> half_keys(size), half_values(size);
      AttentionTensors tensors;
      tensors.cosines = angles.data();
      tensors.sines = angles.data() + angles.size() / 2;
      if (name == "norms") {
        tensors.query_norm = norms.data();
        tensors.key_norm = norms.data() + shape.head_size;
      }
      if (name == "halves") {
        tensors.keys.halves = half_keys.data();
        tensors.values.halves = half_values.data();
      } else {
        tensors.keys.floats = keys.data();
        tensors.values.floats = values.data();
      }
      const auto pass = [&](std::size_t first, std::size_t count, std::size_t depth) {
        AttentionShape now = shape;
        now.rows = count;
        now.depth = depth;
        AttentionTensors here = tensors;
        here.qkv = qkv.data() + first * width;
        here.positions = positions.data() + first;
        here.paths = paths.data();
        here.output = output.data() + first * shape.heads * shape.head_size;
        append(now, here, 0, count);
        attend(now, here, {0, 2}, 0, count);
        attend(now, here, {2, 4}, 0, count);
      };
      pass(0, kRows, 0);
      pass(kRows, kNodes, 2);
      expect_recorded("attention " + name, unit,
                      hash_of(output, keys, values, half_keys, half_values));
    });
  }
}

}  // namespace
}  // namespace omnidraft
