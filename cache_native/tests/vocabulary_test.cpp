#include "omnidraft/vocabulary.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace omnidraft {
namespace {

TEST(Vocabulary, HoldsSurfacesPiecesAndKinds) {
  const Vocabulary vocabulary({{"a", "A", TokenKind::kNormal},
                               {"ignored", "<s>", TokenKind::kSpecial},
                               {"\n", "<0x0A>", TokenKind::kByte},
                               {std::string("\0x", 2), "", TokenKind::kNormal}});
  ASSERT_EQ(vocabulary.size(), 4U);
  EXPECT_EQ(vocabulary.surface(0), "a");
  EXPECT_EQ(vocabulary.surface(1), "");
  EXPECT_EQ(vocabulary.surface(2), "\n");
  EXPECT_EQ(vocabulary.surface(3), std::string("\0x", 2));
  EXPECT_EQ(vocabulary.piece(1), "<s>");
  EXPECT_EQ(vocabulary.piece(2), "<0x0A>");
  EXPECT_TRUE(vocabulary.is_special(1));
  EXPECT_FALSE(vocabulary.is_special(2));
  EXPECT_EQ(vocabulary.kind(2), TokenKind::kByte);
}

TEST(Vocabulary, TakesATokenWithoutBytesForSpecial) {
  const Vocabulary vocabulary({{"", "x", TokenKind::kNormal}, {"", "y", TokenKind::kByte}});
  EXPECT_TRUE(vocabulary.is_special(0));
  EXPECT_TRUE(vocabulary.is_special(1));
}

TEST(Vocabulary, NeedsTokens) {
  EXPECT_THROW(Vocabulary(std::vector<TokenText>{}), std::invalid_argument);
}

TEST(Vocabulary, FingerprintDependsOnEverything) {
  const auto of = [](const std::vector<TokenText>& tokens) {
    return Vocabulary(tokens).fingerprint();
  };
  const std::uint64_t base = of({{"a", "A"}, {"b", "B"}});
  EXPECT_EQ(base, of({{"a", "A"}, {"b", "B"}}));
  EXPECT_NE(base, of({{"b", "B"}, {"a", "A"}}));
  EXPECT_NE(base, of({{"a", "AB"}, {"b", ""}}));
  EXPECT_NE(base, of({{"ab", "A"}, {"b", "B"}}));
  EXPECT_NE(base, of({{"a", "A"}, {"b", "B", TokenKind::kByte}}));
  EXPECT_NE(base, of({{"a", "A"}, {"b", "B", TokenKind::kSpecial}}));
}

}  // namespace
}  // namespace omnidraft
