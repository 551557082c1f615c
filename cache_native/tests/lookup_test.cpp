#include "omnidraft/lookup.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "omnidraft/chance.h"

namespace omnidraft {
namespace {

using Tokens = std::vector<Token>;

// The length of the longest earlier occurrence of the text's end, and the place after the most
// recent of these.
std::pair<std::size_t, std::size_t> longest_match(const Tokens& text) {
  std::pair<std::size_t, std::size_t> best{0, 0};
  for (std::size_t next = text.size(); next-- > 1;) {
    std::size_t length = 0;
    while (length < next && text[next - 1 - length] == text[text.size() - 1 - length]) {
      ++length;
    }
    if (length > best.first) {
      best = {length, next};
    }
  }
  return best;
}

TEST(Lookup, FindsTheLongestThenTheMostRecentMatch) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Generator random(seed);
    const std::uint64_t letters = 1 + seed % 5;
    Lookup lookup(letters, 1 << 10);
    Tokens text;
    for (int i = 0; i < 120; ++i) {
      const Tokens next{static_cast<Token>(random.next() % letters)};
      lookup.add(next);
      text.push_back(next[0]);
      const auto [length, place] = longest_match(text);
      ASSERT_EQ(lookup.match_length(), length);
      Tokens wanted;
      for (std::size_t j = 0; length > 0 && j < 7; ++j) {  // it goes on with itself
        wanted.push_back(place + j < text.size() ? text[place + j]
                                                 : wanted[j - (text.size() - place)]);
      }
      ASSERT_EQ(lookup.propose(7, 1), wanted);
      ASSERT_EQ(lookup.propose(7, 3), length < 3 ? Tokens() : wanted);
      ASSERT_TRUE(lookup.propose(0, 1).empty());
    }
  }
}

TEST(Lookup, LongTextStaysWithinItsBounds) {
  constexpr std::size_t kTokens = 64;
  Lookup lookup(50, kTokens);
  Generator random(7);
  Tokens text;
  std::size_t memory = 0;
  for (int i = 0; i < 5000; ++i) {
    const Tokens next{static_cast<Token>(random.next() % (i % 500 < 250 ? 50 : 2))};
    lookup.add(next);
    text.push_back(next[0]);
    ASSERT_LE(lookup.size(), kTokens);
    ASSERT_GE(lookup.size(), std::min(text.size(), kTokens / 2));
    const Tokens kept(text.end() - static_cast<std::ptrdiff_t>(lookup.size()), text.end());
    const auto [length, place] = longest_match(kept);
    ASSERT_EQ(lookup.match_length(), length);
    ASSERT_EQ(lookup.propose(1, 1), length == 0 ? Tokens() : Tokens({kept[place]}));
    if (i == 200) {
      memory = lookup.memory_bytes();
    }
  }
  EXPECT_EQ(lookup.memory_bytes(), memory);
  lookup.clear();
  EXPECT_EQ(lookup.size(), 0U);
  EXPECT_TRUE(lookup.propose(5, 0).empty());
  const Tokens again{3, 4, 3};
  lookup.add(again);
  EXPECT_EQ(lookup.propose(3, 1), Tokens({4, 3, 4}));
}

TEST(Lookup, ChecksWhatItIsGiven) {
  EXPECT_THROW(Lookup(4, 1), std::invalid_argument);
  Lookup lookup(4);
  for (const Token outside : {-1, 4}) {
    const Tokens tokens{1, outside};
    EXPECT_THROW(lookup.add(tokens), std::out_of_range);
  }
  EXPECT_EQ(lookup.size(), 0U);
}

}  // namespace
}  // namespace omnidraft
