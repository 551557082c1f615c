#include "omnidraft/trie.h"

#include <gtest/gtest.h>

#include "worlds.h"

namespace omnidraft {
namespace {

using testing::make_pair;
using testing::observe;

class TrieTest : public ::testing::Test {
 protected:
  TrieTest() {
    observe(cache_, 1, {0, 1});     // "ab", inner: goes on below
    observe(cache_, 2, {0, 1, 1});  // "abb"
    observe(cache_, 2, {0, 1, 1});
    observe(cache_, 2, {0, 3});  // the same by another way, less used
    observe(cache_, 3, {4, 1});  // "cb": c is not direct
  }

  //                                  0    1    2   3     4                0    1     2      3     4
  std::shared_ptr<const VocabularyPair> pair_ =
      make_pair({"a", "b", "", "bb", "c"}, {"a", "ab", "abb", "cb", "b"});
  NgramCache cache_{pair_};
};

TEST_F(TrieTest, WalksDirectTokensAndNgrams) {
  const Trie trie(cache_, Trie::Spellings::kPrimary);
  const Node a = trie.child(trie.root(), 0);
  ASSERT_TRUE(a.exists());
  EXPECT_EQ(trie.token(a), 0);
  EXPECT_TRUE(trie.has_children(a));
  const Node ab = trie.child(a, 1);
  EXPECT_EQ(trie.token(ab), 1);
  EXPECT_TRUE(trie.has_children(ab));
  const Node abb = trie.child(ab, 1);
  EXPECT_EQ(trie.token(abb), 2);
  EXPECT_FALSE(trie.has_children(abb));
  EXPECT_FALSE(trie.child(abb, 0).exists());
  const Node c = trie.child(trie.root(), 4);
  EXPECT_EQ(trie.token(c), kNoToken);
  EXPECT_TRUE(trie.has_children(c));
  EXPECT_FALSE(trie.child(trie.root(), 2).exists());
  EXPECT_FALSE(trie.child(trie.root(), 3).exists());
  EXPECT_EQ(trie.token(trie.root()), kNoToken);
}

TEST_F(TrieTest, HasEverySpellingOnlyWhereAskedFor) {
  const Trie primary(cache_, Trie::Spellings::kPrimary);
  const Trie all(cache_, Trie::Spellings::kAll);
  EXPECT_FALSE(primary.child(primary.child(primary.root(), 0), 3).exists());
  const Node other = all.child(all.child(all.root(), 0), 3);
  ASSERT_TRUE(other.exists());
  EXPECT_EQ(all.token(other), 2);
  std::vector<Token> children;
  primary.children(primary.child(primary.root(), 0), children);
  EXPECT_EQ(children, std::vector<Token>({1}));
  all.children(all.child(all.root(), 0), children);
  EXPECT_EQ(children, std::vector<Token>({1, 3}));
}

TEST_F(TrieTest, ListsWhatLiesBelow) {
  const Trie trie(cache_, Trie::Spellings::kPrimary);
  std::vector<Token> below;
  trie.for_each_below(trie.child(trie.root(), 0), [&](Token token) { below.push_back(token); });
  EXPECT_EQ(below, std::vector<Token>({0, 1, 2}));
  std::vector<std::pair<Token, Token>> everything;
  trie.for_each([&](Token first, Token token) { everything.emplace_back(first, token); });
  const std::vector<std::pair<Token, Token>> wanted{{0, 0}, {1, 4}, {0, 1}, {0, 2}, {4, 3}};
  EXPECT_EQ(everything, wanted);
}

TEST_F(TrieTest, ATokenStandsAtOneNodeInEveryWorld) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const testing::World world(seed);
    const Trie trie(*world.cache, Trie::Spellings::kPrimary);
    std::set<Token> seen;
    trie.for_each([&](Token first, Token token) {
      EXPECT_TRUE(trie.is_root_child(first));
      EXPECT_TRUE(seen.insert(token).second) << "seed " << seed;
    });
  }
}

}  // namespace
}  // namespace omnidraft
