// What to draft: what a policy is asked and told in each round, and a fixed number of tokens.
//
// A round proposes a tree of target tokens. A chain is a tree whose layers have one open node each,
// the token drawn last. Plain decoding is the tree without nodes.
//
// A policy's answers may depend on what was drafted so far, on past rounds and on time, never on
// what the next pass would draw. The draft is then a stopping time, and the verification of a chain
// stays exact.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "omnidraft/tree_draft.h"

namespace omnidraft {

// A drafted token that the target found right or wrong.
struct Judged {
  std::size_t rank = 0;  // among the drafter's choices in its place; 0: the first
  double score = 0;  // how likely it was to be right, by the drafter or what scores in its place
  bool right = false;
};

// What a round did.
struct Outcome {
  std::size_t rows = 1;    // of the target's pass
  std::size_t tokens = 1;  // that the round made
  // Tokens and seconds of each pass of the drafter, those that drew nothing included. The first has
  // those tokens that it had to catch up with.
  std::vector<std::pair<std::size_t, double>> passes;
  std::vector<Judged> judged;
  double target_seconds = 0;  // of its pass
  double other_seconds = 0;   // of the rest of the round
  // How many tokens at the end of the text led to what lookup found; 0: to nothing.
  std::size_t match = 0;
  // Tokens of the lookup, proposed or not, that the round showed to be right or wrong: the right
  // ones at its beginning, and the first wrong one; of those, the right ones.
  std::size_t found_judged = 0, found_right = 0;
};

class Policy {
 public:
  static constexpr std::size_t kMaxLayer = 4;  // draft nodes in a pass of the drafter

  virtual ~Policy() = default;

  // How probabilities of the drafter are corrected, by rank; none: they are taken as they are. The
  // last one serves all further ranks.
  virtual std::vector<Calibration> calibration() const = 0;

  // The most nodes that this round may score, at most `space`; 0 is plain decoding. room: tokens
  // that are still wanted, less one; space: nodes that there is room for; context: target tokens in
  // the KV cache; unread: draft tokens that the drafter would have to read in its first pass;
  // found: tokens that a lookup would propose.
  virtual std::size_t begin(std::size_t room, std::size_t space, std::size_t context,
                            std::size_t unread, std::size_t found) = 0;

  // How likely a looked up token is, after a match of so many tokens.
  virtual double found(std::size_t match) const = 0;

  // How many of the open draft nodes the drafter runs on next; 0 ends drafting. open_nodes: their
  // probabilities, in descending order; before the first pass 1, the text. gains: the probabilities
  // of the target nodes so far, in descending order. limit: what begin() said.
  virtual std::size_t layer(const std::vector<double>& open_nodes, const std::vector<double>& gains,
                            std::size_t limit) = 0;

  // How many target nodes to score, the most probable ones, at most `limit`.
  virtual std::size_t count(const std::vector<double>& gains, std::size_t limit) const = 0;

  // What came of the round. Throws std::invalid_argument, and is as it was, for an outcome that
  // cannot be.
  virtual void observe(const Outcome& outcome) = 0;
};

// The same number of tokens every round, ended early by low confidence: draft until
// 1 − Π score > γ, where confidence = 1 − γ (OmniDraft, adaptive drafting).
class Fixed : public Policy {
 public:
  // About how likely the drafter's first choice is, where it is run on a likely path.
  static constexpr double kLikely = 0.8;

  // nodes: of a chain or a tree; of a tree the most probable ones. confidence: no drafting goes on
  // from a path whose product of scores falls below this; 0: from every one.
  explicit Fixed(std::size_t nodes, double confidence = 0)
      : nodes_(nodes), confidence_(confidence) {}

  std::vector<Calibration> calibration() const override { return {}; }
  std::size_t begin(std::size_t room, std::size_t space, std::size_t context, std::size_t unread,
                    std::size_t found) override;
  double found(std::size_t match) const override;
  // Those whose children may be among the most probable nodes.
  std::size_t layer(const std::vector<double>& open_nodes, const std::vector<double>& gains,
                    std::size_t limit) override;
  std::size_t count(const std::vector<double>& gains, std::size_t limit) const override;
  void observe(const Outcome&) override {}

 private:
  std::size_t nodes_;
  double confidence_;
};

}  // namespace omnidraft
