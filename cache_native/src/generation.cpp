#include "omnidraft/generation.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "chain_rounds.h"
#include "tree_rounds.h"

namespace omnidraft {
namespace {

std::unique_ptr<Rounds> make_rounds(const Decoding& decoding, std::optional<Drafting> drafting) {
  if (drafting && !drafting->tree) {
    return std::make_unique<ChainRounds>(decoding, std::move(*drafting));
  }
  return std::make_unique<TreeRounds>(std::move(drafting));
}

bool is_chain(const std::vector<std::int32_t>& parents) {
  for (std::size_t i = 0; i < parents.size(); ++i) {
    if (parents[i] != static_cast<std::int32_t>(i) - 1) {
      return false;
    }
  }
  return true;
}

void check_time(double seconds) {
  if (!(seconds >= 0) || !std::isfinite(seconds)) {
    throw std::invalid_argument("a pass takes 0 seconds or more, not " + std::to_string(seconds));
  }
}

}  // namespace

Generation::Generation(Decoding decoding, std::optional<Drafting> drafting)
    : decoding_(std::move(decoding)),
      history_(decoding_.vocabulary_size),
      rounds_(make_rounds(decoding_, std::move(drafting))) {}

Generation::~Generation() = default;

void Generation::await(std::initializer_list<Stage> stages, const char* what) const {
  if (std::find(stages.begin(), stages.end(), stage_) != stages.end()) {
    return;
  }
  static constexpr const char* kAwaited[] = {
      "read()",
      "begin()",
      "drafted() or score()",
      "draft_on() or score()",
      "score()",
      "scored()",
      "settle()",
      "nothing: a round failed midway, so begin another generation"};
  throw std::logic_error(std::string(what) + " is out of order: the generation awaits " +
                         kAwaited[static_cast<std::size_t>(stage_)]);
}

std::size_t Generation::read(Span<const Token> prompt) {
  await({Stage::kPrompt}, "read()");
  if (prompt.empty()) {
    throw std::invalid_argument("a prompt has at least one token");
  }
  for (const Token token : prompt) {
    if (token < 0 || static_cast<std::size_t>(token) >= decoding_.vocabulary_size) {
      throw std::out_of_range("token " + std::to_string(token) + " is outside the vocabulary");
    }
  }
  stage_ = Stage::kBroken;
  for (const Token token : prompt) {
    history_.add(token);
  }
  pending_ = prompt[prompt.size() - 1];
  const std::size_t inserted = rounds_->read(prompt);
  stage_ = Stage::kRound;
  return inserted;
}

bool Generation::begin(std::size_t room, std::size_t length, std::size_t max_length) {
  await({Stage::kRound}, "begin()");
  if (length >= max_length) {
    throw std::invalid_argument("the target's KV cache has no room for a token");
  }
  stage_ = Stage::kBroken;
  // A tree may be wider than what is left of the answer, but not than the KV cache.
  const std::size_t space = max_length - length - 1;
  room_ = std::min(room, space);
  base_ = length;
  ended_ = false;
  settled_ = {};
  const bool drafts = rounds_->begin(room_, length, space);
  stage_ = drafts ? Stage::kPass : Stage::kScore;
  return drafts;
}

const Pass& Generation::pass() const { return rounds_->pass(); }

const std::vector<std::uint32_t>& Generation::pass_nodes() const { return rounds_->pass_nodes(); }

void Generation::drafted(Span<const float> logits, double seconds) {
  await({Stage::kPass}, "drafted()");
  check_time(seconds);
  rounds_->check(logits);
  stage_ = Stage::kScore;
  rounds_->took(seconds);
  rounds_->drafted(logits);
  stage_ = Stage::kDrawn;
}

double Generation::confidence() const { return rounds_->confidence(); }

bool Generation::drew() const { return rounds_->drew(); }

void Generation::score_as(double score) {
  await({Stage::kDrawn}, "score_as()");
  if (!(score >= 0 && score <= 1)) {
    throw std::invalid_argument("a score is a probability, not " + std::to_string(score));
  }
  rounds_->score_as(score);
}

bool Generation::draft_on() {
  await({Stage::kDrawn}, "draft_on()");
  stage_ = Stage::kBroken;
  const bool more = rounds_->draft_on();
  stage_ = more ? Stage::kPass : Stage::kScore;
  return more;
}

void Generation::fail() {
  rounds_->fail();
  if (stage_ == Stage::kPass || stage_ == Stage::kDrawn) {
    stage_ = Stage::kScore;
  }
}

bool Generation::drafts() const { return rounds_->drafts(); }

const Pass& Generation::score() {
  await({Stage::kPass, Stage::kDrawn, Stage::kScore}, "score()");
  stage_ = Stage::kBroken;
  rounds_->propose();
  const std::vector<Token> proposed = rounds_->proposed();
  scoring_.held = base_;
  scoring_.tokens = {pending_};
  scoring_.tokens.insert(scoring_.tokens.end(), proposed.begin(), proposed.end());
  scoring_.rows = scoring_.tokens.size();
  scoring_.parents.clear();
  if (const std::vector<std::int32_t> parents = rounds_->parents(); !is_chain(parents)) {
    const auto base = static_cast<std::int32_t>(base_);
    scoring_.parents.push_back(base - 1);
    for (const std::int32_t parent : parents) {
      scoring_.parents.push_back(base + 1 + parent);
    }
  }
  stage_ = Stage::kScored;
  return scoring_;
}

const Verdict& Generation::scored(Span<const float> logits) {
  await({Stage::kScored}, "scored()");
  const Verdict& verdict = rounds_->verify(logits, {&decoding_, &history_, length_});
  stage_ = Stage::kSettle;
  if (verdict.accepted > room_) {  // a tree may be deeper than the answer has room
    rounds_->end_at(room_);
  }
  const auto end = std::find_if(verdict.tokens.begin(), verdict.tokens.end(),
                                [&](Token token) { return is_end(token); });
  ended_ = end != verdict.tokens.end();
  if (ended_) {
    // What stands behind the end is no part of the answer, and nothing is told of it.
    end_at(static_cast<std::size_t>(end - verdict.tokens.begin()));
  }
  return verdict;
}

bool Generation::is_end(Token token) const {
  return std::find(decoding_.ends.begin(), decoding_.ends.end(), token) != decoding_.ends.end();
}

bool Generation::ended() const { return ended_; }

void Generation::end_at(std::size_t end) {
  await({Stage::kSettle}, "end_at()");
  const Verdict& verdict = rounds_->verdict();
  if (end != verdict.accepted) {  // the last token ends the round anyhow
    rounds_->end_at(end);
    ended_ = is_end(verdict.tokens.back());
  }
}

const Verdict& Generation::verdict() const { return rounds_->verdict(); }

std::vector<std::uint32_t> Generation::rows() const { return rounds_->rows(); }

std::vector<Token> Generation::proposed() const { return rounds_->proposed(); }

std::vector<std::int32_t> Generation::parents() const { return rounds_->parents(); }

const Settled& Generation::settle(double target_seconds, double other_seconds) {
  await({Stage::kSettle}, "settle()");
  check_time(target_seconds);
  check_time(other_seconds);
  stage_ = Stage::kBroken;
  const Verdict& verdict = rounds_->verdict();
  settled_.target.length = base_ + 1 + verdict.accepted;
  if (scoring_.parents.empty()) {
    settled_.target.kind = Kept::Kind::kLength;
  } else {
    settled_.target.kind = Kept::Kind::kPath;
    settled_.target.path = {static_cast<std::int32_t>(base_)};
    for (const std::uint32_t row : rounds_->rows()) {
      if (row > 0) {
        settled_.target.path.push_back(static_cast<std::int32_t>(base_ + row));
      }
    }
  }
  rounds_->settle(target_seconds, other_seconds, settled_);
  pending_ = verdict.tokens.back();
  length_ += verdict.tokens.size();
  stage_ = Stage::kRound;
  return settled_;
}

std::vector<Shown> Generation::shown() const {
  await({Stage::kPrompt, Stage::kRound}, "shown()");
  return rounds_->shows() ? rounds_->shown() : std::vector<Shown>();
}

const std::vector<Token>& Generation::context() const { return rounds_->context(); }

}  // namespace omnidraft
