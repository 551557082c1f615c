"""Draft as many tokens as pay for themselves on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnidraft.runtime.decoding.account import Account
from omnidraft.runtime.decoding.calibration import Acceptance
from omnidraft.runtime.decoding.level import Level
from omnidraft.runtime.decoding.policy import Outcome
from omnidraft.runtime.decoding.stopping_rule import MAX_DRAFT, StoppingRule

if TYPE_CHECKING:
    from omnidraft.runtime.decoding.costs import Costs

LEAST_GAIN = 0.05
"""Lookup must promise to gain so many tokens. Less is within the error of the estimate."""
HOPE = 1 / 3
"""Drafting may turn out to save this share of plain decoding's time."""


class CostAware:
    """Drafts on while that is expected to raise tokens per second.

    **How far to draft** is decided by a ``StoppingRule``.

    **Whether to draft** is decided by an ``Account``. No round drafts, looks up or reads further
    than its credit would pay if every token were refused. So whatever the target accepts, at most
    the credit at first and the allowance are lost against plain decoding. Gains and losses are
    reckoned by the cost curves, which follow the machine: a machine that slows down is not held
    against drafting.

    **Lookup.** Tokens that are found in the text cost no draft steps. Every round shows which of
    them were right, used or not, so their acceptance is learned without trying; it is predicted
    from the length of the match. Lookup is used only while drafting does not pay. While drafting
    pays, the drafter drafts every round: text that repeats itself is easy for the drafter as well,
    and lookup in place of its rounds made answers slower.

    **Reading a prompt** into the drafter is an investment, and not part of the rate. Where drafting
    has paid, and the answer may be long enough to earn it back, the balance pays for it down to a
    reserve.

    Args:
        costs: of the target and the drafter.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._account = Account()
        self._acceptance = Acceptance()
        self._rule = StoppingRule(self._acceptance)
        # Seconds of a round beside the passes of the models.
        self._plain_rest = Level()
        self._draft_rest = Level()
        # Of the round under way.
        self._target = costs.target(0)
        self._unread = 0
        self._invested = 0.0  # seconds of reading

    def look_up(self, found: int, match: int, context: int, unread: int) -> int:
        """See ``DraftLengthPolicy.look_up``."""
        self._open(context, unread)
        if self._account.drafting:
            return 0
        seconds = self._target.seconds
        best, count = LEAST_GAIN, 0
        gain, likely = 0.0, 1.0
        for i in range(min(found, MAX_DRAFT)):
            likely *= self._acceptance.found(match + i)
            gain += likely - self._rule.rate * (seconds(i + 2) - seconds(i + 1))
            if gain > best:
                best, count = gain, i + 1
        # Nothing is drafted or read here.
        return self._affordable(count, 0.0, 0.0)

    def begin(self, room: int, context: int, unread: int) -> int:
        """See ``DraftLengthPolicy.begin``."""
        self._open(context, unread)
        if room < 1:
            return 0
        account, target, plain = self._account, self._target, self._plain_seconds()
        drafter = self._costs.drafter
        step = drafter.seconds(1)
        reading = drafter.seconds(unread) - step
        # Every round reads what the round before has said. Only what goes beyond that is invested.
        self._invested = max(0.0, reading - (drafter.seconds(MAX_DRAFT) - step))
        limit = self._affordable(min(room, MAX_DRAFT), step, reading)
        if not limit:
            return 0
        # What the rest of the answer would gain at the present rate, if half of the room is used.
        gained = (room / 2) * (plain - 1 / self._rule.rate)
        if not account.drafting or self._invested > gained:
            # Drafting is not known to pay. Or it does not pay here by a rate that a few rounds have
            # set, and that plain rounds would never correct.
            if account.drafting and self._invested > (room / 2) * plain * HOPE:
                return 0
            price = (step + reading + target.seconds(2) - target.seconds(1)) / plain
            if not account.try_drafting(price, reading / plain):
                return 0
        self._rule.limit = limit
        return limit

    def go_on(self, score: float) -> bool:
        """See ``DraftLengthPolicy.go_on``."""
        return self._rule.go_on(score)

    def observe(self, outcome: Outcome) -> None:
        """See ``DraftLengthPolicy.observe``."""
        self._target.observe(outcome.rows, outcome.target_seconds)
        plain = self._plain_seconds()
        self._account.allow()
        self._acceptance.observe_found(outcome)
        tokens = outcome.accepted + 1
        passing = (self._target.seconds(outcome.rows) + self._draft_rest.value) / plain
        if outcome.steps:
            self._observe_drafted(outcome, tokens, passing, plain)
        elif outcome.proposed:
            self._account.looked_up(tokens - passing)
            self._rule.observe(tokens, passing)
        else:
            self._plain_rest.observe(outcome.other_seconds)

    def _observe_drafted(self, outcome: Outcome, tokens: int, passing: float, plain: float) -> None:
        self._draft_rest.observe(outcome.other_seconds)
        drafter = self._costs.drafter
        steps = outcome.steps - 1
        expected = drafter.seconds(self._unread) + steps * drafter.seconds(1)
        drafter.observe(1, drafter.seconds(1) * outcome.draft_seconds / expected)
        self._acceptance.observe_drafted(outcome, self._rule.logits)

        drafting = (drafter.seconds(self._unread) + steps * drafter.seconds(1)) / plain
        invested = self._invested / plain
        took = drafting + passing - invested
        self._rule.observe(tokens, took)
        self._account.drafted(tokens - drafting - passing, tokens - took, invested)

    def _open(self, context: int, unread: int) -> None:
        self._target = self._costs.target(context)
        self._unread = unread
        self._invested = 0.0
        self._account.open_round()
        self._rule.open_round(self._target, self._costs.drafter.seconds(1), self._plain_seconds())

    def _affordable(self, most: int, step: float, reading: float) -> int:
        """The most tokens, up to ``most``, that the credit can pay for if all are refused.

        Args:
            step: seconds to draft each.
            reading: seconds to read before that.
        """
        seconds, alone = self._target.seconds, self._plain_seconds()
        rest = self._draft_rest.value - self._plain_rest.value
        left = self._account.credit * alone - reading - max(0.0, rest)
        one = seconds(1)
        while most and most * step + seconds(most + 1) - one > left:
            most -= 1
        return most

    def _plain_seconds(self) -> float:
        return self._target.seconds(1) + self._plain_rest.value
