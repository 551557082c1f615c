// An answer of a target, round by round: which passes of the two models to run, and what came of
// them. Whoever holds the models runs the passes, in any language; all that a round decides is
// decided here.
//
//   Generation generation(decoding, drafting);      // or without drafting: plain decoding
//   generation.read(prompt);                        // the target has read all but its last token
//   while (...) {
//     bool more = generation.begin(room, target.length, target.max_length);
//     while (more) {
//       const Pass& pass = generation.pass();       // of the drafter
//       ...                                         // cut its KV cache to pass.held, and run it
//       generation.drafted(logits, seconds);
//       more = generation.draft_on();
//     }
//     const Pass& pass = generation.score();        // of the target
//     ...                                           // run it
//     const Verdict& verdict = generation.scored(logits);
//     if (...) generation.end_at(i);                // the answer ends within verdict.tokens
//     const Settled& settled = generation.settle(target_seconds, other_seconds);
//     ...                                           // keep of both KV caches what settled says
//   }
//
// Calls out of this order are std::logic_error, and change nothing. Where begin(), draft_on(),
// score() or settle() fail for another reason, the round cannot be ended, and neither can the
// generation go on.
//
// The tokens are the target's own, whatever is drafted: the target's rows, the sampling parameters,
// the seed and the place of a token decide, see PlainChoice; or, in a chain that is sampled without
// a seed, rejection sampling keeps the target's distribution, see Verifier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "omnidraft/lookup.h"
#include "omnidraft/policy.h"
#include "omnidraft/sampling.h"
#include "omnidraft/speller.h"
#include "omnidraft/walk.h"

namespace omnidraft {

class Rounds;

// How tokens are chosen.
struct Decoding {
  std::size_t vocabulary_size = 0;  // columns of the target's logits
  SamplingParameters sampling;
  // Of chains. Greedy: what is proposed stands while it is what plain decoding takes.
  Verification verification = Verification::kGreedy;
  std::uint64_t seed = 0;
  std::vector<Token> ends;  // end-of-text tokens: an answer ends with the first of them
};

// What speculation needs beside the target. Nothing here is owned; it must outlive the generation.
struct Drafting {
  NgramCache* cache = nullptr;
  Speller* speller = nullptr;
  Policy* policy = nullptr;
  Lookup* lookup = nullptr;    // null: nothing is looked up; it is emptied by read()
  std::vector<Token> begin;    // draft tokens that open every context
  bool tree = false;           // draft trees, which the target must score; else chains
  std::size_t max_length = 0;  // of the drafter's KV cache
  bool scores_trees = false;   // the drafter
  std::vector<Token> held;     // what the drafter's KV cache holds, as far as it may be used
};

// A pass of a model.
struct Pass {
  // Tokens that its KV cache must hold before; where it holds more, it is cut.
  std::size_t held = 0;
  std::vector<Token> tokens;
  // Of each token the slot that it follows, for a pass over nodes of a tree; else empty, and each
  // token follows the one before.
  std::vector<std::int32_t> parents;
  std::size_t rows = 1;  // of logits that are wanted, those of the last tokens
};

// What a round leaves in a KV cache.
struct Kept {
  enum class Kind : std::uint8_t {
    kAll = 0,     // what it holds
    kLength = 1,  // its first `length` tokens
    kPath = 2,    // of the tree behind the text the nodes of `path`; no others
  };
  Kind kind = Kind::kAll;
  std::size_t length = 0;
  std::vector<std::int32_t> path;  // slots, from the text downwards
};

// How a round ended.
struct Settled {
  Kept target, drafter;
  std::size_t draft_tokens = 0;  // that were drawn; of a tree those that spell what was proposed
  std::size_t inserted = 0;      // n-grams
};

// One path of a round, for what learns from it: the drafted tokens that the target took, and on by
// the drafter's most probable ones where it left the draft. A token that the target took further
// on, behind one that was looked up, is shown by itself, as a round without a draft.
struct Shown {
  std::size_t context = 0;            // draft tokens before the draft: of Generation::context()
  std::vector<Token> tokens;          // the m drafted target tokens
  std::vector<Token> drafts;          // that spell them; behind them those of an unfinished one
  std::vector<std::uint32_t> counts;  // how many draft tokens spell each
  std::size_t accepted = 0;           // of the m tokens, the first ones that stood
  Token last = kNoToken;              // that the target took after those
  std::vector<std::uint32_t> rows;    // m + 1 of the target's logits: i follows the i-th token
  // Of a tree the draft nodes on the path that the drafter ran on, in order: see pass_nodes().
  std::vector<std::uint32_t> draft_nodes;
};

class Generation {
 public:
  // Throws std::invalid_argument for a temperature that rejection sampling cannot draft at.
  Generation(Decoding decoding, std::optional<Drafting> drafting);
  ~Generation();

  // The prompt, once, before the first round: at least one token. Returns how many n-grams were
  // inserted into the cache. Throws std::out_of_range for a token outside the target's vocabulary.
  std::size_t read(Span<const Token> prompt);

  // Begins a round; true: the drafter is to run pass(). room: tokens that are still wanted, less
  // the one that every round adds; length, max_length: of the target's KV cache. No more than fits
  // there is proposed. Throws std::invalid_argument where no token fits.
  bool begin(std::size_t room, std::size_t length, std::size_t max_length);

  const Pass& pass() const;
  // The draft nodes whose rows the pass gives, in order; of a chain none.
  const std::vector<std::uint32_t>& pass_nodes() const;
  // The pass gave logits, [pass().rows, drafter vocabulary], in so many seconds. Throws
  // std::invalid_argument for another shape or no such time, and may be called again;
  // std::domain_error for logits that are not numbers: see fail().
  void drafted(Span<const float> logits, double seconds);
  // The largest probability among the tokens that could be drawn at the last step of a chain.
  double confidence() const;
  // Whether a chain's last step drew a token.
  bool drew() const;
  // Of a chain: how likely the token drawn last is to be accepted, in place of confidence(). Throws
  // std::invalid_argument for what is no probability.
  void score_as(double score);
  // Whether the drafter is to run again: the next pass().
  bool draft_on();
  // The drafter cannot go on. What was drafted so far is proposed, and no further round drafts.
  // May be called at any time.
  void fail();
  bool drafts() const;

  // The target's pass over the last token of the text and what is proposed after it. May be called
  // before draft_on() says no: nothing more is drafted then. Throws std::invalid_argument where the
  // cache was changed from outside in this round.
  const Pass& score();
  // What the pass says, logits [score().rows, target vocabulary]: the tokens of this round. Where
  // one of Decoding::ends or the room ends the answer before, they end there. Throws
  // std::invalid_argument for another shape, std::domain_error for logits that are not numbers, and
  // may be called again.
  const Verdict& scored(Span<const float> logits);
  // Whether the round's last token is one of Decoding::ends.
  bool ended() const;
  // Cuts what stands behind an accepted token of the verdict. Throws std::out_of_range.
  void end_at(std::size_t end);
  const Verdict& verdict() const;
  // Of each of the verdict's tokens, the row of logits that it was taken from.
  std::vector<std::uint32_t> rows() const;
  // Target tokens that were proposed in this round, and of a tree their parents, −1 for the text.
  std::vector<Token> proposed() const;
  std::vector<std::int32_t> parents() const;

  // Ends the round and learns from it. target_seconds: of the target's pass; other_seconds: of
  // scored(). Throws std::invalid_argument for no such times, and may be called again.
  const Settled& settle(double target_seconds, double other_seconds);
  // Of the round that was settled last, before the next begins; none where nothing drafts.
  std::vector<Shown> shown() const;

  // The draft tokens that stand for the text. A context that grew too long for the drafter loses
  // its beginning at begin().
  const std::vector<Token>& context() const;
  // Tokens of the answer so far.
  std::uint64_t length() const { return length_; }

 private:
  // What is awaited.
  enum class Stage : std::uint8_t {
    kPrompt,
    kRound,   // begin()
    kPass,    // drafted() or score()
    kDrawn,   // draft_on() or score()
    kScore,   // score()
    kScored,  // scored()
    kSettle,  // settle()
    kBroken,  // nothing: a round failed midway
  };

  bool is_end(Token token) const;
  void await(std::initializer_list<Stage> stages, const char* what) const;

  Stage stage_ = Stage::kPrompt;
  Decoding decoding_;
  History history_;
  std::unique_ptr<Rounds> rounds_;
  Token pending_ = kNoToken;  // the last token of the text
  std::uint64_t length_ = 0;
  std::size_t room_ = 0, base_ = 0;
  bool ended_ = false;
  Pass scoring_;
  Settled settled_;
};

}  // namespace omnidraft
