// Verification: which proposed target tokens stand, and which token ends the round.
//
//   Verdict verdict = Verifier(cache).verify(proposal, logits, sampling, history, chance);
#pragma once

#include <cstdint>
#include <vector>

#include "omnidraft/draft.h"
#include "omnidraft/plain_choice.h"

namespace omnidraft {

enum class Origin : std::uint8_t {
  kDirect = 0,     // drafted and accepted, one draft token
  kMerged = 1,     // drafted and accepted, an n-gram of the cache
  kCorrected = 2,  // the target's choice where the proposal was rejected
  kFree = 3,       // the target's own next token after everything proposed was accepted
  kLookup = 4,     // proposed without drafting, and accepted
};

struct Verdict {
  std::vector<Token> tokens;          // at least one; also added to the history
  std::vector<Origin> origins;        // of each token
  std::uint32_t proposed = 0;         // target tokens that were scored
  std::uint32_t accepted = 0;         // of those, the ones that stand
  std::uint32_t accepted_drafts = 0;  // draft tokens that spell them
  std::uint32_t merged = 0;           // n-grams among the proposed
  std::uint32_t merged_accepted = 0;
};

// Ends a round at token `end` of its verdict, an end-of-text token among the accepted ones.
// Proposal and verdict are afterwards those of a round that proposed the tokens before it and took
// it as the token that ends every round: tokens.size() is accepted + 1 as ever. Throws
// std::out_of_range when that token was not an accepted one.
void end_round(Proposal& proposal, Verdict& verdict, std::size_t end);

class Verifier {
 public:
  explicit Verifier(const NgramCache& cache) : cache_(&cache) {}

  // logits: the target's, row-major [proposal.tokens().size() + 1, target vocabulary]; row i
  // follows the i-th proposed token. Row 0 follows the last token of the sequence.
  // sampling: greedy if and only if the proposal is. The emitted tokens join `history`.
  // Throws std::invalid_argument for logits of another shape or a proposal that was made with
  // another state of the trie, std::domain_error for logits that are not numbers; the history is
  // then as it was.
  Verdict verify(const Proposal& proposal, Span<const float> logits,
                 const SamplingParameters& sampling, History& history, Chance& chance);

  // The same for a greedy proposal and any sampling: what is proposed stands while it is the token
  // that plain decoding takes, see PlainChoice. position: of the first token that is emitted,
  // counted from the beginning of the answer.
  Verdict follow(const Proposal& proposal, Span<const float> logits,
                 const SamplingParameters& sampling, History& history, std::uint64_t seed,
                 std::uint64_t position);

 private:
  Verdict begin(const Proposal& proposal, Span<const float> logits);
  void follow(const Proposal& proposal, const SamplingParameters& sampling, History& history,
              std::uint64_t seed, std::uint64_t position, Verdict& verdict);
  void exact(const Proposal& proposal, const SamplingParameters& sampling, History& history,
             Chance& chance, Verdict& verdict);
  void paper(const Proposal& proposal, const SamplingParameters& sampling, History& history,
             Chance& chance, Verdict& verdict);
  void emit(Verdict& verdict, History& history, Token token, Origin origin);
  void accept(Verdict& verdict, History& history, const Proposal::Position& position);
  bool stands(const Proposal::Position& position, Verdict& verdict, History& history,
              Chance& chance);
  void shape_row(std::size_t i, const SamplingParameters& sampling, const History& history);
  Token draw_rest(Chance& chance);
  double mass_below(const Node& node) const;
  Token draw_below(const Node& node, Chance& chance);
  Token resolve_root(const Proposal& proposal, const Visit& visit, Chance& chance);
  Token resolve_inner(const Proposal& proposal, const Visit& visit, double mass, Chance& chance);
  double probability_of(const Proposal& proposal, const Visit& visit) const;

  const NgramCache* cache_;
  PlainChoice choice_;
  Span<const float> logits_;
  std::size_t width_ = 0;
  Distribution p_;
  std::vector<float> scratch_;
  std::vector<double> weights_;
  std::vector<Token> candidates_, children_;
};

}  // namespace omnidraft
