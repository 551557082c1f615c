#include "omnidraft/vocabulary.h"

#include <stdexcept>

#include "omnidraft/fnv.h"

namespace omnidraft {

Vocabulary::Vocabulary(const std::vector<TokenText>& tokens) {
  if (tokens.empty()) {
    throw std::invalid_argument("a vocabulary needs at least one token");
  }
  kinds_.reserve(tokens.size());
  surface_ends_.reserve(tokens.size());
  piece_ends_.reserve(tokens.size());
  Fnv1a hash;
  for (const TokenText& token : tokens) {
    // An ordinary token that spells nothing would let a path in the trie stand still.
    const bool special = token.kind == TokenKind::kSpecial || token.surface.empty();
    kinds_.push_back(special ? TokenKind::kSpecial : token.kind);
    if (!special) {
      surfaces_ += token.surface;
    }
    pieces_ += token.piece;
    surface_ends_.push_back(static_cast<std::uint32_t>(surfaces_.size()));
    piece_ends_.push_back(static_cast<std::uint32_t>(pieces_.size()));
    hash.update(static_cast<std::uint64_t>(kinds_.back()));
    if (!special) {
      hash.update(static_cast<std::uint64_t>(token.surface.size()));
      hash.update(token.surface);
    }
    hash.update(static_cast<std::uint64_t>(token.piece.size()));
    hash.update(token.piece);
  }
  surfaces_.shrink_to_fit();
  pieces_.shrink_to_fit();
  fingerprint_ = hash.value();
}

}  // namespace omnidraft
