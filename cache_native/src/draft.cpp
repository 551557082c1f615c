#include "omnidraft/draft.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace omnidraft {
namespace {

Trie::Spellings spellings_for(Verification verification) {
  return verification == Verification::kGreedy ? Trie::Spellings::kAll : Trie::Spellings::kPrimary;
}

}  // namespace

std::vector<Token> Proposal::tokens() const {
  std::vector<Token> tokens;
  for (const Position& position : positions) {
    if (position.token != kNoToken) {
      tokens.push_back(position.token);
    }
  }
  return tokens;
}

Draft::Draft(const NgramCache& cache, Verification verification, double temperature)
    : cache_(&cache),
      verification_(verification),
      temperature_(temperature),
      trie_(cache, spellings_for(verification)),
      node_(trie_.root()) {
  if (verification != Verification::kGreedy && !(temperature > 0)) {
    throw std::invalid_argument("sampled drafting needs a temperature above 0");
  }
}

Token Draft::step(Span<const float> logits, Chance& chance) {
  if (logits.size() != trie_.pair().drafter().size()) {
    throw std::invalid_argument("the drafter returned " + std::to_string(logits.size()) +
                                " logits for a vocabulary of " +
                                std::to_string(trie_.pair().drafter().size()));
  }
  if (proposal_.drafts.empty()) {  // the trie may have grown since the last round
    node_ = trie_.root();
    proposal_.version = trie_.version();
  }
  Token token = kNoToken;
  if (verification_ == Verification::kGreedy) {
    token = greedy_step(logits);
  } else {
    const std::size_t begin = proposal_.weights.size();
    const float maximum = logits[argmax(logits)];
    proposal_.weights.resize(begin + logits.size());
    const Span<float> row(proposal_.weights.data() + begin, logits.size());
    exp_weights(logits, maximum, static_cast<float>(1 / temperature_), row);
    const Span<const float> weights(row.data(), row.size());
    token = verification_ == Verification::kExact ? exact_step(weights, chance)
                                                  : paper_step(weights, chance);
    if (token == kNoToken) {
      proposal_.weights.resize(begin);
    }
  }
  if (token != kNoToken) {
    proposal_.drafts.push_back(token);
  }
  return token;
}

Token Draft::greedy_step(Span<const float> logits) {
  const bool ends = node_.is_root() || trie_.token(node_) != kNoToken;
  const auto allowed = [&](Token draft) {
    return trie_.child(node_, draft).exists() || (ends && trie_.is_root_child(draft));
  };
  auto best = static_cast<Token>(argmax(logits));
  if (!allowed(best)) {
    best = kNoToken;
    float best_logit = -std::numeric_limits<float>::infinity();
    const auto offer = [&](Token draft) {
      const float logit = logits[static_cast<std::size_t>(draft)];
      if (logit > best_logit) {
        best_logit = logit;
        best = draft;
      }
    };
    if (!node_.is_root()) {
      trie_.children(node_, children_);
      std::for_each(children_.begin(), children_.end(), offer);
    }
    if (ends) {
      for (std::size_t d = 0; d < logits.size(); ++d) {
        if (logits[d] > best_logit && trie_.is_root_child(static_cast<Token>(d))) {
          offer(static_cast<Token>(d));
        }
      }
    }
    if (best == kNoToken) {
      return kNoToken;
    }
  }
  const Node next = trie_.child(node_, best);
  node_ = next.exists() ? next : trie_.child(trie_.root(), best);
  last_probability_ = 1;
  return best;
}

void Draft::gather(Span<const float> weights, bool from_root, const Node& node) {
  candidates_.clear();
  candidate_weights_.clear();
  const auto add = [&](Token draft) {
    candidates_.push_back(draft);
    candidate_weights_.push_back(static_cast<double>(weights[static_cast<std::size_t>(draft)]));
  };
  children_.clear();
  if (node.exists()) {
    trie_.children(node, children_);
    std::for_each(children_.begin(), children_.end(), add);
  }
  if (!from_root) {
    return;
  }
  const std::size_t words = (weights.size() + 63) / 64;
  for (std::size_t w = 0; w < words; ++w) {
    for (std::uint64_t bits = trie_.root_word(w); bits != 0; bits &= bits - 1) {
      const auto draft = static_cast<Token>(w * 64 + Trie::lowest_bit(bits));
      if (children_.empty() || !std::binary_search(children_.begin(), children_.end(), draft)) {
        add(draft);
      }
    }
  }
}

void Draft::open_position(const Node& node) {
  Proposal::Position position;
  position.first_draft = static_cast<std::uint32_t>(proposal_.drafts.size());
  position.draft_count = 1;
  position.last = node;
  position.open = true;
  proposal_.positions.push_back(position);
}

Token Draft::exact_step(Span<const float> weights, Chance& chance) {
  const bool leaf = !node_.is_root() && !trie_.has_children(node_);
  if (leaf) {  // nothing is drawn to end this token; the next one begins
    proposal_.positions.back().token = trie_.token(node_);
    proposal_.positions.back().open = false;
    node_ = trie_.root();
  }
  const bool at_root = node_.is_root();
  const Token ended = at_root ? kNoToken : trie_.token(node_);
  // The children of the node come first, then those of the root where the token may end.
  gather(weights, at_root || ended != kNoToken, at_root ? Node::none() : node_);
  const std::size_t child_count = children_.size();
  double below = 0;
  double stop = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    (at_root || i < child_count ? below : stop) += candidate_weights_[i];
  }
  const double total = below + stop;
  if (!(total > 0)) {
    return kNoToken;
  }
  const std::size_t drawn = chance.draw(candidate_weights_);
  const Token draft = candidates_[drawn];
  last_probability_ = candidate_weights_[drawn] / total;

  Visit visit;
  visit.node = node_;
  visit.row = static_cast<std::uint32_t>(proposal_.drafts.size());
  visit.total = total;
  visit.stop = stop;
  if (at_root) {
    visit.position = static_cast<std::uint32_t>(proposal_.positions.size());
    visit.outcome = draft;
    node_ = trie_.child(node_, draft);
    open_position(node_);
    proposal_.visits.push_back(visit);
  } else if (drawn < child_count) {
    visit.position = static_cast<std::uint32_t>(proposal_.positions.size() - 1);
    visit.outcome = draft;
    node_ = trie_.child(node_, draft);
    proposal_.positions.back().last = node_;
    ++proposal_.positions.back().draft_count;
    proposal_.visits.push_back(visit);
  } else {
    visit.position = static_cast<std::uint32_t>(proposal_.positions.size() - 1);
    visit.outcome = Visit::kStop;
    proposal_.visits.push_back(visit);
    proposal_.positions.back().token = ended;
    proposal_.positions.back().open = false;
    // The drawn token opens the next position, where its Q is given that it meant STOP.
    visit.position += 1;
    visit.excluded = node_;
    visit.node = trie_.root();
    visit.outcome = draft;
    visit.total = stop;
    visit.stop = 0;
    node_ = trie_.child(trie_.root(), draft);
    open_position(node_);
    proposal_.visits.push_back(visit);
  }
  return draft;
}

Token Draft::paper_step(Span<const float> weights, Chance& chance) {
  candidate_weights_.assign(weights.begin(), weights.end());
  const std::size_t drawn = chance.draw(candidate_weights_);
  last_probability_ = candidate_weights_[drawn] / sum(weights);
  return static_cast<Token>(drawn);
}

// Greedy and paper: the longest match from each position; the rest is dropped.
void Draft::segment() {
  const std::vector<Token>& drafts = proposal_.drafts;
  std::size_t begin = 0;
  while (begin < drafts.size()) {
    Proposal::Position longest;
    Node node = trie_.root();
    for (std::size_t i = begin; i < drafts.size(); ++i) {
      node = trie_.child(node, drafts[i]);
      if (!node.exists()) {
        break;
      }
      if (const Token token = trie_.token(node); token != kNoToken) {
        longest = {token, static_cast<std::uint32_t>(begin),
                   static_cast<std::uint32_t>(i + 1 - begin), node, false};
      }
    }
    if (longest.token == kNoToken) {
      return;
    }
    proposal_.positions.push_back(longest);
    begin += longest.draft_count;
  }
}

Proposal Draft::finish() {
  proposal_.verification = verification_;
  if (proposal_.drafts.empty()) {
    proposal_.version = trie_.version();
  }
  if (verification_ != Verification::kExact) {
    segment();
  } else if (!proposal_.positions.empty()) {
    // The budget ends here. A token that ends at the last node is scored all the same: should the
    // target choose it, the round goes on to a free token.
    Proposal::Position& last = proposal_.positions.back();
    last.token = trie_.token(last.last);
    last.open = trie_.has_children(last.last);
  }
  Proposal done = std::move(proposal_);
  proposal_ = Proposal();
  node_ = trie_.root();
  return done;
}

}  // namespace omnidraft
