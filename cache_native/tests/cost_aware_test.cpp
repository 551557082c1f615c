#include "omnidraft/cost_aware.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>

namespace omnidraft {
namespace {

int rounds_until_a_try(Account& account, double price) {
  for (int count = 0; count < 10'000; ++count) {
    account.open_round();
    if (account.try_drafting(price, 0)) {
      return count;
    }
    account.allow();
  }
  ADD_FAILURE() << "the allowance never pays for a try";
  return 0;
}

TEST(Account, ATryIsPaidFromTheBalanceAndSavedUpFor) {
  Account account;
  EXPECT_TRUE(account.try_drafting(Account::kStart - Account::kLeastProbe, 0));
  account = Account();
  const double price = Account::kStart - Account::kLeastProbe + 1;
  EXPECT_FALSE(account.try_drafting(price, 0));
  EXPECT_NEAR(rounds_until_a_try(account, price), 1 / Account::kAllowance, 1);
}

TEST(Account, EachTryInVainMakesTheNextOneWaitLonger) {
  Account account;
  std::vector<int> waits;
  for (int i = 0; i < 4; ++i) {
    waits.push_back(rounds_until_a_try(account, 1.5));
    account.drafted(-3, -3, 0);
    EXPECT_FALSE(account.drafting());
  }
  EXPECT_LT(waits[0], waits[1]);
  EXPECT_LT(waits[1], waits[2]);
  EXPECT_EQ(waits[3], waits[2]) << "but no longer than four times as long";
}

TEST(Account, WhatWasWonIsSoonLostAndTheCreditKeepsAllOfIt) {
  Account account;
  EXPECT_TRUE(account.try_drafting(0.5, 0));
  for (int i = 0; i < 100; ++i) {
    account.open_round();
    account.drafted(1, 1, 0);
  }
  EXPECT_EQ(account.credit(), Account::kCredit + 100);
  int lost = 0;
  for (; account.drafting(); ++lost) {
    account.open_round();
    account.drafted(-1, -1, 0);
  }
  EXPECT_EQ(lost, Account::kCap);
  account.looked_up(-2.5);
  EXPECT_EQ(account.credit(), Account::kCredit + 100 - Account::kCap - 2.5);
}

TEST(Account, ReadingLeavesAReserveOnceDraftingIsKnownToPay) {
  Account account;
  EXPECT_TRUE(account.try_drafting(0.5, 0));
  account.open_round();
  account.drafted(-50, 0, 50);
  EXPECT_TRUE(account.drafting());
  Account untried;
  EXPECT_TRUE(untried.try_drafting(0.5, 0));
  untried.drafted(-50, 0, 50);
  EXPECT_FALSE(untried.drafting()) << "a try pays for its reading in full";
}

TEST(Acceptance, FindsAndFollowsTheTruth) {
  std::mt19937 random(1);
  std::normal_distribution<double> scores(1, 1.5);
  std::uniform_real_distribution<double> uniform;
  for (const double offset : {-1.5, 0.0, 1.5}) {
    for (const double slope : {0.3, 1.0, 1.8}) {
      Acceptance acceptance(0, 1);
      for (const double shift : {0.0, -2.0}) {
        const auto truth = [&](double x) {
          return 1 / (1 + std::exp(-(offset + shift + slope * x)));
        };
        for (int round = 0; round < 400; ++round) {
          acceptance.forget(0.01);
          for (int i = 0; i < 4; ++i) {
            const double x = scores(random);
            acceptance.update(x, uniform(random) < truth(x));
          }
        }
        double before = 0;
        for (const double x : {-1.0, 1.0, 3.0}) {
          EXPECT_NEAR(acceptance(x), truth(x), 0.17);
          EXPECT_GE(acceptance(x), before);
          before = acceptance(x);
        }
      }
    }
  }
}

TEST(Acceptance, WhatIsNotObservedIsBelievedAgain) {
  Acceptance acceptance(0, 1);
  for (int i = 0; i < 200; ++i) {
    acceptance.update(1, false);
  }
  EXPECT_LT(acceptance(1), 0.1);
  for (int i = 0; i < 1000; ++i) {
    acceptance.forget(0.01, true);
  }
  EXPECT_NEAR(acceptance(1), calibrated(1 / (1 + std::exp(-1.0)), 1, 0), 0.02);
}

TEST(CostCurve, RefusesWhatIsNoTime) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const std::map<std::size_t, double>& bad : {std::map<std::size_t, double>{},
                                                   {{2, 1.0}},
                                                   {{1, 0.0}},
                                                   {{1, infinity}},
                                                   {{1, std::nan("")}},
                                                   {{1, 1.0}, {4, -1.0}},
                                                   {{0, 1.0}, {1, 1.0}},
                                                   {{1, 1.0}, {CostCurve::kMaxSize + 1, 2.0}}}) {
    EXPECT_THROW(CostCurve{bad}, std::invalid_argument);
  }
}

TEST(CostCurve, IsMonotoneAndLinearBetweenAndBeyond) {
  CostCurve curve({{1, 1.0}, {3, 2.0}, {4, 1.5}, {6, 4.0}});
  EXPECT_DOUBLE_EQ(curve.seconds(0), 0);
  EXPECT_DOUBLE_EQ(curve.seconds(2), 1.5);
  EXPECT_DOUBLE_EQ(curve.seconds(3.5), 2.0);
  EXPECT_DOUBLE_EQ(curve.seconds(5), 3.0);
  EXPECT_DOUBLE_EQ(curve.seconds(8), 6.0);
  EXPECT_THROW(curve.observe(0, 1), std::invalid_argument);
}

TEST(Costs, ANewBandBeginsAsTheNearest) {
  Costs costs({{256, CostCurve({{1, 1.0}})}, {4096, CostCurve({{1, 3.0}})}}, CostCurve({{1, 0.1}}));
  EXPECT_EQ(costs.target(0).seconds(1), 1);
  EXPECT_EQ(costs.target(100'000).seconds(1), 3);
  CostCurve& middle = costs.target(1000);
  EXPECT_EQ(middle.seconds(1), 1);
  middle.observe(1, 5);
  EXPECT_EQ(&middle, &costs.target(257));
  EXPECT_EQ(costs.target(256).seconds(1), 1) << "a curve of its own";
  EXPECT_THROW(Costs({}, CostCurve({{1, 1.0}})), std::invalid_argument);
  EXPECT_THROW(Costs({{7, CostCurve({{1, 1.0}})}}, CostCurve({{1, 1.0}})), std::invalid_argument);
}

TEST(CostAware, RefusesWhatCannotBe) {
  const CostCurve curve({{1, 1.0}, {8, 2.0}});
  CostAware policy(std::make_shared<Costs>(std::map<std::size_t, CostCurve>{{256, curve}}, curve));
  Outcome good;
  good.target_seconds = 1;
  std::vector<Outcome> bad(6, good);
  bad[0].rows = 0;
  bad[1].tokens = 0;
  bad[2].target_seconds = std::nan("");
  bad[3].other_seconds = -1;
  bad[4].passes = {{0, 1.0}};
  bad[5].found_judged = 1;
  for (const Outcome& outcome : bad) {
    EXPECT_THROW(policy.observe(outcome), std::invalid_argument);
  }
  policy.observe(good);
}

// --- recorded policies ------------------------------------------------------------------------

CostCurve read_curve(std::istringstream& words) {
  std::map<std::size_t, double> seconds;
  std::size_t size = 0;
  for (double time = 0; words >> size >> time;) {
    seconds[size] = time;
  }
  return CostCurve(seconds);
}

std::vector<double> read_numbers(std::istringstream& words) {
  return {std::istream_iterator<double>(words), std::istream_iterator<double>()};
}

Outcome read_outcome(std::istringstream& words) {
  Outcome outcome;
  std::size_t passes = 0;
  words >> outcome.rows >> outcome.tokens >> outcome.target_seconds >> outcome.other_seconds >>
      outcome.match >> outcome.found_judged >> outcome.found_right >> passes;
  outcome.passes.resize(passes);
  for (auto& [size, seconds] : outcome.passes) {
    words >> size >> seconds;
  }
  for (Judged each; words >> each.rank >> each.score >> each.right;) {
    outcome.judged.push_back(each);
  }
  return outcome;
}

TEST(CostAware, RepeatsWhatWasRecorded) {
  std::ifstream file(OMNIDRAFT_VECTORS "/policy.txt");
  std::string name;
  CostCurve target({{1, 1.0}});
  std::unique_ptr<CostAware> policy;
  int policies = 0;
  for (std::string text; std::getline(file, text);) {
    std::istringstream words(text);
    std::string key;
    words >> key;
    SCOPED_TRACE(name + ": " + text);
    std::size_t a = 0, b = 0, c = 0, d = 0, e = 0, expected = 0;
    if (key == "policy") {
      std::getline(words, name);
    } else if (key == "target") {
      target = read_curve(words);
    } else if (key == "drafter") {
      policy = std::make_unique<CostAware>(std::make_shared<Costs>(
          std::map<std::size_t, CostCurve>{{256, target}}, read_curve(words)));
    } else if (key == "begin") {
      words >> a >> b >> c >> d >> e >> expected;
      ASSERT_EQ(policy->begin(a, b, c, d, e), expected);
    } else if (key == "layer") {
      words >> a >> expected >> b;
      const std::vector<double> numbers = read_numbers(words);
      const auto open = numbers.begin() + static_cast<std::ptrdiff_t>(b);
      ASSERT_EQ(policy->layer({numbers.begin(), open}, {open, numbers.end()}, a), expected);
    } else if (key == "count") {
      words >> a >> expected;
      ASSERT_EQ(policy->count(read_numbers(words), a), expected);
    } else if (key == "observe") {
      policy->observe(read_outcome(words));
    } else if (key == "calibration") {
      for (const Calibration& line : policy->calibration()) {
        double slope = 0, offset = 0;
        words >> slope >> offset;
        EXPECT_NEAR(line.slope, slope, 1e-9);
        EXPECT_NEAR(line.offset, offset, 1e-9);
      }
      ++policies;
    }
  }
  EXPECT_EQ(policies, 6);
}

}  // namespace
}  // namespace omnidraft
