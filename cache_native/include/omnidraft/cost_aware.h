// Drafts what makes most tokens per second on this machine: trees, chains and plain decoding.
//
//   CostAware policy(costs);
//   const std::size_t limit = policy.begin(room, space, context, unread, found);
//   while ((count = policy.layer(open_nodes, gains, limit)) > 0) {
//     ...                                  // run the drafter on so many open nodes
//   }
//   ...                                    // score the policy.count(gains, limit) most probable
//   policy.observe(outcome);
//
// The rule. With ρ the present tokens per second, t(n) the seconds of the target's pass over n
// tokens and d(n) those of the drafter's:
//
// 1. A node is worth its probability, in tokens, and its row costs ρ (t(n + 1) − t(n)).
// 2. The tree is as many of the most probable nodes as make worth less cost largest.
// 3. Running the drafter on an open node of probability P is expected to add a node worth P a,
//    where a is how often the drafter's first choice is right.
// 4. The drafter runs on as many open nodes as make the sum of these, less the cost of their rows
//    (or the worth of the nodes whose rows they take) and ρ d(n), largest. It stops where that is
//    not positive.
// 5. Whether rounds may draft at all is decided by an Account. What it tries runs once.
//
// A chain has one open node at a time, the token drawn last, and plain decoding none. The rule is
// the optimal stopping rule of a renewal process: ρ is what time brings elsewhere. The answers
// depend on what was drafted so far, on past rounds and on time, never on what the next pass would
// draw. The draft is then a stopping time, and the verification of a chain stays exact.
//
// Probabilities are calibrated by rank: how often the drafter's first, second, … choice was right
// where it gave it so much. Tokens that are found in the text cost no drafting. Every round shows
// which of them were right, used or not, so their probability is learned without trying; it is
// predicted from the length of the match.
//
// What may be lost. No round drafts, looks up or reads further than the account's credit would pay
// if every token were refused. So whatever the target accepts, at most the credit at first and the
// allowance are lost against plain decoding. Gains and losses are reckoned by the cost curves,
// which follow the machine: a machine that slows down is not held against drafting.
//
// Reading a prompt into the drafter is an investment, and not part of ρ. Where drafting has paid,
// and the answer may be long enough to earn it back, the balance pays for it down to a reserve.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "omnidraft/acceptance.h"
#include "omnidraft/account.h"
#include "omnidraft/costs.h"
#include "omnidraft/policy.h"

namespace omnidraft {

class CostAware final : public Policy {
 public:
  static constexpr std::size_t kMaxNodes = 32;
  static constexpr std::size_t kMaxPasses = 16;  // of the drafter in a round

  explicit CostAware(std::shared_ptr<Costs> costs);

  std::vector<Calibration> calibration() const override;
  double found(std::size_t match) const override;
  std::size_t begin(std::size_t room, std::size_t space, std::size_t context, std::size_t unread,
                    std::size_t found) override;
  std::size_t layer(const std::vector<double>& open_nodes, const std::vector<double>& gains,
                    std::size_t limit) override;
  std::size_t count(const std::vector<double>& gains, std::size_t limit) const override;
  void observe(const Outcome& outcome) override;

 private:
  // A running level of seconds that single long values do not move.
  struct Level {
    double value = 0;  // where it begins, as if observed once; 0: with the first value
    int seen = 1;

    void observe(double seconds);
  };

  double target_seconds(std::size_t tokens) const;
  double drafter_seconds(std::size_t tokens) const;
  double plain_seconds() const { return target_seconds(1) + plain_rest_.value; }
  std::size_t affordable(std::size_t most, double layer, double reading) const;
  void learn(const Outcome& outcome);
  void followed(std::size_t tokens, double steps);

  std::shared_ptr<Costs> costs_;
  Account account_;
  std::vector<Acceptance> ranks_;
  double first_ = 0.7;  // how often the drafter's first choice is right
  Acceptance found_{-1.5, 0.8};
  // Of rounds that proposed something, with forgetting: tokens, and the plain steps that would have
  // taken as long. Some rounds that gain nothing stand for what is not known yet.
  double tokens_ = 5, steps_ = 5;
  Level plain_rest_, draft_rest_;  // of a round beside the passes of the models
  // Of the drafter's first pass beside that of the same tokens later on: the target's weights have
  // driven the drafter's out of the processor's caches.
  Level waking_;
  // Of the round under way.
  CostCurve* target_;
  double rate_ = 0, invested_ = 0;
  bool drafts_ = false, tries_ = false;
  std::size_t passes_ = 0;
  std::size_t idle_ = 0;  // rounds since the drafter ran
};

}  // namespace omnidraft
