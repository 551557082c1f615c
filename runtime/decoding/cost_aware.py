"""Draft what makes most tokens per second on this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omnidraft.runtime.decoding.account import ALLOWANCE, Account
from omnidraft.runtime.decoding.calibration import MEMORY, Calibration, logit
from omnidraft.runtime.decoding.level import Level
from omnidraft.runtime.decoding.policy import MAX_LAYER, Outcome

if TYPE_CHECKING:
    from omnidraft.runtime.decoding.costs import Costs

MAX_NODES = 32
MAX_PASSES = 16
"""Passes of the drafter in a round, at most."""
USUAL = 16
"""Draft tokens that a round has to read in its first pass, at most, where none are invested."""
AHEAD = 4
"""Rows over which the price of one more is averaged: the target's times have steps."""
RANKS = 4
"""Ranks with a calibration of their own; the last serves all further ones."""
LEAST_GAIN = 0.05
"""A proposal must promise to gain so many tokens. Less is within the error of the estimate."""
HOPE = 1 / 3
"""Drafting may turn out to save this share of plain decoding's time."""


class CostAware:
    """Adds nodes and drafts on while that raises tokens per second.

    The rule. With ρ the present tokens per second, t(n) the seconds of the target's pass over n
    tokens and d(n) those of the drafter's:

    1. A node is worth its probability, in tokens, and its row costs ρ (t(n + 1) − t(n)).
    2. The tree is as many of the most probable nodes as make worth less cost largest.
    3. Running the drafter on an open node of probability P is expected to add a node worth P a,
       where a is how often the drafter's first choice is right.
    4. The drafter runs on as many open nodes as make the sum of these, less the cost of their rows
       and ρ d(n), largest. It stops where that is not positive.
    5. Whether rounds may draft at all is decided by an ``Account``. What it tries runs once.

    A chain has one open node at a time, and plain decoding none. The rule is the optimal stopping
    rule of a renewal process: ρ is what time brings elsewhere.

    **Probabilities** are calibrated by rank: how often the drafter's first, second, … choice was
    right where it gave it so much. Tokens that are found in the text cost no drafting. Every round
    shows which of them were right, used or not, so their probability is learned without trying; it
    is predicted from the length of the match.

    **What may be lost.** No round drafts, looks up or reads further than the account's credit would
    pay if every token were refused. So whatever the target accepts, at most the credit at first and
    the allowance are lost against plain decoding. Gains and losses are reckoned by the cost curves,
    which follow the machine: a machine that slows down is not held against drafting.

    **Reading a prompt** into the drafter is an investment, and not part of ρ. Where drafting has
    paid, and the answer may be long enough to earn it back, the balance pays for it down to a
    reserve.

    Args:
        costs: of the target and the drafter.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._account = Account()
        self._ranks = [Calibration(0.0, 1.0) for _ in range(RANKS)]
        self._first = 0.7  # how often the drafter's first choice is right
        self._found = Calibration(-1.5, 0.8)
        # Of rounds that proposed something, with forgetting: tokens, and the plain steps that would
        # have taken as long. Some rounds that gain nothing stand for what is not known yet.
        self._tokens = self._steps = 5.0
        # Seconds of a round beside the passes of the models.
        self._plain_rest = Level()
        self._draft_rest = Level()
        # Of the drafter's first pass beside that of the same tokens later on: the target's weights
        # have driven the drafter's out of the processor's caches.
        self._waking = Level(costs.drafter.seconds(1))
        # Of the round under way.
        self._target = costs.target(0)
        self._rate = 0.0
        self._invested = 0.0
        self._drafts = self._tries = False
        self._passes = 0
        self._idle = 0  # rounds since the drafter ran

    @property
    def calibration(self) -> list[tuple[float, float]]:
        """See ``DraftPolicy``."""
        return [each.line for each in self._ranks]

    def found(self, match: int) -> float:
        """See ``DraftPolicy``."""
        return self._found(math.log(match))

    def begin(self, room: int, space: int, context: int, unread: int, found: int) -> int:
        """See ``DraftPolicy``."""
        target = self._target = self._costs.target(context)
        account, drafter, plain = self._account, self._costs.drafter, self._plain_seconds()
        account.open_round()
        self._rate = max(1.0, self._tokens / self._steps) / plain
        self._passes, self._invested = 0, 0.0
        self._drafts = False
        step = drafter.seconds(1)
        layer = drafter.seconds(MAX_LAYER)
        reading = drafter.seconds(unread) - step + self._waking.value
        most = min(space, MAX_NODES) if room > 0 else 0
        limit = self._affordable(most, layer, reading)
        if not limit:
            # What is looked up needs no drafter.
            return self._affordable(most, 0.0, 0.0) if found else 0
        # Every round reads what the round before has said. Only what goes beyond is invested.
        self._invested = max(0.0, reading - (drafter.seconds(USUAL) - step))
        price = (step + reading + target.seconds(2) - target.seconds(1)) / plain
        # Lest an error of the estimates stay, drafting is tried now and then where it seems not to
        # pay in this round.
        self._tries = price < ALLOWANCE * self._idle
        # What the rest of the answer would gain at the present rate, if half of the room is used.
        gained = (room / 2) * (plain - 1 / self._rate)
        if not account.drafting or self._invested > gained:
            # Drafting is not known to pay. Or it does not pay here by a rate that a few rounds have
            # set, and that plain rounds would never correct.
            hopeless = account.drafting and self._invested > (room / 2) * plain * HOPE
            if hopeless or not account.try_drafting(price, reading / plain):
                self._invested = 0.0
                return self._affordable(most, 0.0, 0.0) if found else 0
            self._tries = True
        self._drafts = True
        return limit

    def layer(self, open_nodes: Sequence[float], gains: Sequence[float], limit: int) -> int:
        """See ``DraftPolicy``."""
        if not self._drafts or self._passes == min(limit, MAX_PASSES):
            return 0
        rows = 1 + self.count(gains, limit)
        seconds, drafter = self._target.seconds, self._costs.drafter.seconds
        price = self._rate * (seconds(rows + AHEAD) - seconds(rows)) / AHEAD
        first = not self._passes
        waking = self._waking.value if first else 0.0
        best, chosen, worth = 0.0, int(first and self._tries), 0.0
        for i, probability in enumerate(open_nodes):
            worth += probability * self._first - price
            gain = worth - self._rate * (drafter(i + 1) + waking)
            if gain > best:
                best, chosen = gain, i + 1
        self._passes += chosen > 0
        return chosen

    def count(self, gains: Sequence[float], limit: int) -> int:
        """See ``DraftPolicy``."""
        seconds, rate = self._target.seconds, self._rate
        one = seconds(1)
        best, chosen, worth = LEAST_GAIN, 0, 0.0
        for i, gain in enumerate(gains[:limit]):
            worth += gain
            if (net := worth - rate * (seconds(i + 2) - one)) > best:
                best, chosen = net, i + 1
        return chosen

    def observe(self, outcome: Outcome) -> None:
        """See ``DraftPolicy``."""
        self._target.observe(outcome.rows, outcome.target_seconds)
        plain = self._plain_seconds()
        self._account.allow()
        self._idle = 0 if outcome.passes else self._idle + 1
        self._learn(outcome)
        tokens = outcome.tokens
        passing = (self._target.seconds(outcome.rows) + self._draft_rest.value) / plain
        if outcome.passes:
            self._draft_rest.observe(outcome.other_seconds)
            drafter = self._costs.drafter
            (unread, first), *later = outcome.passes
            self._waking.observe(max(0.0, first - drafter.seconds(unread)))
            for size, seconds in later:
                drafter.observe(size, seconds)
            sizes = [size for size, _ in outcome.passes]
            drafting = (self._waking.value + sum(map(drafter.seconds, sizes))) / plain
            invested = self._invested / plain
            took = drafting + passing - invested
            self._account.drafted(tokens - drafting - passing, tokens - took, invested)
            self._followed(tokens, took)
        elif outcome.rows > 1:
            self._account.looked_up(tokens - passing)
            self._followed(tokens, passing)
        else:
            self._plain_rest.observe(outcome.other_seconds)

    def _learn(self, outcome: Outcome) -> None:
        """How often which choice of the drafter is right, and what lookup finds."""
        self._found.forget(MEMORY)
        for i in range(outcome.found_judged):
            self._found.update(math.log(outcome.match + i), i < outcome.found_right)
        seen = {min(each.rank, RANKS - 1) for each in outcome.judged}
        for rank, calibration in enumerate(self._ranks):
            # What is never proposed would otherwise never be believed again.
            calibration.forget(MEMORY, return_to_prior=rank not in seen)
        for rank, score, right in outcome.judged:
            self._ranks[min(rank, RANKS - 1)].update(logit(score), right)
            if not rank:
                self._first += MEMORY * (right - self._first)

    def _followed(self, tokens: int, steps: float) -> None:
        """A round made so many tokens in the time of so many plain steps."""
        self._tokens += tokens - 2 * MEMORY * self._tokens
        self._steps += steps - 2 * MEMORY * self._steps

    def _affordable(self, most: int, layer: float, reading: float) -> int:
        """How many nodes may be scored, of ``most``, so that the credit pays for all in vain.

        Args:
            layer: seconds of a drafter's pass; a node costs one at most.
            reading: seconds to read before that.
        """
        seconds, alone = self._target.seconds, self._plain_seconds()
        rest = self._draft_rest.value - self._plain_rest.value
        left = self._account.credit * alone - reading - max(0.0, rest)
        one = seconds(1)
        least = 0  # that can be afforded; it costs the more, the more nodes there are
        while least < most:
            middle = (least + most + 1) // 2
            if min(middle, MAX_PASSES) * layer + seconds(middle + 1) - one > left:
                most = middle - 1
            else:
                least = middle
        return least

    def _plain_seconds(self) -> float:
        return self._target.seconds(1) + self._plain_rest.value
