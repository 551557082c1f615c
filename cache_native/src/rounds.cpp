#include "rounds.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace omnidraft {
namespace {

// Most tokens that a round takes from a lookup.
constexpr std::size_t kMaxLookup = 16;
// Slots of the drafter's context that a round may need, at most.
constexpr std::size_t kRoom = 48;

// The tokens of a lookup that a round judged, and those that were right.
void judge_lookup(const std::vector<Token>& found, const std::vector<Token>& emitted,
                  Outcome& outcome) {
  for (std::size_t i = 0; i < std::min(found.size(), emitted.size()); ++i) {
    ++outcome.found_judged;
    if (found[i] != emitted[i]) {
      return;
    }
    ++outcome.found_right;
  }
}

}  // namespace

Rounds::Rounds(std::optional<Drafting> drafting)
    : drafting_(std::move(drafting)), active_(drafting_.has_value()) {
  if (drafting_) {
    context_.emplace(*drafting_->speller, *drafting_->cache, drafting_->begin);
    fed_ = drafting_->held;
  }
}

const std::vector<Token>& Rounds::context() const {
  static const std::vector<Token> none;
  return context_ ? context_->tokens() : none;
}

std::size_t Rounds::read(Span<const Token> prompt) {
  if (!active_) {
    return 0;
  }
  if (Lookup* lookup = drafting_->lookup) {
    lookup->clear();
    lookup->add(prompt);
  }
  return context_->extend(prompt, {}, false);
}

void Rounds::check(Span<const float> rows) const {
  const std::size_t width = drafting_->cache->pair().drafter().size();
  if (rows.size() != pass_.rows * width) {
    throw std::invalid_argument("the drafter's pass gives logits of shape [" +
                                std::to_string(pass_.rows) + ", " + std::to_string(width) +
                                "], not " + std::to_string(rows.size()) + " values");
  }
}

std::size_t Rounds::agreed() {
  const std::vector<Token>& tokens = context_->tokens();
  const std::size_t limit = std::min(fed_.size(), tokens.empty() ? 0 : tokens.size() - 1);
  // What agreed before still does: the context only grows.
  agreed_ = std::min(agreed_, limit);
  while (agreed_ < limit && fed_[agreed_] == tokens[agreed_]) {
    ++agreed_;
  }
  return agreed_;
}

std::size_t Rounds::open(std::size_t room, std::size_t length, std::size_t space) {
  passes_.clear();
  found_.clear();
  match_ = 0;
  active_ = active_ && !failing_;
  shows_ = active_;
  if (!active_) {
    return 0;
  }
  // Where the drafter's context is too short for a round, its recent half stays.
  const std::size_t longest = drafting_->max_length;
  const std::size_t size = context_->tokens().size();
  if (size + std::min(kRoom, longest / 4) > longest) {
    context_->drop(size - longest / 2);
    fed_.clear();
    agreed_ = 0;
  }
  before_ = context_->tokens().size();
  if (const Lookup* lookup = drafting_->lookup) {
    match_ = lookup->match_length();
    found_ = lookup->propose(std::min(room, kMaxLookup), 1);
  }
  return drafting_->policy->begin(room, space, length, before_ - agreed(), found_.size());
}

void Rounds::catch_up() {
  const std::vector<Token>& tokens = context_->tokens();
  const std::size_t common = agreed();
  fed_.resize(common);
  pass_ = {common, {tokens.begin() + static_cast<std::ptrdiff_t>(common), tokens.end()}, {}, 1};
}

void Rounds::run_on(std::size_t held, std::vector<Token> tokens,
                    std::vector<std::int32_t> parents) {
  const std::size_t rows = tokens.size();
  pass_ = {held, std::move(tokens), std::move(parents), rows};
}

std::size_t Rounds::close(std::size_t rows, const Verdict& verdict,
                          const std::vector<std::vector<Token>>& spellings,
                          std::vector<Judged> judged, double target_seconds, double other_seconds) {
  const std::vector<Token>& emitted = verdict.tokens;
  const std::size_t inserted = context_->extend({emitted.data(), emitted.size()}, spellings, true);
  Outcome outcome;
  outcome.rows = rows;
  outcome.tokens = verdict.accepted + 1;
  outcome.passes = passes_;
  outcome.judged = std::move(judged);
  outcome.target_seconds = target_seconds;
  outcome.other_seconds = other_seconds;
  outcome.match = found_.empty() ? 0 : match_;
  judge_lookup(found_, emitted, outcome);
  drafting_->policy->observe(outcome);
  if (Lookup* lookup = drafting_->lookup) {
    lookup->add({emitted.data(), emitted.size()});
  }
  return inserted;
}

void Rounds::show_rest(const Verdict& verdict, const std::vector<std::vector<Token>>& spellings,
                       const std::vector<std::uint32_t>& rows, std::vector<Shown>& shown) const {
  std::size_t context = before_;
  for (std::size_t i = 0; i < verdict.tokens.size(); ++i) {
    if (i > shown.front().accepted) {
      Shown plain;
      plain.context = context;
      plain.last = verdict.tokens[i];
      plain.rows = {rows[i]};
      shown.push_back(std::move(plain));
    }
    const bool drafted = i < spellings.size() && !spellings[i].empty();
    context += drafted ? spellings[i].size() : drafting_->speller->spell(verdict.tokens[i]).size();
  }
}

}  // namespace omnidraft
