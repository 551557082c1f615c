#include "chain_rounds.h"

#include <algorithm>
#include <numeric>

#include "omnidraft/acceptance.h"

namespace omnidraft {

ChainRounds::ChainRounds(const Decoding& decoding, Drafting drafting)
    : Rounds(drafting),
      chance_(decoding.seed),
      draft_(*drafting.cache, decoding.verification,
             decoding.sampling.greedy() ? 1.0 : decoding.sampling.temperature),
      verifier_(*drafting.cache) {}

bool ChainRounds::begin(std::size_t room, std::size_t length, std::size_t) {
  scores_.clear();
  gains_.clear();
  probability_ = 1;
  drawn_ = kNoToken;
  limit_ = open(room, length, room);
  if (limit_ == 0) {
    return false;
  }
  Policy& policy = *drafting_->policy;
  if (!context().empty() && policy.layer({1.0}, {}, limit_) > 0) {
    const std::vector<Calibration> calibration = policy.calibration();
    calibration_ = calibration.empty() ? std::nullopt : std::optional(calibration.front());
    catch_up();
    return true;
  }
  if (!found_.empty()) {
    std::vector<double> likely;
    double probability = 1;
    for (std::size_t i = 0; i < found_.size(); ++i) {
      probability *= policy.found(match_ + i);
      likely.push_back(probability);
    }
    const std::size_t count = policy.count(likely, limit_);
    draft_.propose({found_.data(), std::min(count, found_.size())});
  }
  return false;
}

void ChainRounds::drafted(Span<const float> rows) {
  drawn_ = kNoToken;
  fed_.insert(fed_.end(), pass_.tokens.begin(), pass_.tokens.end());
  drawn_ = draft_.step(rows, chance_);
  if (drew()) {
    scores_.push_back(draft_.confidence());
  }
}

void ChainRounds::score_as(double score) {
  if (drew()) {
    scores_.back() = score;
  }
}

bool ChainRounds::draft_on() {
  if (failing_ || !drew()) {
    return false;
  }
  const double score = scores_.back();
  probability_ *=
      calibration_ ? calibrated(score, calibration_->slope, calibration_->offset) : score;
  gains_.push_back(probability_);
  if (gains_.size() == limit_ || fed_.size() == drafting_->max_length ||
      drafting_->policy->layer({probability_}, gains_, limit_) == 0) {
    return false;
  }
  run_on(fed_.size(), {drawn_}, {});
  return true;
}

void ChainRounds::propose() {
  proposal_ = draft_.finish();
  scored_rows_ = proposal_.tokens().size() + 1;
}

std::vector<std::int32_t> ChainRounds::parents() const {
  std::vector<std::int32_t> parents(proposal_.tokens().size());
  std::iota(parents.begin(), parents.end(), -1);
  return parents;
}

Verdict& ChainRounds::verify(Span<const float> logits, const Scoring& scoring) {
  const Decoding& decoding = *scoring.decoding;
  verdict_ =
      decoding.verification == Verification::kGreedy
          ? verifier_.follow(proposal_, logits, decoding.sampling, *scoring.history, decoding.seed,
                             scoring.position)
          : verifier_.verify(proposal_, logits, decoding.sampling, *scoring.history, chance_);
  return verdict_;
}

std::vector<std::uint32_t> ChainRounds::rows() const {
  std::vector<std::uint32_t> rows(verdict_.tokens.size());
  std::iota(rows.begin(), rows.end(), 0U);
  return rows;
}

void ChainRounds::settle(double target_seconds, double other_seconds, Settled& settled) {
  settled.draft_tokens = proposal_.drafts.size();
  if (!active_) {
    return;
  }
  const std::vector<Token>& drafts = proposal_.drafts;
  std::vector<std::vector<Token>> spellings;
  const Proposal::Position* refused = nullptr;
  for (const Proposal::Position& position : proposal_.positions) {
    if (position.token == kNoToken) {
      break;
    }
    if (spellings.size() == verdict_.accepted) {
      refused = &position;
      break;
    }
    const auto begin = drafts.begin() + position.first_draft;
    spellings.emplace_back(begin, begin + position.draft_count);
  }
  if (refused != nullptr && refused->draft_count > 1) {
    context_->refuse({drafts.data() + refused->first_draft, refused->draft_count},
                     verdict_.tokens.back());
  }
  // The target did not judge what follows a rejected token, nor draft tokens at the end that made
  // no target token.
  const std::size_t right = verdict_.accepted_drafts;
  const std::size_t judged =
      std::min(drafts.size(), right + (verdict_.accepted < verdict_.proposed ? 1 : 0));
  std::vector<Judged> told;
  for (std::size_t i = 0; i < judged; ++i) {
    told.push_back({0, scores_[i], i < right});
  }
  settled.inserted =
      close(scored_rows_, verdict_, spellings, std::move(told), target_seconds, other_seconds);
  active_ = !failing_;
}

std::vector<Shown> ChainRounds::shown() const {
  Shown path;
  path.context = before_;
  path.drafts = proposal_.drafts;
  bool looked_up = false;
  for (const Proposal::Position& position : proposal_.positions) {
    if (position.token != kNoToken) {
      path.counts.push_back(position.draft_count);
      looked_up = looked_up || position.given();
    }
  }
  if (looked_up) {
    path.counts.clear();
    path.last = verdict_.tokens.front();
    path.rows = {0};
  } else {
    path.tokens = proposal_.tokens();
    path.accepted = verdict_.accepted;
    path.last = verdict_.tokens.back();
    path.rows.resize(path.tokens.size() + 1);
    std::iota(path.rows.begin(), path.rows.end(), 0U);
  }
  std::vector<Shown> shown{std::move(path)};
  // What was drafted is behind none that is shown by itself: a chain is drafted or looked up.
  show_rest(verdict_, {}, rows(), shown);
  return shown;
}

}  // namespace omnidraft
