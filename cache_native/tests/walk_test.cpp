#include "omnidraft/walk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "worlds.h"

namespace omnidraft {
namespace {

using testing::Context;
using testing::World;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Expands some draft nodes and adds a looked-up path, by chance.
void grow(World& world, TreeDraft& draft, const Context& answer, Generator& random) {
  if (random.next() % 3 == 0) {
    const std::vector<Token> path{static_cast<Token>(random.next() % world.target_size),
                                  static_cast<Token>(random.next() % world.target_size)};
    draft.add_path(path, random.uniform());
  }
  std::map<std::uint32_t, Context> contexts{{TreeDraft::kText, answer}};
  std::vector<std::uint32_t> layer{TreeDraft::kText};
  for (std::uint64_t layers = random.next() % 5; layers > 0; --layers) {
    for (const std::uint32_t node : layer) {
      if (node != TreeDraft::kText) {
        contexts[node] = contexts[draft.parent(node)];
        contexts[node].push_back(draft.token(node));
      }
      draft.expand(node, world.logits(false, contexts[node]));
    }
    layer = draft.frontier(1 + random.next() % 3, 0.01);
  }
}

// An answer's first tokens, by trees or, without `random`, plainly.
Context decode(World& world, std::size_t length, std::uint64_t seed, Generator* random,
               std::size_t* accepted) {
  TreeDraft draft(*world.cache);
  Walker walker;
  History history(world.target_size);
  Context answer;
  while (answer.size() < length) {
    if (random != nullptr) {
      grow(world, draft, answer, *random);
    }
    const TreeProposal proposal = draft.finish(random != nullptr ? random->next() % 14 : 0);
    std::vector<Context> contexts{answer};
    std::vector<float> rows = world.logits(true, answer);
    for (const TreeProposal::Node& node : proposal.nodes) {
      contexts.push_back(contexts[static_cast<std::size_t>(node.parent + 1)]);
      contexts.back().push_back(node.token);
      const std::vector<float>& row = world.logits(true, contexts.back());
      rows.insert(rows.end(), row.begin(), row.end());
    }
    const TreeVerdict verdict =
        walker.walk(proposal, rows, world.sampling, history, seed, answer.size());
    answer.insert(answer.end(), verdict.tokens.begin(), verdict.tokens.end());
    *accepted += verdict.accepted;
  }
  answer.resize(length);
  return answer;
}

TEST(Walk, EmitsWhatPlainDecodingDoes) {
  const std::vector<SamplingParameters> all{
      {0, 0, 1, 0, 1},     {0, 0, 1, 0, 1.5}, {1, 0, 1, 0, 1},
      {0.5, 0, 1, 0, 1.3}, {1.2, 3, 1, 0, 1}, {0.8, 0, 0.8, 0.05, 1},
  };
  std::size_t accepted = 0, none = 0;
  for (std::uint64_t seed = 0; seed < 600 / testing::kShare; ++seed) {
    World world(seed);
    world.sampling = all[seed % all.size()];
    const Context plain = decode(world, 8, seed * 7, nullptr, &none);
    Generator random(seed);
    for (int tree = 0; tree < 3; ++tree) {
      ASSERT_EQ(decode(world, 8, seed * 7, &random, &accepted), plain) << seed;
    }
  }
  EXPECT_EQ(none, 0U);
  EXPECT_GT(accepted, 1000U / testing::kShare);
}

TEST(Walk, TakesTheQuantileOfThePosition) {
  World world(5);
  world.sampling = {0.9, 0, 1, 0, 2};
  Distribution distribution;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::size_t none = 0;
    const Context answer = decode(world, 4, seed, nullptr, &none);
    History history(world.target_size);
    for (std::size_t i = 0; i < answer.size(); ++i) {
      const Context context(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(i));
      distribution.assign(world.logits(true, context), world.sampling, history);
      EXPECT_EQ(answer[i], distribution.quantile(uniform_at(seed, i)));
      history.add(answer[i]);
    }
  }
}

class WalkTest : public ::testing::Test {
 protected:
  WalkTest() {
    TreeDraft draft(cache_);
    const std::vector<Token> path{0, 1, 2}, fork{0, 3}, other{3};
    draft.add_path(path, 0.9);
    draft.add_path(fork, 0.4);
    draft.add_path(other, 0.3);
    proposal_ = draft.finish(9);  // 0; 0 1; 0 1 2; 0 3; 3
  }

  NgramCache cache_{testing::make_pair({"a", "b"}, {"a", "b", "c", ""})};
  TreeProposal proposal_;
};

TEST_F(WalkTest, SaysWhatItJudgedAndMayBeEndedEarlier) {
  std::vector<float> rows(6 * 4, 0.0F);
  rows[0 * 4 + 0] = rows[1 * 4 + 1] = rows[2 * 4 + 2] = rows[3 * 4 + 3] = 1;
  History history(4);
  TreeVerdict verdict = Walker().walk(proposal_, rows, {}, history, 0, 0);
  EXPECT_EQ(verdict.tokens, std::vector<Token>({0, 1, 2, 3}));
  EXPECT_EQ(verdict.path, std::vector<std::uint32_t>({0, 1, 2}));
  EXPECT_EQ(verdict.origins.back(), Origin::kFree);
  using J = Judgement;
  EXPECT_EQ(verdict.judgements,
            std::vector<J>({J::kRight, J::kRight, J::kRight, J::kWrong, J::kWrong}));
  EXPECT_THROW(end_round(proposal_, verdict, 3), std::out_of_range);
  end_round(proposal_, verdict, 1);
  EXPECT_EQ(verdict.tokens, std::vector<Token>({0, 1}));
  EXPECT_EQ(verdict.origins, std::vector<Origin>(2, Origin::kLookup));
  EXPECT_EQ(verdict.path, std::vector<std::uint32_t>({0}));
  EXPECT_EQ(verdict.proposed, 3U);
  EXPECT_EQ(verdict.accepted, 1U);
  EXPECT_EQ(verdict.judgements,
            std::vector<J>({J::kRight, J::kNone, J::kNone, J::kWrong, J::kWrong}));
}

TEST_F(WalkTest, AnErrorLeavesTheHistoryAsItWas) {
  for (const double temperature : {0.0, 0.1}) {
    std::vector<float> rows(6 * 4, 0.0F);
    rows[0 * 4 + 0] = rows[1 * 4 + 1] = 50;
    rows[2 * 4 + 2] = std::nanf("");
    rows[4 * 4 + 2] = kInfinity;  // not looked at
    History history(4);
    history.add(2);
    const SamplingParameters sampling{temperature, 0, 1, 0, 1};
    EXPECT_THROW(Walker().walk(proposal_, rows, sampling, history, 0, 0), std::domain_error);
    EXPECT_EQ(history.distinct(), std::vector<Token>({2}));
    rows[2 * 4 + 2] = 50;
    EXPECT_EQ(Walker().walk(proposal_, rows, sampling, history, 0, 0).accepted, 3U);
    rows.pop_back();
    EXPECT_THROW(Walker().walk(proposal_, rows, sampling, history, 0, 0), std::invalid_argument);
  }
}

}  // namespace
}  // namespace omnidraft
