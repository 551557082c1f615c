#include "omnidraft/vocabulary_pair.h"

#include <string>
#include <string_view>
#include <unordered_map>

#include "omnidraft/fnv.h"

namespace omnidraft {
namespace {

constexpr std::string_view kSentencePieceSpace = "\xe2\x96\x81";  // ▁
constexpr std::string_view kByteLevelSpace = "\xc4\xa0";          // Ġ
constexpr std::string_view kByteLevelNewline = "\xc4\x8a";        // Ċ

// What the mapping rule compares; empty for a token that takes no part.
std::string key(const Vocabulary& vocabulary, Token token, MappingRule rule, bool is_drafter) {
  if (rule == MappingRule::kBytes) {
    return std::string(vocabulary.surface(token));
  }
  std::string piece(vocabulary.piece(token));
  if (is_drafter) {
    if (piece == "<0x0A>") {
      return std::string(kByteLevelNewline);
    }
    if (piece.compare(0, kSentencePieceSpace.size(), kSentencePieceSpace) == 0) {
      piece.replace(0, kSentencePieceSpace.size(), kByteLevelSpace);
    }
  }
  return piece;
}

}  // namespace

VocabularyPair::VocabularyPair(std::shared_ptr<const Vocabulary> drafter,
                               std::shared_ptr<const Vocabulary> target, MappingRule rule)
    : drafter_(std::move(drafter)),
      target_(std::move(target)),
      rule_(rule),
      to_target_(drafter_->size(), kNoToken),
      to_draft_(target_->size(), kNoToken),
      direct_(drafter_->size()) {
  // Of several tokens with one surface the ordinary one stands for it, then the lowest id.
  const auto choose = [](const Vocabulary& vocabulary, Token old_token, Token new_token) {
    return vocabulary.kind(old_token) == TokenKind::kByte &&
                   vocabulary.kind(new_token) != TokenKind::kByte
               ? new_token
               : old_token;
  };
  const auto index = [&](const Vocabulary& vocabulary, bool is_drafter) {
    std::unordered_map<std::string, Token> tokens;
    tokens.reserve(vocabulary.size());
    for (std::size_t i = 0; i < vocabulary.size(); ++i) {
      const auto token = static_cast<Token>(i);
      // The paper compares strings only, so a drafter's "<s>" meets a target's ordinary "<s>".
      const bool by_string = rule_ == MappingRule::kPaper && is_drafter;
      if (vocabulary.is_special(token) && !by_string) {
        continue;
      }
      const auto [entry, fresh] = tokens.emplace(key(vocabulary, token, rule_, is_drafter), token);
      if (!fresh) {
        entry->second = choose(vocabulary, entry->second, token);
      }
    }
    return tokens;
  };
  const auto drafts = index(*drafter_, true);
  const auto targets = index(*target_, false);
  for (std::size_t i = 0; i < target_->size(); ++i) {
    const auto token = static_cast<Token>(i);
    if (target_->is_special(token)) {
      continue;
    }
    const std::string text = key(*target_, token, rule_, false);
    const auto draft = drafts.find(text);
    if (draft == drafts.end()) {
      continue;
    }
    to_draft_[i] = draft->second;
    if (targets.at(text) == token) {
      to_target_[static_cast<std::size_t>(draft->second)] = token;
      if (!drafter_->is_special(draft->second)) {  // never drafted
        direct_.set(static_cast<std::size_t>(draft->second));
      }
      ++direct_count_;
    }
  }
}

std::uint64_t VocabularyPair::fingerprint() const {
  Fnv1a hash;
  hash.update(drafter_->fingerprint());
  hash.update(target_->fingerprint());
  hash.update(static_cast<std::uint64_t>(rule_));
  return hash.value();
}

}  // namespace omnidraft
