"""How many tokens to draft: a fixed number, or as many as pay for themselves.

A policy is asked before a round and after each draft step, and told what came of the round. Its
answers may depend on the path drawn so far, on past rounds and on time, never on what the next step
would draw: the walk is then a stopping time, and verification stays exact (method: walk the trie).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from omnidraft.runtime.decoding.costs import Costs, Curve


@dataclass(frozen=True)
class Outcome:
    """What a round did, for the policy that decided its length.

    Attributes:
        context: target tokens in the KV cache before the pass.
        rows: of the target's pass.
        steps: passes of the drafter, those that drew nothing included.
        drafted: draft tokens drawn, less those behind the end of the answer.
        accepted_drafts: of those, the ones that spell accepted target tokens.
        proposed: target tokens scored, less those behind the end of the answer.
        accepted: of those, the ones that stand.
        draft_seconds: of all draft steps, catching up included.
        target_seconds: of the pass.
        other_seconds: of the rest of the round.
        match: what ``look_up`` was told; 0 without a lookup.
        found_judged: of what the lookup found, proposed or not, how many tokens it is known of
            whether they are the target's: the first that is not, and those before it.
        found_right: of those, the ones that are.
    """

    context: int
    rows: int
    steps: int
    drafted: int
    accepted_drafts: int
    proposed: int
    accepted: int
    draft_seconds: float
    target_seconds: float
    other_seconds: float
    match: int = 0
    found_judged: int = 0
    found_right: int = 0

    @property
    def judged(self) -> int:
        """How many draft tokens it is known of whether they stand: up to the first that does not.

        What follows a token that was rejected was not judged, nor were draft tokens at the end that
        made no target token.
        """
        return self.accepted_drafts + (self.accepted < self.proposed)


class DraftLengthPolicy(Protocol):
    """Decides how far a round drafts. One instance serves one session, generation by generation."""

    def look_up(self, found: int, match: int, context: int, unread: int) -> int:
        """How many of the tokens that lookup found to propose; 0 leaves the round to the drafter.

        Asked before ``begin`` where something was found. Nothing is drafted in a round that
        proposes them, and ``begin`` is not called.

        Args:
            found: tokens, as many as the round has room for at most.
            match: how many tokens at the end of the text led there.
            context, unread: see ``begin``.
        """

    def begin(self, room: int, context: int, unread: int) -> int:
        """The most draft tokens this round may draw, at most ``room``; 0 is plain decoding.

        Args:
            room: target tokens that are still wanted, less one.
            context: target tokens in the KV cache.
            unread: draft tokens that the drafter would have to read in its first step.
        """

    def go_on(self, score: float) -> bool:
        """Whether to draw another draft token.

        Args:
            score: how likely the token drawn last is to be accepted, in [0, 1]: the drafter's
                largest probability, or what the acceptance head says.
        """

    def observe(self, outcome: Outcome) -> None:
        """What came of the round that ``look_up`` or ``begin`` opened."""


class Fixed:
    """The same length every round, ended early by low confidence.

    With the acceptance head's scores this is the threshold rule of adaptive drafting (method,
    section 4): draft until 1 − Π score > γ, where ``confidence`` = 1 − γ.

    Args:
        length: draft tokens per round.
        confidence: a draft ends when the product of its scores falls below this; 0: never.
    """

    def __init__(self, length: int, confidence: float = 0.0) -> None:
        self._length = length
        self._confidence = confidence
        self._product = 1.0

    def look_up(self, found: int, match: int, context: int, unread: int) -> int:
        """Never: see ``DraftLengthPolicy.look_up``."""
        return 0

    def begin(self, room: int, context: int, unread: int) -> int:
        """See ``DraftLengthPolicy.begin``."""
        self._product = 1.0
        return min(self._length, room)

    def go_on(self, score: float) -> bool:
        """See ``DraftLengthPolicy.go_on``."""
        self._product *= score
        return self._product >= self._confidence

    def observe(self, outcome: Outcome) -> None:
        """Nothing is learnt."""


class Calibration:
    """Probability of acceptance as a logistic function, followed online.

    Of a score's logit, which the callers keep: it is asked for and taught once each.

    Bayesian logistic regression by one Newton step for each observation. Every round a little is
    forgotten, so that it follows drift.

    Args:
        offset, slope: of the prior. Offset 0 and slope 1 take scores as they are.
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
        return _logistic(self._offset + self._slope * x if self._slope > 0 else self._offset)

    def update(self, x: float, accepted: bool) -> None:
        """Take in one token's fate."""
        p = _logistic(self._offset + self._slope * x)
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
        """Hold what was learnt for less certain, by ``share``.

        Args:
            return_to_prior: also move back to the prior by as much. For what is only observed when
                it is believed to be good, and would otherwise never be tried again.
        """
        a, b, c = self._precision
        a += share * (self._base[0] - a)
        b += share * (self._base[1] - b)
        c += share * (self._base[2] - c)
        self._precision = (a, b, c)
        if return_to_prior:
            # The mean of the prior and what was learnt, each weighted by its precision.
            u = share * self._base[0] * (self._prior[0] - self._offset)
            v = share * self._base[2] * (self._prior[1] - self._slope)
            determinant = a * c - b * b
            self._offset += (c * u - b * v) / determinant
            self._slope += (a * v - b * u) / determinant


MAX_DRAFT = 16
LOOKAHEAD = 4
MEMORY = 0.01
"""Share of what was learnt that is forgotten each round."""
ALLOWANCE = 0.015
"""Share of the time that may be lost on finding out whether drafting pays."""
CREDIT = 10.0
"""What may be lost besides, in plain decoding steps, until rounds have gained something."""
START, CAP = 2.0, 10.0
"""The balance at first and at most, in plain decoding steps."""
LEAST_PROBE = 1.0
LEAST_GAIN = 0.05
"""Tokens that lookup must promise: less is within the error of what is known about it."""
RESERVE = 1.0
REFRESH = 16
"""Rounds after which it is worked out anew what a draft token must promise."""
HOPE = 1 / 3
"""Share of plain decoding's time that drafting may turn out to gain."""
TRIAL = 8
"""Drafted rounds after which something is known: reading is paid from the balance from then on."""
DEAREST_TRIAL = 5.0
"""What a round may cost before that, in plain decoding steps: reading half of the default drafter's
context takes two to three."""


class CostAware:
    """Drafts on while that is expected to raise tokens per second.

    **Length.** With A the probability that everything drawn so far is accepted, one more draft
    token is worth drawing when A a > ρ (d + t(n + 1) − t(n)): the tokens it adds against those that
    the time would bring at the present rate ρ (the optimal stopping rule of a renewal process). a,
    the acceptance of the token to come, is predicted from the score of the one before it; A is the
    product of calibrated scores. Merges make n grow by less than one target token a draft token.

    **What may be lost.** A credit in units of plain steps: it begins at ``CREDIT``, every round
    adds a small allowance, and every round that drafted or looked up, though nothing came of it,
    adds or takes the difference between the time its tokens would have taken plainly and the time
    it took. No round drafts, looks up or reads further than the credit would pay if every token
    were refused. So whatever the target accepts, no more than the credit at first and the allowance
    can be lost against plain decoding.

    **Whether to draft at all.** A balance that is paid from and into likewise, but never grows
    large, so that it tells soon when drafting has stopped to pay. While there is a balance rounds
    draft. When it is used up they are plain until the allowance pays for another try; each try in
    vain makes the allowance smaller. Both are reckoned by the cost curves, which follow the
    machine, so that a machine that slows down is not held against drafting.

    **From where.** What lookup finds in the text costs no draft steps, and what it would have found
    is known after every round, used or not: so its acceptance, a function of how long the match is,
    is learnt without trying. It is taken while drafting does not pay. While it does, the drafter is
    left to it: text that repeats itself is easy for it too, and instead of its rounds lookup lost.

    Reading a prompt into the drafter is an investment, and not part of the rate. Where drafting has
    paid it is charged to the balance no further than a reserve, if the answer may be long enough to
    earn it.

    Args:
        costs: of the target and the drafter.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._accept = Calibration(0.0, 1.0)
        self._follow = Calibration(0.6, 0.28)  # of the default drafter, default target, greedy
        self._chained = _Mean(0.8)
        self._found = Calibration(-1.5, 0.8)  # by the match's length
        self._merging = _Mean(0.95)
        self._plain_rest = _Level()
        self._draft_rest = _Level()
        # Of drafted rounds, with forgetting: tokens, and the plain steps that would have taken as
        # long. Some rounds that gain nothing stand for what is not known yet.
        self._tokens = self._steps = 5.0
        self._credit = CREDIT
        self._balance = START
        self._failures = 0
        self._drafting = False
        self._drafted = 0  # rounds
        self._unread = 0
        self._logits: list[float] = []  # of the scores
        # What a draft token must promise, by tokens drawn before it; worked out for a target curve.
        self._needed: list[float] = []
        self._needed_for: Curve | None = None
        self._needed_age = 0
        # Of the round under way.
        self._limit = 0
        self._all = 1.0
        self._rate = 0.0
        self._invested = 0.0  # seconds of reading
        self._probing = False
        self._target = costs.target(0)

    def look_up(self, found: int, match: int, context: int, unread: int) -> int:
        """See ``DraftLengthPolicy.look_up``."""
        self._open(context, unread)
        if self._drafting:
            return 0
        best, count = LEAST_GAIN, 0
        gain, likely = 0.0, 1.0
        for i in range(min(found, MAX_DRAFT)):
            likely *= self._found(math.log(match + i))
            gain += likely - self._rate * (
                self._target.seconds(i + 2) - self._target.seconds(i + 1)
            )
            if gain > best:
                best, count = gain, i + 1
        # Nothing is drafted here.
        return self._affordable(count, 0.0, 0.0)

    def begin(self, room: int, context: int, unread: int) -> int:
        """See ``DraftLengthPolicy.begin``."""
        self._open(context, unread)
        target, plain = self._target, self._plain_seconds()
        if room < 1:
            return 0
        drafter = self._costs.drafter
        step = drafter.seconds(1)
        reading = drafter.seconds(unread) - step
        # Catching up with a round's own tokens is what every round does.
        self._invested = max(0.0, reading - (drafter.seconds(MAX_DRAFT) - step))
        gained = (room / 2) * (plain - 1 / self._rate)
        limit = self._affordable(min(room, MAX_DRAFT), step, reading)
        if not limit:
            return 0
        if not self._drafting or self._invested > gained:
            # Not known to pay: a try, or a rate of a few rounds that plain ones would not change.
            if self._drafting and self._invested > (room / 2) * plain * HOPE:
                return 0
            price = (step + reading + target.seconds(2) - target.seconds(1)) / plain
            free = self._drafted < TRIAL and price <= DEAREST_TRIAL
            refund = reading / plain if free else 0.0
            if self._balance + refund < LEAST_PROBE + price:
                return 0
            self._balance += refund
            self._probing = not self._drafting
            self._drafting = True
        self._limit = limit
        return limit

    def _affordable(self, most: int, step: float, reading: float) -> int:
        """How many tokens may be proposed, of ``most``, so that the credit pays for all in vain.

        Args:
            step: seconds to draft each.
            reading: seconds to read before that.
        """
        seconds, alone = self._target.seconds, self._plain_seconds()
        rest = self._draft_rest.value - self._plain_rest.value
        left = self._credit * alone - reading - max(0.0, rest)
        one = seconds(1)
        while most and most * step + seconds(most + 1) - one > left:
            most -= 1
        return most

    def go_on(self, score: float) -> bool:
        """See ``DraftLengthPolicy.go_on``."""
        x = _logit(score)
        self._logits.append(x)
        self._all *= self._accept(x)
        drawn = len(self._logits)
        if drawn >= self._limit:
            return False
        return self._all * self._follow(x) > self._rate * self._needed[drawn]

    def _need(self) -> list[float]:
        """Seconds that one more draft token costs for each token that it may be expected to add.

        By tokens drawn before, 0 … MAX_DRAFT − 1. Further ones may have to follow it until it pays:
        those of which the first few likeliest cost least.
        """
        seconds, merging = self._target.seconds, self._merging.value
        step, chained = self._costs.drafter.seconds(1), self._chained.value
        needed = []
        for drawn in range(MAX_DRAFT):
            rows = 1 + merging * drawn
            now = seconds(rows)
            least, tokens, likely = math.inf, 0.0, merging
            for ahead in range(1, LOOKAHEAD + 1):
                tokens += likely
                price = ahead * step + seconds(rows + merging * ahead) - now
                least = min(least, price / tokens)
                likely *= chained
            needed.append(least)
        return needed

    def observe(self, outcome: Outcome) -> None:
        """See ``DraftLengthPolicy.observe``."""
        self._target.observe(outcome.rows, outcome.target_seconds)
        plain = self._plain_seconds()
        allowance = ALLOWANCE / 2 ** min(self._failures, 2)
        self._credit += allowance
        self._earn(allowance)
        self._found.forget(MEMORY)
        for i in range(outcome.found_judged):
            self._found.update(math.log(outcome.match + i), i < outcome.found_right)
        tokens = outcome.accepted + 1
        passing = (self._target.seconds(outcome.rows) + self._draft_rest.value) / plain
        if not outcome.steps:
            if outcome.proposed:
                self._credit += tokens - passing
                self._follow_rate(tokens, passing)
            else:
                self._plain_rest.observe(outcome.other_seconds)
            return
        self._drafted += 1
        self._draft_rest.observe(outcome.other_seconds)
        drafter = self._costs.drafter
        steps = outcome.steps - 1
        expected = drafter.seconds(self._unread) + steps * drafter.seconds(1)
        drafter.observe(1, drafter.seconds(1) * outcome.draft_seconds / expected)
        self._learn(outcome)

        drafting = (drafter.seconds(self._unread) + steps * drafter.seconds(1)) / plain
        self._credit += tokens - drafting - passing
        invested = self._invested / plain
        took = drafting + passing - invested
        self._follow_rate(tokens, took)
        if not self._probing:
            invested = max(0.0, min(invested, self._balance - RESERVE))
        self._earn(tokens - took - invested)
        if self._balance <= 0:
            self._drafting = False
            self._failures += 1

    def _open(self, context: int, unread: int) -> None:
        self._target = self._costs.target(context)
        self._unread = unread
        self._needed_age += 1
        if self._needed_age > REFRESH or self._needed_for is not self._target:
            self._needed, self._needed_for, self._needed_age = self._need(), self._target, 0
        self._logits.clear()
        self._all = 1.0
        self._limit = 0
        self._invested = 0.0
        self._probing = False
        self._rate = max(1.0, self._tokens / self._steps) / self._plain_seconds()

    def _follow_rate(self, tokens: int, steps: float) -> None:
        self._tokens += tokens - 2 * MEMORY * self._tokens
        self._steps += steps - 2 * MEMORY * self._steps

    def _learn(self, outcome: Outcome) -> None:
        self._accept.forget(MEMORY)
        self._follow.forget(MEMORY, return_to_prior=True)
        for i in range(min(outcome.judged, outcome.drafted)):
            accepted = i < outcome.accepted_drafts
            self._accept.update(self._logits[i], accepted)
            if i:
                self._follow.update(self._logits[i - 1], accepted)
                self._chained.observe(float(accepted))
        if outcome.proposed:
            self._merging.observe(outcome.proposed / outcome.drafted)

    def _earn(self, steps: float) -> None:
        self._balance = min(CAP, self._balance + steps)
        if self._balance == CAP:
            self._failures = 0

    def _plain_seconds(self) -> float:
        return self._target.seconds(1) + self._plain_rest.value


class _Mean:
    """A mean that forgets."""

    def __init__(self, value: float) -> None:
        self.value = value

    def observe(self, value: float) -> None:
        self.value += MEMORY * (value - self.value)


class _Level:
    """A running level of seconds that single long values do not move; 0 before the first."""

    def __init__(self) -> None:
        self.value = 0.0

    def observe(self, seconds: float) -> None:
        if not self.value:
            self.value = seconds
        self.value += 0.05 * (min(seconds, 1.5 * self.value) - self.value)


def _logit(p: float) -> float:
    if p > 0.999:
        p = 0.999
    elif p < 0.001:
        p = 0.001
    return math.log(p / (1 - p))


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -30 else 0.0
