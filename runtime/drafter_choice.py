"""Which of several drafters a round takes."""

from __future__ import annotations

from typing import Final

VISIT: Final = 8
"""Rounds for which a drafter is taken: it has to read first what it was not there for."""
FIRST_VISITS: Final = 2
"""Visits to every drafter before they are compared."""
ALLOWANCE: Final = 0.01
"""Share of the time that may be lost on finding out whether another drafter has become faster."""
MEMORY: Final = 1 / 64
"""Share of what was measured of a drafter that is forgotten each of its rounds."""


class DrafterChoice:
    """The drafter with the most tokens a second so far; now and then another, to see how it does.

    A visit to another drafter is made when what the last such visit lost, against the fastest one,
    fits into an allowance. Whether a drafter pays at all is not asked here, but by its own
    ``DraftLengthPolicy``: rounds that it lets decode plainly are measured like any.

    Args:
        count: drafters, at least one.
    """

    def __init__(self, count: int) -> None:
        self.rounds = [0] * count
        """How many rounds each drafter was taken for."""
        # Of each drafter, with forgetting; without the first round of a visit, in which it reads.
        self._tokens = [0.0] * count
        self._seconds = [0.0] * count
        self._visits = [0] * count
        self._seen = [0] * count  # rounds of all drafters at the end of its last visit
        self._loss = [0.0] * count  # seconds that its last visit lost
        self._lost = 0.0
        self._total = 0.0
        self._current = 0
        self._left = 0  # rounds of the visit
        self._reading = True
        self._visit = (0, 0.0)  # tokens and seconds

    def begin(self) -> None:
        """An answer begins: every drafter has its prompt to read."""
        self._reading = True

    def choose(self) -> int:
        """The drafter of the next round; depends on past rounds and their time only."""
        if not self._left:
            chosen = self._next()
            self._reading |= chosen != self._current
            self._current, self._left, self._visit = chosen, VISIT, (0, 0.0)
        return self._current

    def observe(self, tokens: int, seconds: float) -> None:
        """What came of the round: target tokens, and how long all of it took."""
        i = self._current
        self.rounds[i] += 1
        self._total += seconds
        self._visit = (self._visit[0] + tokens, self._visit[1] + seconds)
        if not self._reading:
            self._tokens[i] += tokens - MEMORY * self._tokens[i]
            self._seconds[i] += seconds - MEMORY * self._seconds[i]
        self._reading = False
        self._left -= 1
        if not self._left:
            self._visits[i] += 1
            self._seen[i] = sum(self.rounds)
            best = self._fastest()
            if i != best:
                tokens, seconds = self._visit
                self._loss[i] = max(0.0, seconds - tokens / self._rate(best))
                self._lost += self._loss[i]

    def _next(self) -> int:
        drafters = range(len(self.rounds))
        fewest = min(drafters, key=lambda i: self._visits[i])
        if self._visits[fewest] < FIRST_VISITS:
            return fewest
        best = self._fastest()
        rivals = [i for i in drafters if i != best]
        if rivals:
            longest_ago = min(rivals, key=lambda i: self._seen[i])
            if self._lost + self._loss[longest_ago] <= ALLOWANCE * self._total:
                return longest_ago
        return best

    def _fastest(self) -> int:
        return max(range(len(self.rounds)), key=self._rate)

    def _rate(self, i: int) -> float:
        return self._tokens[i] / self._seconds[i] if self._seconds[i] else 0.0
