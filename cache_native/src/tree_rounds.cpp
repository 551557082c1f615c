#include "tree_rounds.h"

#include <algorithm>

namespace omnidraft {
namespace {

// Open draft nodes among which a drafter that scores no trees looks for one of its path.
constexpr std::size_t kSiblings = 16;

}  // namespace

TreeRounds::TreeRounds(std::optional<Drafting> drafting) : Rounds(std::move(drafting)) {
  if (drafting_) {
    draft_.emplace(*drafting_->cache);
  }
}

bool TreeRounds::begin(std::size_t room, std::size_t length, std::size_t space) {
  slots_.clear();
  children_.clear();
  limit_ = open(room, length, space);
  if (limit_ == 0) {
    return false;
  }
  Policy& policy = *drafting_->policy;
  draft_->calibrate(policy.calibration());
  if (!found_.empty()) {
    draft_->add_path({found_.data(), std::min(limit_, found_.size())}, policy.found(match_));
  }
  if (context().empty() || policy.layer({1.0}, draft_->gains(), limit_) == 0) {
    return false;
  }
  catch_up();
  pass_nodes_ = {kText};
  return true;
}

void TreeRounds::drafted(Span<const float> rows) {
  if (passes_.size() == 1) {
    fed_.insert(fed_.end(), pass_.tokens.begin(), pass_.tokens.end());
  }
  drafter_length_ = pass_.held + pass_.tokens.size();
  const std::size_t count = pass_nodes_.size();
  const std::size_t width = rows.size() / count;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t node = pass_nodes_[i];
    draft_->expand(node, {rows.data() + i * width, width});
    slots_[node] = static_cast<std::int32_t>(drafter_length_ - count + i);
    if (node != kText) {
      children_[{draft_->parent(node), draft_->token(node)}] = node;
    }
    last_ = node;
  }
}

bool TreeRounds::draft_on() {
  const std::size_t room = std::min(Policy::kMaxLayer, drafting_->max_length - drafter_length_);
  if (failing_ || room == 0) {
    return false;
  }
  std::vector<std::uint32_t> open;
  if (drafting_->scores_trees) {
    open = draft_->frontier(room);
  } else {  // on along the path that the KV cache holds
    for (const std::uint32_t node : draft_->frontier(kSiblings)) {
      if (draft_->parent(node) == last_) {
        open = {node};
        break;
      }
    }
  }
  std::vector<double> probabilities;
  for (const std::uint32_t node : open) {
    probabilities.push_back(draft_->probability(node));
  }
  const std::size_t count =
      std::min(open.size(), drafting_->policy->layer(probabilities, draft_->gains(), limit_));
  if (count == 0) {
    return false;
  }
  open.resize(count);
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  for (const std::uint32_t node : open) {
    tokens.push_back(draft_->token(node));
    if (drafting_->scores_trees) {
      parents.push_back(slots_.at(draft_->parent(node)));
    }
  }
  run_on(drafter_length_, std::move(tokens), std::move(parents));
  pass_nodes_ = std::move(open);
  return true;
}

void TreeRounds::propose() {
  proposal_ = limit_ == 0 ? TreeProposal()
                          : draft_->finish(drafting_->policy->count(draft_->gains(), limit_));
}

std::vector<Token> TreeRounds::proposed() const {
  std::vector<Token> tokens;
  for (const TreeProposal::Node& node : proposal_.nodes) {
    tokens.push_back(node.token);
  }
  return tokens;
}

std::vector<std::int32_t> TreeRounds::parents() const {
  std::vector<std::int32_t> parents;
  for (const TreeProposal::Node& node : proposal_.nodes) {
    parents.push_back(node.parent);
  }
  return parents;
}

Verdict& TreeRounds::verify(Span<const float> logits, const Scoring& scoring) {
  const Decoding& decoding = *scoring.decoding;
  verdict_ = walker_.walk(proposal_, logits, decoding.sampling, *scoring.history, decoding.seed,
                          scoring.position);
  return verdict_;
}

std::vector<std::uint32_t> TreeRounds::rows() const {
  std::vector<std::uint32_t> rows{0};
  for (const std::uint32_t node : verdict_.path) {
    rows.push_back(node + 1);
  }
  return rows;
}

void TreeRounds::settle(double target_seconds, double other_seconds, Settled& settled) {
  const std::vector<TreeProposal::Node>& nodes = proposal_.nodes;
  for (const TreeProposal::Node& node : nodes) {
    settled.draft_tokens += node.drafts.size();
  }
  if (!active_) {
    return;
  }
  std::vector<Judged> judged;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const TreeProposal::Node& node = nodes[i];
    if (verdict_.judgements[i] == Judgement::kNone || node.origin == Origin::kLookup) {
      continue;
    }
    const bool right = verdict_.judgements[i] == Judgement::kRight;
    judged.push_back({node.rank, node.confidence, right});
    if (!right && node.drafts.size() > 1) {
      context_->refuse({node.drafts.data(), node.drafts.size()}, verdict_.tokens[node.depth]);
    }
  }
  std::vector<std::vector<Token>> spellings;
  for (const std::uint32_t i : verdict_.path) {
    spellings.push_back(nodes[i].drafts);
  }
  settled.inserted = close(nodes.size() + 1, verdict_, spellings, std::move(judged), target_seconds,
                           other_seconds);
  active_ = !failing_;
  if (active_) {
    keep(settled.drafter);
  }
}

// What the drafter's KV cache holds of the context as it is now stays.
void TreeRounds::keep(Kept& kept) {
  if (passes_.empty()) {
    return;
  }
  const std::vector<Token>& tokens = context();
  std::uint32_t node = kText;
  while (fed_.size() < tokens.size()) {
    const auto child = children_.find({node, tokens[fed_.size()]});
    if (child == children_.end()) {
      break;
    }
    node = child->second;
    kept.path.push_back(slots_.at(node));
    fed_.push_back(tokens[fed_.size()]);
  }
  if (!drafting_->scores_trees) {
    kept.kind = Kept::Kind::kLength;
    kept.path.clear();
  } else if (passes_.size() > 1) {
    kept.kind = Kept::Kind::kPath;
  }
  kept.length = fed_.size();
}

// Follows draft tokens from the draft node `place`; false where the drafter did not read up to
// their beginning. ran: the draft nodes before each of them.
bool TreeRounds::follow(const std::vector<Token>& drafts, std::vector<std::uint32_t>& ran,
                        std::optional<std::uint32_t>& place) const {
  std::vector<std::uint32_t> read;
  std::optional<std::uint32_t> at = place;
  for (const Token token : drafts) {
    if (!at) {
      return false;
    }
    read.push_back(*at);
    const auto child = children_.find({*at, token});
    at = child == children_.end() ? std::nullopt : std::optional(child->second);
  }
  ran.insert(ran.end(), read.begin(), read.end());
  if (!read.empty()) {
    place = at;
  }
  return !read.empty();
}

std::vector<Shown> TreeRounds::shown() const {
  const std::vector<TreeProposal::Node>& nodes = proposal_.nodes;
  Shown path;
  path.context = before_;
  path.rows = {0};
  std::optional<std::uint32_t> place =
      slots_.count(kText) > 0 ? std::optional(kText) : std::nullopt;
  const auto add = [&](std::uint32_t i) {
    if (!follow(nodes[i].drafts, path.draft_nodes, place)) {
      return false;
    }
    path.tokens.push_back(nodes[i].token);
    path.drafts.insert(path.drafts.end(), nodes[i].drafts.begin(), nodes[i].drafts.end());
    path.counts.push_back(static_cast<std::uint32_t>(nodes[i].drafts.size()));
    path.rows.push_back(i + 1);
    return true;
  };
  // The path ends before a node that was looked up, and before one whose draft tokens the drafter
  // never read in a row.
  std::int32_t fork = TreeProposal::kText;
  for (const std::uint32_t i : verdict_.path) {
    if (!add(i)) {
      break;
    }
    fork = static_cast<std::int32_t>(i);
    ++path.accepted;
  }
  path.last = verdict_.tokens[path.accepted];
  // On by the most probable node, as a chain would have gone. Parents come before their children,
  // and the most probable child first.
  std::int32_t last = fork;
  for (auto i = static_cast<std::size_t>(fork + 1); i < nodes.size(); ++i) {
    const bool refused = last != fork || verdict_.judgements[i] == Judgement::kWrong;
    if (nodes[i].parent == last && refused && add(static_cast<std::uint32_t>(i))) {
      last = static_cast<std::int32_t>(i);
    }
  }
  if (place) {
    path.draft_nodes.push_back(*place);
  }
  std::vector<std::vector<Token>> spellings;
  for (const std::uint32_t i : verdict_.path) {
    spellings.push_back(nodes[i].drafts);
  }
  std::vector<Shown> shown{std::move(path)};
  show_rest(verdict_, spellings, rows(), shown);
  return shown;
}

}  // namespace omnidraft
