#include "omnidraft/cost_aware.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace omnidraft {
namespace {

// Share of what was learned that is forgotten each round.
constexpr double kMemory = 0.01;
// Draft tokens that a round has to read in its first pass, at most, where none are invested.
constexpr std::size_t kUsual = 16;
// Rows over which the price of one more is averaged: the target's times have steps.
constexpr std::size_t kAhead = 4;
// Ranks with a calibration of their own; the last serves all further ones.
constexpr std::size_t kRanks = 4;
// A proposal must promise to gain so many tokens. Less is within the error of the estimate.
constexpr double kLeastGain = 0.05;
// Drafting may turn out to save this share of plain decoding's time.
constexpr double kHope = 1.0 / 3;

bool is_time(double seconds) { return seconds >= 0 && std::isfinite(seconds); }

void validate(const Outcome& outcome) {
  bool valid = outcome.rows > 0 && outcome.tokens > 0 && is_time(outcome.target_seconds) &&
               is_time(outcome.other_seconds) && (outcome.match > 0 || outcome.found_judged == 0) &&
               outcome.found_right <= outcome.found_judged;
  for (const auto& [size, seconds] : outcome.passes) {
    valid = valid && size > 0 && is_time(seconds);
  }
  if (!valid) {
    throw std::invalid_argument(
        "a round has rows, tokens and passes of at least one token, and times from 0 on; what it "
        "showed of a lookup follows a match");
  }
}

}  // namespace

void CostAware::Level::observe(double seconds) {
  if (value == 0) {
    value = seconds;
  }
  seen = std::min(20, seen + 1);
  value += (std::min(seconds, 1.5 * value) - value) / seen;
}

CostAware::CostAware(std::shared_ptr<Costs> costs)
    : costs_(std::move(costs)), ranks_(kRanks, Acceptance(0, 1)), target_(&costs_->target(0)) {
  waking_.value = drafter_seconds(1);
}

std::vector<Calibration> CostAware::calibration() const {
  std::vector<Calibration> lines;
  for (const Acceptance& rank : ranks_) {
    lines.push_back(rank.line());
  }
  return lines;
}

double CostAware::found(std::size_t match) const {
  return found_(std::log(static_cast<double>(match)));
}

double CostAware::target_seconds(std::size_t tokens) const {
  return target_->seconds(static_cast<double>(tokens));
}

double CostAware::drafter_seconds(std::size_t tokens) const {
  return costs_->drafter().seconds(static_cast<double>(tokens));
}

std::size_t CostAware::begin(std::size_t room, std::size_t space, std::size_t context,
                             std::size_t unread, std::size_t found) {
  target_ = &costs_->target(context);
  account_.open_round();
  const double plain = plain_seconds();
  rate_ = std::max(1.0, tokens_ / steps_) / plain;
  passes_ = 0;
  invested_ = 0;
  drafts_ = tries_ = false;
  const double step = drafter_seconds(1);
  const double reading = drafter_seconds(unread) - step + waking_.value;
  const std::size_t most = room > 0 ? std::min(space, kMaxNodes) : 0;
  const std::size_t limit = affordable(most, drafter_seconds(kMaxLayer), reading);
  // What is looked up needs no drafter.
  const auto without_drafter = [&] { return found > 0 ? affordable(most, 0, 0) : 0; };
  if (limit == 0) {
    return without_drafter();
  }
  // Every round reads what the round before has said. Only what goes beyond that is invested.
  const double invested = std::max(0.0, reading - (drafter_seconds(kUsual) - step));
  const double price = (step + reading + target_seconds(2) - target_seconds(1)) / plain;
  // Lest an error of the estimates stay, drafting is tried now and then where it seems not to pay
  // in this round.
  tries_ = price < Account::kLeastAllowance * static_cast<double>(idle_);
  // What the rest of the answer would gain at the present rate, if half of the room is used.
  const double half = static_cast<double>(room) / 2;
  if (!account_.drafting() || invested > half * (plain - 1 / rate_)) {
    // Drafting is not known to pay. Or it does not pay here by a rate that a few rounds have set,
    // and that plain rounds would never correct.
    const bool hopeless = account_.drafting() && invested > half * plain * kHope;
    if (hopeless || !account_.try_drafting(price, reading / plain)) {
      return without_drafter();
    }
    tries_ = true;
  }
  invested_ = invested;
  drafts_ = true;
  return limit;
}

std::size_t CostAware::layer(const std::vector<double>& open_nodes,
                             const std::vector<double>& gains, std::size_t limit) {
  if (!drafts_ || passes_ == std::min(limit, kMaxPasses)) {
    return 0;
  }
  const std::size_t scored = count(gains, limit);
  const double price = rate_ * (target_seconds(1 + scored + kAhead) - target_seconds(1 + scored)) /
                       static_cast<double>(kAhead);
  const bool first = passes_ == 0;
  const double waking = first ? waking_.value : 0;
  double best = 0, worth = 0;
  std::size_t chosen = first && tries_ ? 1 : 0;
  for (std::size_t i = 0; i < open_nodes.size(); ++i) {
    // The new node has a further row, or that of the least probable node of those to be scored.
    const double row = i < scored ? std::min(price, gains[scored - 1 - i]) : price;
    worth += open_nodes[i] * first_ - row;
    const double gain = worth - rate_ * (drafter_seconds(i + 1) + waking);
    if (gain > best) {
      best = gain;
      chosen = i + 1;
    }
  }
  passes_ += chosen > 0 ? 1 : 0;
  return chosen;
}

std::size_t CostAware::count(const std::vector<double>& gains, std::size_t limit) const {
  const double one = target_seconds(1);
  double best = kLeastGain, worth = 0;
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < std::min(limit, gains.size()); ++i) {
    worth += gains[i];
    const double net = worth - rate_ * (target_seconds(i + 2) - one);
    if (net > best) {
      best = net;
      chosen = i + 1;
    }
  }
  return chosen;
}

void CostAware::observe(const Outcome& outcome) {
  validate(outcome);
  target_->observe(outcome.rows, outcome.target_seconds);
  const double plain = plain_seconds();
  account_.allow();
  idle_ = outcome.passes.empty() ? idle_ + 1 : 0;
  learn(outcome);
  const auto tokens = static_cast<double>(outcome.tokens);
  const double passing = (target_seconds(outcome.rows) + draft_rest_.value) / plain;
  if (!outcome.passes.empty()) {
    draft_rest_.observe(outcome.other_seconds);
    const auto [unread, first] = outcome.passes.front();
    waking_.observe(std::max(0.0, first - drafter_seconds(unread)));
    for (std::size_t i = 1; i < outcome.passes.size(); ++i) {
      costs_->drafter().observe(outcome.passes[i].first, outcome.passes[i].second);
    }
    double drafting = waking_.value;
    for (const auto& pass : outcome.passes) {
      drafting += drafter_seconds(pass.first);
    }
    drafting /= plain;
    const double invested = invested_ / plain;
    const double took = drafting + passing - invested;
    account_.drafted(tokens - drafting - passing, tokens - took, invested);
    followed(outcome.tokens, took);
  } else if (outcome.rows > 1) {
    account_.looked_up(tokens - passing);
    followed(outcome.tokens, passing);
  } else {
    plain_rest_.observe(outcome.other_seconds);
  }
}

// How often which choice of the drafter is right, and what lookup finds.
void CostAware::learn(const Outcome& outcome) {
  found_.forget(kMemory);
  for (std::size_t i = 0; i < outcome.found_judged; ++i) {
    found_.update(std::log(static_cast<double>(outcome.match + i)), i < outcome.found_right);
  }
  std::array<bool, kRanks> seen{};
  for (const Judged& each : outcome.judged) {
    seen[std::min(each.rank, kRanks - 1)] = true;
  }
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    // What is never proposed would otherwise never be believed again.
    ranks_[rank].forget(kMemory, !seen[rank]);
  }
  for (const Judged& each : outcome.judged) {
    ranks_[std::min(each.rank, kRanks - 1)].update(logit(each.score), each.right);
    if (each.rank == 0) {
      first_ += kMemory * ((each.right ? 1 : 0) - first_);
    }
  }
}

// A round made so many tokens in the time of so many plain steps.
void CostAware::followed(std::size_t tokens, double steps) {
  tokens_ += static_cast<double>(tokens) - 2 * kMemory * tokens_;
  steps_ += steps - 2 * kMemory * steps_;
}

// How many nodes may be scored, of `most`, so that the credit pays for all in vain. layer: seconds
// of a drafter's pass, of which a node costs one at most; reading: seconds to read before that.
std::size_t CostAware::affordable(std::size_t most, double layer, double reading) const {
  const double rest = std::max(0.0, draft_rest_.value - plain_rest_.value);
  const double left = account_.credit() * plain_seconds() - reading - rest;
  const double one = target_seconds(1);
  std::size_t least = 0;  // that can be afforded; it costs the more, the more nodes there are
  while (least < most) {
    const std::size_t middle = (least + most + 1) / 2;
    const auto passes = static_cast<double>(std::min(middle, kMaxPasses));
    if (passes * layer + target_seconds(middle + 1) - one > left) {
      most = middle - 1;
    } else {
      least = middle;
    }
  }
  return least;
}

}  // namespace omnidraft
