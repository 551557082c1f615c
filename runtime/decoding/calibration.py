"""How likely tokens are to be accepted, learned from past rounds."""

from __future__ import annotations

import math

MEMORY = 0.01
"""Share of what was learned that is forgotten each round."""


class Calibration:
    """Probability of acceptance: a logistic function of one number, followed online.

    Bayesian logistic regression by one Newton step for each observation. Every round a little is
    forgotten, so that it follows drift.

    Args:
        offset, slope: of the prior. For the logit of a score, offset 0 and slope 1 take the score
            as it is.
        strength: of the prior, in observations.
    """

    def __init__(self, offset: float, slope: float, strength: float = 20.0) -> None:
        self._prior = (offset, slope)
        self._offset, self._slope = offset, slope
        # An observation at p = 0.8 weighs 0.16; logits of scores spread over about ±2.
        self._base = (0.16 * strength, 0.0, 0.64 * strength)
        self._precision = self._base

    def __call__(self, x: float) -> float:
        """The probability of acceptance; rises with ``x``."""
        return logistic(self._offset + self._slope * x if self._slope > 0 else self._offset)

    @property
    def line(self) -> tuple[float, float]:
        """Slope and offset of the logit of the probability."""
        return max(0.0, self._slope), self._offset

    def update(self, x: float, accepted: bool) -> None:
        """Learn from one token that was accepted or rejected."""
        p = logistic(self._offset + self._slope * x)
        weight = p * (1 - p)
        if weight < 1e-3:
            weight = 1e-3
        a, b, c = self._precision
        a, b, c = a + weight, b + weight * x, c + weight * x * x
        self._precision = (a, b, c)
        error = accepted - p
        determinant = a * c - b * b
        self._offset += error * (c - b * x) / determinant
        self._slope += error * (a * x - b) / determinant

    def forget(self, share: float, *, return_to_prior: bool = False) -> None:
        """Make what was learned less certain, by ``share``.

        Args:
            return_to_prior: also move back to the prior by as much. A probability that is observed
                only while it is believed to be high needs this: a low estimate would stay low.
        """
        a, b, c = self._precision
        a += share * (self._base[0] - a)
        b += share * (self._base[1] - b)
        c += share * (self._base[2] - c)
        self._precision = (a, b, c)
        if return_to_prior:
            # The mean of the prior and what was learned, each weighted by its precision.
            u = share * self._base[0] * (self._prior[0] - self._offset)
            v = share * self._base[2] * (self._prior[1] - self._slope)
            determinant = a * c - b * b
            self._offset += (c * u - b * v) / determinant
            self._slope += (a * v - b * u) / determinant


def logit(p: float) -> float:
    """The logit of a probability, which is first kept within 0.001 … 0.999."""
    if p > 0.999:
        p = 0.999
    elif p < 0.001:
        p = 0.001
    return math.log(p / (1 - p))


def logistic(x: float) -> float:
    """The probability of a logit."""
    return 1 / (1 + math.exp(-x)) if x > -30 else 0.0
