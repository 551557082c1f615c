#include "attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "halves.h"
#include "omnidraft/vectors.h"

namespace omnidraft {
namespace {

using Slots = std::vector<std::int64_t>;

// A decoder's layer with random inputs for `length` positions, and caches full of `stale` numbers.
struct Layer {
  AttentionShape shape;
  std::size_t length;
  std::size_t chain = 0;  // where trees begin
  std::vector<float> qkv, cosines, sines, query_norm, key_norm, keys, values;
  std::vector<std::uint16_t> half_keys, half_values;  // in their place
  std::mt19937 chance{5};

  Layer(std::size_t heads, std::size_t kv_heads, std::size_t head_size, std::size_t window,
        bool norms, bool halves, std::size_t length, float stale = 0.0F)
      : length(length) {
    shape.heads = heads;
    shape.kv_heads = kv_heads;
    shape.head_size = head_size;
    shape.window = window;
    shape.scale = 1.0F / std::sqrt(static_cast<float>(head_size));
    shape.norm_epsilon = 1e-6F;
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    const auto fill = [&](std::vector<float>& values, std::size_t count) {
      values.resize(count);
      std::generate(values.begin(), values.end(), [&] { return normal(random); });
    };
    fill(qkv, length * width());
    cosines.resize(length * head_size / 2);
    sines.resize(cosines.size());
    for (std::size_t i = 0; i < cosines.size(); ++i) {
      const double angle = static_cast<double>(i / (head_size / 2)) /
                           std::pow(100.0, 2.0 * static_cast<double>(i % (head_size / 2)) /
                                               static_cast<double>(head_size));
      cosines[i] = static_cast<float>(std::cos(angle));
      sines[i] = static_cast<float>(std::sin(angle));
    }
    if (norms) {
      fill(query_norm, head_size);
      fill(key_norm, head_size);
    }
    const std::size_t padded = (length + kKeyTile - 1) / kKeyTile * kKeyTile;
    const std::size_t numbers = padded * kv_heads * head_size;
    if (halves) {
      std::uint16_t half = 0;
      narrow(&stale, 1, &half);
      half_keys.assign(numbers, half);
      half_values.assign(numbers, half);
    } else {
      keys.assign(numbers, stale);
      values.assign(numbers, stale);
    }
  }

  std::size_t width() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_size; }
  std::size_t output_width() const { return shape.heads * shape.head_size; }

  // One pass over `count` tokens from position `first` on: their outputs.
  std::vector<float> pass(std::size_t first, std::size_t count) {
    return pass(first, std::vector<Slots>(count));
  }

  // One pass over nodes of a tree from slot `first` on, by their paths; over tokens of the chain
  // where these are empty.
  std::vector<float> pass(std::size_t first, const std::vector<Slots>& nodes) {
    const std::size_t count = nodes.size();
    shape.depth = 0;
    for (const Slots& path : nodes) {
      shape.depth = std::max(shape.depth, path.size());
    }
    std::vector<std::int64_t> positions(count);
    std::vector<std::int64_t> paths(count * shape.depth, -1);
    for (std::size_t i = 0; i < count; ++i) {
      const Slots& path = nodes[i];
      positions[i] = static_cast<std::int64_t>(path.empty() ? first + i : chain + path.size() - 1);
      std::copy(path.begin(), path.end(),
                paths.begin() + static_cast<std::ptrdiff_t>(i * shape.depth));
    }
    std::vector<float> output(count * output_width(), -1.0F);
    AttentionTensors tensors;
    tensors.qkv = qkv.data() + first * width();
    tensors.positions = positions.data();
    tensors.paths = paths.data();
    tensors.cosines = cosines.data();
    tensors.sines = sines.data();
    tensors.query_norm = query_norm.empty() ? nullptr : query_norm.data();
    tensors.key_norm = key_norm.empty() ? nullptr : key_norm.data();
    if (half_keys.empty()) {
      tensors.keys.floats = keys.data();
      tensors.values.floats = values.data();
    } else {
      tensors.keys.halves = half_keys.data();
      tensors.values.halves = half_values.data();
    }
    tensors.output = output.data();
    shape.rows = count;
    append(shape, tensors, 0, count);
    const std::size_t group = shape.heads / shape.kv_heads;
    for (std::size_t head = 0; head < shape.heads;) {
      const std::size_t most = group - head % group;
      const std::size_t next = head + 1 + chance() % most;  // some heads of a group together
      attend(shape, tensors, {head, next}, 0, count);
      head = next;
    }
    return output;
  }

  // A head of a row, normalised and rotated, in double precision.
  std::vector<double> head(std::size_t row, std::size_t index, const std::vector<float>& norm) {
    const std::size_t size = shape.head_size;
    const float* input = qkv.data() + row * width() + index * size;
    std::vector<double> x(input, input + size);
    if (!norm.empty()) {
      double squares = 0;
      for (const double value : x) {
        squares += value * value;
      }
      for (std::size_t i = 0; i < size; ++i) {
        x[i] *= norm[i] / std::sqrt(squares / static_cast<double>(size) + shape.norm_epsilon);
      }
    }
    std::vector<double> rotated(size);
    for (std::size_t i = 0; i < size / 2; ++i) {
      const double c = cosines[row * size / 2 + i];
      const double s = sines[row * size / 2 + i];
      rotated[i] = x[i] * c - x[size / 2 + i] * s;
      rotated[size / 2 + i] = x[size / 2 + i] * c + x[i] * s;
    }
    return rotated;
  }

  // As the cache keeps it.
  double kept(double number) const {
    if (half_keys.empty()) {
      return number;
    }
    auto value = static_cast<float>(number);
    std::uint16_t half = 0;
    narrow(&value, 1, &half);
    widen(&half, 1, 1, 1, &value);
    return value;
  }

  // The output of a row, by the definition.
  std::vector<double> expected(std::size_t row) {
    const std::size_t size = shape.head_size;
    std::vector<double> output;
    for (std::size_t h = 0; h < shape.heads; ++h) {
      const std::size_t kv = h / (shape.heads / shape.kv_heads);
      const std::vector<double> query = head(row, h, query_norm);
      const std::size_t first =
          shape.window == 0 || row < shape.window ? 0 : row - shape.window + 1;
      std::vector<double> weights;
      double largest = -1e300;
      for (std::size_t j = first; j <= row; ++j) {
        const std::vector<double> key = head(j, shape.heads + kv, key_norm);
        double score = 0;
        for (std::size_t i = 0; i < size; ++i) {
          score += query[i] * kept(key[i]);
        }
        score *= shape.scale;
        weights.push_back(shape.cap > 0 ? shape.cap * std::tanh(score / shape.cap) : score);
        largest = std::max(largest, weights.back());
      }
      double sum = 0;
      for (double& weight : weights) {
        weight = std::exp(weight - largest);
        sum += weight;
      }
      for (std::size_t i = 0; i < size; ++i) {
        double mixed = 0;
        for (std::size_t j = first; j <= row; ++j) {
          const std::size_t value = shape.heads + shape.kv_heads + kv;
          mixed += weights[j - first] / sum * kept(qkv[j * width() + value * size + i]);
        }
        output.push_back(mixed);
      }
    }
    return output;
  }
};

struct Kind {
  const char* name;
  std::size_t heads, kv_heads, head_size, window;
  bool norms;
  float cap = 0.0F;
  bool halves = false;
};

// Nodes in slots from `chain` on, each behind the end of the chain or a random node before it.
std::vector<Slots> random_tree(std::mt19937& random, std::size_t chain, std::size_t count) {
  std::vector<Slots> paths(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t parent = random() % (i + 1);
    if (parent > 0) {
      paths[i] = paths[parent - 1];
    }
    paths[i].push_back(static_cast<std::int64_t>(chain + i));
  }
  return paths;
}

class AttentionTest : public testing::TestWithParam<Kind> {
 protected:
  static constexpr std::size_t kLength = 2 * kKeyTile + 37;

  Layer layer(float stale = 0.0F) const {
    const Kind& kind = GetParam();
    Layer layer(kind.heads, kind.kv_heads, kind.head_size, kind.window, kind.norms, kind.halves,
                kLength, stale);
    layer.shape.cap = kind.cap;
    return layer;
  }

  // Random trees, beside their paths decoded one token at a time.
  void compare_trees() const {
    constexpr float kBad = std::numeric_limits<float>::quiet_NaN();
    std::mt19937 random(13);
    for (const std::size_t chain :
         {std::size_t{0}, std::size_t{5}, kKeyTile - 3, kKeyTile, 2 * kKeyTile - 7}) {
      for (int trial = 0; trial < 4; ++trial) {
        // What lies in slots that a node does not see must not matter: those of no token yet, and
        // of a node that is no number.
        Layer tree = layer(kBad);
        tree.chain = chain;
        const std::size_t nodes = 1 + random() % 30;
        const std::vector<Slots> paths = random_tree(random, chain, nodes);
        const std::size_t width = tree.width();
        const auto row = [&](std::size_t slot) {
          return tree.qkv.begin() + static_cast<std::ptrdiff_t>(slot * width);
        };
        if (trial % 2 == 1) {
          std::fill_n(row(chain + random() % nodes), width, kBad);
        }
        if (chain > 0) {
          tree.pass(0, chain);
        }
        std::vector<float> found;
        while (found.size() < nodes * tree.output_width()) {
          const std::size_t done = found.size() / tree.output_width();
          const std::size_t count = std::min(nodes - done, 1 + random() % 12);
          const auto begin = paths.begin() + static_cast<std::ptrdiff_t>(done);
          const std::vector<float> output = tree.pass(
              chain + done, std::vector<Slots>(begin, begin + static_cast<std::ptrdiff_t>(count)));
          found.insert(found.end(), output.begin(), output.end());
        }
        Layer plain = layer();
        if (chain > 0) {
          plain.pass(0, chain);
        }
        for (std::size_t node = 0; node < nodes; ++node) {
          std::vector<float> expected;
          for (std::size_t i = 0; i < paths[node].size(); ++i) {
            std::copy_n(row(static_cast<std::size_t>(paths[node][i])), width,
                        plain.qkv.begin() + static_cast<std::ptrdiff_t>((chain + i) * width));
            expected = plain.pass(chain + i, 1);
          }
          for (std::size_t i = 0; i < expected.size(); ++i) {
            const float value = found[node * expected.size() + i];
            ASSERT_TRUE(std::isnan(expected[i]) ? std::isnan(value) : value == expected[i])
                << "node " << node << " of " << nodes << " behind " << chain;
          }
        }
      }
    }
  }
};

TEST_P(AttentionTest, EqualsTheDefinition) {
  Layer layer = this->layer();
  const std::vector<float> found = layer.pass(0, kLength);
  // A key that lies between two halves may become the other one than in double precision.
  const double error = GetParam().halves ? 2e-3 : 2e-5;
  for (std::size_t row = 0; row < kLength; ++row) {
    const std::vector<double> expected = layer.expected(row);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(found[row * expected.size() + i], expected[i], error) << row << " " << i;
    }
  }
}

TEST_P(AttentionTest, GroupingChangesNoBit) {
  Layer alone = layer();
  std::vector<float> expected;
  for (std::size_t row = 0; row < kLength; ++row) {
    const std::vector<float> output = alone.pass(row, 1);
    expected.insert(expected.end(), output.begin(), output.end());
  }
  std::mt19937 random(11);
  for (int trial = 0; trial < 12; ++trial) {
    // What lies behind a row, left by drafts that were refused, must not matter.
    constexpr float kStale[] = {-3.5F, 1e6F, std::numeric_limits<float>::quiet_NaN(),
                                -std::numeric_limits<float>::infinity()};
    Layer together = layer(kStale[trial % 4]);
    std::size_t row = 0;
    while (row < kLength) {
      const std::size_t count =
          std::min<std::size_t>(kLength - row, 1 + random() % (trial < 6 ? 9 : 40));
      const std::vector<float> output = together.pass(row, count);
      ASSERT_EQ(std::memcmp(output.data(), expected.data() + row * alone.output_width(),
                            output.size() * sizeof(float)),
                0)
          << "rows " << row << " and " << count - 1 << " more";
      // Some tokens are taken back, and written anew in the next pass.
      row += 1 + random() % count;
    }
  }
}

TEST_P(AttentionTest, RowsThatAreNoNumbersReachOnlyThoseThatSeeThem) {
  Layer layer = this->layer();
  const std::vector<float> expected = layer.pass(0, kLength);
  const std::size_t width = layer.output_width();
  const std::size_t window = layer.shape.window;
  for (const std::size_t bad : {kKeyTile - 1, kKeyTile + 11, kLength - 2}) {
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Layer broken = this->layer();
      std::fill_n(broken.qkv.begin() + static_cast<std::ptrdiff_t>(bad * broken.width()),
                  broken.width(), value);
      const std::vector<float> found = broken.pass(0, kLength);
      for (std::size_t row = 0; row < kLength; ++row) {
        const bool sees = row >= bad && (window == 0 || row - bad < window);
        for (std::size_t i = row * width; i < (row + 1) * width; ++i) {
          ASSERT_EQ(std::isfinite(found[i]), !sees) << "row " << row << " beside " << bad;
          ASSERT_TRUE(sees || found[i] == expected[i]) << "row " << row << " beside " << bad;
        }
      }
    }
  }
}

TEST_P(AttentionTest, NodesOfATreeAreTheLastRowsOfTheirPaths) { compare_trees(); }

#if defined(__x86_64__)
TEST_P(AttentionTest, NodesOfATreeAreTheLastRowsOfTheirPathsInNarrowerVectors) {
  const Unit best = kUnit;
  for (const Unit unit : {Unit::kSse2, Unit::kAvx2}) {
    if (unit < best) {
      SCOPED_TRACE(static_cast<int>(unit));
      kUnit = unit;
      compare_trees();
    }
  }
  kUnit = best;
}
#endif

INSTANTIATE_TEST_SUITE_P(
    Kinds, AttentionTest,
    testing::Values(Kind{"SmolLM2", 9, 3, 64, 0, false}, Kind{"Gemma", 4, 1, 256, 0, true},
                    Kind{"GemmaWithWindow", 4, 1, 32, 20, true},
                    Kind{"CappedScores", 4, 2, 64, 20, false, 0.7F},
                    Kind{"WindowOverTiles", 2, 2, 80, 60, false},
                    Kind{"NarrowHeads", 4, 2, 6, 0, false}, Kind{"ItselfOnly", 1, 1, 128, 1, false},
                    Kind{"SmolLM2InHalves", 9, 3, 64, 0, false, 0.0F, true},
                    Kind{"WindowInHalves", 4, 1, 32, 20, true, 0.0F, true},
                    Kind{"NarrowInHalves", 4, 2, 6, 0, false, 0.0F, true}),
    [](const testing::TestParamInfo<Kind>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace omnidraft
