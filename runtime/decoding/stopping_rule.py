"""When to stop drafting: the rule that makes most tokens per second."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from omnidraft.runtime.decoding.calibration import MEMORY, Acceptance, logit

if TYPE_CHECKING:
    from omnidraft.runtime.decoding.costs import Curve

MAX_DRAFT = 16
LOOKAHEAD = 4
REFRESH = 16
"""After so many rounds it is worked out anew what a draft token must promise."""


class StoppingRule:
    """Draws on while one more token is worth more than the time that it takes.

    The worth of time is what it brings at the present rate.

    With A the probability that everything drawn so far is accepted, one more draft token is worth
    drawing when A a > ρ (d + t(n + 1) − t(n)). Here a is the acceptance of the token to come, ρ the
    present rate in tokens per second, d the time of a draft step, and t(n) that of the target's
    pass over n tokens. This is the optimal stopping rule of a renewal process. A is the product of
    calibrated scores. a is predicted from the score of the token before. Merges make n grow by less
    than one target token a draft token.

    Attributes:
        rate: ρ, of this round.
        logits: of the scores of this round's draft tokens.
        limit: the most draft tokens of this round.
    """

    def __init__(self, acceptance: Acceptance) -> None:
        self.rate = 0.0
        self.logits: list[float] = []
        self.limit = 0
        self._acceptance = acceptance
        self._all = 1.0
        # Tokens of drafted rounds, and the time that they took, in plain steps. Older rounds count
        # less. Both begin with rounds that gained nothing: so much is not known yet.
        self._tokens = self._steps = 5.0
        # What one more draft token costs: see ``_needed``.
        self._needed: list[float] = []
        self._needed_for: Curve | None = None
        self._needed_age = 0

    def open_round(self, target: Curve, draft_step: float, plain_step: float) -> None:
        """A round begins.

        Args:
            target: seconds of the target's passes.
            draft_step, plain_step: seconds of a draft step, and of a token in plain decoding.
        """
        self._needed_age += 1
        if self._needed_age > REFRESH or self._needed_for is not target:
            self._needed = _needed(target, draft_step, self._acceptance)
            self._needed_for, self._needed_age = target, 0
        self.logits.clear()
        self.limit = 0
        self._all = 1.0
        self.rate = max(1.0, self._tokens / self._steps) / plain_step

    def go_on(self, score: float) -> bool:
        """Whether to draw another draft token after one of this score."""
        x = logit(score)
        self.logits.append(x)
        self._all *= self._acceptance.drawn(x)
        drawn = len(self.logits)
        if drawn >= self.limit:
            return False
        return self._all * self._acceptance.following(x) > self.rate * self._needed[drawn]

    def observe(self, tokens: int, steps: float) -> None:
        """A round made so many tokens in the time of so many plain steps."""
        self._tokens += tokens - 2 * MEMORY * self._tokens
        self._steps += steps - 2 * MEMORY * self._steps


def _needed(target: Curve, draft_step: float, acceptance: Acceptance) -> list[float]:
    """The price of one more draft token: seconds for each target token that it is expected to add.

    A step of the target's curve may make one token dear and those after it cheap. So the next token
    is judged together with up to ``LOOKAHEAD`` − 1 after it. The number that makes the mean price
    lowest is taken.

    Returns:
        By tokens drawn before, 0 … MAX_DRAFT − 1.
    """
    seconds, merging, chained = target.seconds, acceptance.merging, acceptance.chained
    needed = []
    for drawn in range(MAX_DRAFT):
        rows = 1 + merging * drawn
        now = seconds(rows)
        least, tokens, likely = math.inf, 0.0, merging
        for ahead in range(1, LOOKAHEAD + 1):
            tokens += likely
            price = ahead * draft_step + seconds(rows + merging * ahead) - now
            least = min(least, price / tokens)
            likely *= chained
        needed.append(least)
    return needed
