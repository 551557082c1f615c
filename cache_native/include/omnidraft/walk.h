// The walk through a tree of proposed tokens: at each node the target's own next token is taken,
// exactly as plain decoding takes it. The round goes on while that token is a child of the node.
//
//   TreeVerdict verdict = Walker().walk(proposal, logits, sampling, history, seed, position);
//
// Which token is taken depends on the row of logits, the sampling parameters, the history, the
// seed and the token's position, and on nothing else. So the tokens are the same whatever was
// proposed; an empty proposal is plain decoding.
#pragma once

#include <cstdint>
#include <vector>

#include "omnidraft/plain_choice.h"
#include "omnidraft/tree_draft.h"
#include "omnidraft/verify.h"

namespace omnidraft {

// What a walk said of a proposed node. Only children of accepted nodes are judged.
enum class Judgement : std::uint8_t { kNone = 0, kWrong = 1, kRight = 2 };

struct TreeVerdict : Verdict {
  std::vector<std::uint32_t> path;    // the accepted nodes, from the text down
  std::vector<Judgement> judgements;  // of each node of the proposal
};

// Ends a round at token `end` of its verdict, an end-of-text token among the accepted ones. The
// verdict is afterwards that of a round that proposed neither it nor what stands behind it, and
// took it as the token that ends every round. Throws std::out_of_range when that token was not an
// accepted one.
void end_round(const TreeProposal& proposal, TreeVerdict& verdict, std::size_t end);

class Walker {
 public:
  // logits: the target's, row-major [proposal.nodes.size() + 1, vocabulary of the history]; row 0
  // follows the last token of the sequence, row i + 1 follows node i.
  // position: of the first token that is emitted, counted from the beginning of the answer.
  // Greedy sampling takes the argmax, and neither seed nor position. The emitted tokens join
  // `history`. Throws std::invalid_argument for logits of another shape, std::domain_error for
  // logits that are not numbers; the history is then as it was.
  TreeVerdict walk(const TreeProposal& proposal, Span<const float> logits,
                   const SamplingParameters& sampling, History& history, std::uint64_t seed,
                   std::uint64_t position);

 private:
  PlainChoice choice_;
};

}  // namespace omnidraft
