#include "omnidraft/ngram_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <tuple>

#include "omnidraft/chance.h"
#include "omnidraft/draft.h"
#include "worlds.h"

namespace omnidraft {
namespace {

namespace fs = std::filesystem;
using testing::make_pair;
using testing::observe;

class NgramCacheTest : public ::testing::Test {
 protected:
  // A file of this process: tests run side by side.
  NgramCacheTest()
      : path_(fs::temp_directory_path() /
              ("omnidraft-ngram-cache-test-" + std::to_string(getpid()) + ".odn")) {}
  ~NgramCacheTest() override {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }

  std::string read() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

  fs::path path_;
  std::shared_ptr<const VocabularyPair> pair_ =
      make_pair({"a", "b", "ab", ""}, {"a", "aab", "abab", "bab", "", "bab"});
};

TEST_F(NgramCacheTest, CountsUsesAndKnowsThePrimarySpelling) {
  NgramCache cache(pair_);
  EXPECT_TRUE(observe(cache, 1, {0, 0, 1}));
  EXPECT_FALSE(observe(cache, 1, {0, 0, 1}));
  EXPECT_TRUE(observe(cache, 1, {0, 2}));
  ASSERT_EQ(cache.size(), 2U);
  EXPECT_TRUE(cache.ngram(0).primary);
  EXPECT_EQ(cache.ngram(0).uses, 2U);
  observe(cache, 1, {0, 2});
  EXPECT_TRUE(cache.ngram(0).primary);  // as often is not more often
  const std::uint64_t version = cache.version();
  observe(cache, 1, {0, 2});
  EXPECT_FALSE(cache.ngram(0).primary);
  EXPECT_TRUE(cache.ngram(1).primary);
  EXPECT_NE(cache.version(), version);
}

TEST_F(NgramCacheTest, RefusesWhatIsNoNgram) {
  NgramCache cache(pair_);
  EXPECT_FALSE(observe(cache, 1, {0}));
  EXPECT_FALSE(observe(cache, 0, {0, 0}));
  EXPECT_FALSE(observe(cache, 1, {0, 1}));
  EXPECT_FALSE(observe(cache, 1, {0, 0, 1, 1}));
  EXPECT_FALSE(observe(cache, 1, {0, 3, 2}));
  EXPECT_FALSE(observe(cache, 4, {0, 1}));
  EXPECT_TRUE(observe(cache, 3, {1, 2}));
  EXPECT_FALSE(observe(cache, 5, {1, 2}));
  EXPECT_THROW(observe(cache, 6, {0, 0}), std::out_of_range);
  EXPECT_THROW(observe(cache, 1, {0, -1}), std::out_of_range);
  EXPECT_EQ(cache.size(), 1U);
}

TEST_F(NgramCacheTest, EvictsByUseOrByCount) {
  for (const Eviction eviction : {Eviction::kLru, Eviction::kLfu}) {
    NgramCache cache(pair_, {2, 1 << 20, eviction});
    observe(cache, 1, {0, 2});
    observe(cache, 1, {0, 2});
    observe(cache, 2, {2, 2});
    observe(cache, 3, {1, 2});
    ASSERT_EQ(cache.size(), 2U);
    EXPECT_EQ(cache.evictions(), 1U);
    EXPECT_EQ(cache.ngram(0).target, eviction == Eviction::kLfu ? 1 : 3);
    EXPECT_EQ(cache.ngram(1).target, eviction == Eviction::kLfu ? 3 : 2);
    EXPECT_EQ(cache.starts().test(0), eviction == Eviction::kLfu);
  }
}

TEST_F(NgramCacheTest, StaysWithinItsBoundsOverALongLife) {
  std::vector<std::string> target;
  for (int i = 0; i < 4096; ++i) {
    std::string word;
    for (int bit = 0; bit < 12; ++bit) {
      word += ((i >> bit) & 1) != 0 ? 'a' : 'b';
    }
    target.push_back(word);
  }
  const auto pair = make_pair({"a", "b", "ab", "aab"}, target);
  const std::size_t fixed = NgramCache(pair).memory_bytes();
  for (const Eviction eviction : {Eviction::kLru, Eviction::kLfu}) {
    NgramCache cache(pair, {700, fixed + 40000, eviction});
    Generator random(1);
    for (std::uint64_t i = 0; i < 20000 / testing::kShare; ++i) {
      const auto token = static_cast<Token>(random.next() % 4096);
      std::vector<Token> drafts;
      for (std::size_t at = 0; at < 12;) {
        const std::string& word = target[static_cast<std::size_t>(token)];
        const bool three = word.compare(at, 3, "aab") == 0 && random.next() % 2 == 0;
        const bool two = !three && word.compare(at, 2, "ab") == 0 && random.next() % 2 == 0;
        drafts.push_back(three ? 3 : two ? 2 : word[at] == 'a' ? 0 : 1);
        at += three ? 3 : two ? 2 : 1;
      }
      observe(cache, token, drafts);
      ASSERT_LE(cache.memory_bytes(), fixed + 40000);
      ASSERT_LE(cache.size(), 700U);
    }
    ASSERT_GT(cache.size(), 400U);
    // The order, the primary spellings and the bitsets are right to the end.
    std::map<Token, int> primaries;
    Bitset starts(4);
    for (std::size_t i = 0; i < cache.size(); ++i) {
      const auto ngram = cache.ngram(i);
      if (i > 0) {
        const auto before = cache.ngram(i - 1);
        EXPECT_TRUE(std::lexicographical_compare(before.drafts.begin(), before.drafts.end(),
                                                 ngram.drafts.begin(), ngram.drafts.end()));
      }
      std::string spelled;
      for (const Token draft : ngram.drafts) {
        spelled += pair->drafter().surface(draft);
      }
      EXPECT_EQ(spelled, pair->target().surface(ngram.target));
      primaries[ngram.target] += ngram.primary ? 1 : 0;
      starts.set(static_cast<std::size_t>(ngram.drafts[0]));
    }
    for (const auto& [token, count] : primaries) {
      EXPECT_EQ(count, 1) << token;
    }
    EXPECT_EQ(starts.words(), cache.starts().words());
  }
}

// Whether a drafter that says these draft tokens and no other proposes one target token for them.
bool is_merged(const NgramCache& cache, const std::vector<Token>& drafts) {
  Draft draft(cache, Verification::kGreedy, 0);
  Generator chance(0);
  for (const Token token : drafts) {
    std::vector<float> row(cache.pair().drafter().size(), -std::numeric_limits<float>::infinity());
    row[static_cast<std::size_t>(token)] = 0;
    draft.step({row.data(), row.size()}, chance);
  }
  const Proposal proposal = draft.finish();
  return proposal.drafts == drafts && proposal.positions.size() == 1 &&
         proposal.positions[0].draft_count == drafts.size();
}

using Entries = std::vector<std::tuple<Token, std::vector<Token>, bool, bool>>;

// What a trie is made of, after checking that everything in the cache agrees with the doubts.
Entries checked(const NgramCache& cache, const std::map<std::vector<Token>, int>& doubts) {
  Entries entries;
  Bitset starts(cache.pair().drafter().size()), primary_starts = starts;
  struct Spellings {
    int primary = 0;
    std::uint32_t uses = 0, most_uses = 0;  // of the primary one, of any trusted one
    bool primary_trusted = false, any_trusted = false;
  };
  std::map<Token, Spellings> spellings;
  for (std::size_t i = 0; i < cache.size(); ++i) {
    const NgramCache::Ngram ngram = cache.ngram(i);
    const std::vector<Token> drafts(ngram.drafts.begin(), ngram.drafts.end());
    const bool trusted = doubts.at(drafts) < 2;
    EXPECT_EQ(ngram.trusted, trusted);
    EXPECT_EQ(is_merged(cache, drafts), trusted);
    Spellings& of_target = spellings[ngram.target];
    if (trusted) {
      starts.set(static_cast<std::size_t>(drafts[0]));
      of_target.any_trusted = true;
      of_target.most_uses = std::max(of_target.most_uses, ngram.uses);
    }
    if (ngram.primary) {
      ++of_target.primary;
      of_target.primary_trusted = trusted;
      of_target.uses = ngram.uses;
      if (trusted) {
        primary_starts.set(static_cast<std::size_t>(drafts[0]));
      }
    }
    entries.emplace_back(ngram.target, drafts, ngram.primary, trusted);
  }
  for (const auto& [target, of_target] : spellings) {
    EXPECT_EQ(of_target.primary, 1) << target;
    EXPECT_EQ(of_target.primary_trusted, of_target.any_trusted) << target;
    if (of_target.any_trusted) {
      EXPECT_EQ(of_target.uses, of_target.most_uses) << target;
    }
  }
  EXPECT_EQ(cache.starts().words(), starts.words());
  EXPECT_EQ(cache.primary_starts().words(), primary_starts.words());
  return entries;
}

TEST_F(NgramCacheTest, WhatIsRefusedLeavesTheTrieUntilItIsSaid) {
  const std::vector<std::pair<Token, std::vector<Token>>> ngrams{
      {1, {0, 0, 1}}, {1, {0, 2}},    {2, {0, 1, 0, 1}}, {2, {2, 2}}, {2, {0, 1, 2}},
      {2, {2, 0, 1}}, {3, {1, 0, 1}}, {3, {1, 2}},       {5, {1, 2}}, {5, {1, 0, 1}}};
  for (std::uint64_t seed = 0; seed < 40 / testing::kShare; ++seed) {
    SCOPED_TRACE(seed);
    const CacheLimits limits{seed % 8, 1 << 20, seed % 2 == 0 ? Eviction::kLru : Eviction::kLfu};
    NgramCache cache(pair_, limits);
    Generator random(seed);
    std::map<std::vector<Token>, int> doubts;
    Entries before;
    for (int i = 0; i < 150; ++i) {
      const auto& [target, drafts] = ngrams[random.next() % ngrams.size()];
      const std::uint64_t version = cache.version();
      const std::uint64_t what = random.next() % 4;
      if (what == 0) {
        observe(cache, target, drafts);
      } else {
        cache.judge({drafts.data(), drafts.size()}, what == 1);
        if (const auto doubt = doubts.find(drafts); doubt != doubts.end()) {
          doubt->second = std::min(2, std::max(0, doubt->second + (what == 1 ? -1 : 1)));
        }
      }
      std::map<std::vector<Token>, int> held;  // what was evicted is forgotten
      for (std::size_t j = 0; j < cache.size(); ++j) {
        const auto known = cache.ngram(j).drafts;
        const std::vector<Token> path(known.begin(), known.end());
        held[path] = doubts[path];
      }
      doubts = std::move(held);
      const Entries now = checked(cache, doubts);
      if (now != before) {
        EXPECT_NE(cache.version(), version);
      }
      EXPECT_EQ(checked(NgramCache::from_bytes(cache.to_bytes(), pair_, limits), doubts), now);
      before = now;
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST_F(NgramCacheTest, NarrowFindsTheRangeOfAPrefix) {
  NgramCache cache(pair_);
  observe(cache, 2, {0, 1, 0, 1});
  observe(cache, 2, {0, 1, 2});
  observe(cache, 1, {0, 2});
  const auto [begin, end] = cache.narrow(0, 3, 0, 0);
  EXPECT_EQ(end - begin, 3U);
  const auto inner = cache.narrow(begin, end, 1, 1);
  EXPECT_EQ(inner.second - inner.first, 2U);
  const auto none = cache.narrow(begin, end, 1, 3);
  EXPECT_EQ(none.first, none.second);
}

TEST_F(NgramCacheTest, SavesAndLoads) {
  NgramCache cache(pair_);
  observe(cache, 1, {0, 2});
  observe(cache, 2, {2, 2});
  observe(cache, 2, {2, 2});
  cache.save(path_);
  const NgramCache loaded = NgramCache::load(path_, pair_);
  ASSERT_EQ(loaded.size(), 2U);
  EXPECT_EQ(loaded.ngram(1).uses, 2U);
  EXPECT_EQ(loaded.ngram(0).target, 1);
  EXPECT_THROW(NgramCache::load(path_, make_pair({"a", "b"}, {"ab"})), CacheMismatchError);
}

TEST_F(NgramCacheTest, RefusesEveryDamage) {
  NgramCache cache(pair_);
  observe(cache, 1, {0, 2});
  observe(cache, 2, {2, 2});
  cache.save(path_);
  const std::string good = read();
  for (std::size_t length = 0; length < good.size(); ++length) {
    write(good.substr(0, length));
    EXPECT_THROW(NgramCache::load(path_, pair_), CacheDamagedError) << length;
  }
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    write(bad);
    EXPECT_THROW(NgramCache::load(path_, pair_), CacheDamagedError) << i;
  }
  write(good + "x");
  EXPECT_THROW(NgramCache::load(path_, pair_), CacheDamagedError);
}

TEST_F(NgramCacheTest, ReportsWhatTheFileSystemRefuses) {
  const NgramCache cache(pair_);
  EXPECT_THROW(cache.save(path_ / "inside"), fs::filesystem_error);
  EXPECT_THROW(NgramCache::load(path_, pair_), fs::filesystem_error);
}

}  // namespace
}  // namespace omnidraft
