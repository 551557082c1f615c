#include "omnidraft/acceptance.h"

#include <algorithm>
#include <cmath>

namespace omnidraft {
namespace {

double logistic(double x) { return x > -30 ? 1 / (1 + std::exp(-x)) : 0; }

}  // namespace

double logit(double p) {
  p = std::min(0.999, std::max(0.001, p));
  return std::log(p / (1 - p));
}

double calibrated(double score, double slope, double offset) {
  return logistic(offset + slope * logit(score));
}

// An observation at p = 0.8 weighs 0.16; logits of scores spread over about ±2.
Acceptance::Acceptance(double offset, double slope, double strength)
    : prior_offset_(offset),
      prior_slope_(slope),
      offset_(offset),
      slope_(slope),
      base_{0.16 * strength, 0, 0.64 * strength},
      precision_(base_) {}

double Acceptance::operator()(double x) const {
  const Calibration known = line();
  return logistic(known.offset + known.slope * x);
}

Calibration Acceptance::line() const { return {std::max(0.0, slope_), offset_}; }

void Acceptance::update(double x, bool accepted) {
  const double p = logistic(offset_ + slope_ * x);
  const double weight = std::max(1e-3, p * (1 - p));
  precision_.a += weight;
  precision_.b += weight * x;
  precision_.c += weight * x * x;
  const auto [a, b, c] = precision_;
  const double error = (accepted ? 1 : 0) - p;
  const double determinant = a * c - b * b;
  offset_ += error * (c - b * x) / determinant;
  slope_ += error * (a * x - b) / determinant;
}

void Acceptance::forget(double share, bool return_to_prior) {
  precision_.a += share * (base_.a - precision_.a);
  precision_.b += share * (base_.b - precision_.b);
  precision_.c += share * (base_.c - precision_.c);
  if (return_to_prior) {
    // The mean of the prior and what was learned, each weighted by its precision.
    const auto [a, b, c] = precision_;
    const double u = share * base_.a * (prior_offset_ - offset_);
    const double v = share * base_.c * (prior_slope_ - slope_);
    const double determinant = a * c - b * b;
    offset_ += (c * u - b * v) / determinant;
    slope_ += (a * v - b * u) / determinant;
  }
}

}  // namespace omnidraft
