#include "omnidraft/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "worlds.h"

namespace omnidraft {
namespace {

using testing::World;

constexpr double kTolerance = 1e-12;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Each random decision is enumerated, so these are probabilities, not estimates.
TEST(Exactness, OfOnePosition) {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 3000 / testing::kShare; ++seed) {
    World world(seed);
    const int budget = static_cast<int>(seed % 4) + 1;
    worst = std::max(worst, world.deviation(budget, Verification::kExact, 1));
  }
  EXPECT_LT(worst, kTolerance);
}

TEST(Exactness, OfWholeRoundsOfTwoPositions) {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 750 / testing::kShare; ++seed) {
    World world(seed);
    worst =
        std::max(worst, world.deviation(2 + static_cast<int>(seed % 3), Verification::kExact, 2));
  }
  EXPECT_LT(worst, kTolerance);
}

TEST(Exactness, OfShapedTargets) {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 400 / testing::kShare; ++seed) {
    World world(seed);
    world.sampling = {0.3 + 0.4 * static_cast<double>(seed % 5), static_cast<int>(seed % 4),
                      seed % 3 == 0 ? 0.8 : 1.0, seed % 5 == 0 ? 0.1 : 0.0,
                      seed % 2 == 0 ? 1.4 : 1.0};
    worst =
        std::max(worst, world.deviation(1 + static_cast<int>(seed % 4), Verification::kExact, 2));
  }
  EXPECT_LT(worst, kTolerance);
}

// Tokens proposed without drafting are exact by the paper's verification too.
TEST(Exactness, OfGivenTokens) {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 1000 / testing::kShare; ++seed) {
    World world(seed);
    world.give(1 + seed % 3);
    if (seed % 4 == 3) {
      world.sampling = {0.7, static_cast<int>(seed % 3), 0.9, 0.05, 1.3};
    }
    for (const Verification verification : {Verification::kExact, Verification::kPaper}) {
      worst = std::max(worst, world.deviation(0, verification, 1 + seed % 2));
    }
  }
  EXPECT_LT(worst, kTolerance);
}

TEST(Exactness, OfGivenTokensThenDraftedOnes) {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 400 / testing::kShare; ++seed) {
    World world(seed);
    world.give(1);
    worst =
        std::max(worst, world.deviation(1 + static_cast<int>(seed % 3), Verification::kExact, 2));
  }
  EXPECT_LT(worst, kTolerance);
}

TEST(Exactness, IsMoreThanThePaperGives) {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    worst = std::max(worst, World(seed).deviation(3, Verification::kPaper, 1));
  }
  EXPECT_GT(worst, 0.05);
}

TEST(Greedy, EmitsTheTargetsArgmax) {
  int merged = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    World world(seed);
    world.sampling.temperature = 0;
    Generator generator(0);
    const Verdict verdict =
        world.round(1 + static_cast<int>(seed % 7), Verification::kGreedy, generator);
    testing::Context context;
    for (const Token token : verdict.tokens) {
      const std::vector<float>& row = world.logits(true, context);
      EXPECT_EQ(static_cast<std::size_t>(token), argmax(row));
      context.push_back(token);
    }
    merged += static_cast<int>(verdict.merged_accepted);
  }
  EXPECT_GT(merged, 20);
}

TEST(Greedy, AcceptsGivenTokensWhileTheyAreTheArgmax) {
  std::uint32_t all = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    World world(seed);
    world.sampling.temperature = 0;
    testing::Context answer;
    for (int i = 0; i < 8; ++i) {
      answer.push_back(static_cast<Token>(argmax(world.logits(true, answer))));
    }
    world.given.assign(answer.begin(), answer.begin() + 3);
    const std::size_t wrong = seed % 4;  // 3: none
    if (wrong < 3) {
      world.given[wrong] = (answer[wrong] + 1) % static_cast<Token>(world.target_size);
    }
    Generator generator(0);
    const Verdict verdict =
        world.round(static_cast<int>(seed % 3), Verification::kGreedy, generator);
    ASSERT_EQ(verdict.tokens,
              testing::Context(answer.begin(), answer.begin() + verdict.tokens.size()));
    ASSERT_GE(verdict.proposed, 3U);
    const std::size_t looked_up =
        std::count(verdict.origins.begin(), verdict.origins.end(), Origin::kLookup);
    EXPECT_EQ(looked_up, wrong);
    EXPECT_EQ(verdict.accepted + 1, verdict.tokens.size());
    EXPECT_GE(verdict.accepted_drafts + wrong, verdict.accepted);
    EXPECT_EQ(verdict.origins.back() == Origin::kFree, verdict.accepted == verdict.proposed);
    all += verdict.accepted > 3 ? 1 : 0;
  }
  EXPECT_GT(all, 5U);  // drafted ones after them
}

class VerifierTest : public ::testing::Test {
 protected:
  Verdict verify(const Proposal& proposal, std::size_t values, double temperature = 0) {
    const std::vector<float> rows(values, 0.0F);
    History history(3);
    return Verifier(cache_).verify(proposal, {rows.data(), rows.size()}, {temperature, 0, 1, 0, 1},
                                   history, generator_);
  }

  Proposal propose() {
    Draft draft(cache_, Verification::kGreedy, 0);
    const std::vector<float> row{1, 0, 0};
    draft.step({row.data(), row.size()}, generator_);
    return draft.finish();
  }

  NgramCache cache_{testing::make_pair({"a", "b", ""}, {"a", "ab", "ba"})};
  Generator generator_{1};
};

TEST_F(VerifierTest, ChecksWhatItIsGiven) {
  const Proposal proposal = propose();
  ASSERT_EQ(proposal.tokens().size(), 1U);
  EXPECT_EQ(verify(proposal, 6).tokens, std::vector<Token>({0, 0}));
  EXPECT_THROW(verify(proposal, 3), std::invalid_argument);
  EXPECT_THROW(verify(proposal, 6, 0.5), std::invalid_argument);
  testing::observe(cache_, 1, {0, 1});
  EXPECT_THROW(verify(proposal, 6), std::invalid_argument);
}

TEST_F(VerifierTest, AnErrorLeavesTheHistoryAsItWas) {
  for (const Verification verification :
       {Verification::kGreedy, Verification::kExact, Verification::kPaper}) {
    Draft draft(cache_, verification, 1);
    const std::vector<float> row{1, -kInfinity, -kInfinity};
    draft.step({row.data(), row.size()}, generator_);
    const Proposal proposal = draft.finish();
    ASSERT_EQ(proposal.tokens(), std::vector<Token>({0}));
    std::vector<float> rows{1, -kInfinity, -kInfinity, 1, std::nanf(""), 1};
    History history(3);
    history.add(2);
    const SamplingParameters sampling{verification == Verification::kGreedy ? 0.0 : 1.0, 0, 1, 0,
                                      2};
    const auto verify = [&] {
      return Verifier(cache_).verify(proposal, rows, sampling, history, generator_);
    };
    EXPECT_THROW(verify(), std::domain_error);
    EXPECT_EQ(history.distinct(), std::vector<Token>({2}));
    rows[4] = -kInfinity;
    EXPECT_EQ(verify().accepted, 1U);
    EXPECT_EQ(history.distinct(), std::vector<Token>({2, 0}));
  }
}

TEST_F(VerifierTest, ARoundEndsAtAnAcceptedToken) {
  for (const Verification verification : {Verification::kGreedy, Verification::kExact}) {
    const bool greedy = verification == Verification::kGreedy;
    Draft draft(cache_, verification, 1);
    const std::vector<Token> given{2, 1, 0, 2};
    draft.propose({given.data(), given.size()});
    Proposal proposal = draft.finish();
    std::vector<float> logits(5 * 3, -kInfinity);
    for (const std::size_t place : {2, 4, 6, 11, 12}) {
      logits[place] = 0;
    }
    History history(3);
    Generator chance(0);
    const SamplingParameters sampling{greedy ? 0.0 : 1.0, 0, 1, 0, 1};
    Verdict verdict = Verifier(cache_).verify(proposal, {logits.data(), logits.size()}, sampling,
                                              history, chance);
    ASSERT_EQ(verdict.accepted, 4U);
    EXPECT_THROW(end_round(proposal, verdict, 4), std::out_of_range);
    end_round(proposal, verdict, 2);
    EXPECT_EQ(proposal.tokens(), (std::vector<Token>{2, 1}));
    EXPECT_EQ(verdict.tokens, (std::vector<Token>{2, 1, 0}));
    EXPECT_EQ(verdict.origins, std::vector<Origin>(3, Origin::kLookup));
    EXPECT_EQ(verdict.proposed, 2U);
    EXPECT_EQ(verdict.accepted, 2U);
    EXPECT_THROW(end_round(proposal, verdict, 2), std::out_of_range);
  }
}

TEST_F(VerifierTest, AnEmptyProposalGivesAFreeToken) {
  for (const Verification verification :
       {Verification::kGreedy, Verification::kExact, Verification::kPaper}) {
    const bool greedy = verification == Verification::kGreedy;
    const Verdict verdict = verify(Draft(cache_, verification, 1).finish(), 3, greedy ? 0.0 : 1.0);
    EXPECT_EQ(verdict.tokens.size(), 1U);
    EXPECT_EQ(verdict.origins[0], Origin::kFree);
  }
}

}  // namespace
}  // namespace omnidraft
