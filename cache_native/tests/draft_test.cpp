#include "omnidraft/draft.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "worlds.h"

namespace omnidraft {
namespace {

using testing::make_pair;
using testing::observe;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class DraftTest : public ::testing::Test {
 protected:
  DraftTest() {
    observe(cache_, 1, {0, 1});
    observe(cache_, 2, {0, 1, 1});
    observe(cache_, 3, {3, 1});
  }

  // A row that prefers one draft token.
  static std::vector<float> prefer(Token token) {
    std::vector<float> row(4, 0.0F);
    row[static_cast<std::size_t>(token)] = 5;
    return row;
  }
  Token step(Draft& draft, const std::vector<float>& row) {
    return draft.step({row.data(), row.size()}, generator_);
  }
  Proposal greedy(const std::vector<Token>& preferences) {
    Draft draft(cache_, Verification::kGreedy, 0);
    for (const Token token : preferences) {
      step(draft, prefer(token));
    }
    return draft.finish();
  }

  //                                  0    1    2   3                0    1     2      3     4
  std::shared_ptr<const VocabularyPair> pair_ =
      make_pair({"a", "b", "", "c"}, {"a", "ab", "abb", "cb", "b"});
  NgramCache cache_{pair_};
  Generator generator_{1};
};

TEST_F(DraftTest, GreedyProposesTheLongestMatch) {
  const Proposal proposal = greedy({0, 1, 1, 1, 3, 1});
  EXPECT_EQ(proposal.drafts, std::vector<Token>({0, 1, 1, 1, 3, 1}));
  EXPECT_EQ(proposal.tokens(), std::vector<Token>({2, 4, 3}));
  EXPECT_EQ(proposal.positions[2].draft_count, 2U);
  EXPECT_EQ(greedy({0, 1}).tokens(), std::vector<Token>({1}));
  EXPECT_EQ(greedy({0, 0, 3}).tokens(),
            std::vector<Token>({0, 0}));  // an unfinished end is dropped
  EXPECT_TRUE(greedy({}).tokens().empty());
}

TEST_F(DraftTest, GreedyNeedNotFinishAnNgramThatItBegan) {
  cache_ = NgramCache(pair_);
  observe(cache_, 2, {0, 1, 1});
  EXPECT_EQ(greedy({0, 1, 0, 1, 1, 1}).tokens(), std::vector<Token>({0, 4, 2, 4}));
  EXPECT_EQ(greedy({0, 1}).tokens(), std::vector<Token>({0, 4}));
}

TEST_F(DraftTest, WhatTheTargetRefusedIsNotMerged) {
  const Token drafts[] = {0, 1};
  cache_.judge({drafts, 2}, false);
  EXPECT_EQ(greedy({0, 1}).tokens(), std::vector<Token>({1}));
  cache_.judge({drafts, 2}, false);
  EXPECT_EQ(greedy({0, 1}).tokens(), std::vector<Token>({0, 4}));
  EXPECT_EQ(greedy({0, 1, 1}).tokens(), std::vector<Token>({2}));  // a longer one stays
  cache_.judge({drafts, 2}, true);
  EXPECT_EQ(greedy({0, 1}).tokens(), std::vector<Token>({1}));
}

TEST_F(DraftTest, GreedyMasksWhatTheTrieDoesNotKnow) {
  Draft draft(cache_, Verification::kGreedy, 0);
  EXPECT_EQ(step(draft, {1, 0, 9, 2}), 3);  // a special token is never drafted
  EXPECT_EQ(step(draft, {9, 0, 9, 9}), 1);  // below "c" there is only "b"
  EXPECT_EQ(step(draft, {-1, -2, 9, -kInfinity}), 0);
  EXPECT_EQ(draft.finish().tokens(), std::vector<Token>({3, 0}));
}

TEST_F(DraftTest, NothingToFollowEndsTheProposal) {
  for (const Verification verification : {Verification::kGreedy, Verification::kExact}) {
    Draft draft(cache_, verification, 1);
    EXPECT_EQ(step(draft, {-kInfinity, -kInfinity, 3, -kInfinity}), kNoToken);
    EXPECT_EQ(step(draft, std::vector<float>(4, -kInfinity)), kNoToken);
    EXPECT_TRUE(draft.finish().drafts.empty());
  }
}

TEST_F(DraftTest, ExactVisitsHoldTheDistributionsDrawnFrom) {
  ScriptedChance chance({0, 0});  // a block of the row, then "a"
  Draft draft(cache_, Verification::kExact, 1);
  const std::vector<float> row{0, std::log(2.0F), 7, std::log(3.0F)};
  EXPECT_EQ(draft.step({row.data(), row.size()}, chance), 0);
  const double all = 1 + 2 + std::exp(7.0) + 3;
  EXPECT_NEAR(draft.confidence(), std::exp(7.0) / all, 1e-6);
  // The node "a" goes on with "b"; "a" and "c" mean STOP.
  ScriptedChance stop({1, 0, 3});  // STOP, then as before
  EXPECT_EQ(draft.step({row.data(), row.size()}, stop), 3);
  EXPECT_NEAR(stop.probabilities()[0][0], 2.0 / 6, 1e-7);
  EXPECT_NEAR(stop.probabilities()[0][1], 4.0 / 6, 1e-7);
  EXPECT_NEAR(stop.probabilities()[2][3], 3.0 / 4, 1e-7);
  EXPECT_EQ(stop.probabilities()[2][1], 0);
  const Proposal proposal = draft.finish();
  ASSERT_EQ(proposal.visits.size(), 3U);
  EXPECT_EQ(proposal.visits[1].outcome, Visit::kStop);
  EXPECT_EQ(proposal.visits[2].excluded.depth, 1U);
  EXPECT_NEAR(proposal.visits[2].total / proposal.visits[1].total, 4.0 / 6, 1e-7);
  EXPECT_NEAR(proposal.row(1, 4)[1] / proposal.visits[1].total, 2.0 / 6, 1e-7);
  EXPECT_EQ(proposal.tokens(), std::vector<Token>({0}));  // "c" alone ends no token
  ASSERT_EQ(proposal.positions.size(), 2U);
  EXPECT_TRUE(proposal.positions[1].open);
}

// Draws as the generator does, and knows how probable all of it was.
class Recording final : public Chance {
 public:
  explicit Recording(std::uint64_t seed) : generator_(seed) {}
  bool accept(double) override { throw std::logic_error("drafting accepts nothing"); }
  std::size_t draw(Span<const double> weights) override {
    const std::size_t choice = generator_.draw(weights);
    probability_ *= weights[choice] / std::accumulate(weights.begin(), weights.end(), 0.0);
    return choice;
  }
  double take() { return std::exchange(probability_, 1.0); }

 private:
  Generator generator_;
  double probability_ = 1;
};

// exp((logits[i] - the largest) / temperature) by its sum, over the `allowed` ones.
long double softmax(const std::vector<float>& logits, const std::set<Token>& allowed, Token token,
                    double temperature) {
  long double sum = 0;
  for (const Token other : allowed) {
    const auto difference = static_cast<long double>(logits[static_cast<std::size_t>(other)]) -
                            static_cast<long double>(logits[static_cast<std::size_t>(token)]);
    sum += std::exp(difference / static_cast<long double>(temperature));
  }
  return 1 / sum;
}

// However far the drafter prefers what cannot be proposed, the next draft token is drawn among what
// can be, in proportion.
TEST(DraftWorlds, AStepDrawsAmongWhatTheTrieAllows) {
  std::size_t favourites_outside = 0, cold = 0;
  for (std::uint64_t seed = 0; seed < 2000 / testing::kShare; ++seed) {
    SCOPED_TRACE(seed);
    const testing::World world(seed);
    Generator random(seed);
    const double temperature = std::pow(10.0, 4 * random.uniform() - 3);  // 0.001 to 10
    const double spread = std::pow(10.0, 5 * random.uniform() - 1);       // 0.1 to 10,000
    const Trie trie(*world.cache, Trie::Spellings::kPrimary);
    std::set<Token> roots, all;
    for (std::size_t d = 0; d < world.drafter_size; ++d) {
      all.insert(static_cast<Token>(d));
      if (trie.is_root_child(static_cast<Token>(d))) {
        roots.insert(static_cast<Token>(d));
      }
    }
    Draft draft(*world.cache, Verification::kExact, temperature);
    Recording chance(seed);
    Node node = trie.root();
    for (int i = 0; i < 6; ++i) {
      std::vector<float> logits;
      for (std::size_t d = 0; d < world.drafter_size; ++d) {
        const bool hole = random.next() % 8 == 0;
        const double logit = spread * (2 * random.uniform() - 1);
        logits.push_back(hole ? -kInfinity : static_cast<float>(logit));
      }
      std::vector<Token> children;
      if (!node.is_root()) {
        trie.children(node, children);
      }
      std::set<Token> allowed(children.begin(), children.end());
      if (children.empty() || trie.token(node) != kNoToken) {
        allowed.insert(roots.begin(), roots.end());
      }
      const Token favourite =
          static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      const bool possible = std::any_of(allowed.begin(), allowed.end(), [&](Token d) {
        return logits[static_cast<std::size_t>(d)] > -kInfinity;
      });
      const Token token = draft.step({logits.data(), logits.size()}, chance);
      ASSERT_EQ(token != kNoToken, possible);
      if (!possible) {
        break;
      }
      ASSERT_EQ(allowed.count(token), 1U);
      EXPECT_NEAR(chance.take(), static_cast<double>(softmax(logits, allowed, token, temperature)),
                  1e-6);
      // What cannot be proposed counts all the same in how sure the drafter was.
      EXPECT_NEAR(draft.confidence(),
                  static_cast<double>(softmax(logits, all, favourite, temperature)), 1e-6);
      favourites_outside += allowed.count(favourite) == 0 ? 1 : 0;
      cold += allowed.count(favourite) == 0 && draft.confidence() > 1 - 1e-9 ? 1 : 0;
      const bool deeper = std::find(children.begin(), children.end(), token) != children.end();
      node = trie.child(deeper ? node : trie.root(), token);
    }
    draft.finish();
  }
  EXPECT_GT(favourites_outside, 1000 / testing::kShare);
  EXPECT_GT(cold, 500 / testing::kShare);
}

TEST_F(DraftTest, GivenTokensComeBeforeDraftedOnes) {
  for (const Verification verification :
       {Verification::kGreedy, Verification::kExact, Verification::kPaper}) {
    Draft draft(cache_, verification, 1);
    const std::vector<Token> first{2, 4}, second{3};
    draft.propose(first);
    draft.propose(second);
    const std::vector<float> certain{-kInfinity, 3, -kInfinity, -kInfinity};
    EXPECT_EQ(step(draft, certain), 1);
    EXPECT_THROW(draft.propose(first), std::invalid_argument);
    const Proposal proposal = draft.finish();
    EXPECT_EQ(proposal.tokens(), std::vector<Token>({2, 4, 3, 4}));
    EXPECT_EQ(proposal.drafts, std::vector<Token>({1}));
    EXPECT_TRUE(proposal.positions[2].given());
    EXPECT_FALSE(proposal.positions[3].given());
    EXPECT_TRUE(draft.finish().positions.empty());
    draft.propose(second);
    EXPECT_EQ(draft.finish().tokens(), second);
  }
  Draft draft(cache_, Verification::kGreedy, 0);
  for (const Token token : {-1, 5}) {
    const std::vector<Token> outside{0, token};
    EXPECT_THROW(draft.propose(outside), std::out_of_range);
  }
  EXPECT_TRUE(draft.finish().positions.empty());
}

TEST_F(DraftTest, MemoryIsUsedAgainOnlyWhenNobodyHoldsIt) {
  Draft draft(cache_, Verification::kExact, 1);
  step(draft, prefer(1));
  const Proposal held = draft.finish();
  const float weight = held.row(0, 4)[1];
  step(draft, prefer(0));
  EXPECT_EQ(held.row(0, 4)[1], weight);
  EXPECT_NE(held.weights, draft.finish().weights);
}

TEST_F(DraftTest, ChecksWhatItIsGiven) {
  EXPECT_THROW(Draft(cache_, Verification::kExact, 0), std::invalid_argument);
  EXPECT_THROW(Draft(cache_, Verification::kPaper, std::nan("")), std::invalid_argument);
  Draft draft(cache_, Verification::kExact, 1);
  EXPECT_THROW(step(draft, {1, 2, 3}), std::invalid_argument);
  EXPECT_THROW(step(draft, {1, std::nanf(""), 3, 4}), std::domain_error);
}

TEST_F(DraftTest, TheCacheMustNotChangeWithinARound) {
  Draft draft(cache_, Verification::kExact, 1);
  step(draft, prefer(0));
  observe(cache_, 1, {0, 1});
  step(draft, prefer(1));  // a use that changes no path is no change
  NgramCache other(make_pair({"a", "b"}, {"ab", "ba"}));
  Draft draft2(other, Verification::kGreedy, 0);
  draft2.step(Span<const float>(prefer(0).data(), 2), generator_);
  draft2.finish();
  observe(other, 0, {0, 1});
  const std::vector<float> row{1, 0};
  EXPECT_EQ(draft2.step({row.data(), 2}, generator_), 0);
  observe(other, 1, {1, 0});
  EXPECT_THROW(draft2.step({row.data(), 2}, generator_), std::invalid_argument);
  EXPECT_THROW(draft2.finish(), std::invalid_argument);
  EXPECT_TRUE(draft2.finish().drafts.empty());  // and it is ready again
}

}  // namespace
}  // namespace omnidraft
