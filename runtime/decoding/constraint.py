"""What holds an answer to a form, say JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from omnidraft._native import Pass


class Constraint(Protocol):
    """Says which tokens may come next in one answer.

    The target's distribution is masked before anything is verified. So the answer is that of plain
    decoding under the same masks, whatever is drafted.
    """

    def masked(
        self, logits: NDArray[np.float32], tokens: Sequence[int], parents: Sequence[int]
    ) -> NDArray[np.float32]:
        """Logits in which no token is likely that may not come.

        Args:
            logits: float32 [1 + len(tokens), vocabulary]: behind the answer so far, and behind
                each proposed token.
            tokens: what is proposed.
            parents: of each of them the row of what it follows.

        Returns:
            float32, of the same shape, a copy. Rows behind what may not come are of no matter.
        """

    def advance(self, tokens: Sequence[int]) -> None:
        """The answer goes on with these tokens."""

    @property
    def drafts(self) -> DraftMask | None:
        """Holds what is drafted to the same form, so that less is refused; None: nothing does."""


class DraftMask(Protocol):
    """Says which draft tokens may come next, round by round."""

    def begin(self) -> None:
        """A round begins behind the answer so far."""

    def masked(
        self, logits: NDArray[np.float32], tokens: Sequence[int], parents: Sequence[int]
    ) -> NDArray[np.float32]:
        """A drafter's logits in which no token is likely that may not come.

        Args:
            logits: float32 [rows, draft vocabulary], a row behind each token; without tokens one
                row, behind the answer so far.
            tokens: what was drafted, in the order in which the drafter reads it.
            parents: of each token what it follows: 0 is the answer so far, i the i-th token of
                this round.

        Returns:
            float32, of the same shape, a copy.
        """


class MaskedPasses:
    """Masks the passes of a drafter, whose KV cache has slots of its own.

    Args:
        mask: of the answer.
    """

    def __init__(self, mask: DraftMask) -> None:
        self._mask = mask
        self._numbers: dict[int, int] = {}
        """Of what was read in this round, by its slot: see ``DraftMask.masked``."""

    def begin(self) -> None:
        """A round begins."""
        self._numbers = {}
        self._mask.begin()

    def masked(self, logits: NDArray[np.float32], read: Pass) -> NDArray[np.float32]:
        """The logits of a pass, masked."""
        numbers, tokens, held = self._numbers, read.tokens, read.held
        if not numbers:  # the first pass of a round reads the text
            numbers[held + len(tokens) - 1] = 0
            return self._mask.masked(logits, [], [])
        slots = range(held, held + len(tokens))
        follows = read.parents or [slot - 1 for slot in slots]
        parents = [numbers[slot] for slot in follows]
        numbers.update(zip(slots, range(len(numbers), len(numbers) + len(slots)), strict=True))
        return self._mask.masked(logits, tokens, parents)
