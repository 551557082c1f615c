#include "omnidraft/walk.h"

#include <stdexcept>
#include <string>

namespace omnidraft {
namespace {

void count_proposed(const TreeProposal::Node& node, Verdict& verdict) {
  ++verdict.proposed;
  verdict.merged += node.origin == Origin::kMerged ? 1 : 0;
}

void count_accepted(const TreeProposal::Node& node, Verdict& verdict) {
  ++verdict.accepted;
  verdict.accepted_drafts += static_cast<std::uint32_t>(node.drafts.size());
  verdict.merged_accepted += node.origin == Origin::kMerged ? 1 : 0;
}

}  // namespace

void end_round(const TreeProposal& proposal, TreeVerdict& verdict, std::size_t end) {
  if (end >= verdict.accepted) {
    throw std::out_of_range("token " + std::to_string(end) + " is not one of the " +
                            std::to_string(verdict.accepted) + " that were accepted");
  }
  const std::size_t ended = verdict.path[end];
  verdict.tokens.resize(end + 1);
  verdict.origins.resize(end + 1);
  verdict.path.resize(end);
  verdict.proposed = verdict.accepted = verdict.accepted_drafts = 0;
  verdict.merged = verdict.merged_accepted = 0;
  std::vector<bool> behind(proposal.nodes.size());
  for (std::size_t i = 0; i < proposal.nodes.size(); ++i) {
    const TreeProposal::Node& node = proposal.nodes[i];
    behind[i] = i == ended || (node.parent >= 0 && behind[static_cast<std::size_t>(node.parent)]);
    if (behind[i]) {
      verdict.judgements[i] = Judgement::kNone;
    } else {
      count_proposed(node, verdict);
    }
  }
  for (const std::uint32_t i : verdict.path) {
    count_accepted(proposal.nodes[i], verdict);
  }
}

TreeVerdict Walker::walk(const TreeProposal& proposal, Span<const float> logits,
                         const SamplingParameters& sampling, History& history, std::uint64_t seed,
                         std::uint64_t position) {
  const std::vector<TreeProposal::Node>& nodes = proposal.nodes;
  const std::size_t width = history.vocabulary_size();
  if (logits.size() != (nodes.size() + 1) * width) {
    throw std::invalid_argument("a walk needs logits of shape [" +
                                std::to_string(nodes.size() + 1) + ", " + std::to_string(width) +
                                "], not " + std::to_string(logits.size()) + " values");
  }
  TreeVerdict verdict;
  verdict.judgements.assign(nodes.size(), Judgement::kNone);
  for (const TreeProposal::Node& node : nodes) {
    count_proposed(node, verdict);
  }
  const std::size_t seen = history.distinct().size();
  try {
    std::int32_t at = TreeProposal::kText;
    while (true) {
      const Token token = choice_({logits.data() + static_cast<std::size_t>(at + 1) * width, width},
                                  sampling, history, seed, position + verdict.tokens.size());
      bool leaf = true;
      std::int32_t next = TreeProposal::kText;
      for (auto i = static_cast<std::size_t>(at + 1); i < nodes.size(); ++i) {
        if (nodes[i].parent == at) {
          leaf = false;
          const bool right = nodes[i].token == token;
          verdict.judgements[i] = right ? Judgement::kRight : Judgement::kWrong;
          next = right ? static_cast<std::int32_t>(i) : next;
        }
      }
      history.add(token);
      verdict.tokens.push_back(token);
      if (next == TreeProposal::kText) {
        verdict.origins.push_back(leaf ? Origin::kFree : Origin::kCorrected);
        return verdict;
      }
      const TreeProposal::Node& node = nodes[static_cast<std::size_t>(next)];
      verdict.origins.push_back(node.origin);
      verdict.path.push_back(static_cast<std::uint32_t>(next));
      count_accepted(node, verdict);
      at = next;
    }
  } catch (...) {  // a row may be no numbers after tokens were accepted
    history.truncate(seen);
    throw;
  }
}

}  // namespace omnidraft
