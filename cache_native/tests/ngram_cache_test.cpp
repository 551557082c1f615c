#include "omnidraft/ngram_cache.h"

#include <gtest/gtest.h>

#include <fstream>

#include "omnidraft/chance.h"
#include "worlds.h"

namespace omnidraft {
namespace {

namespace fs = std::filesystem;
using testing::make_pair;
using testing::observe;

class NgramCacheTest : public ::testing::Test {
 protected:
  NgramCacheTest() : path_(fs::temp_directory_path() / "omnidraft-ngram-cache-test.odn") {}
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
