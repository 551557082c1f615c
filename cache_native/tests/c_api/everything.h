// A world with all handles over it, and what is expected of a call that fails.
#pragma once

#include "answers.h"

namespace omnidraft::toy {

inline const World kWorld{7, {"a", "b", "bb", "\n", ""}, {"a", "b", "ab", "abb", "\n", ""}};

// A pair and all that rests on it.
struct Everything {
  Vocabulary drafter = vocabulary(kWorld.drafter), target = vocabulary(kWorld.target);
  Pair pair = toy::pair(kWorld);
  Cache cache = made<Cache>(omnidraft_cache_new, pair.get(), nullptr);
  Speller speller = toy::speller(kWorld, pair.get());
  Policy policy = made<Policy>(omnidraft_policy_fixed, std::size_t{3}, 0.0);
  Lookup lookup = made<Lookup>(omnidraft_lookup_new, kWorld.target.size(), std::size_t{100});
  Parts parts{cache.get(), speller.get(), policy.get(), lookup.get()};

  omnidraft_generation_options options() const {
    omnidraft_generation_options options = OMNIDRAFT_GENERATION_INIT;
    options.vocabulary_size = kWorld.target.size();
    options.cache = cache.get();
    options.speller = speller.get();
    options.policy = policy.get();
    options.lookup = lookup.get();
    options.max_length = 64;
    return options;
  }
};

inline ::testing::AssertionResult fails(omnidraft_status got, omnidraft_status wanted,
                                        const std::string& message = "") {
  const std::string said = omnidraft_last_error();
  if (got == wanted && said.find(message) != std::string::npos) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "status " << got << ": " << said;
}

#define EXPECT_INVALID(call, message) EXPECT_TRUE(fails(call, OMNIDRAFT_INVALID_ARGUMENT, message))

}  // namespace omnidraft::toy
