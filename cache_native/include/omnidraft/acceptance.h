// How likely tokens are to be accepted, learned from past rounds.
//
//   Acceptance acceptance(0, 1);                 // at first a score is taken as it is
//   acceptance.update(logit(0.8), true);         // a token of that score was accepted
//   acceptance(logit(0.9));
//
// The probability is a logistic function of one number. It is followed online, by Bayesian logistic
// regression with one Newton step for each observation. Every round a little is forgotten, so that
// it follows drift.
#pragma once

#include "omnidraft/tree_draft.h"

namespace omnidraft {

// The logit of a probability, which is first kept within 0.001 … 0.999.
double logit(double p);

// The probability that a calibration maps a score to. That is kept as for logit().
double calibrated(double score, double slope, double offset);

class Acceptance {
 public:
  // offset, slope: of the prior; strength: of the prior, in observations.
  Acceptance(double offset, double slope, double strength = 20);

  // The probability of acceptance; rises with x.
  double operator()(double x) const;

  // The line of its logit.
  Calibration line() const;

  // Learns from one token that was accepted or rejected.
  void update(double x, bool accepted);

  // Makes what was learned less certain, by `share`. return_to_prior: also moves back to the prior
  // by as much. What is observed only while it is believed to be likely needs this: a low estimate
  // would stay low.
  void forget(double share, bool return_to_prior = false);

 private:
  struct Precision {
    double a, b, c;  // of offset, both, slope
  };

  double prior_offset_, prior_slope_, offset_, slope_;
  Precision base_, precision_;
};

}  // namespace omnidraft
