#include "omnidraft/verify.h"

#include <gtest/gtest.h>

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
