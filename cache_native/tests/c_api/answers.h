// Whole answers through the C interface.
#pragma once

#include <functional>

#include "toy.h"

namespace omnidraft::toy {

// How an answer is made, beside the models.
struct Asked {
  Tokens prompt{0};
  Tokens ends;
  std::size_t max_new = 24, target_max = 64, drafter_max = 64;
  omnidraft_sampling sampling = OMNIDRAFT_SAMPLING_INIT;
  std::int32_t verification = OMNIDRAFT_FOLLOW;
  std::uint64_t seed = 0;
  bool tree = false, scores_trees = false;
  Tokens begin;
};

struct Answer {
  Tokens tokens;
  std::vector<int> origins;
  std::vector<std::size_t> rows, passes;  // of the target's passes; tokens of the drafter's
  std::size_t inserted = 0;
};

// What speculation needs beside its drafter; without a cache the answer is decoded plainly.
struct Parts {
  omnidraft_cache* cache = nullptr;
  omnidraft_speller* speller = nullptr;
  omnidraft_policy* policy = nullptr;
  omnidraft_lookup* lookup = nullptr;
};

inline Generation generation(const World& world, const Asked& asked, const Parts& parts) {
  omnidraft_generation_options options = OMNIDRAFT_GENERATION_INIT;
  options.vocabulary_size = world.target.size();
  options.sampling = &asked.sampling;
  options.verification = asked.verification;
  options.seed = asked.seed;
  options.ends = asked.ends.data();
  options.end_count = asked.ends.size();
  options.cache = parts.cache;
  options.speller = parts.speller;
  options.policy = parts.policy;
  options.lookup = parts.lookup;
  options.begin = asked.begin.data();
  options.begin_count = asked.begin.size();
  options.tree = asked.tree ? 1 : 0;
  options.scores_trees = asked.scores_trees ? 1 : 0;
  options.max_length = asked.drafter_max;
  return made<Generation>(omnidraft_generation_new, &options);
}

// What is done after a pass of the drafter; true: it is not asked to go on.
using Interference = std::function<bool(omnidraft_generation*)>;

// Seconds that passes are said to take.
inline double drafter_seconds(std::size_t tokens) {
  return 0.001 + 0.0001 * static_cast<double>(tokens);
}
inline double target_seconds(std::size_t tokens) {
  return 0.01 + 0.001 * static_cast<double>(tokens);
}

inline Answer run(const World& world, const Asked& asked, omnidraft_generation* g,
                  const Interference& interfere = nullptr) {
  Model target(world, true), drafter(world, false);
  Answer answer;
  demand(omnidraft_generation_read(g, asked.prompt.data(), asked.prompt.size(), &answer.inserted));
  omnidraft_pass pass = OMNIDRAFT_PASS_INIT;
  pass.tokens = asked.prompt.data();
  pass.count = asked.prompt.size() - 1;
  target.run(pass);
  while (answer.tokens.size() < asked.max_new && target.length() < asked.target_max) {
    std::int32_t more = 0;
    demand(omnidraft_generation_begin(g, asked.max_new - answer.tokens.size() - 1, target.length(),
                                      asked.target_max, &more));
    while (more != 0) {
      demand(omnidraft_generation_pass(g, &pass));
      const std::vector<float> logits = drafter.run(pass);
      EXPECT_LE(drafter.length(), asked.drafter_max);
      demand(omnidraft_generation_drafted(g, logits.data(), logits.size(),
                                          drafter_seconds(pass.count)));
      answer.passes.push_back(pass.count);
      if (interfere && interfere(g)) {
        break;
      }
      demand(omnidraft_generation_draft_on(g, &more));
    }
    demand(omnidraft_generation_score(g, &pass));
    answer.rows.push_back(pass.rows);
    const std::vector<float> logits = target.run(pass);
    EXPECT_LE(target.length(), asked.target_max);
    omnidraft_verdict verdict = OMNIDRAFT_VERDICT_INIT;
    demand(omnidraft_generation_scored(g, logits.data(), logits.size(), &verdict));
    EXPECT_EQ(verdict.count, verdict.accepted + 1);
    answer.tokens.insert(answer.tokens.end(), verdict.tokens, verdict.tokens + verdict.count);
    answer.origins.insert(answer.origins.end(), verdict.origins, verdict.origins + verdict.count);
    const bool ended = verdict.ended != 0;
    omnidraft_settled settled = OMNIDRAFT_SETTLED_INIT;
    demand(omnidraft_generation_settle(g, target_seconds(pass.count), 0, &settled));
    answer.inserted += settled.inserted;
    target.keep(settled.target);
    drafter.keep(settled.drafter);
    if (ended) {
      break;
    }
  }
  return answer;
}

inline Answer answer(const World& world, const Asked& asked, const Parts& parts) {
  return run(world, asked, generation(world, asked, parts).get());
}

}  // namespace omnidraft::toy
