#include "low_rank.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace omnidraft {
namespace {

std::vector<float> numbers(std::size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

TEST(LowRank, AnyRowsGiveTheSameBits) {
  std::mt19937 random(4);
  for (const std::size_t rows : {1, 2, 3, 4, 5, 9}) {
    for (const std::size_t rank : {0, 1, 5, 16, 33}) {
      for (const std::size_t outputs : {1, 15, 64, 147}) {
        constexpr std::size_t kWidth = 24;
        const auto x = numbers(rows * kWidth, random);
        const auto base = numbers(rows * outputs, random);
        const auto a = numbers(kWidth * rank, random);
        const auto b = numbers(rank * outputs, random);
        const auto added = [&](std::size_t at_a_time) {
          std::vector<float> result(rows * outputs);
          const LowRank lora{kWidth,      rank,     outputs,  x.data(),
                             base.data(), a.data(), b.data(), result.data()};
          for (std::size_t begin = 0; begin < rows; begin += at_a_time) {
            add_low_rank(lora, begin, std::min(rows, begin + at_a_time));
          }
          return result;
        };
        const std::vector<float> whole = added(rows);
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t c = 0; c < outputs; ++c) {
            double expected = base[r * outputs + c];
            for (std::size_t k = 0; k < rank; ++k) {
              double reduced = 0;
              for (std::size_t i = 0; i < kWidth; ++i) {
                reduced += double{x[r * kWidth + i]} * double{a[i * rank + k]};
              }
              expected += reduced * double{b[k * outputs + c]};
            }
            EXPECT_NEAR(whole[r * outputs + c], expected, 1e-4) << rows << " " << rank;
          }
        }
        EXPECT_EQ(added(1), whole);
        EXPECT_EQ(added(3), whole);
      }
    }
  }
}

}  // namespace
}  // namespace omnidraft
