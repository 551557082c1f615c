#include "omnidraft/vocabulary_pair.h"

#include <gtest/gtest.h>

namespace omnidraft {
namespace {

std::shared_ptr<const Vocabulary> make(const std::vector<TokenText>& tokens) {
  return std::make_shared<Vocabulary>(tokens);
}

constexpr TokenKind kByte = TokenKind::kByte;
constexpr TokenKind kSpecial = TokenKind::kSpecial;

TEST(VocabularyPair, BytesRulePairsEqualSurfacesOnce) {
  const VocabularyPair pair(
      make({{"a", "", kByte}, {"a", ""}, {"", "<s>", kSpecial}, {"\n", "", kByte}, {"q", ""}}),
      make({{"\n", ""}, {"a", ""}, {"a", ""}, {"", "<s>", kSpecial}}), MappingRule::kBytes);
  EXPECT_EQ(pair.to_target(0), kNoToken);  // the ordinary "a" stands for it
  EXPECT_EQ(pair.to_target(1), 1);
  EXPECT_EQ(pair.to_target(2), kNoToken);
  EXPECT_EQ(pair.to_target(3), 0);
  EXPECT_EQ(pair.to_target(4), kNoToken);
  EXPECT_EQ(pair.to_draft(0), 3);
  EXPECT_EQ(pair.to_draft(1), 1);
  EXPECT_EQ(pair.to_draft(2), 1);  // a second target token with these bytes is spelled the same
  EXPECT_EQ(pair.to_draft(3), kNoToken);
  EXPECT_EQ(pair.direct_count(), 2U);
  EXPECT_TRUE(pair.direct().test(1));
  EXPECT_FALSE(pair.direct().test(0));
}

TEST(VocabularyPair, PaperRulePairsEqualStrings) {
  const VocabularyPair pair(make({{"", "<s>", kSpecial},
                                  {"\n", "<0x0A>", kByte},
                                  {" the", "\u2581the"},
                                  {"  ", "\u2581\u2581"},
                                  {"x", "x"}}),
                            make({{"\n", "\u010a"},
                                  {" the", "\u0120the"},
                                  {"  ", "\u0120\u0120"},
                                  {"<s>", "<s>"},
                                  {"y", "x"}}),
                            MappingRule::kPaper);
  EXPECT_EQ(pair.to_target(0), 3);
  EXPECT_EQ(pair.to_target(1), 0);
  EXPECT_EQ(pair.to_target(2), 1);
  EXPECT_EQ(pair.to_target(3), kNoToken);  // only the first mark is rewritten
  EXPECT_EQ(pair.to_target(4), 4);
  EXPECT_EQ(pair.direct_count(), 4U);
  EXPECT_FALSE(pair.direct().test(0));  // counted, but a special token is never drafted
}

TEST(VocabularyPair, FingerprintDependsOnTheRuleAndTheOrder) {
  const auto a = make({{"a", "a"}});
  const auto b = make({{"b", "b"}});
  const auto of = [](const auto& drafter, const auto& target, MappingRule rule) {
    return VocabularyPair(drafter, target, rule).fingerprint();
  };
  EXPECT_EQ(of(a, b, MappingRule::kBytes), of(a, b, MappingRule::kBytes));
  EXPECT_NE(of(a, b, MappingRule::kBytes), of(b, a, MappingRule::kBytes));
  EXPECT_NE(of(a, b, MappingRule::kBytes), of(a, b, MappingRule::kPaper));
}

}  // namespace
}  // namespace omnidraft
