#include "omnidraft/costs.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace omnidraft {
namespace {

// An observed pass over n tokens is compared with the curve by the logarithm of their ratio, within
// ±kClip. The whole curve moves by kLevelStep of it, and the value at n by a further kPointStep.
constexpr double kLevelStep = 0.05;
constexpr double kPointStep = 0.02;
constexpr double kClip = 0.4;
// A curve is worth writing down again when it has moved by so much, in logarithms.
constexpr double kStale = 0.05;

}  // namespace

CostCurve::CostCurve(const std::map<std::size_t, double>& seconds) {
  bool valid =
      seconds.count(1) == 1 && seconds.begin()->first == 1 && seconds.rbegin()->first <= kMaxSize;
  for (const auto& [size, time] : seconds) {
    valid = valid && time > 0 && std::isfinite(time);
  }
  if (!valid) {
    throw std::invalid_argument(
        "a cost curve needs positive times of 1 to 65536 tokens, that of one token among them");
  }
  table_.push_back(0);
  table_.push_back(seconds.begin()->second);
  for (auto point = std::next(seconds.begin()); point != seconds.end(); ++point) {
    const std::size_t begin = table_.size() - 1;
    const double low = table_.back();
    const double slope =
        (std::max(low, point->second) - low) / static_cast<double>(point->first - begin);
    for (std::size_t size = begin + 1; size <= point->first; ++size) {
      table_.push_back(low + slope * static_cast<double>(size - begin));
    }
    tail_from_ = begin;
  }
}

double CostCurve::seconds(double tokens) const {
  const std::size_t largest = table_.size() - 1;
  if (tokens < static_cast<double>(largest)) {
    const auto whole = static_cast<std::size_t>(tokens);
    const double low = table_[whole];
    return level_ * (low + (tokens - static_cast<double>(whole)) * (table_[whole + 1] - low));
  }
  const double last = table_.back();
  const double slope = (last - table_[tail_from_]) / static_cast<double>(largest - tail_from_);
  return level_ * (last + (tokens - static_cast<double>(largest)) * slope);
}

void CostCurve::observe(std::size_t tokens, double seconds) {
  if (tokens == 0) {
    throw std::invalid_argument("a pass over no tokens tells nothing of their cost");
  }
  double ratio = std::log(std::max(seconds, 1e-9) / this->seconds(static_cast<double>(tokens)));
  ratio = std::min(kClip, std::max(-kClip, ratio));
  level_ *= std::exp(kLevelStep * ratio);
  drift_ += (kLevelStep + kPointStep) * ratio;
  if (std::abs(drift_) > kStale) {
    has_moved_ = true;
    drift_ = 0;
  }
  if (tokens >= table_.size()) {
    return;
  }
  const double moved = table_[tokens] * std::exp(kPointStep * ratio);
  table_[tokens] = moved;
  for (std::size_t i = tokens + 1; i < table_.size() && table_[i] < moved; ++i) {
    table_[i] = moved;
  }
  for (std::size_t i = tokens - 1; i > 0 && table_[i] > moved; --i) {
    table_[i] = moved;
  }
}

Costs::Costs(std::map<std::size_t, CostCurve> target, CostCurve drafter)
    : target_(std::move(target)), drafter_(std::move(drafter)) {
  bool valid = !target_.empty();
  for (const auto& [end, curve] : target_) {
    valid = valid && std::find(kBands.begin(), kBands.end(), end) != kBands.end();
  }
  if (!valid) {
    throw std::invalid_argument(
        "a target's costs are given by bands of context that end at 256, "
        "1024 or 4096 tokens");
  }
}

CostCurve& Costs::target(std::size_t context) {
  const auto* const end =
      std::find_if(kBands.begin(), kBands.end(), [&](std::size_t each) { return context <= each; });
  const std::size_t band = end == kBands.end() ? kBands.back() : *end;
  const auto known = target_.find(band);
  if (known != target_.end()) {
    return known->second;
  }
  const auto distance = [&](std::size_t from) {
    return std::abs(std::log(static_cast<double>(from) / static_cast<double>(band)));
  };
  const auto nearest = std::min_element(
      target_.begin(), target_.end(),
      [&](const auto& a, const auto& b) { return distance(a.first) < distance(b.first); });
  return target_.emplace(band, nearest->second).first->second;
}

}  // namespace omnidraft
