// Reverse translation: the draft tokens that spell what the target said, aligned by bytes.
//
//   Speller speller(pair, segment, "\n", {{target_eos, drafter_eos}});
//   speller.spell(token);                        // draft tokens with the bytes of `token`
//
//   DraftContext context(speller, cache, {bos});
//   context.extend(prompt);
//   context.tokens();                            // what the drafter is to read
//
// Text is never decoded and encoded again. So a character that is split over tokens, a leading
// space or a special token cannot move the boundary at which the next draft begins.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "omnidraft/ngram_cache.h"
#include "omnidraft/span.h"
#include "omnidraft/vocabulary_pair.h"

namespace omnidraft {

class Speller {
 public:
  // Draft tokens whose surfaces join to the given bytes, as the drafter's tokenizer splits them in
  // isolation; none where there are none.
  using Segment = std::function<std::vector<Token>(std::string_view)>;

  // special_text: what the drafter sees for the target's special tokens. They have no surface, are
  // never proposed, and may come at any time. specials: target's special token → the drafter's own
  // special token for it, where there is one. Throws std::out_of_range for a token outside its
  // vocabulary, also where `segment` names it.
  Speller(std::shared_ptr<const VocabularyPair> pair, Segment segment,
          std::string_view special_text = "\n", const std::map<Token, Token>& specials = {});

  // Draft tokens whose bytes are those of `token`. Empty where the drafter cannot spell them: it
  // then does not see the token. Throws std::out_of_range for a token outside the vocabulary.
  const std::vector<Token>& spell(Token token);

 private:
  std::vector<Token> segmented(std::string_view bytes) const;

  std::shared_ptr<const VocabularyPair> pair_;
  Segment segment_;
  std::vector<Token> special_;
  std::unordered_map<Token, std::vector<Token>> known_;
};

// The draft tokens that stand for the target's sequence.
class DraftContext {
 public:
  DraftContext(Speller& speller, NgramCache& cache, std::vector<Token> begin = {})
      : speller_(&speller), cache_(&cache), tokens_(std::move(begin)) {}

  const std::vector<Token>& tokens() const { return tokens_; }

  // Appends target tokens, and shows the cache those that are n-grams. spellings: draft tokens of
  // the first of them, as they were drafted; none for one that was proposed without drafting.
  // said: whether the target said them; tokens of a prompt it did not say. Returns how many n-grams
  // were inserted into the cache.
  std::size_t extend(Span<const Token> targets, const std::vector<std::vector<Token>>& spellings,
                     bool said);

  // Takes in what the target said where an n-gram was proposed: `proposed` is its draft tokens.
  void refuse(Span<const Token> proposed, Token said);

  // Forgets the first `count` tokens.
  void drop(std::size_t count);

 private:
  Speller* speller_;
  NgramCache* cache_;
  std::vector<Token> tokens_;
};

}  // namespace omnidraft
