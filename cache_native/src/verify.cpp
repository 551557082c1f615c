#include "omnidraft/verify.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace omnidraft {
namespace {

bool any_positive(const std::vector<double>& weights) {
  return std::any_of(weights.begin(), weights.end(), [](double weight) { return weight > 0; });
}

}  // namespace

void end_round(Proposal& proposal, Verdict& verdict, std::size_t end) {
  if (end >= verdict.accepted) {
    throw std::out_of_range("token " + std::to_string(end) + " is not one of the " +
                            std::to_string(verdict.accepted) + " that were accepted");
  }
  proposal.positions.resize(end);
  verdict.tokens.resize(end + 1);
  verdict.origins.resize(end + 1);
  verdict.proposed = verdict.accepted = static_cast<std::uint32_t>(end);
  verdict.accepted_drafts = verdict.merged = 0;
  for (const Proposal::Position& position : proposal.positions) {
    verdict.accepted_drafts += position.draft_count;
    verdict.merged += position.draft_count > 1 ? 1 : 0;
  }
  verdict.merged_accepted = verdict.merged;
  proposal.drafts.resize(verdict.accepted_drafts);
  const auto behind = [end](const Visit& visit) { return visit.position >= end; };
  proposal.visits.erase(std::find_if(proposal.visits.begin(), proposal.visits.end(), behind),
                        proposal.visits.end());
}

void Verifier::emit(Verdict& verdict, History& history, Token token, Origin origin) {
  verdict.tokens.push_back(token);
  verdict.origins.push_back(origin);
  history.add(token);
}

void Verifier::accept(Verdict& verdict, History& history, const Proposal::Position& position) {
  const bool merged = position.draft_count > 1;
  emit(verdict, history, position.token,
       position.given() ? Origin::kLookup
       : merged         ? Origin::kMerged
                        : Origin::kDirect);
  ++verdict.accepted;
  verdict.accepted_drafts += position.draft_count;
  verdict.merged_accepted += merged ? 1 : 0;
}

void Verifier::shape_row(std::size_t i, const SamplingParameters& sampling,
                         const History& history) {
  p_.assign({logits_.data() + i * width_, width_}, sampling, history);
}

Verdict Verifier::begin(const Proposal& proposal, Span<const float> logits) {
  width_ = cache_->pair().target().size();
  logits_ = logits;
  Verdict verdict;
  for (const Proposal::Position& position : proposal.positions) {
    if (position.token != kNoToken) {
      ++verdict.proposed;
      verdict.merged += position.draft_count > 1 ? 1 : 0;
    }
  }
  if (logits.size() != (verdict.proposed + std::size_t{1}) * width_) {
    throw std::invalid_argument(
        "verification needs logits of shape [" + std::to_string(verdict.proposed + 1) + ", " +
        std::to_string(width_) + "], not " + std::to_string(logits.size()) + " values");
  }
  if (proposal.version != cache_->version()) {
    throw std::invalid_argument("the n-gram cache changed between drafting and verification");
  }
  return verdict;
}

Verdict Verifier::follow(const Proposal& proposal, Span<const float> logits,
                         const SamplingParameters& sampling, History& history, std::uint64_t seed,
                         std::uint64_t position) {
  Verdict verdict = begin(proposal, logits);
  if (proposal.verification != Verification::kGreedy) {
    throw std::invalid_argument("only a greedy proposal can be followed");
  }
  const std::size_t seen = history.distinct().size();
  try {
    follow(proposal, sampling, history, seed, position, verdict);
  } catch (...) {
    history.truncate(seen);
    throw;
  }
  return verdict;
}

Verdict Verifier::verify(const Proposal& proposal, Span<const float> logits,
                         const SamplingParameters& sampling, History& history, Chance& chance) {
  Verdict verdict = begin(proposal, logits);
  if (sampling.greedy() != (proposal.verification == Verification::kGreedy)) {
    throw std::invalid_argument("a greedy proposal needs greedy sampling, and the reverse");
  }
  const std::size_t seen = history.distinct().size();
  try {
    switch (proposal.verification) {
      case Verification::kGreedy:
        follow(proposal, sampling, history, 0, 0, verdict);
        break;
      case Verification::kExact:
        exact(proposal, sampling, history, chance, verdict);
        break;
      case Verification::kPaper:
        paper(proposal, sampling, history, chance, verdict);
        break;
    }
  } catch (...) {  // a row may be no numbers after tokens were accepted
    history.truncate(seen);
    throw;
  }
  return verdict;
}

void Verifier::follow(const Proposal& proposal, const SamplingParameters& sampling,
                      History& history, std::uint64_t seed, std::uint64_t position,
                      Verdict& verdict) {
  for (std::size_t i = 0;; ++i) {
    const Token token =
        choice_({logits_.data() + i * width_, width_}, sampling, history, seed, position + i);
    if (i == proposal.positions.size()) {
      emit(verdict, history, token, Origin::kFree);
      return;
    }
    if (token != proposal.positions[i].token) {
      emit(verdict, history, token, Origin::kCorrected);
      return;
    }
    accept(verdict, history, proposal.positions[i]);
  }
}

// A token proposed without drafting has Q = 1: it stands with probability p, and what is left of
// P - Q is p without it.
bool Verifier::stands(const Proposal::Position& position, Verdict& verdict, History& history,
                      Chance& chance) {
  const auto weight = static_cast<double>(p_.weight(position.token));
  if (chance.accept(weight / p_.total())) {
    accept(verdict, history, position);
    return true;
  }
  p_.weights(scratch_);
  scratch_[static_cast<std::size_t>(position.token)] = 0;
  emit(verdict, history, draw_rest(chance), Origin::kCorrected);
  return false;
}

// From the weights of p in scratch_, some of which were set to 0. Where rounding has made an
// outcome of a mass that is none, p itself is drawn from.
Token Verifier::draw_rest(Chance& chance) {
  const Span<const float> rest(scratch_.data(), scratch_.size());
  if (std::all_of(rest.begin(), rest.end(), [](float weight) { return weight == 0; })) {
    return p_.draw(chance);
  }
  block_sums(rest, weights_);
  return static_cast<Token>(draw_row(rest, weights_, chance));
}

double Verifier::mass_below(const Node& node) const {
  double mass = 0;
  Trie(*cache_, Trie::Spellings::kPrimary).for_each_below(node, [&](Token token) {
    mass += static_cast<double>(p_.weight(token));
  });
  return mass;
}

Token Verifier::draw_below(const Node& node, Chance& chance) {
  candidates_.clear();
  weights_.clear();
  Trie(*cache_, Trie::Spellings::kPrimary).for_each_below(node, [&](Token token) {
    candidates_.push_back(token);
    weights_.push_back(static_cast<double>(p_.weight(token)));
  });
  return candidates_[chance.draw(weights_)];
}

double Verifier::probability_of(const Proposal& proposal, const Visit& visit) const {
  if (visit.outcome == Visit::kStop) {
    return visit.stop / visit.total;
  }
  const auto row = proposal.row(visit.row, cache_->pair().drafter().size());
  return static_cast<double>(row[static_cast<std::size_t>(visit.outcome)]) / visit.total;
}

// A rejected child of the root: an outcome from norm(max(0, P - Q)) over the root's children and
// the tokens outside the trie, then a token below it. Where rounding leaves nothing of P - Q, P and
// Q are the same, and P itself is drawn from.
Token Verifier::resolve_root(const Proposal& proposal, const Visit& visit, Chance& chance) {
  const Trie trie(*cache_, Trie::Spellings::kPrimary);
  const std::size_t drafts = cache_->pair().drafter().size();
  const auto row = proposal.row(visit.row, drafts);
  p_.weights(scratch_);
  std::vector<double>& residual = weights_;
  residual.assign(drafts + 1, 0.0);  // the last is: outside the trie
  double outside = p_.total();
  trie.for_each([&](Token first, Token token) {
    const auto weight = static_cast<double>(scratch_[static_cast<std::size_t>(token)]);
    residual[static_cast<std::size_t>(first)] += weight;
    outside -= weight;
  });
  residual[drafts] = std::max(0.0, outside / p_.total());
  children_.clear();
  if (visit.excluded.exists()) {
    trie.children(visit.excluded, children_);
  }
  std::vector<double> without_q;  // what could not be drawn has no Q
  for (const Token child : children_) {
    without_q.push_back(residual[static_cast<std::size_t>(child)] / p_.total());
  }
  const double p_scale = 1 / p_.total();
  const double q_scale = 1 / visit.total;
  for (std::size_t d = 0; d < drafts; ++d) {
    residual[d] = std::max(0.0, residual[d] * p_scale - static_cast<double>(row[d]) * q_scale);
  }
  for (std::size_t i = 0; i < children_.size(); ++i) {
    residual[static_cast<std::size_t>(children_[i])] = without_q[i];
  }
  if (!any_positive(residual)) {
    return p_.draw(chance);
  }
  const std::size_t outcome = chance.draw(residual);
  if (outcome < drafts) {
    return draw_below(trie.child(trie.root(), static_cast<Token>(outcome)), chance);
  }
  trie.for_each([&](Token, Token token) { scratch_[static_cast<std::size_t>(token)] = 0; });
  return draw_rest(chance);
}

// The same at a node below the root: its outcomes are its children and STOP.
Token Verifier::resolve_inner(const Proposal& proposal, const Visit& visit, double mass,
                              Chance& chance) {
  const Trie trie(*cache_, Trie::Spellings::kPrimary);
  const auto row = proposal.row(visit.row, cache_->pair().drafter().size());
  const Token own = trie.token(visit.node);
  trie.children(visit.node, children_);
  std::vector<double> residual;
  residual.reserve(children_.size() + 1);
  for (const Token child : children_) {
    const double p = mass_below(trie.child(visit.node, child)) / mass;
    const double q = static_cast<double>(row[static_cast<std::size_t>(child)]) / visit.total;
    residual.push_back(std::max(0.0, p - q));
  }
  if (own != kNoToken) {
    const double p = static_cast<double>(p_.weight(own)) / mass;
    residual.push_back(std::max(0.0, p - visit.stop / visit.total));
  }
  if (!any_positive(residual)) {
    return draw_below(visit.node, chance);
  }
  const std::size_t outcome = chance.draw(residual);
  return outcome == children_.size()
             ? own
             : draw_below(trie.child(visit.node, children_[outcome]), chance);
}

void Verifier::exact(const Proposal& proposal, const SamplingParameters& sampling, History& history,
                     Chance& chance, Verdict& verdict) {
  const Trie trie(*cache_, Trie::Spellings::kPrimary);
  auto visit = proposal.visits.begin();
  for (std::size_t i = 0; i < proposal.positions.size(); ++i) {
    const Proposal::Position& position = proposal.positions[i];
    shape_row(i, sampling, history);
    if (position.given()) {
      if (!stands(position, verdict, history, chance)) {
        return;
      }
      continue;
    }
    double mass = p_.total();  // of what lies below the node
    for (; visit != proposal.visits.end() && visit->position == i; ++visit) {
      const double below = visit->outcome == Visit::kStop
                               ? static_cast<double>(p_.weight(position.token))
                               : mass_below(trie.child(visit->node, visit->outcome));
      if (!chance.accept(below / mass / probability_of(proposal, *visit))) {
        const Token token = visit->node.is_root() ? resolve_root(proposal, *visit, chance)
                                                  : resolve_inner(proposal, *visit, mass, chance);
        emit(verdict, history, token, Origin::kCorrected);
        return;
      }
      mass = below;
    }
    if (position.open || position.token == kNoToken) {
      // The budget ended inside the path: the target chooses among what lies below it.
      const Token token = draw_below(position.last, chance);
      if (token != position.token) {
        emit(verdict, history, token,
             position.token == kNoToken ? Origin::kFree : Origin::kCorrected);
        return;
      }
    }
    accept(verdict, history, position);
  }
  shape_row(verdict.proposed, sampling, history);
  emit(verdict, history, p_.draw(chance), Origin::kFree);
}

void Verifier::paper(const Proposal& proposal, const SamplingParameters& sampling, History& history,
                     Chance& chance, Verdict& verdict) {
  const VocabularyPair& pair = cache_->pair();
  const std::size_t drafts = pair.drafter().size();
  for (std::size_t i = 0; i < proposal.positions.size(); ++i) {
    const Proposal::Position& position = proposal.positions[i];
    shape_row(i, sampling, history);
    if (position.given()) {
      if (!stands(position, verdict, history, chance)) {
        return;
      }
      continue;
    }
    const auto first = proposal.row(position.first_draft, drafts);
    const double first_total = sum(first);
    double q = 1;  // Eq. 1: the product over the merged draft tokens
    for (std::uint32_t j = 0; j < position.draft_count; ++j) {
      const std::size_t at = position.first_draft + j;
      const auto row = proposal.row(at, drafts);
      q *= static_cast<double>(row[static_cast<std::size_t>(proposal.drafts[at])]) / sum(row);
    }
    const auto token = static_cast<std::size_t>(position.token);
    if (chance.accept(static_cast<double>(p_.weight(position.token)) / p_.total() / q)) {
      accept(verdict, history, position);
      continue;
    }
    // Eq. 2: the merged token gets the product, its first draft token loses that much.
    p_.weights(scratch_);
    weights_.assign(scratch_.begin(), scratch_.end());
    for (double& weight : weights_) {
      weight /= p_.total();
    }
    const Token head = proposal.drafts[position.first_draft];
    for (std::size_t d = 0; d < drafts; ++d) {
      const auto draft = static_cast<Token>(d);
      const Token target = pair.to_target(draft);
      if (target != kNoToken) {
        double direct = static_cast<double>(first[d]) / first_total;
        if (position.draft_count > 1 && draft == head) {
          direct = std::max(0.0, direct - q);
        }
        weights_[static_cast<std::size_t>(target)] -= direct;
      }
    }
    if (position.draft_count > 1) {
      weights_[token] -= q;
    }
    for (double& weight : weights_) {
      weight = std::max(0.0, weight);
    }
    const Token corrected =
        any_positive(weights_) ? static_cast<Token>(chance.draw(weights_)) : p_.draw(chance);
    emit(verdict, history, corrected, Origin::kCorrected);
    return;
  }
  shape_row(verdict.proposed, sampling, history);
  emit(verdict, history, p_.draw(chance), Origin::kFree);
}

}  // namespace omnidraft
