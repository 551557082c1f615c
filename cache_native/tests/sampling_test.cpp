#include "omnidraft/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <stdexcept>
#include <tuple>

#include "omnidraft/chance.h"
#include "omnidraft/fnv.h"

namespace omnidraft {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> uniform_row(std::size_t size, std::uint64_t seed) {
  Generator random(seed);
  std::vector<float> row;
  for (std::size_t i = 0; i < size; ++i) {
    row.push_back(static_cast<float>(20 * random.uniform() - 10));
  }
  return row;
}

std::vector<float> shaped(const std::vector<float>& logits, const SamplingParameters& parameters) {
  Distribution distribution;
  distribution.assign(logits, parameters, History(logits.size()));
  std::vector<float> weights;
  distribution.weights(weights);
  EXPECT_NEAR(distribution.total(), sum(weights), 1e-12 * distribution.total());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(distribution.weight(static_cast<Token>(i)), weights[i]);
  }
  return weights;
}

std::size_t kept(const std::vector<float>& weights) {
  return weights.size() -
         static_cast<std::size_t>(std::count(weights.begin(), weights.end(), 0.0F));
}

TEST(Sampling, ArgmaxIsTheLowestOfEquals) {
  for (const std::size_t size : {1, 2, 15, 16, 17, 1023, 1024, 1025, 5000}) {
    std::vector<float> row(size, -kInfinity);
    EXPECT_EQ(argmax(row), 0U);
    for (std::size_t at = 0; at < size; at += size / 7 + 1) {
      std::vector<float> one = row;
      one[at] = one[size - 1] = 3;
      EXPECT_EQ(argmax(one), at);
      one[at] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_THROW(argmax(one), std::domain_error);
      one[at] = kInfinity;
      EXPECT_THROW(argmax(one), std::domain_error);
    }
  }
  const std::vector<float> zeros{-0.0F, 0.0F};
  EXPECT_EQ(argmax(zeros), 0U);
}

TEST(Sampling, WeightsAreExponentials) {
  std::vector<float> logits;
  for (int i = 0; i <= 8700; ++i) {
    logits.push_back(static_cast<float>(-i) / 100);
  }
  for (const double temperature : {1.0, 0.5, 3.0}) {
    std::vector<float> weights(logits.size());
    const double total = exp_weights(logits, 0, temperature, weights);
    double wanted_total = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double exponent = static_cast<double>(logits[i]) / temperature;
      if (exponent > -87) {
        EXPECT_NEAR(weights[i] / std::exp(exponent), 1, 2e-7 * (1 - exponent));
      }
      wanted_total += static_cast<double>(weights[i]);
    }
    EXPECT_EQ(weights[0], 1);
    EXPECT_NEAR(total, wanted_total, 1e-12 * total);
  }
}

// Recorded: these bits are to be the same on every platform and with every vector unit.
TEST(Sampling, BitsAreTheSameEverywhere) {
  const std::vector<float> logits = uniform_row(5003, 1);
  std::vector<float> weights(logits.size());
  const double total = exp_weights(logits, logits[argmax(logits)], 0.7, weights);
  Fnv1a hash;
  for (const float weight : weights) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &weight, sizeof bits);
    hash.update(static_cast<std::uint64_t>(bits));
  }
  std::uint64_t total_bits = 0;
  std::memcpy(&total_bits, &total, sizeof total_bits);
  EXPECT_EQ(hash.value(), 7698259763021529491ULL);
  EXPECT_EQ(total_bits, 4640111930105711696ULL);
}

TEST(Sampling, TheRoughSumIsNear) {
  for (const std::size_t size : {1, 15, 16, 17, 1000, 32000}) {
    for (const float spread : {0.0F, 0.1F, 1.0F, 20.0F}) {
      std::vector<float> logits = uniform_row(size, size);
      for (float& logit : logits) {
        logit *= spread;
      }
      const float maximum = logits[argmax(logits)];
      std::vector<float> weights(size);
      const double total = exp_weights(logits, maximum, 1, weights);
      EXPECT_NEAR(rough_exp_sum(logits, maximum) / total, 1, 2e-4);
      EXPECT_GE(rough_exp_sum(logits, maximum), 1);
    }
  }
}

TEST(Sampling, WeightsMayReplaceTheLogits) {
  std::vector<float> logits = uniform_row(1000, 2);
  std::vector<float> weights(logits.size());
  const float maximum = logits[argmax(logits)];
  const double total = exp_weights(logits, maximum, 0.9, weights);
  EXPECT_EQ(exp_weights(logits, maximum, 0.9, logits), total);
  EXPECT_EQ(logits, weights);
}

TEST(Sampling, TopKKeepsKAndTies) {
  const std::vector<float> logits = uniform_row(2000, 3);
  for (const int k : {1, 2, 3, 10, 100, 1999, 2000, 5000}) {
    EXPECT_EQ(kept(shaped(logits, {1, k, 1, 0, 1})), std::min<std::size_t>(k, 2000));
  }
  EXPECT_EQ(kept(shaped({3, 2, 2, 2, 1}, {1, 2, 1, 0, 1})), 4U);
  // Exactly k above the first floor, the others far below it.
  EXPECT_EQ(kept(shaped({0, 0, -5, -6, -7}, {1, 2, 1, 0, 1})), 2U);
}

TEST(Sampling, TopPKeepsTheSmallestSet) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<float> logits = uniform_row(1 + seed * 7, seed);
    const double top_p = Generator(seed).uniform() * 0.98 + 0.01;
    const std::vector<float> all = shaped(logits, {1.5, 0, 1, 0, 1});
    const std::vector<float> some = shaped(logits, {1.5, 0, top_p, 0, 1});
    double mass = 0;
    float least = 1;
    for (const float weight : some) {
      mass += static_cast<double>(weight);
      least = weight > 0 ? std::min(least, weight) : least;
    }
    const double wanted = top_p * sum(all);
    EXPECT_GE(mass, wanted * (1 - 1e-9));
    EXPECT_LT(mass - static_cast<double>(least), wanted * (1 + 1e-9));
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(some[i], all[i] >= least ? all[i] : 0);
    }
  }
}

TEST(Sampling, MinPIsRelativeToTheLargest) {
  EXPECT_EQ(kept(shaped({0, -1, -2, -3}, {1, 0, 1, 0.2, 1})), 2U);
  EXPECT_EQ(kept(shaped({0, 0, -1}, {1, 0, 1, 1, 1})), 2U);
}

// Every token's probability, with and without a cut.
TEST(Sampling, DrawsTheShapedDistribution) {
  const std::vector<float> logits = uniform_row(2500, 7);
  for (const SamplingParameters& parameters : {SamplingParameters{4, 0, 1, 0, 1},
                                               {4, 300, 1, 0, 1},
                                               {4, 0, 0.9, 0, 1},
                                               {4, 5, 0.9, 0.5, 1}}) {
    Distribution distribution;
    distribution.assign(logits, parameters, History(logits.size()));
    double total = 0;
    std::size_t first = 0;
    for (std::size_t block = 0; block < 3; ++block) {
      for (std::size_t i = 0, possible = 1; i < possible; ++i) {
        ScriptedChance chance({block, i});
        const Token token = distribution.draw(chance);
        const auto& [blocks, weights] =
            std::tie(chance.probabilities()[0], chance.probabilities()[1]);
        const double probability = blocks[block] * weights[i];
        EXPECT_NEAR(probability,
                    static_cast<double>(distribution.weight(token)) / distribution.total(), 1e-12);
        total += probability;
        possible = weights.size();
        EXPECT_GE(static_cast<std::size_t>(token), first);
        first = static_cast<std::size_t>(token) + 1;
      }
    }
    EXPECT_NEAR(total, 1, 1e-12);
  }
}

TEST(Sampling, PenaltyFollowsTheHistory) {
  History history(4);
  for (const Token token : {1, 2, 1}) {
    history.add(token);
  }
  EXPECT_EQ(history.distinct(), std::vector<Token>({1, 2}));
  Distribution result;
  const std::vector<float> logits{1, 2, -2, 0};
  result.assign(logits, {1, 0, 1, 0, 2}, history);
  EXPECT_EQ(result.weight(0), result.weight(1));
  EXPECT_NEAR(result.weight(2), std::exp(-5.0), 1e-6);
  std::vector<float> scratch;
  EXPECT_EQ(greedy_token(logits, 2.5, history, scratch), 0);
  EXPECT_EQ(greedy_token(logits, 1, history, scratch), 1);
  EXPECT_THROW(history.add(4), std::out_of_range);
  EXPECT_THROW(history.add(-1), std::out_of_range);
  EXPECT_THROW(result.assign(logits, {1, 0, 1, 0, 1}, History(5)), std::invalid_argument);
}

TEST(Sampling, RefusesWhatIsNoDistribution) {
  Distribution result;
  const std::vector<float> nothing(3, -kInfinity);
  EXPECT_THROW(result.assign(nothing, {1, 0, 1, 0, 1}, History(3)), std::domain_error);
  const std::vector<float> logits(3, 0.0F);
  EXPECT_THROW(result.assign(logits, {}, History(3)), std::invalid_argument);
}

TEST(Sampling, ChecksParameters) {
  const double nan = std::nan("");
  for (const SamplingParameters& bad : std::vector<SamplingParameters>{{-1, 0, 1, 0, 1},
                                                                       {nan, 0, 1, 0, 1},
                                                                       {1, -1, 1, 0, 1},
                                                                       {1, 0, 0, 0, 1},
                                                                       {1, 0, nan, 0, 1},
                                                                       {1, 0, 1, 1.5, 1},
                                                                       {1, 0, 1, 0, 0},
                                                                       {1, 0, 1, 0, nan}}) {
    EXPECT_THROW(bad.validate(), std::invalid_argument);
  }
  EXPECT_NO_THROW(SamplingParameters().validate());
}

TEST(Sampling, QuantilesAreOrderedAndEachAsLongAsItIsProbable) {
  const std::vector<SamplingParameters> all{
      {1, 0, 1, 0, 1}, {0.5, 5, 1, 0, 1}, {2, 0, 0.7, 0, 1}, {1, 0, 1, 0.2, 1}};
  for (const std::size_t size : {1, 3, 17, 1024, 1025, 3000}) {
    const std::vector<float> row = uniform_row(size, size);
    for (const SamplingParameters& parameters : all) {
      const std::vector<float> weights = shaped(row, parameters);
      Distribution distribution;
      distribution.assign(row, parameters, History(size));
      double begin = 0;
      Token last = kNoToken;
      for (std::size_t i = 0; i < size; ++i) {
        const double end = begin + static_cast<double>(weights[i]) / distribution.total();
        if (end - begin > 1e-9) {  // rounding is far less
          last = static_cast<Token>(i);
          EXPECT_EQ(distribution.quantile(begin + 1e-12), last);
          EXPECT_EQ(distribution.quantile((begin + end) / 2), last);
          EXPECT_EQ(distribution.quantile(end - 1e-12), last);
        }
        begin = end;
      }
      EXPECT_GT(distribution.weight(distribution.quantile(0)), 0);
      EXPECT_GT(distribution.weight(distribution.quantile(1 - 0x1.0p-53)), 0);
      EXPECT_GE(distribution.quantile(1 - 0x1.0p-53), last);
    }
  }
}

TEST(Sampling, AQuantileHasAWeightWhateverRoundingDoes) {
  std::vector<float> row(2500, -kInfinity);
  row[3] = row[700] = row[1500] = 0.1F;
  Distribution distribution;
  distribution.assign(row, {0.3, 0, 1, 0, 1}, History(row.size()));
  EXPECT_EQ(distribution.quantile(0), 3);
  EXPECT_EQ(distribution.quantile(0.5), 700);
  EXPECT_EQ(distribution.quantile(1 - 0x1.0p-53), 1500);
  EXPECT_EQ(distribution.quantile(1), 1500);
}

// Pairs of neighbours in places and in seeds fill a grid of 8 x 8 evenly.
TEST(Chance, UniformNumbersOfNeighboursAreIndependent) {
  const auto spread = [](std::uint64_t seed_step, std::uint64_t position_step) {
    std::vector<double> counts(64);
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      for (std::uint64_t position = 0; position < 640; ++position) {
        const double a = uniform_at(seed, position);
        const double b = uniform_at(seed + seed_step, position + position_step);
        EXPECT_TRUE(a >= 0 && a < 1);
        ++counts[static_cast<std::size_t>(a * 8) * 8 + static_cast<std::size_t>(b * 8)];
      }
    }
    double chi = 0;
    for (const double count : counts) {
      chi += (count - 1000) * (count - 1000) / 1000;
    }
    return chi;
  };
  for (const auto& [seed_step, position_step] : std::vector<std::pair<int, int>>{
           {0, 1}, {1, 0}, {1, 1}, {0, 2}, {2, 1}, {1, 2}, {0, 64}, {64, 0}}) {
    // 63 degrees of freedom: 126 is exceeded once in 200,000. The numbers are fixed.
    EXPECT_LT(spread(seed_step, position_step), 126) << seed_step << ", " << position_step;
  }
}

TEST(Chance, GeneratorIsXoshiro) {
  Generator generator(42);
  EXPECT_EQ(generator.next(), 0x15780B2E0C2EC716ULL);
}

TEST(Chance, DrawsInProportion) {
  Generator generator(5);
  std::vector<float> row(3000, 0.0F);
  row[1] = 1;
  row[1500] = 2;
  row[2999] = 1;
  std::vector<double> sums;
  block_sums(row, sums);
  EXPECT_EQ(sums, std::vector<double>({1, 2, 1}));
  std::map<std::size_t, int> counts;
  for (int i = 0; i < 8000; ++i) {
    ++counts[draw_row(row, sums, generator)];
  }
  ASSERT_EQ(counts.size(), 3U);
  EXPECT_NEAR(counts[1500], 4000, 250);
  EXPECT_NEAR(counts[1], 2000, 220);
  const std::vector<double> nothing{0, 0};
  EXPECT_THROW(generator.draw(nothing), std::domain_error);
  EXPECT_FALSE(generator.accept(0));
  EXPECT_FALSE(generator.accept(std::nan("")));
  EXPECT_TRUE(generator.accept(1));
}

TEST(Chance, ScriptsAreFollowedAndRecorded) {
  ScriptedChance chance({1, 2});
  const std::vector<double> weights{0, 1, 3};
  EXPECT_TRUE(chance.accept(0.25));
  EXPECT_EQ(chance.draw(weights), 2U);
  EXPECT_EQ(chance.draw(weights), 1U);  // past its end: the first possible
  EXPECT_TRUE(chance.accept(1));        // certain: no decision
  EXPECT_FALSE(chance.accept(0));
  EXPECT_EQ(chance.choices(), std::vector<std::size_t>({1, 2, 1}));
  EXPECT_EQ(chance.probabilities()[1], std::vector<double>({0, 0.25, 0.75}));
}

}  // namespace
}  // namespace omnidraft
