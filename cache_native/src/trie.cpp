#include "omnidraft/trie.h"

namespace omnidraft {

Node Trie::child(const Node& node, Token draft) const {
  if (node.is_root() && !is_root_child(draft)) {
    return Node::none();
  }
  const auto [begin, end] = cache_->narrow(node.begin, node.end, node.depth, draft);
  const Node next{node.depth + 1, begin, end, node.is_root() ? draft : node.first};
  if (node.is_root()) {
    return next;
  }
  for (std::uint32_t i = begin; i < end; ++i) {
    if (counts(cache_->ngram(i))) {
      return next;
    }
  }
  return Node::none();
}

Token Trie::token(const Node& node) const {
  if (node.depth == 1) {
    const auto first = static_cast<std::size_t>(node.first);
    return pair().direct().test(first) ? pair().to_target(node.first) : kNoToken;
  }
  if (node.depth > 1 && node.begin < node.end) {
    // The n-gram that ends here sorts before those that go on.
    const NgramCache::Ngram ngram = cache_->ngram(node.begin);
    if (ngram.drafts.size() == node.depth && counts(ngram)) {
      return ngram.target;
    }
  }
  return kNoToken;
}

bool Trie::has_children(const Node& node) const {
  for (std::uint32_t i = node.begin; i < node.end; ++i) {
    const NgramCache::Ngram ngram = cache_->ngram(i);
    if (ngram.drafts.size() > node.depth && counts(ngram)) {
      return true;
    }
  }
  return false;
}

void Trie::children(const Node& node, std::vector<Token>& out) const {
  out.clear();
  for (std::uint32_t i = node.begin; i < node.end; ++i) {
    const NgramCache::Ngram ngram = cache_->ngram(i);
    if (ngram.drafts.size() > node.depth && counts(ngram)) {
      const Token draft = ngram.drafts[node.depth];
      if (out.empty() || out.back() != draft) {
        out.push_back(draft);
      }
    }
  }
}

}  // namespace omnidraft
