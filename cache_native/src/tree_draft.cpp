#include "omnidraft/tree_draft.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "omnidraft/sampling.h"

namespace omnidraft {
namespace {

// Ways to cut one draft path. The most probable come first, and few matter.
constexpr std::size_t kMaxStates = 32;

void require(bool condition, const char* message) {
  if (!condition) {
    throw std::invalid_argument(message);
  }
}

void validate_calibration(const std::vector<Calibration>& calibration) {
  for (const Calibration& entry : calibration) {
    require(entry.slope >= 0 && std::isfinite(entry.slope) && std::isfinite(entry.offset),
            "a calibration needs a finite slope of at least 0 and a finite offset");
  }
}

// Sums of a row are known to 2e-4 only, so what is nearer to 1 is not told from it.
double logit(double q) {
  q = std::min(std::max(q, 1e-7), 1 - 1e-4);
  return std::log(q / (1 - q));
}

double probability_of(double logit) { return 1 / (1 + std::exp(-logit)); }

}  // namespace

void TreeOptions::validate() const {
  // Written so that NaN fails.
  require(width >= 1 && width <= 64, "the width of a tree must be between 1 and 64");
  require(floor >= 0 && floor <= 1, "the floor of a tree must be between 0 and 1");
  require(shorter_share >= 0 && shorter_share <= 1,
          "the share of shorter tokens must be between 0 and 1");
  validate_calibration(calibration);
}

TreeDraft::TreeDraft(const NgramCache& cache, TreeOptions options)
    : trie_(cache, Trie::Spellings::kAll), options_(std::move(options)) {
  options_.validate();
}

void TreeDraft::calibrate(std::vector<Calibration> calibration) {
  validate_calibration(calibration);
  options_.calibration = std::move(calibration);
}

// The trie may have changed since the last round.
void TreeDraft::begin_round() {
  if (!drafts_.empty()) {
    return;
  }
  version_ = trie_.version();
  targets_.emplace_back();
  states_.push_back({kText, trie_.root(), 1});
  drafts_.emplace_back();
  drafts_[kText].probability = 1;
  drafts_[kText].end = 1;
}

void TreeDraft::check_version() const {
  require(version_ == trie_.version(), "the n-gram cache changed while a tree was drafted");
}

double TreeDraft::calibrated(double q, std::size_t rank) const {
  if (options_.calibration.empty()) {
    return q;
  }
  const Calibration& entry = options_.calibration[std::min(rank, options_.calibration.size() - 1)];
  return probability_of(entry.slope * logit(q) + entry.offset);
}

// The most that q may be calibrated to, whatever the rank.
double TreeDraft::ceiling(double q) const {
  if (options_.calibration.empty()) {
    return q;
  }
  double most = -std::numeric_limits<double>::infinity();
  for (const Calibration& entry : options_.calibration) {
    most = std::max(most, entry.slope * logit(q) + entry.offset);
  }
  return probability_of(most);
}

// Where no target token may begin, the few draft tokens that continue n-grams, in candidates_.
bool TreeDraft::collect_children(const DraftNode& node) {
  candidates_.clear();
  for (std::uint32_t i = node.begin; i < node.end; ++i) {
    const Node& place = states_[i].node;
    if (place.is_root()) {
      return false;
    }
    if (place.exists()) {
      trie_.children(place, children_);
      candidates_.insert(candidates_.end(), children_.begin(), children_.end());
    }
  }
  return true;
}

void TreeDraft::expand(std::uint32_t node, Span<const float> logits) {
  begin_round();
  check_version();
  if (node >= drafts_.size()) {
    throw std::out_of_range("there is no draft node " + std::to_string(node));
  }
  require(!drafts_[node].expanded, "a draft node can be expanded only once");
  const std::size_t size = trie_.pair().drafter().size();
  if (logits.size() != size) {
    throw std::invalid_argument("the drafter returned " + std::to_string(logits.size()) +
                                " logits for a vocabulary of " + std::to_string(size));
  }
  ranking_.assign(logits);
  drafts_[node].expanded = true;
  const float maximum = ranking_.maximum();
  if (maximum == -std::numeric_limits<float>::infinity()) {
    return;
  }
  const double total = rough_exp_sum(logits, maximum);
  const double probability = drafts_[node].probability;
  const bool few = collect_children(drafts_[node]);
  if (few) {
    std::sort(candidates_.begin(), candidates_.end(), [&](Token a, Token b) {
      const float first = logits[static_cast<std::size_t>(a)];
      const float second = logits[static_cast<std::size_t>(b)];
      return first != second ? first > second : a < b;
    });
    candidates_.erase(std::unique(candidates_.begin(), candidates_.end()), candidates_.end());
  }
  std::size_t tried = 0, grown = 0;
  for (std::size_t count = 2 * options_.width;; count *= 8) {
    if (!few) {
      ranking_.top(count, candidates_);  // begins with those of the call before
    }
    for (; tried < candidates_.size() && grown < options_.width; ++tried) {
      const Token candidate = candidates_[tried];
      float weight = logits[static_cast<std::size_t>(candidate)];
      exp_weights({&weight, 1}, maximum, 1, {&weight, 1});
      const double q = std::min(1.0, static_cast<double>(weight) / total);
      // By q itself, too: a flat calibration would have all of the vocabulary tried.
      if (q < options_.floor || ceiling(q) * probability < options_.floor) {
        return;
      }
      grown += grow(node, candidate, calibrated(q, grown), q, grown) ? 1 : 0;
    }
    if (few || grown == options_.width || candidates_.size() < count) {
      return;
    }
  }
}

// The draft node behind `parent` by `draft`; false when the trie knows no way there, or none that
// is probable enough.
bool TreeDraft::grow(std::uint32_t parent, Token draft, double q, double confidence,
                     std::size_t rank) {
  const std::size_t begin = states_.size();
  bool alive = false;
  for (std::uint32_t i = drafts_[parent].begin; i < drafts_[parent].end; ++i) {
    State state = states_[i];
    state.mass *= q;
    if (state.mass < options_.floor) {
      continue;
    }
    if (state.node.exists()) {
      state.node = trie_.child(state.node, draft);
    }
    alive = alive || state.node.exists();
    // One that has ended is kept while a longer token may take its probability.
    if (alive) {
      states_.push_back(state);
    }
  }
  if (!alive) {
    return false;
  }
  const auto id = static_cast<std::uint32_t>(drafts_.size());
  DraftNode node;
  node.parent = parent;
  node.token = draft;
  node.rank = static_cast<std::uint32_t>(rank);
  node.confidence = confidence;
  drafts_.push_back(node);
  complete(id, begin);
  return true;
}

// Adds the target tokens that end at a new draft node. States come in the order in which their
// tokens begin, so the longest one is completed first and takes its share from the shorter ones
// that spell the same draft tokens: from those that follow what it follows.
void TreeDraft::complete(std::uint32_t draft, std::size_t begin) {
  const std::size_t end = states_.size();
  const double longer_share = 1 - options_.shorter_share;
  for (std::size_t i = begin; i < end; ++i) {
    const State state = states_[i];
    if (!state.node.exists()) {
      continue;
    }
    if (!trie_.has_children(state.node)) {
      states_[i].node = Node::none();
    }
    const Token token = trie_.token(state.node);
    if (token == kNoToken) {
      continue;
    }
    double mass = state.mass;
    for (std::size_t j = i + 1; j < end; ++j) {
      if (follows(states_[j].after, state.after)) {
        mass = state.mass * longer_share;
        const double lost = states_[j].mass * longer_share;
        states_[j].mass -= lost;
        targets_[states_[j].after].drafted -= lost;
      }
    }
    if (!(mass > 0) || mass < options_.floor) {
      continue;
    }
    const std::uint32_t id = target_child(state.after, token);
    TargetNode& target = targets_[id];
    target.drafted += mass;
    if (mass > target.spelled) {
      target.spelled = mass;
      target.draft = draft;
      target.draft_count = state.node.depth;
    }
    if (states_.size() - begin < kMaxStates) {
      states_.push_back({id, trie_.root(), mass});
    }
  }
  DraftNode& node = drafts_[draft];
  node.begin = static_cast<std::uint32_t>(begin);
  node.end = static_cast<std::uint32_t>(states_.size());
  for (std::size_t i = begin; i < states_.size(); ++i) {
    if (states_[i].node.exists()) {
      node.probability = std::max(node.probability, states_[i].mass);
    }
  }
}

// Whether a target node stands below another.
bool TreeDraft::follows(std::uint32_t node, std::uint32_t ancestor) const {
  while (node > ancestor) {  // parents have lower numbers
    node = targets_[node].parent;
    if (node == ancestor) {
      return true;
    }
  }
  return false;
}

std::uint32_t TreeDraft::target_child(std::uint32_t parent, Token token) {
  std::uint32_t child = targets_[parent].first_child;
  while (child != kNone && targets_[child].token != token) {
    child = targets_[child].next_sibling;
  }
  if (child == kNone) {
    child = static_cast<std::uint32_t>(targets_.size());
    TargetNode node;
    node.parent = parent;
    node.token = token;
    node.next_sibling = std::exchange(targets_[parent].first_child, child);
    targets_.push_back(node);
  }
  return child;
}

std::vector<std::uint32_t> TreeDraft::frontier(std::size_t limit, double floor) const {
  std::vector<std::uint32_t> nodes;
  for (std::uint32_t id = 1; id < drafts_.size(); ++id) {
    const DraftNode& node = drafts_[id];
    if (!node.expanded && node.probability > 0 && node.probability >= floor) {
      nodes.push_back(id);
    }
  }
  std::stable_sort(nodes.begin(), nodes.end(), [&](std::uint32_t a, std::uint32_t b) {
    return drafts_[a].probability > drafts_[b].probability;
  });
  nodes.resize(std::min(limit, nodes.size()));
  return nodes;
}

void TreeDraft::add_path(Span<const Token> tokens, double probability) {
  require(probability >= 0 && probability <= 1, "a probability must be between 0 and 1");
  const std::size_t size = trie_.pair().target().size();
  for (const Token token : tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= size) {
      throw std::out_of_range("proposed token " + std::to_string(token) +
                              " is outside the target's vocabulary");
    }
  }
  begin_round();
  std::uint32_t node = 0;
  double mass = 1;
  for (const Token token : tokens) {
    mass *= probability;
    node = target_child(node, token);
    targets_[node].looked_up = std::max(targets_[node].looked_up, mass);
  }
}

// Of each target node. Calibrated probabilities need not add up, so a child is held to its parent.
std::vector<double> TreeDraft::probabilities() const {
  std::vector<double> result{1};
  for (std::size_t id = 1; id < targets_.size(); ++id) {
    const TargetNode& node = targets_[id];
    result.push_back(std::min(std::max({node.drafted, node.looked_up, 0.0}), result[node.parent]));
  }
  return result;
}

std::vector<double> TreeDraft::gains() const {
  std::vector<double> result = probabilities();
  result.erase(result.begin());
  std::sort(result.begin(), result.end(), [](double a, double b) { return a > b; });
  return result;
}

TreeProposal::Node TreeDraft::proposed(std::uint32_t node, double probability) const {
  const TargetNode& target = targets_[node];
  TreeProposal::Node result;
  result.token = target.token;
  result.probability = probability;
  if (target.draft == kNone) {
    const double before = target.parent == 0 ? 1 : targets_[target.parent].looked_up;
    result.confidence = before > 0 ? target.looked_up / before : 0;
    return result;
  }
  result.origin = target.draft_count > 1 ? Origin::kMerged : Origin::kDirect;
  result.draft = static_cast<std::int32_t>(target.draft);
  result.confidence = 1;
  result.drafts.resize(target.draft_count);
  std::uint32_t draft = target.draft;
  for (std::size_t i = target.draft_count; i > 0; --i) {
    result.drafts[i - 1] = drafts_[draft].token;
    result.confidence *= drafts_[draft].confidence;
    result.rank = std::max(result.rank, drafts_[draft].rank);
    draft = drafts_[draft].parent;
  }
  return result;
}

TreeProposal TreeDraft::finish(std::size_t count) {
  const bool changed = !drafts_.empty() && version_ != trie_.version();
  TreeProposal proposal;
  if (!drafts_.empty() && !changed) {
    const std::vector<double> probability = probabilities();
    std::vector<std::uint32_t> chosen;
    for (std::uint32_t id = 1; id < targets_.size(); ++id) {
      chosen.push_back(id);
    }
    // Of equals the lower number comes first: a parent before its child.
    std::stable_sort(chosen.begin(), chosen.end(), [&](std::uint32_t a, std::uint32_t b) {
      return probability[a] > probability[b];
    });
    chosen.resize(std::min(count, chosen.size()));
    // Depth first: what is pushed last is visited first.
    struct Visit {
      std::uint32_t id;
      std::int32_t parent;
      std::uint32_t depth;
    };
    std::vector<Visit> stack;
    const auto push_children = [&](std::uint32_t id, std::int32_t row, std::uint32_t depth) {
      for (auto child = chosen.rbegin(); child != chosen.rend(); ++child) {
        if (targets_[*child].parent == id) {
          stack.push_back({*child, row, depth});
        }
      }
    };
    push_children(0, TreeProposal::kText, 0);
    while (!stack.empty()) {
      const Visit visit = stack.back();
      stack.pop_back();
      TreeProposal::Node node = proposed(visit.id, probability[visit.id]);
      node.parent = visit.parent;
      node.depth = visit.depth;
      const auto row = static_cast<std::int32_t>(proposal.nodes.size());
      proposal.nodes.push_back(std::move(node));
      push_children(visit.id, row, visit.depth + 1);
    }
  }
  drafts_.clear();
  targets_.clear();
  states_.clear();
  require(!changed, "the n-gram cache changed while a tree was drafted");
  return proposal;
}

}  // namespace omnidraft
