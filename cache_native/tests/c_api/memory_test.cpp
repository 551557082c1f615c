// Handles keep alive what they rest on; and whichever allocation fails, a call says so and leaves
// nothing behind.
#include "everything.h"
#include "failing_new.h"

namespace omnidraft::toy {
namespace {

// Fails each of the call's allocations in turn, until it needs no further one. Returns how many it
// needs.
template <typename Call>
std::size_t starve(Call call) {
  for (std::size_t count = 1;; ++count) {
    failing = count;
    const omnidraft_status status = call();
    const bool was_enough = std::exchange(failing, 0) > 0;
    if (was_enough) {
      EXPECT_EQ(status, OMNIDRAFT_OK);
      return count - 1;
    }
    EXPECT_TRUE(fails(status, OMNIDRAFT_NO_MEMORY, "memory")) << "allocation " << count;
  }
}

TEST(Memory, ThatIsMissingIsNamed) {
  const Everything all;
  const omnidraft_pair* pair = all.pair.get();
  const omnidraft_text text{"a surface that is long enough for memory of its own", 51};
  omnidraft_vocabulary* vocabulary = nullptr;
  EXPECT_GT(
      starve([&] { return omnidraft_vocabulary_new(&text, nullptr, nullptr, 1, &vocabulary); }),
      3U);
  omnidraft_pair* paired = nullptr;
  EXPECT_GT(starve([&] { return omnidraft_pair_new(vocabulary, vocabulary, 0, &paired); }), 3U);
  omnidraft_cache* cache = nullptr;
  EXPECT_GT(starve([&] { return omnidraft_cache_new(pair, nullptr, &cache); }), 2U);
  omnidraft_lookup* lookup = nullptr;
  EXPECT_GT(starve([&] { return omnidraft_lookup_new(6, 9, &lookup); }), 2U);
  const std::size_t one = 1;
  const double second = 1;
  const omnidraft_curve curve{256, &one, &second, 1};
  omnidraft_costs* costs = nullptr;
  EXPECT_GT(starve([&] { return omnidraft_costs_new(&curve, 1, &curve, &costs); }), 5U);
  omnidraft_policy* policy = nullptr;
  EXPECT_GT(starve([&] { return omnidraft_policy_cost_aware(costs, &policy); }), 2U);
  const omnidraft_generation_options options = all.options();
  omnidraft_generation* generation = nullptr;
  EXPECT_GT(starve([&] { return omnidraft_generation_new(&options, &generation); }), 3U);
  omnidraft_vocabulary_free(vocabulary);
  omnidraft_pair_free(paired);
  omnidraft_cache_free(cache);
  omnidraft_lookup_free(lookup);
  omnidraft_costs_free(costs);
  omnidraft_policy_free(policy);
  omnidraft_generation_free(generation);
}

// Whatever a generation was doing: it can be freed, and the next one answers as ever by the same
// cache and policy.
TEST(Memory, ThatEndsInARoundEndsNothingElse) {
  std::size_t failed = 0;
  for (std::size_t count = 1; count < 400; ++count) {
    SCOPED_TRACE(count);
    const Everything all;
    Asked asked;
    asked.tree = count % 2 == 1;
    asked.prompt = {0, 1, 2};
    failing = count;
    try {
      toy::answer(kWorld, asked, all.parts);
    } catch (const std::exception&) {
      ++failed;
    }
    failing = 0;
    ASSERT_EQ(toy::answer(kWorld, asked, all.parts).tokens,
              toy::answer(kWorld, asked, Parts{}).tokens);
    const std::uint8_t* bytes = nullptr;
    std::size_t size = 0;
    demand(omnidraft_cache_to_bytes(all.cache.get(), &bytes, &size));
    const Cache again =
        made<Cache>(omnidraft_cache_from_bytes, bytes, size, all.pair.get(), nullptr);
    ASSERT_NE(again, nullptr);
  }
  EXPECT_GT(failed, 300U);
}

TEST(Handles, MayBeFreedInAnyOrder) {
  Asked asked;
  asked.sampling.temperature = 1;
  asked.tree = true;
  asked.prompt = {0, 1, 2};
  const Answer wanted = toy::answer(kWorld, asked, Everything().parts);
  std::vector<int> order{0, 1, 2, 3, 4};
  do {
    Everything all;
    const Generation made = generation(kWorld, asked, all.parts);
    for (const int handle : order) {
      switch (handle) {
        case 0:
          all.pair.reset();
          all.drafter.reset();
          all.target.reset();
          break;
        case 1:
          all.cache.reset();
          break;
        case 2:
          all.speller.reset();
          break;
        case 3:
          all.policy.reset();
          break;
        default:
          all.lookup.reset();
      }
    }
    // The generation works without them.
    ASSERT_EQ(run(kWorld, asked, made.get()).tokens, wanted.tokens);
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace
}  // namespace omnidraft::toy
