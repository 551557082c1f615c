// Drafting a tree: the drafter's rows in, several continuations of each draft node out, and at the
// end a tree of target tokens, the most probable ones.
//
//   TreeDraft draft(cache, options);
//   draft.expand(TreeDraft::kText, logits);          // the drafter's row after the text
//   for (std::uint32_t node : draft.frontier(4, 0.05)) {
//     ...                                            // run the drafter on draft.token(node)
//     draft.expand(node, logits);                    // after the path of draft.parent(node)
//   }
//   TreeProposal proposal = draft.finish(12);
//
// A draft node is a path of draft tokens. It stands at several places in the trie at once: inside
// an n-gram, and behind each target token that a beginning of the path spells. So a path that can
// be spelled directly and merged gives both branches, and the drafter runs once for them.
#pragma once

#include <cstdint>
#include <vector>

#include "omnidraft/row_ranking.h"
#include "omnidraft/trie.h"
#include "omnidraft/verify.h"

namespace omnidraft {

// Maps the drafter's probability q of a candidate to the probability that the target agrees:
// logit(p) = slope * logit(q) + offset.
struct Calibration {
  double slope = 1, offset = 0;
};

struct TreeOptions {
  std::size_t width = 8;  // continuations of a draft node, at most
  double floor = 0.002;   // what is less probable than this, by the drafter or along its whole
                          // path, is not drafted
  // Tokenizers prefer long tokens. Where draft tokens spell one target token and also several
  // shorter ones, this is the part of the probability that the shorter ones get.
  double shorter_share = 0.1;
  // By the rank of a candidate among those of its draft node; the last one serves all further
  // ranks. Empty: the drafter is taken at its word.
  std::vector<Calibration> calibration;

  // Throws std::invalid_argument naming the option and its range.
  void validate() const;
};

// A tree of target tokens to score. Parents come before their children, depth first, and the most
// probable child first: the most probable path is often a run of rows.
struct TreeProposal {
  static constexpr std::int32_t kText = -1;  // the parent of those that follow the text

  struct Node {
    Token token = kNoToken;
    std::int32_t parent = kText;
    std::uint32_t depth = 0;          // tokens between the text and it
    Origin origin = Origin::kLookup;  // direct, merged, or lookup: proposed by add_path only
    double probability = 0;           // that the whole path to it is the target's choice
    double confidence = 0;      // the drafter's own, uncalibrated, of this token given its parent
    std::uint32_t rank = 0;     // the highest among the ranks of its draft tokens; 0: the first
    std::int32_t draft = -1;    // the draft node that ends it; -1 for a lookup
    std::vector<Token> drafts;  // the draft tokens that spell it; none for a lookup
  };

  std::vector<Node> nodes;
};

class TreeDraft {
 public:
  static constexpr std::uint32_t kText = 0;  // the draft node of the text

  // Throws std::invalid_argument for options out of their range.
  explicit TreeDraft(const NgramCache& cache, TreeOptions options = {});

  const TreeOptions& options() const { return options_; }
  // For the draft nodes that are expanded from now on.
  void calibrate(std::vector<Calibration> calibration);

  // Continues a draft node by the drafter's logits after it, [drafter vocabulary]: by the most
  // probable draft tokens that the trie allows. Throws std::out_of_range for an unknown draft node,
  // std::invalid_argument for one that was expanded before, for logits of another size and when
  // the cache changed in this round, std::domain_error for logits that are not numbers.
  void expand(std::uint32_t node, Span<const float> logits);

  // The draft nodes that the drafter should run on next, the most probable first: at most `limit`,
  // none less probable than `floor`. Draft nodes keep their numbers until finish().
  std::vector<std::uint32_t> frontier(std::size_t limit, double floor = 0) const;
  Token token(std::uint32_t node) const { return drafts_[node].token; }
  std::uint32_t parent(std::uint32_t node) const { return drafts_[node].parent; }
  // Of the most probable target path that goes on from here.
  double probability(std::uint32_t node) const { return drafts_[node].probability; }

  // A path of target tokens from the text that is proposed without drafting, a Lookup's say: any
  // of the vocabulary. `probability`: of each token, given the one before. Throws std::out_of_range
  // for a token outside the vocabulary, std::invalid_argument for a probability outside [0, 1].
  void add_path(Span<const Token> tokens, double probability);

  // The probabilities of the target nodes so far, in descending order: the k-th is what the k-th
  // node adds to the expected number of accepted tokens.
  std::vector<double> gains() const;

  // The `count` most probable target nodes; the object is ready for the next round. Throws
  // std::invalid_argument when the cache changed in this round; the tree is lost then.
  TreeProposal finish(std::size_t count);

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;

  struct TargetNode {
    std::uint32_t parent = kNone, first_child = kNone, next_sibling = kNone;
    Token token = kNoToken;
    double drafted = 0, looked_up = 0;  // its probability, by each way of proposing it
    // The most probable spelling: the draft node where it ends, how many draft tokens it has.
    std::uint32_t draft = kNone, draft_count = 0;
    double spelled = 0;
  };

  // One way to cut the path of a draft node into target tokens: those up to `after`, then the way
  // down to `node`. Node::none(): the trie knows no token that begins so.
  struct State {
    std::uint32_t after;
    Node node;
    double mass;  // the probability of the path, as far as it is cut like this
  };

  struct DraftNode {
    std::uint32_t parent = kNone;
    Token token = kNoToken;
    std::uint32_t rank = 0;
    double confidence = 1;  // the drafter's, of this token
    double probability = 0;
    std::uint32_t begin = 0, end = 0;  // its states
    bool expanded = false;
  };

  void begin_round();
  void check_version() const;
  double calibrated(double q, std::size_t rank) const;
  double ceiling(double q) const;
  bool collect_children(const DraftNode& node);
  bool grow(std::uint32_t parent, Token draft, double q, double confidence, std::size_t rank);
  void complete(std::uint32_t draft, std::size_t begin);
  bool follows(std::uint32_t node, std::uint32_t ancestor) const;
  std::uint32_t target_child(std::uint32_t parent, Token token);
  std::vector<double> probabilities() const;
  TreeProposal::Node proposed(std::uint32_t node, double probability) const;

  Trie trie_;
  TreeOptions options_;
  std::uint64_t version_ = 0;
  std::vector<DraftNode> drafts_;
  std::vector<TargetNode> targets_;  // the first is the text
  std::vector<State> states_;
  RowRanking ranking_;
  std::vector<Token> candidates_, children_;
};

}  // namespace omnidraft
