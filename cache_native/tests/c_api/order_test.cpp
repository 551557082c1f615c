// A generation takes its calls in their order, and what is wrong with them may be mended.
#include <cmath>
#include <cstdint>
#include <utility>

#include "everything.h"

namespace omnidraft::toy {
namespace {

TEST(Errors, CallsOutOfOrderChangeNothing) {
  const Everything all;
  for (const bool drafts : {false, true}) {
    for (const bool tree : {false, true}) {
      Asked asked;
      asked.tree = tree;
      const Generation made = generation(kWorld, asked, drafts ? all.parts : Parts{});
      omnidraft_generation* g = made.get();
      std::int32_t flag = 0;
      std::size_t count = 0;
      omnidraft_pass pass = OMNIDRAFT_PASS_INIT;
      omnidraft_verdict verdict = OMNIDRAFT_VERDICT_INIT;
      omnidraft_settled settled = OMNIDRAFT_SETTLED_INIT;
      const omnidraft_token prompt[] = {0, 1};
      // All but those whose turn it is.
      const auto others = [&](const std::string& turn) {
        std::vector<float> row(kWorld.drafter.size());
        const std::vector<std::pair<std::string, omnidraft_status>> all_calls{
            {"read",
             turn == "read" ? OMNIDRAFT_OK : omnidraft_generation_read(g, prompt, 2, nullptr)},
            {"begin",
             turn == "begin" ? OMNIDRAFT_OK : omnidraft_generation_begin(g, 5, 1, 50, &flag)},
            {"drafted", turn == "drafted"
                            ? OMNIDRAFT_OK
                            : omnidraft_generation_drafted(g, row.data(), row.size(), 0)},
            {"score_as", turn == "draft_on" ? OMNIDRAFT_OK : omnidraft_generation_score_as(g, 0.5)},
            {"draft_on",
             turn == "draft_on" ? OMNIDRAFT_OK : omnidraft_generation_draft_on(g, &flag)},
            {"score", turn == "drafted" || turn == "draft_on" || turn == "score"
                          ? OMNIDRAFT_OK
                          : omnidraft_generation_score(g, &pass)},
            {"scored", turn == "scored" ? OMNIDRAFT_OK
                                        : omnidraft_generation_scored(g, nullptr, 0, &verdict)},
            {"end_at",
             turn == "settle" ? OMNIDRAFT_OK : omnidraft_generation_end_at(g, 0, &verdict)},
            {"settle",
             turn == "settle" ? OMNIDRAFT_OK : omnidraft_generation_settle(g, 0, 0, &settled)},
            {"show", turn == "read" || turn == "begin" ? OMNIDRAFT_OK
                                                       : omnidraft_generation_show(g, &count)}};
        for (const auto& [call, status] : all_calls) {
          EXPECT_TRUE(status == OMNIDRAFT_OK || status == OMNIDRAFT_WRONG_ORDER)
              << call << " at " << turn << ": " << status;
        }
      };
      others("read");
      EXPECT_NE(std::string(omnidraft_last_error()).find("awaits read()"), std::string::npos);
      demand(omnidraft_generation_read(g, prompt, 2, nullptr));
      Model target(kWorld, true), drafter(kWorld, false);
      pass.tokens = prompt;
      pass.count = 1;
      target.run(pass);
      for (int round = 0; round < 3; ++round) {
        others("begin");
        std::int32_t more = 0;
        demand(omnidraft_generation_begin(g, 9, target.length(), 50, &more));
        EXPECT_EQ(more, drafts ? 1 : 0);
        while (more != 0) {
          others("drafted");
          demand(omnidraft_generation_pass(g, &pass));
          const std::vector<float> logits = drafter.run(pass);
          demand(omnidraft_generation_drafted(g, logits.data(), logits.size(), 0));
          others("draft_on");
          demand(omnidraft_generation_draft_on(g, &more));
        }
        others("score");
        demand(omnidraft_generation_score(g, &pass));
        others("scored");
        const std::vector<float> logits = target.run(pass);
        demand(omnidraft_generation_scored(g, logits.data(), logits.size(), &verdict));
        others("settle");
        demand(omnidraft_generation_settle(g, 0, 0, &settled));
        target.keep(settled.target);
        drafter.keep(settled.drafter);
      }
    }
  }
}

TEST(Errors, LogitsOfAnotherShapeOrNoNumbersMayBeGivenAgain) {
  const Everything all;
  for (const bool tree : {false, true}) {
    Asked asked;
    asked.tree = tree;
    const Generation made = generation(kWorld, asked, all.parts);
    omnidraft_generation* g = made.get();
    const omnidraft_token prompt[] = {0, 1};
    demand(omnidraft_generation_read(g, prompt, 2, nullptr));
    std::int32_t more = 0;
    EXPECT_INVALID(omnidraft_generation_begin(g, 9, 50, 50, &more), "no room");
    EXPECT_INVALID(omnidraft_generation_begin(g, 9, 1, SIZE_MAX, &more), "max_length");
    demand(omnidraft_generation_begin(g, 9, 1, 50, &more));
    ASSERT_EQ(more, 1);
    Model drafter(kWorld, false), target(kWorld, true);
    omnidraft_pass pass = OMNIDRAFT_PASS_INIT;
    demand(omnidraft_generation_pass(g, &pass));
    std::vector<float> logits = drafter.run(pass);
    EXPECT_INVALID(omnidraft_generation_drafted(g, logits.data(), logits.size() - 1, 0), "[1, 5]");
    EXPECT_INVALID(omnidraft_generation_drafted(g, logits.data(), logits.size(), NAN), "seconds");
    EXPECT_INVALID(omnidraft_generation_drafted(g, logits.data(), logits.size(), -1), "seconds");
    demand(omnidraft_generation_drafted(g, logits.data(), logits.size(), 0));
    EXPECT_INVALID(omnidraft_generation_score_as(g, 2), "probability");
    demand(omnidraft_generation_draft_on(g, &more));
    if (more != 0) {
      demand(omnidraft_generation_pass(g, &pass));
      logits = drafter.run(pass);
      logits[0] = NAN;
      EXPECT_TRUE(fails(omnidraft_generation_drafted(g, logits.data(), logits.size(), 0),
                        OMNIDRAFT_NOT_NUMBERS));
    }
    demand(omnidraft_generation_fail(g));
    demand(omnidraft_generation_score(g, &pass));
    const omnidraft_token first = 0;
    omnidraft_pass body = OMNIDRAFT_PASS_INIT;
    body.tokens = &first;
    body.count = 1;
    target.run(body);
    logits = target.run(pass);
    omnidraft_verdict verdict = OMNIDRAFT_VERDICT_INIT;
    EXPECT_INVALID(omnidraft_generation_scored(g, logits.data(), 1, &verdict), "shape");
    const float number = std::exchange(logits[0], HUGE_VALF);
    EXPECT_TRUE(fails(omnidraft_generation_scored(g, logits.data(), logits.size(), &verdict),
                      OMNIDRAFT_NOT_NUMBERS));
    logits[0] = number;
    demand(omnidraft_generation_scored(g, logits.data(), logits.size(), &verdict));
    EXPECT_TRUE(fails(omnidraft_generation_end_at(g, 9, &verdict), OMNIDRAFT_INVALID_TOKEN));
    omnidraft_settled settled = OMNIDRAFT_SETTLED_INIT;
    EXPECT_INVALID(omnidraft_generation_settle(g, -1, 0, &settled), "seconds");
    EXPECT_INVALID(omnidraft_generation_settle(g, 0, NAN, &settled), "seconds");
    demand(omnidraft_generation_settle(g, 0, 0, &settled));
    std::int32_t drafts = 1;
    demand(omnidraft_generation_drafts(g, &drafts));
    EXPECT_EQ(drafts, 0) << "the drafter failed";
    demand(omnidraft_generation_begin(g, 9, settled.target.length, 50, &more));
    EXPECT_EQ(more, 0);
  }
}

TEST(Errors, ACacheThatChangesWithinARoundEndsTheGeneration) {
  const Everything all;
  const Generation g = generation(kWorld, {}, all.parts);
  const omnidraft_token prompt[] = {0};
  demand(omnidraft_generation_read(g.get(), prompt, 1, nullptr));
  std::int32_t more = 0;
  demand(omnidraft_generation_begin(g.get(), 9, 0, 50, &more));
  const std::vector<float> row = kWorld.row(false, {0});
  demand(omnidraft_generation_drafted(g.get(), row.data(), row.size(), 0));
  const omnidraft_token drafts[] = {0, 1};
  demand(omnidraft_cache_observe(all.cache.get(), 2, drafts, 2, &more));
  EXPECT_EQ(more, 1);
  omnidraft_pass pass = OMNIDRAFT_PASS_INIT;
  EXPECT_INVALID(omnidraft_generation_score(g.get(), &pass), "cache changed");
  EXPECT_TRUE(fails(omnidraft_generation_score(g.get(), &pass), OMNIDRAFT_WRONG_ORDER, "midway"));
}

}  // namespace
}  // namespace omnidraft::toy
