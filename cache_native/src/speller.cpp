#include "omnidraft/speller.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace omnidraft {
namespace {

void check(Token token, const Vocabulary& vocabulary, const char* whose) {
  if (token < 0 || static_cast<std::size_t>(token) >= vocabulary.size()) {
    throw std::out_of_range("token " + std::to_string(token) + " is outside the " + whose +
                            "'s vocabulary");
  }
}

}  // namespace

Speller::Speller(std::shared_ptr<const VocabularyPair> pair, Segment segment,
                 std::string_view special_text, const std::map<Token, Token>& specials)
    : pair_(std::move(pair)), segment_(std::move(segment)), special_(segmented(special_text)) {
  for (const auto& [target, draft] : specials) {
    check(target, pair_->target(), "target");
    check(draft, pair_->drafter(), "drafter");
    known_[target] = {draft};
  }
}

const std::vector<Token>& Speller::spell(Token token) {
  const auto known = known_.find(token);
  if (known != known_.end()) {
    return known->second;
  }
  check(token, pair_->target(), "target");
  std::vector<Token> spelled;
  if (pair_->target().is_special(token)) {
    spelled = special_;
  } else if (const Token direct = pair_->to_draft(token); direct != kNoToken) {
    spelled = {direct};
  } else {
    spelled = segmented(pair_->target().surface(token));
  }
  return known_[token] = std::move(spelled);
}

std::vector<Token> Speller::segmented(std::string_view bytes) const {
  std::vector<Token> tokens = segment_(bytes);
  for (const Token token : tokens) {
    check(token, pair_->drafter(), "drafter");
  }
  return tokens;
}

std::size_t DraftContext::extend(Span<const Token> targets,
                                 const std::vector<std::vector<Token>>& spellings, bool said) {
  std::size_t inserted = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const bool drafted = i < spellings.size() && !spellings[i].empty();
    const std::vector<Token>& drafts = drafted ? spellings[i] : speller_->spell(targets[i]);
    tokens_.insert(tokens_.end(), drafts.begin(), drafts.end());
    if (drafts.size() > 1) {
      inserted += cache_->observe(targets[i], {drafts.data(), drafts.size()}) ? 1 : 0;
      if (said) {
        cache_->judge({drafts.data(), drafts.size()}, true);
      }
    }
  }
  return inserted;
}

void DraftContext::refuse(Span<const Token> proposed, Token said) {
  const std::vector<Token>& spelled = speller_->spell(said);
  if (!spelled.empty() && spelled.size() < proposed.size() &&
      std::equal(spelled.begin(), spelled.end(), proposed.begin())) {
    cache_->judge(proposed, false);
  }
}

void DraftContext::drop(std::size_t count) {
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace omnidraft
