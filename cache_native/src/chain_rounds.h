// Rounds that draft a chain: one path, verified token by token.
#pragma once

#include "omnidraft/chance.h"
#include "rounds.h"

namespace omnidraft {

// To the policy a chain is a tree with one open node: the token drawn last. What is looked up is
// proposed where nothing is drafted. While drafting pays, the drafter drafts every round: text that
// repeats itself is easy for the drafter as well, and lookup in place of its rounds made answers
// slower.
class ChainRounds final : public Rounds {
 public:
  ChainRounds(const Decoding& decoding, Drafting drafting);

  bool begin(std::size_t room, std::size_t length, std::size_t space) override;
  void drafted(Span<const float> rows) override;
  bool draft_on() override;
  void propose() override;
  std::vector<Token> proposed() const override { return proposal_.tokens(); }
  std::vector<std::int32_t> parents() const override;
  Verdict& verify(Span<const float> logits, const Scoring& scoring) override;
  const Verdict& verdict() const override { return verdict_; }
  void end_at(std::size_t end) override { end_round(proposal_, verdict_, end); }
  std::vector<std::uint32_t> rows() const override;
  void settle(double target_seconds, double other_seconds, Settled& settled) override;
  std::vector<Shown> shown() const override;
  double confidence() const override { return draft_.confidence(); }
  bool drew() const override { return drawn_ != kNoToken; }
  void score_as(double score) override;

 private:
  Generator chance_;
  Draft draft_;
  Verifier verifier_;
  Proposal proposal_;
  Verdict verdict_;
  // Of the round under way.
  std::size_t limit_ = 0, scored_rows_ = 1;
  std::optional<Calibration> calibration_;
  std::vector<double> scores_;  // of the tokens drawn so far
  std::vector<double> gains_;
  double probability_ = 1;  // that all drawn so far are accepted
  Token drawn_ = kNoToken;
};

}  // namespace omnidraft
