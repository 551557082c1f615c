#include <cstdint>
#include <limits>

#include "handles.h"

using namespace omnidraft;     // NOLINT: a binding file
using namespace omnidraft::c;  // NOLINT

namespace {

// Texts of so many tokens, whose ends the core counts in 32 bits.
void check_size(Span<const omnidraft_text> texts, const char* name) {
  std::size_t left = std::numeric_limits<std::uint32_t>::max();
  for (const omnidraft_text& text : texts) {
    require(text.size <= left, std::string(name) + " hold more than 4 GiB");
    left -= text.size;
  }
}

Token checked(Token token, const Vocabulary& vocabulary, const char* whose) {
  if (token < 0 || static_cast<std::size_t>(token) >= vocabulary.size()) {
    throw std::out_of_range("token " + std::to_string(token) + " is outside the " + whose +
                            "'s vocabulary");
  }
  return token;
}

}  // namespace

omnidraft_status omnidraft_vocabulary_new(const omnidraft_text* surfaces,
                                          const omnidraft_text* pieces, const uint8_t* kinds,
                                          size_t count, omnidraft_vocabulary** vocabulary) {
  return guard([&] {
    at(vocabulary, "vocabulary");
    require(count <= std::numeric_limits<Token>::max(), "a vocabulary has fewer than 2^31 tokens");
    const auto given = array(surfaces, count, "surfaces");
    check_size(given, "surfaces");
    if (pieces != nullptr) {
      check_size({pieces, count}, "pieces");
    }
    std::vector<TokenText> tokens(count);
    for (std::size_t i = 0; i < count; ++i) {
      require(kinds == nullptr || kinds[i] <= OMNIDRAFT_BYTE,
              "kind of token " + std::to_string(i) + " is none of enum omnidraft_token_kind");
      tokens[i].surface = view(given[i], "the bytes of a surface");
      tokens[i].piece = pieces == nullptr ? "" : view(pieces[i], "the bytes of a piece");
      tokens[i].kind = kinds == nullptr ? TokenKind::kNormal : static_cast<TokenKind>(kinds[i]);
    }
    *vocabulary = new omnidraft_vocabulary{std::make_shared<Vocabulary>(tokens)};
  });
}

void omnidraft_vocabulary_free(omnidraft_vocabulary* vocabulary) { delete vocabulary; }

omnidraft_status omnidraft_vocabulary_size(const omnidraft_vocabulary* vocabulary, size_t* size) {
  return guard([&] { at(size, "size") = at(vocabulary, "vocabulary").value->size(); });
}

omnidraft_status omnidraft_pair_new(const omnidraft_vocabulary* drafter,
                                    const omnidraft_vocabulary* target, int32_t rule,
                                    omnidraft_pair** pair) {
  return guard([&] {
    at(pair, "pair");
    require(rule == OMNIDRAFT_BYTES_RULE || rule == OMNIDRAFT_PAPER_RULE,
            "rule " + std::to_string(rule) + " is none of enum omnidraft_mapping_rule");
    *pair = new omnidraft_pair{std::make_shared<VocabularyPair>(
        at(drafter, "drafter").value, at(target, "target").value, static_cast<MappingRule>(rule))};
  });
}

void omnidraft_pair_free(omnidraft_pair* pair) { delete pair; }

omnidraft_status omnidraft_pair_fingerprint(const omnidraft_pair* pair, uint64_t* fingerprint) {
  return guard([&] { at(fingerprint, "fingerprint") = at(pair, "pair").value->fingerprint(); });
}

omnidraft_status omnidraft_pair_direct_count(const omnidraft_pair* pair, size_t* count) {
  return guard([&] { at(count, "count") = at(pair, "pair").value->direct_count(); });
}

omnidraft_status omnidraft_pair_to_target(const omnidraft_pair* pair, omnidraft_token draft,
                                          omnidraft_token* target) {
  return guard([&] {
    const VocabularyPair& known = *at(pair, "pair").value;
    at(target, "target") = known.to_target(checked(draft, known.drafter(), "drafter"));
  });
}

omnidraft_status omnidraft_pair_to_draft(const omnidraft_pair* pair, omnidraft_token target,
                                         omnidraft_token* draft) {
  return guard([&] {
    const VocabularyPair& known = *at(pair, "pair").value;
    at(draft, "draft") = known.to_draft(checked(target, known.target(), "target"));
  });
}
