"""What the drafter showed in the steps of one round, as far as something learns from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.engines.model import HiddenStates


class DraftTrace:
    """The ``StepObserver`` of learning.

    Args:
        keep_logits: keep the drafter's logits.
        states: the drafter, where its hidden states are to be kept.

    Attributes:
        logits: float32 [draft vocabulary] of each step, the last in vain included; or none.
        confidences: of each step, likewise.
        hidden: float32 [hidden size] of each step, likewise; or none.
    """

    def __init__(self, *, keep_logits: bool = True, states: HiddenStates | None = None) -> None:
        self.logits: list[NDArray[np.float32]] = []
        self.confidences: list[float] = []
        self.hidden: list[NDArray[np.float32]] = []
        self._keep_logits = keep_logits
        self._states = states

    def begin_round(self) -> None:
        """See ``StepObserver.begin_round``."""
        self.logits.clear()
        self.confidences.clear()
        self.hidden.clear()

    def step(self, logits: NDArray[np.float32], confidence: float) -> None:
        """See ``StepObserver.step``."""
        self.confidences.append(confidence)
        if self._keep_logits:
            self.logits.append(logits.copy())
        if self._states is not None:
            self.hidden.append(self._states.last_hidden().copy())
