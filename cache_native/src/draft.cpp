#include "omnidraft/draft.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace omnidraft {
namespace {

Trie::Spellings spellings_for(Verification verification) {
  return verification == Verification::kGreedy ? Trie::Spellings::kAll : Trie::Spellings::kPrimary;
}

constexpr const char* kChanged = "the n-gram cache changed between two draft steps";

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
    : verification_(verification),
      temperature_(temperature),
      trie_(cache, spellings_for(verification)),
      node_(trie_.root()) {
  if (verification != Verification::kGreedy && !(temperature > 0)) {
    throw std::invalid_argument("sampled drafting needs a temperature above 0");
  }
}

void Draft::propose(Span<const Token> tokens) {
  if (!proposal_.drafts.empty()) {
    throw std::invalid_argument("tokens can be proposed only before those that are drafted");
  }
  const std::size_t size = trie_.pair().target().size();
  for (const Token token : tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= size) {
      throw std::out_of_range("proposed token " + std::to_string(token) +
                              " is outside the target's vocabulary");
    }
  }
  for (const Token token : tokens) {
    Proposal::Position position;
    position.token = token;
    proposal_.positions.push_back(position);
  }
}

// The trie may have grown since the last round.
void Draft::begin_round() {
  node_ = trie_.root();
  open_ = 0;
  proposal_.version = trie_.version();
  if (weights_ == nullptr || weights_.use_count() > 1) {
    weights_ = std::make_shared<std::vector<float>>();
  }
  if (verification_ == Verification::kExact &&
      (root_mask_.empty() || root_mask_version_ != proposal_.version)) {
    root_mask_.resize(trie_.pair().drafter().size());
    for (std::size_t d = 0; d < root_mask_.size(); ++d) {
      root_mask_[d] = trie_.is_root_child(static_cast<Token>(d)) ? 1.0F : 0.0F;
    }
    root_mask_version_ = proposal_.version;
  }
}

Token Draft::step(Span<const float> logits, Chance& chance) {
  if (logits.size() != trie_.pair().drafter().size()) {
    throw std::invalid_argument("the drafter returned " + std::to_string(logits.size()) +
                                " logits for a vocabulary of " +
                                std::to_string(trie_.pair().drafter().size()));
  }
  if (proposal_.drafts.empty()) {
    begin_round();
  } else if (proposal_.version != trie_.version()) {
    throw std::invalid_argument(kChanged);
  }
  const std::size_t best = argmax(logits);
  const float maximum = logits[best];
  if (maximum == -std::numeric_limits<float>::infinity()) {
    return kNoToken;
  }
  Token token = kNoToken;
  if (verification_ == Verification::kGreedy) {
    confidence_ = 1 / rough_exp_sum(logits, maximum);  // the largest weight is 1
    token = greedy_step(logits, static_cast<Token>(best));
  } else {
    // The rows are kept for verification.
    const std::size_t begin = proposal_.drafts.size() * logits.size();
    if (weights_->size() < begin + logits.size()) {
      weights_->resize(begin + logits.size());
    }
    const Span<float> row(weights_->data() + begin, logits.size());
    confidence_ = 1 / exp_weights(logits, maximum, temperature_, row);
    token = verification_ == Verification::kExact
                ? exact_step(logits, static_cast<Token>(best), row, chance)
                : paper_step({row.data(), row.size()}, chance);
  }
  if (token != kNoToken) {
    proposal_.drafts.push_back(token);
  }
  return token;
}

// The drafter's own choice wherever the path stays one that segment() can cut into target tokens:
// an n-gram that was begun need not be finished.
Token Draft::greedy_step(Span<const float> logits, Token best) {
  std::size_t open = open_;
  if (!continues(best, open)) {
    best = kNoToken;
    float best_logit = -std::numeric_limits<float>::infinity();
    for (std::size_t d = 0; d < logits.size(); ++d) {
      if (logits[d] > best_logit && continues(static_cast<Token>(d), open)) {
        best_logit = logits[d];
        best = static_cast<Token>(d);
      }
    }
    if (best == kNoToken) {
      return kNoToken;
    }
    continues(best, open);
  }
  open_ = open;
  return best;
}

// Whether the path with `next` behind it falls into tokens of the trie by longest matches, the last
// one perhaps unfinished. `open`: where that one begins; set anew if so.
bool Draft::continues(Token next, std::size_t& open) const {
  const std::vector<Token>& drafts = proposal_.drafts;
  std::size_t begin = open_;
  while (true) {
    std::size_t longest = begin;
    Node node = trie_.root();
    for (std::size_t i = begin; i <= drafts.size(); ++i) {
      node = trie_.child(node, i < drafts.size() ? drafts[i] : next);
      if (!node.exists()) {
        break;
      }
      if (trie_.token(node) != kNoToken) {
        longest = i + 1;
      }
    }
    if (node.exists()) {
      open = begin;
      return true;
    }
    if (longest == begin) {
      return false;
    }
    begin = longest;
  }
}

// Weights relative to the largest logit among the children of the node and, where a position may
// open, among the root's: relative to a larger one all of them could be 0. The others get none.
// False when none of them is finite.
bool Draft::weigh_allowed(Span<const float> logits, bool may_open, Span<float> weights) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (std::size_t d = 0; d < logits.size(); ++d) {
    weights[d] = may_open && root_mask_[d] != 0 ? logits[d] : kNever;
  }
  for (const Token child : children_) {
    weights[static_cast<std::size_t>(child)] = logits[static_cast<std::size_t>(child)];
  }
  const Span<const float> allowed(weights.data(), weights.size());
  const float maximum = allowed[argmax(allowed)];
  if (maximum == kNever) {
    return false;
  }
  exp_weights(allowed, maximum, temperature_, weights);
  return true;
}

// Takes the weight from what does not open a position; the sum of the rest, by blocks in sums_.
double Draft::mask_by_root(Span<float> weights) {
  sums_.clear();
  double total = 0;
  for (std::size_t begin = 0; begin < weights.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, weights.size());
    for (std::size_t d = begin; d < end; ++d) {
      weights[d] *= root_mask_[d];
    }
    sums_.push_back(sum({weights.data() + begin, end - begin}));
    total += sums_.back();
  }
  return total;
}

// Draws the draft token that opens a position, from a row whose other tokens have no weight.
Token Draft::open_position(Span<const float> weights, double total, const Node& excluded,
                           Chance& chance) {
  const auto draft = static_cast<Token>(draw_row(weights, sums_, chance));
  Visit visit;
  visit.position = static_cast<std::uint32_t>(proposal_.positions.size());
  visit.node = trie_.root();
  visit.outcome = draft;
  visit.row = static_cast<std::uint32_t>(proposal_.drafts.size());
  visit.total = total;
  visit.excluded = excluded;
  proposal_.visits.push_back(visit);
  node_ = trie_.child(trie_.root(), draft);
  Proposal::Position position;
  position.first_draft = visit.row;
  position.draft_count = 1;
  position.last = node_;
  position.open = true;
  proposal_.positions.push_back(position);
  return draft;
}

// `weights` are those relative to the logit of `best`, the largest.
Token Draft::exact_step(Span<const float> logits, Token best, Span<float> weights, Chance& chance) {
  if (!node_.is_root() && !trie_.has_children(node_)) {
    // Nothing is drawn to end this token; the next one begins.
    proposal_.positions.back().token = trie_.token(node_);
    proposal_.positions.back().open = false;
    node_ = trie_.root();
  }
  children_.clear();
  outcomes_.clear();
  Token ended = kNoToken;
  if (!node_.is_root()) {
    trie_.children(node_, children_);
    ended = trie_.token(node_);
  }
  const bool may_open = node_.is_root() || ended != kNoToken;
  const bool allowed = (may_open && root_mask_[static_cast<std::size_t>(best)] != 0) ||
                       std::binary_search(children_.begin(), children_.end(), best);
  if (!allowed && !weigh_allowed(logits, may_open, weights)) {
    return kNoToken;
  }
  double total = 0;
  for (const Token child : children_) {
    float& weight = weights[static_cast<std::size_t>(child)];
    outcomes_.push_back(static_cast<double>(weight));
    total += static_cast<double>(weight);
    weight = 0;  // until the draw of what opens the next position
  }
  double stop = 0;
  if (may_open) {
    stop = mask_by_root(weights);
    total += stop;
  }
  if (node_.is_root()) {
    return open_position({weights.data(), weights.size()}, total, Node::none(), chance);
  }

  outcomes_.push_back(stop);
  const std::size_t drawn = chance.draw(outcomes_);
  Proposal::Position& position = proposal_.positions.back();
  Visit visit;
  visit.position = static_cast<std::uint32_t>(proposal_.positions.size() - 1);
  visit.node = node_;
  visit.row = static_cast<std::uint32_t>(proposal_.drafts.size());
  visit.total = total;
  visit.stop = stop;
  visit.outcome = drawn < children_.size() ? children_[drawn] : Visit::kStop;
  proposal_.visits.push_back(visit);
  Token draft = visit.outcome;
  if (draft == Visit::kStop) {
    position.token = ended;
    position.open = false;
    draft = open_position({weights.data(), weights.size()}, stop, visit.node, chance);
  } else {
    node_ = trie_.child(node_, draft);
    position.last = node_;
    ++position.draft_count;
  }
  for (std::size_t i = 0; i < children_.size(); ++i) {
    weights[static_cast<std::size_t>(children_[i])] = static_cast<float>(outcomes_[i]);
  }
  return draft;
}

Token Draft::paper_step(Span<const float> weights, Chance& chance) {
  block_sums(weights, sums_);
  return static_cast<Token>(draw_row(weights, sums_, chance));
}

// Greedy and paper: the longest match from each position; the rest is dropped.
void Draft::segment(Proposal& proposal) const {
  const std::vector<Token>& drafts = proposal.drafts;
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
    proposal.positions.push_back(longest);
    begin += longest.draft_count;
  }
}

Proposal Draft::finish() {
  Proposal proposal = std::exchange(proposal_, Proposal());
  proposal.verification = verification_;
  proposal.weights = weights_;
  if (proposal.drafts.empty()) {
    proposal.version = trie_.version();
  } else if (proposal.version != trie_.version()) {
    throw std::invalid_argument(kChanged);
  }
  if (verification_ != Verification::kExact) {
    segment(proposal);
  } else if (!proposal.drafts.empty()) {
    // The budget ends here. A token that ends at the last node is scored all the same: should the
    // target choose it, the round goes on to a free token.
    Proposal::Position& last = proposal.positions.back();
    last.token = trie_.token(last.last);
    last.open = trie_.has_children(last.last);
  }
  return proposal;
}

}  // namespace omnidraft
