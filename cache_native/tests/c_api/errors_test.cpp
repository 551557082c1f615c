// Every status is reached, with a message that names what was wrong. See also the other tests here.
#include <cmath>
#include <cstdint>
#include <thread>

#include "everything.h"

namespace omnidraft::toy {
namespace {

TEST(Errors, TheVersionIsThatOfTheHeader) { EXPECT_EQ(omnidraft_version(), OMNIDRAFT_API_VERSION); }

TEST(Errors, AMessageIsOfItsThread) {
  EXPECT_INVALID(omnidraft_vocabulary_size(nullptr, nullptr), "vocabulary is NULL");
  std::thread([] { EXPECT_STREQ(omnidraft_last_error(), ""); }).join();
  EXPECT_STREQ(omnidraft_last_error(), "vocabulary is NULL");
}

TEST(Errors, NumbersOutsideTheirRangeAreNamed) {
  const Everything all;
  omnidraft_vocabulary* vocabulary = nullptr;
  const omnidraft_text text{"a", 1}, large{"a", SIZE_MAX};
  const std::uint8_t kind = 3;
  EXPECT_INVALID(omnidraft_vocabulary_new(&text, nullptr, nullptr, 0, &vocabulary), "at least one");
  EXPECT_INVALID(omnidraft_vocabulary_new(&text, nullptr, nullptr, SIZE_MAX, &vocabulary), "2^31");
  EXPECT_INVALID(omnidraft_vocabulary_new(&large, nullptr, nullptr, 1, &vocabulary), "4 GiB");
  EXPECT_INVALID(omnidraft_vocabulary_new(&text, &large, nullptr, 1, &vocabulary), "4 GiB");
  EXPECT_INVALID(omnidraft_vocabulary_new(&text, nullptr, &kind, 1, &vocabulary), "token_kind");
  omnidraft_pair* pair = nullptr;
  EXPECT_INVALID(omnidraft_pair_new(all.drafter.get(), all.target.get(), 2, &pair), "rule 2");
  omnidraft_cache* cache = nullptr;
  omnidraft_limits limits = OMNIDRAFT_LIMITS_INIT;
  limits.eviction = -1;
  EXPECT_INVALID(omnidraft_cache_new(all.pair.get(), &limits, &cache), "eviction -1");
  const std::size_t sizes[] = {1, 1};
  const double seconds[] = {1, 1}, none[] = {NAN, 1};
  const omnidraft_curve good{256, sizes, seconds, 1}, twice{256, sizes, seconds, 2},
      untimed{256, sizes, none, 1}, elsewhere{255, sizes, seconds, 1};
  const omnidraft_curve both[] = {good, good};
  omnidraft_costs* costs = nullptr;
  EXPECT_INVALID(omnidraft_costs_new(&good, 0, &good, &costs), "bands");
  EXPECT_INVALID(omnidraft_costs_new(both, 2, &good, &costs), "two curves");
  EXPECT_INVALID(omnidraft_costs_new(&twice, 1, &good, &costs), "two times");
  EXPECT_INVALID(omnidraft_costs_new(&untimed, 1, &good, &costs), "positive times");
  EXPECT_INVALID(omnidraft_costs_new(&elsewhere, 1, &good, &costs), "256");
  const Costs known = made<Costs>(omnidraft_costs_new, &good, std::size_t{1}, &good);
  double time = 0;
  EXPECT_INVALID(omnidraft_costs_seconds(known.get(), 1024, 1, &time), "up to 1024");
  omnidraft_policy* policy = nullptr;
  EXPECT_INVALID(omnidraft_policy_fixed(1, 1.5, &policy), "confidence");
  EXPECT_INVALID(omnidraft_policy_fixed(1, NAN, &policy), "confidence");
  omnidraft_lookup* lookup = nullptr;
  EXPECT_INVALID(omnidraft_lookup_new(1, 1, &lookup), "2 to 2^31");
  EXPECT_INVALID(omnidraft_lookup_new(SIZE_MAX, 2, &lookup), "2^31");
  omnidraft_sampling sampling = OMNIDRAFT_SAMPLING_INIT;
  EXPECT_EQ(omnidraft_sampling_check(&sampling), OMNIDRAFT_OK);
  sampling.top_p = 0;
  EXPECT_INVALID(omnidraft_sampling_check(&sampling), "top-p");
}

TEST(Errors, AGenerationSaysWhatDoesNotBelongTogether) {
  const Everything all, other;
  omnidraft_generation* generation = nullptr;
  const omnidraft_generation_options good = all.options();
  const auto refuses = [&](auto change, const char* message) {
    omnidraft_generation_options options = good;
    change(options);
    EXPECT_INVALID(omnidraft_generation_new(&options, &generation), message);
  };
  refuses([](auto& o) { o.vocabulary_size = 0; }, "vocabulary_size");
  refuses([](auto& o) { o.vocabulary_size = SIZE_MAX; }, "vocabulary_size");
  refuses([](auto& o) { o.vocabulary_size = 5; }, "target has 6 tokens");
  refuses([](auto& o) { o.verification = 3; }, "verification 3");
  refuses([](auto& o) { o.verification = OMNIDRAFT_EXACT; }, "temperature above 0");
  refuses([](auto& o) { o.policy = nullptr; }, "cache, a speller and a policy");
  refuses([&](auto& o) { o.speller = other.speller.get(); }, "two pairs");
  refuses([](auto& o) { o.max_length = SIZE_MAX; }, "max_length");
  refuses([](auto& o) { o.end_count = 1; }, "ends");
  refuses([](auto& o) { o.begin_count = 1; }, "begin");
  refuses([](auto& o) { o.held_count = 1; }, "held");
  const Lookup narrow = made<Lookup>(omnidraft_lookup_new, std::size_t{5}, std::size_t{9});
  refuses([&](auto& o) { o.lookup = narrow.get(); }, "lookup");
  omnidraft_sampling sampling = OMNIDRAFT_SAMPLING_INIT;
  sampling.temperature = -1;
  refuses([&](auto& o) { o.sampling = &sampling; }, "temperature");
  const omnidraft_token outside = 5;
  omnidraft_generation_options options = good;
  options.begin = &outside;
  options.begin_count = 1;
  EXPECT_TRUE(fails(omnidraft_generation_new(&options, &generation), OMNIDRAFT_INVALID_TOKEN,
                    "token 5 of begin"));
}

TEST(Errors, TokensOutsideTheirVocabularyAreNamed) {
  const Everything all;
  omnidraft_token token = 0;
  const omnidraft_pair* pair = all.pair.get();
  EXPECT_TRUE(fails(omnidraft_pair_to_target(pair, 5, &token), OMNIDRAFT_INVALID_TOKEN, "drafter"));
  EXPECT_TRUE(fails(omnidraft_pair_to_draft(pair, -1, &token), OMNIDRAFT_INVALID_TOKEN, "target"));
  const omnidraft_token tokens[] = {0, 1}, outside[] = {0, 9};
  omnidraft_cache* cache = all.cache.get();
  EXPECT_TRUE(
      fails(omnidraft_cache_observe(cache, 6, tokens, 2, nullptr), OMNIDRAFT_INVALID_TOKEN));
  EXPECT_TRUE(
      fails(omnidraft_cache_observe(cache, 2, outside, 2, nullptr), OMNIDRAFT_INVALID_TOKEN));
  const Generation g = generation(kWorld, {}, all.parts);
  EXPECT_TRUE(
      fails(omnidraft_generation_read(g.get(), outside, 2, nullptr), OMNIDRAFT_INVALID_TOKEN));
  EXPECT_EQ(omnidraft_generation_read(g.get(), tokens, 2, nullptr), OMNIDRAFT_OK) << "as if new";
  omnidraft_shown shown = OMNIDRAFT_SHOWN_INIT;
  EXPECT_TRUE(fails(omnidraft_generation_shown(g.get(), 0, &shown), OMNIDRAFT_INVALID_TOKEN));
  omnidraft_speller_options options = OMNIDRAFT_SPELLER_INIT;
  options.segment = segment;
  options.user = const_cast<World*>(&kWorld);
  options.special_targets = outside;
  options.special_drafts = tokens;
  options.special_count = 2;
  omnidraft_speller* speller = nullptr;
  EXPECT_TRUE(fails(omnidraft_speller_new(pair, &options, &speller), OMNIDRAFT_INVALID_TOKEN));
}

TEST(Errors, StructsMayBeLargerButNotOfAnySize) {
  omnidraft_sampling none = OMNIDRAFT_SAMPLING_INIT;
  none.struct_size = 0;
  EXPECT_INVALID(omnidraft_sampling_check(&none), "INIT macro");
  none.struct_size = SIZE_MAX;
  EXPECT_INVALID(omnidraft_sampling_check(&none), "INIT macro");
  struct {
    omnidraft_sampling known = OMNIDRAFT_SAMPLING_INIT;
    double added = 0;
  } newer;
  newer.known.struct_size = sizeof newer;
  EXPECT_EQ(omnidraft_sampling_check(&newer.known), OMNIDRAFT_OK);
  newer.added = 1;
  EXPECT_INVALID(omnidraft_sampling_check(&newer.known), "newer");
  struct {
    omnidraft_pass known = OMNIDRAFT_PASS_INIT;
    double added = 7;
  } result;
  result.known.struct_size = sizeof result;
  const Generation g = generation(kWorld, {}, {});
  EXPECT_EQ(omnidraft_generation_pass(g.get(), &result.known), OMNIDRAFT_OK);
  EXPECT_EQ(result.known.struct_size, sizeof result);
  EXPECT_EQ(result.added, 7);
}

std::int64_t answers(void* user, omnidraft_text, omnidraft_token* tokens, std::size_t) {
  tokens[0] = 0;
  return *static_cast<std::int64_t*>(user);
}

TEST(Errors, ACallbackMayFail) {
  const Everything all;
  std::int64_t count = 0;
  int released = 0;
  omnidraft_speller_options options = OMNIDRAFT_SPELLER_INIT;
  options.segment = answers;
  options.user = &count;
  omnidraft_speller* handle = nullptr;
  for (count = -3; count <= 2; count += 5) {
    EXPECT_TRUE(
        fails(omnidraft_speller_new(all.pair.get(), &options, &handle), OMNIDRAFT_CALLBACK));
  }
  options.segment = [](void*, omnidraft_text, omnidraft_token*, std::size_t) -> std::int64_t {
    throw 1;
  };
  EXPECT_TRUE(fails(omnidraft_speller_new(all.pair.get(), &options, &handle), OMNIDRAFT_FAILED));
  options.segment = [](void*, omnidraft_text, omnidraft_token*, std::size_t) -> std::int64_t {
    throw std::runtime_error("unforeseen");
  };
  EXPECT_TRUE(fails(omnidraft_speller_new(all.pair.get(), &options, &handle), OMNIDRAFT_FAILED,
                    "unforeseen"));
  options.segment = [](void*, omnidraft_text, omnidraft_token* tokens, std::size_t) {
    tokens[0] = 99;
    return std::int64_t{1};
  };
  EXPECT_TRUE(
      fails(omnidraft_speller_new(all.pair.get(), &options, &handle), OMNIDRAFT_INVALID_TOKEN));
  EXPECT_EQ(handle, nullptr);

  // It fails later, where a prompt needs it: that generation ends, the speller goes on.
  count = 0;
  options.segment = answers;
  static int* counter = nullptr;
  counter = &released;
  options.release = [](void*) { ++*counter; };
  Speller speller = made<Speller>(omnidraft_speller_new, all.pair.get(), &options);
  Parts parts = all.parts;
  parts.speller = speller.get();
  Generation generation = toy::generation(kWorld, {}, parts);
  count = -1;
  const omnidraft_token prompt[] = {0, 2};
  EXPECT_TRUE(fails(omnidraft_generation_read(generation.get(), prompt, 2, nullptr),
                    OMNIDRAFT_CALLBACK, "segment failed with -1"));
  EXPECT_TRUE(fails(omnidraft_generation_read(generation.get(), prompt, 2, nullptr),
                    OMNIDRAFT_WRONG_ORDER, "another generation"));
  speller.reset();
  EXPECT_EQ(released, 0) << "the generation may still call it";
  generation.reset();
  EXPECT_EQ(released, 1);
}

}  // namespace
}  // namespace omnidraft::toy
