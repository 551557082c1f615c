#include "omnidraft/row_ranking.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "omnidraft/chance.h"

namespace omnidraft {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(RowRanking, TheTopIsTheBeginningOfTheSortedRow) {
  RowRanking ranking;
  for (const std::size_t size : {1, 15, 16, 17, 255, 256, 257, 300, 3000, 9001}) {
    Generator random(size);
    std::vector<float> row;
    for (std::size_t i = 0; i < size; ++i) {
      // Few values, so that many are equal.
      row.push_back(random.next() % 5 == 0 ? -kInfinity : static_cast<float>(random.next() % 90));
    }
    std::vector<Token> sorted;
    for (std::size_t i = 0; i < size; ++i) {
      if (row[i] > -kInfinity) {
        sorted.push_back(static_cast<Token>(i));
      }
    }
    std::stable_sort(sorted.begin(), sorted.end(), [&](Token a, Token b) {
      return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
    });
    ranking.assign(row);
    EXPECT_EQ(ranking.maximum(), *std::max_element(row.begin(), row.end()));
    std::vector<Token> top;
    for (const std::size_t count : {1, 2, 3, 8, 16, 17, 100, 1000, 10000}) {
      ranking.top(count, top);
      ASSERT_GE(top.size(), std::min(count, sorted.size()));
      ASSERT_LE(top.size(), sorted.size());
      EXPECT_TRUE(std::equal(top.begin(), top.end(), sorted.begin())) << size << ", " << count;
    }
  }
}

TEST(RowRanking, RefusesWhatIsNoNumber) {
  RowRanking ranking;
  std::vector<Token> top;
  std::vector<float> row(700, -kInfinity);
  ranking.assign(row);
  EXPECT_EQ(ranking.maximum(), -kInfinity);
  ranking.top(3, top);
  EXPECT_TRUE(top.empty());
  for (const float bad : {kInfinity, std::nanf("")}) {
    row[699] = bad;
    EXPECT_THROW(ranking.assign(row), std::domain_error);
  }
}

}  // namespace
}  // namespace omnidraft
