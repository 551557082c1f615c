// The n-gram cache: target tokens that have no direct counterpart, and the draft tokens (two or
// more) that spell them. Bounded, persistent, and at the same time the part of the trie below the
// direct tokens: its entries are kept sorted by their draft tokens, so that a trie node is a range
// of that order and costs no memory.
//
//   NgramCache cache(pair, {.max_entries = 65536, .max_bytes = 4 << 20});
//   cache.observe(target_token, {draft, draft, draft});   // insert or count a use
//   cache.judge({draft, draft, draft}, false);            // proposed, but the target split it
//   cache.save("ngrams.odn");
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "omnidraft/bitset.h"
#include "omnidraft/span.h"
#include "omnidraft/vocabulary_pair.h"

namespace omnidraft {

enum class Eviction : std::uint8_t { kLru = 0, kLfu = 1 };

struct CacheLimits {
  std::size_t max_entries = 65536;
  // All structures of the cache. Two bits per token of the drafter's vocabulary are
  // always needed: with less than that the cache stays empty.
  std::size_t max_bytes = 4U << 20;
  Eviction eviction = Eviction::kLru;
};

// The bytes are truncated, altered, or no cache at all.
class CacheDamagedError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The bytes are intact but belong to other vocabularies or to another version of the format.
class CacheMismatchError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class NgramCache {
 public:
  static constexpr std::size_t kMaxLength = 127;  // draft tokens in one n-gram
  static constexpr std::uint32_t kDoubted = 2;

  struct Ngram {
    Token target;
    Span<const Token> drafts;
    std::uint32_t uses;
    bool primary;  // the spelling that the sampled walk uses
    bool trusted;  // in the trie: see judge()
  };

  explicit NgramCache(std::shared_ptr<const VocabularyPair> pair, CacheLimits limits = {});

  // Inserts the n-gram, or counts a use of it. Returns true when it was inserted. Refuses (false)
  // what cannot be an n-gram of this pair: fewer than 2 or more than kMaxLength draft tokens, a
  // target token with a direct counterpart, draft tokens whose bytes are not the target token's, a
  // second target token for the same draft tokens, or an n-gram larger than the limits.
  // Throws std::out_of_range for token ids outside the vocabularies.
  bool observe(Token target, Span<const Token> drafts);

  // What a target said where it could have chosen between an n-gram and a shorter token of the same
  // draft tokens' beginning: the n-gram (`merged`) or the other. A text may hold n-grams that a
  // target never says itself, two newlines as one token for instance; proposed in their place they
  // are rejected every time. An n-gram that was refused kDoubted times more often than it was said
  // is not trusted: it leaves the trie until it is said again. Unknown n-grams are ignored.
  void judge(Span<const Token> drafts, bool merged);

  std::size_t size() const { return entries_.size(); }
  std::size_t memory_bytes() const;
  std::uint64_t evictions() const { return evictions_; }
  // Changes whenever the trie changes.
  std::uint64_t version() const { return version_; }
  const CacheLimits& limits() const { return limits_; }
  const VocabularyPair& pair() const { return *pair_; }

  // The i-th n-gram in the order of draft tokens, 0 <= i < size().
  Ngram ngram(std::size_t i) const;

  // [begin, end) of the n-grams within [begin, end) whose draft token at `depth` is `draft`, given
  // that all of them agree on the draft tokens before it.
  std::pair<std::uint32_t, std::uint32_t> narrow(std::uint32_t begin, std::uint32_t end,
                                                 std::size_t depth, Token draft) const;

  // Draft tokens that begin a trusted n-gram; those that begin a primary one of them.
  const Bitset& starts() const { return starts_; }
  const Bitset& primary_starts() const { return primary_starts_; }

  // The n-grams, oldest use first, with a checksum; not the limits.
  std::string to_bytes() const;
  // What to_bytes gave, in a new cache: as observing each n-gram as often as it was used, in order
  // of the last uses. `name` is what messages call the bytes. Throws CacheDamagedError,
  // CacheMismatchError.
  static NgramCache from_bytes(std::string_view bytes, std::shared_ptr<const VocabularyPair> pair,
                               CacheLimits limits = {}, const std::string& name = "n-gram cache");

  // to_bytes in a file. Written to a temporary name, flushed, then renamed. Throws
  // std::filesystem::filesystem_error.
  void save(const std::filesystem::path& path) const;
  // Throws CacheDamagedError, CacheMismatchError, std::filesystem::filesystem_error.
  static NgramCache load(const std::filesystem::path& path,
                         std::shared_ptr<const VocabularyPair> pair, CacheLimits limits = {});

 private:
  struct Entry {
    std::uint32_t offset;  // into pool_
    Token target;
    std::uint32_t length : 7;
    std::uint32_t primary : 1;
    std::uint32_t doubt : 2;  // times that it was refused more than said, at most kDoubted
    std::uint32_t uses : 22;
    std::uint32_t tick;  // of the last use
  };

  Span<const Token> drafts(const Entry& entry) const {
    return {pool_.data() + entry.offset, entry.length};
  }
  bool spells(Token target, Span<const Token> drafts) const;
  std::size_t lower_bound(Span<const Token> drafts) const;
  bool is_at(std::size_t at, Span<const Token> drafts) const;
  std::pair<std::size_t, std::size_t> spellings(Token target) const;
  bool can_hold(Token target, Span<const Token> drafts) const;
  void insert(Token target, Span<const Token> drafts);
  void fill(const std::vector<Entry>& entries, const std::vector<Token>& pool);
  bool fill_at_once(const std::vector<Entry>& entries, const std::vector<Token>& pool);
  void use(std::uint32_t entry);
  void choose_primary(Token target);
  std::size_t best_spelling(std::size_t begin, std::size_t end) const;
  void set_primary(std::uint32_t entry, bool primary);
  void update_start(Token draft);
  void make_room(std::size_t length);
  std::size_t fixed_bytes() const;
  bool fits_alone(std::size_t length) const;
  bool fits(std::size_t entries, std::size_t pool) const;
  void evict_one();
  void compact_pool();
  void next_tick();

  std::shared_ptr<const VocabularyPair> pair_;
  CacheLimits limits_;
  std::vector<Entry> entries_;
  std::vector<Token> pool_;               // draft tokens of all entries
  std::vector<std::uint32_t> by_drafts_;  // entries, sorted by draft tokens
  std::vector<std::uint32_t> by_target_;  // entries, sorted by target token, then age in by_target_
  Bitset starts_, primary_starts_;
  std::size_t pool_garbage_ = 0;
  std::uint32_t tick_ = 0;
  std::uint64_t version_ = 0, evictions_ = 0;
};

}  // namespace omnidraft
