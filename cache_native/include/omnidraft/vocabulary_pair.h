// The direct mapping between a drafter's and a target's vocabulary.
//
//   auto pair = std::make_shared<VocabularyPair>(drafter, target, MappingRule::kBytes);
//   pair->to_target(29871);      // the target token with the same surface, or kNoToken
//   pair->to_draft(220);         // and back
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "omnidraft/bitset.h"
#include "omnidraft/vocabulary.h"

namespace omnidraft {

enum class MappingRule : std::uint8_t {
  kBytes = 0,  // equal surface bytes
  kPaper = 1,  // equal token strings after ▁ -> Ġ, and <0x0A> -> Ċ (OmniDraft, Table 8)
};

class VocabularyPair {
 public:
  VocabularyPair(std::shared_ptr<const Vocabulary> drafter,
                 std::shared_ptr<const Vocabulary> target, MappingRule rule);

  const Vocabulary& drafter() const { return *drafter_; }
  const Vocabulary& target() const { return *target_; }
  MappingRule rule() const { return rule_; }

  // The target token a draft token stands for. Injective: a target token is named once.
  Token to_target(Token draft) const { return to_target_[static_cast<std::size_t>(draft)]; }

  // The draft token that spells a target token; several target tokens may share one.
  Token to_draft(Token target) const { return to_draft_[static_cast<std::size_t>(target)]; }

  // Draft tokens with a direct counterpart.
  const Bitset& direct() const { return direct_; }
  std::size_t direct_count() const { return direct_count_; }

  std::uint64_t fingerprint() const;

 private:
  std::shared_ptr<const Vocabulary> drafter_, target_;
  MappingRule rule_;
  std::vector<Token> to_target_, to_draft_;
  Bitset direct_;
  std::size_t direct_count_ = 0;
};

}  // namespace omnidraft
