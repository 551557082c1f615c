"""Whether a candidate is trusted, goes on, or is given up: a state machine of counted tokens.

    progress = Progress()
    progress.trial.add(gain, tokens)       # after every answer: what both sets of weights predict
    match progress.decide(used):           # before every update
        case Decision.PROMOTE: ...

It knows no weights and no models; it is told draft tokens, and says what to do with the weights.

One update changes acceptance by less than prompts differ by chance, so acceptance observed before
and after an update would decide by luck. Here both sets of weights are compared on the same tokens,
which removes the prompts' own differences. Adding up over many answers removes most of what is
left. In simulations one in seven candidates that are no better is still trusted; of candidates that
are worse by a tenth of a prompt's standard deviation, one in twenty. ``WORTH`` lowers both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import numpy as np

from omnidraft.runtime.learning.objective import LossName

# A difference counts when it is TRUST or DISTRUST times its standard error, over at least FEWEST
# prompts. The first steps of an optimizer may go astray, and two bad prompts in a row are common.
TRUST: Final = 2.0
DISTRUST: Final = 2.0
FEWEST: Final = 8
# A LoRA must gain this part of the draft tokens over none. It makes a draft step a fifth slower,
# and a round up to a twentieth. A hundredth of the tokens brings about three times as much.
WORTH: Final = 0.01
# A prompt's gain counts by this factor less after each further prompt: a candidate is not what it
# was 20 prompts ago.
FORGETTING: Final = 0.95
PATIENCE: Final = 64
"""Prompts after which a candidate that is still not better is given up."""
MAX_FAILURES: Final = 3
"""Candidates given up in a row after which learning stops."""
DRIFT_WINDOW: Final = 16
DRIFT: Final = 0.9
"""Learning resumes when acceptance falls below this part of what it was when learning stopped."""


class Decision(Enum):
    """What to do with the weights."""

    STEP = auto()
    """Go on learning: make a step of the optimizer."""
    PROMOTE = auto()
    """The candidate becomes the trusted weights; then make a step."""
    ROLL_BACK = auto()
    """The candidate goes back to the trusted weights."""
    WITHDRAW = auto()
    """The trusted weights are given up for none, and so is the candidate."""


@dataclass
class Trial:
    """Two sets of weights compared on the same answers.

    Attributes:
        prompts: how many answers.
        gain: draft tokens that only the first set predicts minus those that only the second does.
            Recent ones count more (``FORGETTING``), here and below.
        squares: the sum of the squares of each prompt's gain. It is the variance of ``gain`` if
            there is no difference.
        tokens: draft tokens of the answers.
    """

    prompts: int = 0
    gain: float = 0
    squares: float = 0
    tokens: float = 0

    def __post_init__(self) -> None:
        _demand_counts(prompts=self.prompts, squares=self.squares, tokens=self.tokens)

    def add(self, gain: int, tokens: int) -> None:
        """One more answer."""
        self.prompts += 1
        self.gain = FORGETTING * self.gain + gain
        self.squares = FORGETTING**2 * self.squares + gain * gain
        self.tokens = FORGETTING * self.tokens + tokens

    def better(self, worth: float) -> bool:
        """Whether the first set leads beyond chance, and by ``worth`` of the tokens at least."""
        least = max(TRUST * math.sqrt(self.squares), worth * self.tokens)
        return self.prompts >= FEWEST and self.gain > least

    def short_of(self, worth: float) -> bool:
        """Whether its lead is less than ``worth`` of the tokens, beyond chance."""
        most = worth * self.tokens - TRUST * math.sqrt(self.squares)
        return self.prompts >= FEWEST and self.gain < most

    @property
    def worse(self) -> bool:
        """Whether it is worse beyond chance, or has long been no better."""
        if self.prompts >= PATIENCE:
            return True
        return self.prompts >= FEWEST and self.gain < -DISTRUST * math.sqrt(self.squares)


@dataclass
class Progress:
    """What a trainer has done; a JSON object, kept with the adapter.

    Attributes:
        prompts: learned from.
        updates: steps of AdamW.
        promotions, rollbacks: candidates that became the trusted weights, and that were given up.
        withdrawals: trusted weights that were given up.
        failures: roll-backs since the last promotion.
        pending: prompts, and ``rows`` the weight of rows, whose gradients wait for an update.
        skipped: prompts that were not learned from, as too many waited.
        loss: what is minimised.
        steps: of the candidate.
        trial: the candidate against the trusted weights.
        defence: the trusted weights against the drafter without any.
        stopped: learning has stopped helping; ``level`` is the acceptance rate at that time.
        recent: acceptance rates of the last prompts.
        seconds: spent computing.
    """

    prompts: int = 0
    updates: int = 0
    promotions: int = 0
    rollbacks: int = 0
    withdrawals: int = 0
    failures: int = 0
    pending: int = 0
    rows: float = 0.0
    skipped: int = 0
    loss: LossName | None = None
    steps: int = 0
    trial: Trial = field(default_factory=Trial)
    defence: Trial = field(default_factory=Trial)
    stopped: bool = False
    level: float = 0.0
    recent: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        kept = vars(self).items()
        _demand_counts(**{name: value for name, value in kept if isinstance(value, int | float)})

    def decide(self, used: bool) -> Decision:
        """What becomes of the candidate before its next step.

        Args:
            used: whether the trusted weights are more than none.
        """
        if used and self.defence.short_of(WORTH):
            self.withdrawals += 1
            self.roll_back(used=False)
            return Decision.WITHDRAW
        if self.trial.better(0 if used else WORTH):
            self.trial = Trial()
            self.promotions += 1
            self.failures = 0
            return Decision.PROMOTE
        if self.trial.worse:
            self.roll_back(used)
            return Decision.ROLL_BACK
        return Decision.STEP

    def stepped(self, steps: int) -> None:
        """The optimizer has made the candidate's step of this number."""
        self.steps = steps
        self.updates += 1
        self.pending = 0
        self.rows = 0.0

    def start_over(self, used: bool) -> None:
        """A candidate without a past begins at the trusted weights."""
        self.steps = 0
        self.trial = Trial()
        if not used:
            self.defence = Trial()
        self.pending = 0
        self.rows = 0.0

    def roll_back(self, used: bool) -> None:
        """The candidate was given up; after ``MAX_FAILURES`` in a row learning stops."""
        self.rollbacks += 1
        self.failures += 1
        self.start_over(used)
        if self.failures >= MAX_FAILURES:
            self.stopped = True
            self.level = float(np.mean(self.recent)) if self.recent else 0.0
            self.recent = []

    def resume(self) -> None:
        """Learn again where learning had stopped."""
        self.stopped = False
        self.failures = 0

    def watch(self, accepted: int, proposed: int) -> None:
        """Follow the acceptance of an answer; resume where it has fallen since learning stopped."""
        if not proposed:
            return
        self.recent = [*self.recent, accepted / proposed][-DRIFT_WINDOW:]
        if self.stopped and len(self.recent) == DRIFT_WINDOW:
            mean = float(np.mean(self.recent))
            error = float(np.std(self.recent)) / math.sqrt(DRIFT_WINDOW)
            if mean < DRIFT * self.level and mean < self.level - 2 * error:
                self.resume()


def _demand_counts(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:  # not a number, too
            raise ValueError(f"{name} must be at least 0, not {value}")
