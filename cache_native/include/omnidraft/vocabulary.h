// A tokenizer's vocabulary as surface bytes.
//
//   Vocabulary target(std::move(tokens));
//   target.surface(42);          // "hello"
//   target.is_special(0);        // true for <s>, <|im_end|>, ...
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace omnidraft {

using Token = std::int32_t;
constexpr Token kNoToken = -1;

enum class TokenKind : std::uint8_t {
  kNormal = 0,   // spells its surface
  kSpecial = 1,  // has no surface: control tokens, chat markers, unused slots
  kByte = 2,     // a byte-fallback token (<0x41>); another token may spell the same byte
};

struct TokenText {
  std::string surface;  // bytes; ignored for specials
  std::string piece;    // the tokenizer's own string ("▁the", "Ġthe"); the paper rule compares it
  TokenKind kind = TokenKind::kNormal;
};

class Vocabulary {
 public:
  // Throws std::invalid_argument when there are no tokens.
  explicit Vocabulary(const std::vector<TokenText>& tokens);

  std::size_t size() const { return kinds_.size(); }
  TokenKind kind(Token token) const { return kinds_[static_cast<std::size_t>(token)]; }
  bool is_special(Token token) const { return kind(token) == TokenKind::kSpecial; }
  std::string_view surface(Token token) const { return slice(surfaces_, surface_ends_, token); }
  std::string_view piece(Token token) const { return slice(pieces_, piece_ends_, token); }

  // FNV-1a over surfaces, pieces and kinds: equal vocabularies have equal fingerprints.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  static std::string_view slice(const std::string& text, const std::vector<std::uint32_t>& ends,
                                Token token) {
    const auto i = static_cast<std::size_t>(token);
    const std::size_t begin = i == 0 ? 0 : ends[i - 1];
    return std::string_view(text).substr(begin, ends[i] - begin);
  }

  std::vector<TokenKind> kinds_;
  std::string surfaces_, pieces_;
  std::vector<std::uint32_t> surface_ends_, piece_ends_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace omnidraft
