// Answers with a drafter are those of plain decoding, whatever is drafted.
#include "answers.h"

#include <optional>
#include <random>
#include <set>

#include "omnidraft/plain_choice.h"

namespace omnidraft::toy {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr int kWorlds = 150;
#else
constexpr int kWorlds = 1500;
#endif

// Token by token, by the core's own choice.
Tokens plain(const World& world, const Asked& asked) {
  const omnidraft_sampling& s = asked.sampling;
  const SamplingParameters sampling{s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty};
  History history(world.target.size());
  Tokens context = asked.prompt, tokens;
  std::for_each(context.begin(), context.end(), [&](Token token) { history.add(token); });
  PlainChoice choice;
  while (tokens.size() < asked.max_new && context.size() <= asked.target_max) {
    const std::vector<float> row = world.row(true, context);
    const Token token =
        choice({row.data(), row.size()}, sampling, history, asked.seed, tokens.size());
    history.add(token);
    context.push_back(token);
    tokens.push_back(token);
    if (std::count(asked.ends.begin(), asked.ends.end(), token) > 0) {
      break;
    }
  }
  return tokens;
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t bound) { return random_() % bound; }
  bool one_in(std::size_t count) { return below(count) == 0; }
  double of(std::initializer_list<double> values) { return values.begin()[below(values.size())]; }

  std::vector<std::string> surfaces(std::size_t most, std::size_t longest) {
    std::set<std::string> words;
    for (std::size_t i = 0; i <= below(most); ++i) {
      std::string word;
      for (std::size_t length = 1 + below(longest); length > 0; --length) {
        word += "ab\n\xc3"[below(below(3) == 0 ? 4 : 2)];
      }
      words.insert(word);
    }
    std::vector<std::string> surfaces(words.begin(), words.end());
    surfaces.emplace_back();  // a special token
    return surfaces;
  }

  Tokens tokens(std::size_t count, std::size_t bound) {
    Tokens tokens(count);
    for (omnidraft_token& token : tokens) {
      token = static_cast<omnidraft_token>(below(bound));
    }
    return tokens;
  }

 private:
  std::mt19937_64 random_;
};

struct Case {
  explicit Case(std::uint64_t seed) : draw(seed) {
    world = {draw.below(1000), draw.surfaces(6, 2), draw.surfaces(9, 4)};
    const std::size_t width = world.target.size();
    asked.prompt = draw.tokens(1 + draw.below(8), width);
    if (draw.one_in(2)) {
      asked.ends = draw.tokens(1 + draw.below(2), width);
    }
    asked.max_new = 1 + draw.below(40);
    asked.target_max = asked.prompt.size() + draw.below(50);
    asked.drafter_max = draw.one_in(3) ? draw.below(20) : 200;
    asked.sampling.temperature = draw.of({0, 0, 0.7, 1.3});
    asked.sampling.top_k = static_cast<std::int32_t>(draw.of({0, 0, 3}));
    asked.sampling.top_p = draw.of({1, 1, 0.9});
    asked.sampling.min_p = draw.of({0, 0, 0.05});
    asked.sampling.repetition_penalty = draw.of({1, 1, 1.3});
    asked.seed = draw.below(1000);
    asked.tree = draw.one_in(2);
    asked.scores_trees = asked.tree && draw.one_in(2);
    asked.begin = draw.tokens(draw.below(2), world.drafter.size());
  }

  Policy policy() {
    if (draw.one_in(3)) {
      const std::size_t sizes[] = {1, 8};
      const double target[] = {0.011, 0.018}, drafter[] = {0.0011, 0.0018};
      const omnidraft_curve of_target{256, sizes, target, 2}, of_drafter{0, sizes, drafter, 2};
      const Costs costs = made<Costs>(omnidraft_costs_new, &of_target, std::size_t{1}, &of_drafter);
      return made<Policy>(omnidraft_policy_cost_aware, costs.get());
    }
    return made<Policy>(omnidraft_policy_fixed, draw.below(9), draw.of({0, 0, 0.4}));
  }

  Draw draw;
  World world;
  Asked asked;
};

TEST(Answers, AreThoseOfPlainDecoding) {
  std::size_t merged = 0, drafted = 0, dropped = 0;
  for (int i = 0; i < kWorlds; ++i) {
    SCOPED_TRACE(i);
    Case c(static_cast<std::uint64_t>(i));
    const Pair pair = toy::pair(c.world);
    const Speller speller = toy::speller(c.world, pair.get());
    omnidraft_limits limits = OMNIDRAFT_LIMITS_INIT;
    limits.max_entries = 1 + c.draw.below(6);
    const Cache cache =
        made<Cache>(omnidraft_cache_new, pair.get(), c.draw.one_in(3) ? &limits : nullptr);
    const Policy policy = c.policy();
    const Lookup lookup =
        made<Lookup>(omnidraft_lookup_new, c.world.target.size(), 2 + c.draw.below(100));
    const Parts parts{cache.get(), speller.get(), policy.get(),
                      c.draw.one_in(2) ? lookup.get() : nullptr};
    Interference interfere;
    if (c.draw.one_in(3)) {  // the drafter fails, or is stopped early, now and then
      interfere = [&](omnidraft_generation* g) {
        if (c.draw.one_in(20)) {
          demand(omnidraft_generation_fail(g));
          return true;
        }
        return c.draw.one_in(8);
      };
    }
    // The cache and the policy learn from one answer for the next.
    for (int turn = 0; turn < 3; ++turn) {
      const Answer answer =
          toy::run(c.world, c.asked, generation(c.world, c.asked, parts).get(), interfere);
      ASSERT_EQ(answer.tokens, plain(c.world, c.asked));
      drafted += answer.passes.size();
      dropped += c.asked.drafter_max < answer.tokens.size() ? 1 : 0;
      merged += static_cast<std::size_t>(
          std::count(answer.origins.begin(), answer.origins.end(), OMNIDRAFT_MERGED));
    }
    ASSERT_EQ(toy::answer(c.world, c.asked, {}).tokens, plain(c.world, c.asked));
  }
  // What the worlds are for did happen.
  EXPECT_GT(drafted, 10U * kWorlds);
  EXPECT_GT(dropped, kWorlds / 20U);
  EXPECT_GT(merged, kWorlds / 10U);
}

TEST(Answers, EndAtAStopTextWithinARound) {
  std::size_t cut = 0;
  for (int i = 0; i < kWorlds / 5; ++i) {
    SCOPED_TRACE(i);
    Case c(static_cast<std::uint64_t>(i));
    c.asked.ends.clear();
    const Pair pair = toy::pair(c.world);
    const Speller speller = toy::speller(c.world, pair.get());
    const Cache cache = made<Cache>(omnidraft_cache_new, pair.get(), nullptr);
    const Policy policy = made<Policy>(omnidraft_policy_fixed, std::size_t{4}, 0.0);
    const Generation made =
        generation(c.world, c.asked, {cache.get(), speller.get(), policy.get()});
    omnidraft_generation* g = made.get();
    const Tokens whole = plain(c.world, c.asked);
    demand(omnidraft_generation_read(g, c.asked.prompt.data(), c.asked.prompt.size(), nullptr));
    Model target(c.world, true), drafter(c.world, false);
    omnidraft_pass pass = OMNIDRAFT_PASS_INIT;
    pass.tokens = c.asked.prompt.data();
    pass.count = c.asked.prompt.size() - 1;
    target.run(pass);
    std::int32_t more = 0;
    if (c.asked.prompt.size() > c.asked.target_max - 1) {
      continue;
    }
    demand(omnidraft_generation_begin(g, 20, target.length(), c.asked.target_max, &more));
    while (more != 0) {
      demand(omnidraft_generation_pass(g, &pass));
      const std::vector<float> logits = drafter.run(pass);
      demand(omnidraft_generation_drafted(g, logits.data(), logits.size(), 0));
      demand(omnidraft_generation_draft_on(g, &more));
    }
    demand(omnidraft_generation_score(g, &pass));
    const std::vector<float> logits = target.run(pass);
    omnidraft_verdict verdict = OMNIDRAFT_VERDICT_INIT;
    demand(omnidraft_generation_scored(g, logits.data(), logits.size(), &verdict));
    const std::size_t end = c.draw.below(verdict.count);
    cut += end < verdict.accepted ? 1 : 0;
    demand(omnidraft_generation_end_at(g, end, &verdict));
    ASSERT_EQ(verdict.count, end + 1);
    omnidraft_settled settled = OMNIDRAFT_SETTLED_INIT;
    demand(omnidraft_generation_settle(g, 0, 0, &settled));
    target.keep(settled.target);
    EXPECT_EQ(target.length(), c.asked.prompt.size() + end);
    std::uint64_t length = 0;
    demand(omnidraft_generation_length(g, &length));
    EXPECT_EQ(length, end + 1);
    for (std::size_t at = 0; at < std::min(verdict.count, whole.size()); ++at) {
      EXPECT_EQ(verdict.tokens[at], whole[at]);
    }
  }
  EXPECT_GT(cut, kWorlds / 150U);
}

// Row i of a verdict is the one its token was taken from, and what is shown of a round is of it.
TEST(Answers, TellWhereTheirTokensComeFrom) {
  std::size_t paths = 0;
  for (int i = 0; i < kWorlds / 5; ++i) {
    SCOPED_TRACE(i);
    Case c(static_cast<std::uint64_t>(i));
    c.asked.sampling = OMNIDRAFT_SAMPLING_INIT;
    c.asked.drafter_max = 64;
    const std::size_t width = c.world.target.size();
    const Pair pair = toy::pair(c.world);
    const Speller speller = toy::speller(c.world, pair.get());
    const Cache cache = made<Cache>(omnidraft_cache_new, pair.get(), nullptr);
    const Policy policy = made<Policy>(omnidraft_policy_fixed, std::size_t{4}, 0.0);
    const Generation made =
        generation(c.world, c.asked, {cache.get(), speller.get(), policy.get()});
    omnidraft_generation* g = made.get();
    demand(omnidraft_generation_read(g, c.asked.prompt.data(), c.asked.prompt.size(), nullptr));
    Model target(c.world, true), drafter(c.world, false);
    omnidraft_pass pass = OMNIDRAFT_PASS_INIT;
    pass.tokens = c.asked.prompt.data();
    pass.count = c.asked.prompt.size() - 1;
    target.run(pass);
    for (int round = 0; round < 4; ++round) {
      std::int32_t more = 0;
      demand(omnidraft_generation_begin(g, 9, target.length(), 64, &more));
      while (more != 0) {
        const std::uint32_t* nodes = nullptr;
        std::size_t node_count = 0;
        demand(omnidraft_generation_pass(g, &pass));
        demand(omnidraft_generation_pass_nodes(g, &nodes, &node_count));
        EXPECT_EQ(node_count, c.asked.tree ? pass.rows : 0);
        const std::vector<float> logits = drafter.run(pass);
        demand(omnidraft_generation_drafted(g, logits.data(), logits.size(), 0));
        std::int32_t drew = 0;
        double confidence = 0;
        demand(omnidraft_generation_drew(g, &drew));
        demand(omnidraft_generation_confidence(g, &confidence));
        EXPECT_LE(drew, c.asked.tree ? 0 : 1);
        EXPECT_TRUE(c.asked.tree || (confidence > 0 && confidence <= 1));
        demand(omnidraft_generation_score_as(g, 0.5));
        demand(omnidraft_generation_draft_on(g, &more));
      }
      demand(omnidraft_generation_score(g, &pass));
      const std::vector<float> logits = target.run(pass);
      omnidraft_verdict verdict = OMNIDRAFT_VERDICT_INIT;
      demand(omnidraft_generation_scored(g, logits.data(), logits.size(), &verdict));
      const Tokens tokens(verdict.tokens, verdict.tokens + verdict.count);
      const std::uint32_t* rows = nullptr;
      std::size_t count = 0;
      demand(omnidraft_generation_rows(g, &rows, &count));
      ASSERT_EQ(count, tokens.size());
      for (std::size_t at = 0; at < count; ++at) {
        const float* row = logits.data() + rows[at] * width;
        EXPECT_EQ(tokens[at], std::max_element(row, row + width) - row);
      }
      const omnidraft_token* proposed = nullptr;
      const std::int32_t* parents = nullptr;
      demand(omnidraft_generation_proposed(g, &proposed, &parents, &count));
      EXPECT_EQ(count, verdict.ended != 0 ? count : pass.rows - 1);
      for (std::size_t at = 0; at < count; ++at) {
        EXPECT_LT(parents[at], static_cast<std::int32_t>(at));
      }
      omnidraft_settled settled = OMNIDRAFT_SETTLED_INIT;
      demand(omnidraft_generation_settle(g, 0, 0, &settled));
      std::size_t shown = 0;
      demand(omnidraft_generation_show(g, &shown));
      EXPECT_GE(shown, 1U);
      for (std::size_t at = 0; at < shown; ++at) {
        omnidraft_shown path = OMNIDRAFT_SHOWN_INIT;
        demand(omnidraft_generation_shown(g, at, &path));
        ASSERT_EQ(path.row_count, path.count + 1);
        ASSERT_LE(path.accepted, path.count);
        for (std::size_t token = 0; token < path.accepted; ++token) {
          EXPECT_EQ(path.tokens[token], tokens[token]);
        }
        const omnidraft_token* context = nullptr;
        demand(omnidraft_generation_context(g, &context, &count));
        EXPECT_LE(path.context, count);
        ++paths;
      }
      target.keep(settled.target);
      drafter.keep(settled.drafter);
    }
  }
  EXPECT_GE(paths, 4U * (kWorlds / 5));
}

}  // namespace
}  // namespace omnidraft::toy
