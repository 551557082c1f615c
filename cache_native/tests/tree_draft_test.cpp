#include "omnidraft/tree_draft.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "worlds.h"

namespace omnidraft {
namespace {

constexpr double kTolerance = 1e-3;  // a sum of a row is as good as that

// By probabilities of draft tokens.
void expand(TreeDraft& draft, std::uint32_t node, std::initializer_list<double> probabilities) {
  std::vector<float> logits;
  for (const double probability : probabilities) {
    logits.push_back(static_cast<float>(std::log(probability)));
  }
  draft.expand(node, logits);
}

class TreeDraftTest : public ::testing::Test {
 protected:
  // Paths of target tokens and their probabilities.
  static std::map<std::string, double> paths(const TreeProposal& proposal) {
    const std::vector<std::string> names{"a", "b", "ab", "c", "abc"};
    std::map<std::string, double> result;
    std::vector<std::string> path;
    for (const TreeProposal::Node& node : proposal.nodes) {
      path.push_back((node.parent < 0 ? "" : path[static_cast<std::size_t>(node.parent)] + " ") +
                     names[static_cast<std::size_t>(node.token)]);
      result[path.back()] = node.probability;
    }
    return result;
  }
  static void expect_near(const std::map<std::string, double>& found,
                          const std::map<std::string, double>& wanted) {
    for (const auto& [path, probability] : wanted) {
      ASSERT_TRUE(found.count(path) == 1) << path;
      EXPECT_NEAR(found.at(path), probability, kTolerance) << path;
    }
    EXPECT_EQ(found.size(), wanted.size());
  }

  NgramCache cache_{testing::make_pair({"a", "b", "c", "d"}, {"a", "b", "ab", "c", "abc"})};
};

TEST_F(TreeDraftTest, APathGivesItsDirectAndItsMergedBranch) {
  testing::observe(cache_, 2, {0, 1});
  TreeDraft draft(cache_);
  expand(draft, TreeDraft::kText, {0.5, 0.3, 0.2, 0});
  std::vector<std::uint32_t> open = draft.frontier(9);
  ASSERT_EQ(open, std::vector<std::uint32_t>({1, 2, 3}));
  expand(draft, 1, {0.1, 0.8, 0.1, 0});
  open = draft.frontier(1);
  ASSERT_EQ(open, std::vector<std::uint32_t>({4}));
  EXPECT_EQ(draft.token(4), 1);
  EXPECT_EQ(draft.parent(4), 1U);
  EXPECT_NEAR(draft.probability(4), 0.36, kTolerance);
  const TreeProposal proposal = draft.finish(20);
  expect_near(paths(proposal), {{"ab", 0.36},
                                {"a", 0.14},
                                {"a b", 0.04},
                                {"a a", 0.05},
                                {"a c", 0.05},
                                {"b", 0.3},
                                {"c", 0.2}});
  EXPECT_EQ(proposal.nodes[0].origin, Origin::kMerged);
  EXPECT_EQ(proposal.nodes[0].drafts, std::vector<Token>({0, 1}));
  EXPECT_EQ(proposal.nodes[0].draft, 4);
}

TEST_F(TreeDraftTest, ARunThatEndsNoTokenHasNoNode) {
  testing::observe(cache_, 4, {0, 1, 2});
  testing::observe(cache_, 2, {3, 1});  // other bytes: refused
  TreeDraft draft(cache_);
  expand(draft, TreeDraft::kText, {0.6, 0, 0, 0.4});
  EXPECT_EQ(draft.frontier(9).size(), 1U);  // nothing begins with d
  expand(draft, 1, {0, 1, 0, 0});
  EXPECT_EQ(draft.gains().size(), 2U);  // "a", "a b"
  expand(draft, draft.frontier(1)[0], {0, 0, 0.5, 0.5});
  expect_near(paths(draft.finish(9)), {{"abc", 0.27}, {"a", 0.33}, {"a b", 0.33}, {"a b c", 0.03}});
}

TEST_F(TreeDraftTest, TheLongestTokenTakesItsShareFirst) {
  testing::observe(cache_, 2, {0, 1});
  testing::observe(cache_, 4, {0, 1, 2});
  TreeDraft draft(cache_, {8, 0.001, 0.2, {}});
  expand(draft, 0, {1, 0, 0, 0});
  expand(draft, 1, {0, 1, 0, 0});
  expand(draft, 2, {0, 0, 1, 0});
  expect_near(
      paths(draft.finish(9)),
      {{"abc", 0.8}, {"ab", 0.16}, {"ab c", 0.16}, {"a", 0.04}, {"a b", 0.04}, {"a b c", 0.04}});
}

TEST_F(TreeDraftTest, LookedUpPathsJoinDraftedOnes) {
  TreeDraft draft(cache_);
  const std::vector<Token> path{0, 4, 1}, other{0, 0};
  draft.add_path(path, 0.5);
  draft.add_path(other, 0.2);
  EXPECT_EQ(draft.gains(), std::vector<double>({0.5, 0.25, 0.125, 0.2 * 0.2}));
  expand(draft, 0, {0.4, 0.3, 0.2, 0.1});
  const TreeProposal proposal = draft.finish(4);
  expect_near(paths(proposal), {{"a", 0.5}, {"a abc", 0.25}, {"b", 0.3}, {"c", 0.2}});
  EXPECT_EQ(proposal.nodes[0].origin, Origin::kDirect);
  EXPECT_EQ(proposal.nodes[1].origin, Origin::kLookup);
  EXPECT_NEAR(proposal.nodes[1].confidence, 0.5, 1e-12);
  EXPECT_TRUE(draft.finish(4).nodes.empty());
}

TEST_F(TreeDraftTest, CalibratesByRank) {
  TreeDraft draft(cache_);
  draft.calibrate({{1, 1}, {1, -1}});
  expand(draft, 0, {0.5, 0.25, 0.25, 0});
  const std::vector<double> gains = draft.gains();
  ASSERT_EQ(gains.size(), 3U);
  EXPECT_NEAR(gains[0], 1 / (1 + std::exp(-1)), kTolerance);
  EXPECT_NEAR(gains[1], 1 / (1 + 3 * std::exp(1)), kTolerance);
  EXPECT_THROW(draft.calibrate({{-1, 0}}), std::invalid_argument);
  EXPECT_THROW(TreeDraft(cache_, {0, 0, 0, {}}), std::invalid_argument);
}

// The path is cut in more and more ways; what is kept of them is bounded.
TEST_F(TreeDraftTest, ALongPathThatMayBeCutAnyhowStaysSmall) {
  NgramCache cache(testing::make_pair({"a", "aa"}, {"a", "aa", "aaa", "aaaa"}));
  testing::observe(cache, 2, {0, 0, 0});
  testing::observe(cache, 3, {0, 0, 0, 0});
  TreeDraft draft(cache, {8, 0, 0.5, {}});
  std::uint32_t node = TreeDraft::kText;
  for (int i = 0; i < 60; ++i) {
    expand(draft, node, {1, 0});
    ASSERT_EQ(draft.frontier(9).size(), 1U);
    node = draft.frontier(1)[0];
  }
  EXPECT_LT(draft.gains().size(), 60U * 100);
}

TEST_F(TreeDraftTest, ChecksWhatItIsGiven) {
  testing::observe(cache_, 2, {0, 1});
  TreeDraft draft(cache_);
  const std::vector<float> even(4, 0.0F), wide(5, 0.0F);
  std::vector<float> bad = even;
  bad[2] = std::nanf("");
  EXPECT_THROW(draft.expand(0, wide), std::invalid_argument);
  EXPECT_THROW(draft.expand(0, bad), std::domain_error);
  EXPECT_THROW(draft.expand(1, even), std::out_of_range);
  draft.expand(0, even);
  EXPECT_THROW(draft.expand(0, even), std::invalid_argument);
  const std::vector<Token> outside{0, 5};
  EXPECT_THROW(draft.add_path(outside, 0.5), std::out_of_range);
  EXPECT_THROW(draft.add_path(outside, 1.5), std::invalid_argument);
  testing::observe(cache_, 4, {0, 1, 2});
  EXPECT_THROW(draft.expand(1, even), std::invalid_argument);
  EXPECT_THROW(draft.finish(4), std::invalid_argument);
  draft.expand(0, even);
  EXPECT_EQ(draft.finish(4).nodes.size(), 3U);
}

}  // namespace
}  // namespace omnidraft
