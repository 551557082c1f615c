#include "omnidraft/lookup.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace omnidraft {
namespace {

std::size_t power_of_two(std::size_t least) {
  std::size_t power = 1;
  while (power < least) {
    power *= 2;
  }
  return power;
}

}  // namespace

Lookup::Lookup(std::size_t vocabulary_size, std::size_t max_tokens)
    : max_tokens_(max_tokens), last_(vocabulary_size, kNowhere) {
  if (max_tokens < 2 || max_tokens > std::size_t{1} << 31) {
    throw std::invalid_argument("a lookup keeps 2 to 2^31 tokens, not " +
                                std::to_string(max_tokens));
  }
  heads_.assign(power_of_two(max_tokens), kNowhere);
}

void Lookup::add(Span<const Token> tokens) {
  for (const Token token : tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= last_.size()) {
      throw std::out_of_range("token " + std::to_string(token) + " is outside the vocabulary");
    }
  }
  for (const Token token : tokens) {
    if (tokens_.size() == max_tokens_) {
      const std::vector<Token> recent(tokens_.end() - static_cast<std::ptrdiff_t>(max_tokens_ / 2),
                                      tokens_.end());
      clear();
      std::for_each(recent.begin(), recent.end(), [&](Token kept) { add(kept); });
    }
    add(token);
  }
}

void Lookup::add(Token token) {
  const auto here = static_cast<std::uint32_t>(tokens_.size());
  tokens_.push_back(token);
  match(token);
  last_[static_cast<std::size_t>(token)] = here;
  before_.push_back(kNowhere);
  if (here > 0) {
    std::uint32_t& newest = head(tokens_[here - 1], token);
    before_[here] = newest;
    newest = here;
  }
}

// The match of the text that now ends in `token`.
void Lookup::match(Token token) {
  if (length_ > 0 && tokens_[next_] == token) {
    ++length_;
    ++next_;
    return;
  }
  const std::size_t here = tokens_.size() - 1;
  // As long as the text before this token matches elsewhere, at most.
  const std::size_t longest = length_ + 1;
  length_ = 0;
  if (last_[static_cast<std::size_t>(token)] == kNowhere) {
    return;
  }
  length_ = 1;
  next_ = last_[static_cast<std::size_t>(token)] + std::size_t{1};
  if (here == 0) {
    return;
  }
  std::uint32_t place = head(tokens_[here - 1], token);
  for (std::size_t i = 0; i < kMaxCandidates && place != kNowhere && length_ < longest; ++i) {
    // First the token that decides whether this place is better than the best.
    if (place >= length_ && tokens_[place - length_] == tokens_[here - length_]) {
      std::size_t length = 0;
      while (length <= place && tokens_[place - length] == tokens_[here - length]) {
        ++length;
      }
      if (length > length_) {
        length_ = length;
        next_ = place + std::size_t{1};
      }
    }
    place = before_[place];
  }
}

std::uint32_t& Lookup::head(Token first, Token second) {
  const std::uint64_t both = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(first)) << 32) |
                             static_cast<std::uint32_t>(second);
  const std::uint64_t mixed = both * 0x9e3779b97f4a7c15ULL;
  return heads_[static_cast<std::size_t>(mixed >> 32) & (heads_.size() - 1)];
}

std::vector<Token> Lookup::propose(std::size_t count, std::size_t min_match) const {
  std::vector<Token> proposed;
  if (length_ < std::max(min_match, std::size_t{1})) {
    return proposed;
  }
  proposed.reserve(count);
  const std::size_t period = tokens_.size() - next_;
  for (std::size_t i = 0; i < count; ++i) {
    proposed.push_back(i < period ? tokens_[next_ + i] : proposed[i - period]);
  }
  return proposed;
}

std::size_t Lookup::memory_bytes() const {
  return tokens_.capacity() * sizeof(Token) +
         (last_.capacity() + heads_.capacity() + before_.capacity()) * sizeof(std::uint32_t);
}

void Lookup::clear() {
  tokens_.clear();
  before_.clear();
  std::fill(last_.begin(), last_.end(), kNowhere);
  std::fill(heads_.begin(), heads_.end(), kNowhere);
  length_ = next_ = 0;
}

}  // namespace omnidraft
