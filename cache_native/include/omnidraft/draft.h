// Drafting through the trie: the drafter's logits in, one draft token at a time out, and at the end
// a Proposal of target tokens that remembers how every draft token was drawn.
//
//   Draft draft(cache, Verification::kExact, temperature);
//   Token next = draft.step(logits, chance);   // feed `next` to the drafter, and so on
//   Proposal proposal = draft.finish();
//
// Target tokens that come from elsewhere, a Lookup say, may stand before the drafted ones:
//
//   draft.propose(tokens);
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "omnidraft/chance.h"
#include "omnidraft/sampling.h"
#include "omnidraft/trie.h"

namespace omnidraft {

enum class Verification : std::uint8_t {
  kGreedy = 0,  // the target's argmax
  kExact = 1,   // rejection sampling node by node in the trie: distributed exactly as the target
  kPaper = 2,   // OmniDraft, Eq. 1 and 2: approximate once n-grams share a first draft token
};

// A decision of the exact walk: at `node`, with the drafter's distribution `row`, the outcome drawn
// was a child of the node, or STOP (the target token that ends at the node stands).
struct Visit {
  static constexpr Token kStop = -1;

  std::uint32_t position = 0;  // of the target token, in the proposal
  Node node;
  Token outcome = kStop;
  std::uint32_t row = 0;
  double total = 0;              // of the row's weights over the outcomes of this node
  double stop = 0;               // the part of it that means STOP
  Node excluded = Node::none();  // at a root after STOP: the node whose children cannot be drawn
};

struct Proposal {
  struct Position {
    Token token = kNoToken;  // the proposed target token, or kNoToken when the path ends inside
    std::uint32_t first_draft = 0, draft_count = 0;
    Node last;          // the node where the path of this position ends
    bool open = false;  // the budget ended before STOP or a leaf was drawn

    // Proposed without drafting: Q is certain of the token.
    bool given() const { return draft_count == 0; }
  };

  Verification verification = Verification::kGreedy;
  std::vector<Token> drafts;
  std::vector<Position> positions;
  std::vector<Visit> visits;  // exact only
  // Exact and paper: rows of the drafter's vocabulary, unnormalised q. Draft uses the memory again
  // when no proposal holds it any more.
  std::shared_ptr<const std::vector<float>> weights;
  std::uint64_t version = 0;  // of the trie

  // The target tokens to score, in order.
  std::vector<Token> tokens() const;
  Span<const float> row(std::size_t i, std::size_t width) const {
    return {weights->data() + i * width, width};
  }
};

class Draft {
 public:
  // temperature shapes q; it is not used by greedy. Throws std::invalid_argument when it is not
  // positive in exact and paper.
  Draft(const NgramCache& cache, Verification verification, double temperature);

  // Proposes target tokens before anything is drafted in this round: any of the vocabulary, in the
  // trie or not, special ones too. They must not depend on the target's random choices to come.
  // Throws std::out_of_range for a token outside the target's vocabulary, std::invalid_argument
  // after a first draft token.
  void propose(Span<const Token> tokens);

  // Logits of the drafter after the last draft token, [drafter vocabulary]. Returns the next draft
  // token, or kNoToken when nothing that the trie knows can follow: the proposal ends there.
  // Throws std::invalid_argument for logits of another size and when the cache changed since the
  // first step, std::domain_error for NaN.
  Token step(Span<const float> logits, Chance& chance);

  // How sure the drafter was at the last step: the probability of its most probable token (greedy:
  // with a relative error below 2e-4). For policies of draft length.
  double confidence() const { return confidence_; }
  std::size_t size() const { return proposal_.drafts.size(); }

  // The proposal; the object is ready for the next round. Throws std::invalid_argument when the
  // cache changed since the first step; the proposal is lost then.
  Proposal finish();

 private:
  Token greedy_step(Span<const float> logits, Token best);
  bool continues(Token next, std::size_t& open) const;
  Token exact_step(Span<const float> logits, Token best, Span<float> weights, Chance& chance);
  Token paper_step(Span<const float> weights, Chance& chance);
  bool weigh_allowed(Span<const float> logits, bool may_open, Span<float> weights);
  double mask_by_root(Span<float> weights);
  Token open_position(Span<const float> weights, double total, const Node& excluded,
                      Chance& chance);
  void begin_round();
  void segment(Proposal& proposal) const;

  Verification verification_;
  double temperature_;
  Trie trie_;
  Node node_;
  std::size_t open_ = 0;  // greedy: the first draft token of the target token that is not finished
  Proposal proposal_;
  std::shared_ptr<std::vector<float>> weights_;
  double confidence_ = 1;
  std::vector<Token> children_;
  std::vector<double> outcomes_, sums_;
  std::vector<float> root_mask_;  // 1 for the root's children, else 0
  std::uint64_t root_mask_version_ = 0;
};

}  // namespace omnidraft
