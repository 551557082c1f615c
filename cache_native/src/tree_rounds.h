// Rounds that draft a tree, which the target's own tokens walk; without a drafter, plain decoding.
#pragma once

#include <map>
#include <unordered_map>
#include <utility>

#include "rounds.h"

namespace omnidraft {

// The drafter grows a tree layer by layer: each of its passes runs over the most probable open
// draft nodes. A drafter that cannot score trees goes on along one path, whose nodes still have
// their siblings.
class TreeRounds final : public Rounds {
 public:
  explicit TreeRounds(std::optional<Drafting> drafting);

  bool begin(std::size_t room, std::size_t length, std::size_t space) override;
  void drafted(Span<const float> rows) override;
  bool draft_on() override;
  void propose() override;
  std::vector<Token> proposed() const override;
  std::vector<std::int32_t> parents() const override;
  Verdict& verify(Span<const float> logits, const Scoring& scoring) override;
  const Verdict& verdict() const override { return verdict_; }
  void end_at(std::size_t end) override { end_round(proposal_, verdict_, end); }
  std::vector<std::uint32_t> rows() const override;
  void settle(double target_seconds, double other_seconds, Settled& settled) override;
  std::vector<Shown> shown() const override;

 private:
  static constexpr std::uint32_t kText = TreeDraft::kText;

  void keep(Kept& kept);
  bool follow(const std::vector<Token>& drafts, std::vector<std::uint32_t>& ran,
              std::optional<std::uint32_t>& place) const;

  std::optional<TreeDraft> draft_;
  Walker walker_;
  TreeProposal proposal_;
  TreeVerdict verdict_;
  // Of the round under way.
  std::size_t limit_ = 0, drafter_length_ = 0;
  std::uint32_t last_ = kText;                             // the draft node expanded last
  std::unordered_map<std::uint32_t, std::int32_t> slots_;  // of draft nodes, in the drafter's cache
  std::map<std::pair<std::uint32_t, Token>, std::uint32_t> children_;  // those, by parent and token
};

}  // namespace omnidraft
