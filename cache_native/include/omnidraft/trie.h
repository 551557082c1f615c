// The trie over draft tokens that holds every direct token and every trusted n-gram of a pair. It
// is a view: a node is a depth and a range of the cache's sorted order.
//
//   Trie trie(cache, Trie::Spellings::kPrimary);
//   auto node = trie.child(trie.root(), draft);   // Node::none() when there is no such path
//   trie.token(node);                             // the target token that ends here, or kNoToken
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "omnidraft/ngram_cache.h"

namespace omnidraft {

struct Node {
  std::uint32_t depth = 0;  // 0: the root
  std::uint32_t begin = 0, end = 0;
  Token first = kNoToken;  // the draft token at depth 1

  static Node none() { return {0, 0, 0, -2}; }
  bool exists() const { return first != -2; }
  bool is_root() const { return depth == 0 && exists(); }
};

class Trie {
 public:
  // kPrimary: a target token stands at one node only (exact and paper verification).
  // kAll: every spelling that the cache knows (greedy).
  enum class Spellings : std::uint8_t { kPrimary, kAll };

  Trie(const NgramCache& cache, Spellings spellings) : cache_(&cache), spellings_(spellings) {}

  const VocabularyPair& pair() const { return cache_->pair(); }
  std::uint64_t version() const { return cache_->version(); }

  Node root() const { return {0, 0, static_cast<std::uint32_t>(cache_->size()), kNoToken}; }
  Node child(const Node& node, Token draft) const;
  Token token(const Node& node) const;

  // Words of a bitset: bit d is set when draft token d is a child of the root.
  std::uint64_t root_word(std::size_t i) const {
    return pair().direct().words()[i] |
           (spellings_ == Spellings::kAll ? cache_->starts() : cache_->primary_starts()).words()[i];
  }
  bool is_root_child(Token draft) const {
    const auto i = static_cast<std::size_t>(draft);
    return (root_word(i / 64) >> (i % 64)) & 1;
  }

  // Draft tokens of the children of a node below the root, ascending.
  void children(const Node& node, std::vector<Token>& out) const;
  bool has_children(const Node& node) const;

  // Target tokens at or below a node that is not the root.
  template <typename Visit>
  void for_each_below(const Node& node, Visit visit) const {
    if (node.depth == 1 && pair().direct().test(static_cast<std::size_t>(node.first))) {
      visit(pair().to_target(node.first));
    }
    for (std::uint32_t i = node.begin; i < node.end; ++i) {
      const NgramCache::Ngram ngram = cache_->ngram(i);
      if (counts(ngram)) {
        visit(ngram.target);
      }
    }
  }

  // All (first draft token, target token) of the trie.
  template <typename Visit>
  void for_each(Visit visit) const {
    const auto& words = pair().direct().words();
    for (std::size_t w = 0; w < words.size(); ++w) {
      for (std::uint64_t bits = words[w]; bits != 0; bits &= bits - 1) {
        const auto draft =
            static_cast<Token>(w * 64 + static_cast<std::size_t>(__builtin_ctzll(bits)));
        visit(draft, pair().to_target(draft));
      }
    }
    for (std::uint32_t i = 0; i < cache_->size(); ++i) {
      const NgramCache::Ngram ngram = cache_->ngram(i);
      if (counts(ngram)) {
        visit(ngram.drafts[0], ngram.target);
      }
    }
  }

 private:
  bool counts(const NgramCache::Ngram& ngram) const {
    return ngram.trusted && (spellings_ == Spellings::kAll || ngram.primary);
  }
  const NgramCache* cache_;
  Spellings spellings_;
};

}  // namespace omnidraft
