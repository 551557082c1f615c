// Drafting without a drafter: what came after the last time that the text ended as it does now.
//
//   Lookup lookup(vocabulary_size);
//   lookup.add(prompt);             // and every token of the answer
//   lookup.propose(8, 3);           // at most 8 tokens, if at least 3 tokens repeat
//
// The longest earlier occurrence of the text's end is kept up token by token: while the next token
// continues it, it grows by one, and no other can be longer. Only when it breaks off is another one
// looked for, along a chain of the places that end in the same two tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "omnidraft/span.h"
#include "omnidraft/vocabulary.h"

namespace omnidraft {

class Lookup {
 public:
  // Keeps at least the last max_tokens / 2 tokens and at most max_tokens: when these are full, the
  // older half goes. Throws std::invalid_argument when max_tokens is below 2 or above 2^31.
  explicit Lookup(std::size_t vocabulary_size, std::size_t max_tokens = 1U << 16);

  // Throws std::out_of_range for a token outside the vocabulary; nothing is added then.
  void add(Span<const Token> tokens);

  // How many tokens at the end of the text occurred before, in this order. Of several such places
  // the most recent one counts. Only the kMaxCandidates most recent places that end in the last two
  // tokens are looked at.
  std::size_t match_length() const { return length_; }

  // At most `count` tokens that followed there; where they reach the end of the text they go on
  // with themselves, as a loop does. None when fewer than max(min_match, 1) tokens match.
  std::vector<Token> propose(std::size_t count, std::size_t min_match = 2) const;

  std::size_t size() const { return tokens_.size(); }
  std::size_t memory_bytes() const;
  // Forgets everything.
  void clear();

 private:
  static constexpr std::size_t kMaxCandidates = 128;
  static constexpr std::uint32_t kNowhere = 0xffffffff;

  void add(Token token);
  void match(Token token);
  std::uint32_t& head(Token first, Token second);

  std::size_t max_tokens_;
  std::vector<Token> tokens_;
  // Of a token: where it last occurred. Of a hash of two tokens: where they last ended; then, place
  // by place, where tokens of this hash ended before.
  std::vector<std::uint32_t> last_, heads_, before_;
  std::size_t length_ = 0, next_ = 0;  // the match, and the place after it
};

}  // namespace omnidraft
