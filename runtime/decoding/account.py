"""What drafting may lose against plain decoding: a credit and a balance, in plain steps.

A plain step is the time that one token takes in plain decoding. A round that makes three tokens in
the time of two plain steps has gained one.
"""

from __future__ import annotations

ALLOWANCE = 0.015
"""Share of the time that may be lost on finding out whether drafting pays."""
CREDIT = 10.0
"""Further plain steps that may be lost before rounds have gained any."""
START, CAP = 2.0, 10.0
"""The balance at first and at most, in plain steps."""
LEAST_PROBE = 1.0
"""A try needs a balance of so many plain steps beyond its price."""
RESERVE = 1.0
"""Plain steps of the balance that reading a prompt into the drafter may not use up."""
FREE_TRIALS = 8
"""Of the first drafted rounds, so many read for free: before them nothing is known."""
DEAREST_TRIAL = 5.0
"""A free round may cost at most so many plain steps. Reading half of the default drafter's context
takes two to three."""


class Account:
    """Decides whether rounds may draft, by what earlier ones gained and lost.

    The *credit* bounds the loss. It begins at ``CREDIT``, every round adds a small allowance, and
    every round that drafted or looked up adds what it gained, or takes what it lost. Rounds that
    could lose more than the credit are not made.

    The *balance* decides whether to draft at all. The same gains and losses go in, but it never
    grows beyond ``CAP``, so that it falls to 0 soon after drafting stops paying. Rounds draft while
    there is a balance. Then they are plain until the allowance has saved up enough for another try.
    Each try in vain makes the allowance smaller.

    Attributes:
        credit: plain steps that may still be lost.
        drafting: whether there was a balance after the last round.
    """

    def __init__(self) -> None:
        self.credit = CREDIT
        self.drafting = False
        self._balance = START
        self._failures = 0
        self._drafted = 0
        self._probing = False  # the round under way is a try

    def open_round(self) -> None:
        """A round begins, and nothing is known of it yet."""
        self._probing = False

    def try_drafting(self, price: float, reading: float) -> bool:
        """Whether the round may draft, although it is not known that this pays.

        Args:
            price: what the round costs if nothing is accepted.
            reading: the part of it that the drafter needs to read the text.
        """
        free = self._drafted < FREE_TRIALS and price <= DEAREST_TRIAL
        refund = reading if free else 0.0
        if self._balance + refund < LEAST_PROBE + price:
            return False
        self._balance += refund
        self._probing = not self.drafting
        self.drafting = True
        return True

    def allow(self) -> None:
        """A round has ended: add the allowance."""
        allowance = ALLOWANCE / 2 ** min(self._failures, 2)
        self.credit += allowance
        self._earn(allowance)

    def looked_up(self, gain: float) -> None:
        """A round has proposed what lookup found."""
        self.credit += gain

    def drafted(self, gain: float, without_reading: float, reading: float) -> None:
        """A round has drafted.

        A try pays for its reading in full. Elsewhere reading is an investment: the balance pays for
        it, but keeps a reserve.

        Args:
            gain: of the whole round.
            without_reading: what it would have gained if nothing had been left to read.
            reading: what that cost.
        """
        self._drafted += 1
        self.credit += gain
        if not self._probing:
            reading = max(0.0, min(reading, self._balance - RESERVE))
        self._earn(without_reading - reading)
        if self._balance <= 0:
            self.drafting = False
            self._failures += 1

    def _earn(self, steps: float) -> None:
        self._balance = min(CAP, self._balance + steps)
        if self._balance == CAP:
            self._failures = 0
